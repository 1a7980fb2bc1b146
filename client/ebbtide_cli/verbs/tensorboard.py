"""``ebb tensorboard``: show what jobs have written in TensorBoard."""

import os
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import click
from ebbtide_core.model.choices import JobKind
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.channels.serving import reach
from ebbtide_cli.commands.verb import examples, known_id, master_option
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.submitting.command import JobCommand
from ebbtide_cli.submitting.interactive import idle_option, interactive_spec, queue
from ebbtide_cli.submitting.job import job_options

_OF_JOB = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?|@(?:~[0-9]{1,4})?(?:\.[0-9]{1,9})?)(?::(.*))?")


@click.command(
    cls=JobCommand,
    epilog=examples("ebb tensorboard runs", "ebb tensorboard 17 18", "ebb tensorboard 17:lightning_logs --port 6006"),
)
@click.argument("logs", metavar="DIR|ID|ID:DIR...", nargs=-1, required=True)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on this machine (default: any free one).")
@click.option("--stop", is_flag=True, help="Cancel the job at Ctrl-C.")
@idle_option
@job_options
@master_option
def command(logs: tuple[str, ...], port: int, stop: bool, master: str | None, **given: Any) -> None:
    """Start TensorBoard as a job without a GPU, and open a tunnel to it; print the URL.

    DIR is a directory that its node can read; ID stands for the EBB_OUTPUT_DIR of job ID, and ID:DIR for a directory
    below that job's working directory. Ctrl-C closes the tunnel; TensorBoard runs until it is cancelled, or unused for
    --idle.
    """
    if given["templates"]:
        raise Failure("tensorboard: --template: is for jobs with a command", USAGE)
    if given["gpus"] is None:
        given["cpu_only"] = True
    named = _distinct({path: name for name, path in (_directory(master, text) for text in logs)})
    where = ("--logdir", named[0][1]) if len(named) == 1 else ("--logdir_spec", ",".join(f"{n}:{d}" for n, d in named))
    argv = ("tensorboard", *where, "--host", "127.0.0.1", "--port", "{port}")
    spec = interactive_spec(given, JobKind.TENSORBOARD, argv, "tensorboard")
    job_id = queue(master, spec)
    reach(master, job_id, spec.kind.value, port, "http://127.0.0.1:{port}/", stop=stop)


def _directory(master: str | None, text: str) -> tuple[str, str]:
    """Return a directory's name in TensorBoard, and its path."""
    found = _OF_JOB.fullmatch(text)
    if found is None:
        path = os.path.abspath(text)
        return os.path.basename(path) or "root", _plain(path)
    job_id, below = known_id(master, found[1]), found[2]
    if below is None:
        return f"job {job_id}", f"{{output:{job_id}}}"
    with connected(master) as stub:
        job = ask(stub.ShowJob, client_pb2.JobRequest(job_id=job_id))
    return f"job {job_id} {below}", _plain(os.path.normpath(os.path.join(job.spec.workdir, below)))


def _distinct(names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return names and paths; names that paths share have as many of the directories above as tell them apart."""
    found, above = [(name, path) for path, name in names.items()], 1
    while (counts := Counter(name for name, _ in found)) and max(counts.values()) > 1:
        above += 1
        found = [(_end(path, above) if counts[name] > 1 and path[0] == "/" else name, path) for name, path in found]
    return found


def _end(path: str, parts: int) -> str:
    return "/".join(path.split("/")[-parts:])


def _plain(path: str) -> str:
    if any(character in path for character in ",:{}"):
        raise Failure(f"tensorboard: {path}: TensorBoard takes no directory with one of , : {{ }} in its name", USAGE)
    return path
