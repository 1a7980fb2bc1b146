"""``ebb notebook``: start Jupyter on a node, with GPUs of its own."""

import os
import secrets
from typing import Any

import click
from ebbtide_core.model.choices import JobKind

from ebbtide_cli.channels.serving import reach
from ebbtide_cli.commands.verb import examples, master_option
from ebbtide_cli.submitting.command import SubmitCommand
from ebbtide_cli.submitting.interactive import idle_option, interactive_spec, queue
from ebbtide_cli.submitting.job import job_options


@click.command(
    cls=SubmitCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
    epilog=examples("ebb notebook", "ebb notebook --gpus 2 --idle 2h", "ebb notebook --classic --stop"),
)
@click.argument("argv", metavar="[-- ARGS...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--lab/--classic", default=True, help="JupyterLab (default), or Jupyter Notebook.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on this machine (default: any free one).")
@click.option("--stop", is_flag=True, help="Cancel the job at Ctrl-C.")
@idle_option
@job_options
@master_option
def command(argv: tuple[str, ...], lab: bool, port: int, stop: bool, master: str | None, **given: Any) -> None:
    """Start Jupyter on a node with GPUs of its own (default: 1), and open a tunnel to it; print the URL.

    It runs the `jupyter` on the job's PATH, in this directory, with ARGS. It is not preempted. Ctrl-C closes the
    tunnel; the notebook runs until it is cancelled, or unused for --idle.
    """
    token = secrets.token_urlsafe(32)
    given["variables"] = (*given["variables"], f"JUPYTER_TOKEN={token}")
    what, page = ("lab", "lab") if lab else ("notebook", "tree")
    settings = ["--no-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    settings += ["--allow-root"] if os.getuid() == 0 else []  # Jupyter refuses root otherwise
    spec = interactive_spec(given, JobKind.NOTEBOOK, ("jupyter", what, *settings, *argv), "notebook")
    job_id = queue(master, spec)
    reach(master, job_id, spec.kind.value, port, f"http://127.0.0.1:{{port}}/{page}?token={token}", stop=stop)
