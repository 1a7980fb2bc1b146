"""``ebb demo``: run the guided scenario on real training examples."""

import os
import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import click
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli import interrupts
from ebbtide_cli.cluster import (
    LocalSettings,
    bring_down,
    ensure_agent,
    ensure_dashboard,
    ensure_master,
    exclusive,
    find_node,
)
from ebbtide_cli.commands.verb import examples
from ebbtide_cli.daemons import OF_OTHERS, end_started
from ebbtide_cli.errors import FAILED, OK, USAGE, Failure
from ebbtide_cli.example_files import examples_folder
from ebbtide_cli.home import Home
from ebbtide_cli.masters.connection import connected
from ebbtide_cli.terminal.output import StatusLine, complain

FAKE_PROFILE = "4xA100-40GB"
NODE = "demo"
FEWEST_GPUS = 3
PIPE_WIDTH = 160
LARGEST_SEED = 2**31 - 1


@click.command(epilog=examples("ebb demo", "ebb demo --dashboard", "ebb demo --seed 7", "ebb demo --gpus 4xRTX4090"))
@click.option(
    "--gpus", metavar="PROFILE", help="Fake GPUs such as 4xRTX4090 (default: real ones, if there are enough)."
)
@click.option(
    "--seed",
    type=click.IntRange(0, LARGEST_SEED),
    help="Random seed of the training (default: a random one, which is printed).",
)
@click.option("--keep", is_flag=True, help="Keep logs, checkpoints and weights, and print where they are.")
@click.option(
    "--svg", metavar="FILE", type=click.Path(path_type=Path), help="Write the final picture to this file, too."
)
@click.option("--dashboard", is_flag=True, help="Serve a dashboard, too, and print a link to it.")
def command(gpus: str | None, seed: int | None, keep: bool, svg: Path | None, dashboard: bool) -> int:
    """Watch real training make room for an urgent job, resume and change size, and see the proof.

    The demo runs a cluster of its own and leaves nothing behind. It exits with 1 if any claim does not hold.
    """
    missing = [name for name in ("torch", "sklearn", "numpy") if find_spec(name) is None]
    if missing:
        raise Failure(f"demo: the training examples need {', '.join(missing)}: pip install 'ebbtide[examples]'")
    if dashboard:
        from ebbtide_cli.verbs.dashboard import check_libraries

        check_libraries("demo")
    if svg is not None and not svg.absolute().parent.is_dir():
        raise Failure(f"demo: --svg {svg}: its directory does not exist", USAGE)
    seed = random.randrange(LARGEST_SEED) if seed is None else seed
    with interrupts.sigterm_too(), _folder(keep) as folder, _cluster(folder, gpus) as node:
        if dashboard:
            _show_dashboard(Home(folder))
        return _perform(folder, node, seed, svg)


def _show_dashboard(home: Home) -> None:
    """Start a dashboard, which ends with the demo's cluster, and open it, or print where it is."""
    from ebbtide_cli.verbs.dashboard import show_running

    with StatusLine() as line:
        ensure_dashboard(home, line)
    show_running(home)


def _perform(folder: Path, node: client_pb2.Node, seed: int, svg: Path | None) -> int:
    from rich.console import Console

    from ebbtide_cli.demo.proof import claims
    from ebbtide_cli.demo.scenario import THREADS, Story, again
    from ebbtide_cli.demo.svg import write_svg
    from ebbtide_cli.demo.view import View

    console = Console(highlight=False, width=None if os.isatty(1) else PIPE_WIDTH)
    gpus = [gpu.info.uuid for gpu in sorted(node.gpus, key=lambda gpu: gpu.info.index)]
    kind = "fake GPUs (training runs on the CPU)" if node.gpu_backend == "fake" else "GPUs"
    console.print(f"{len(gpus)} {kind}, seed {seed}, {THREADS} thread per process.\n")
    view = View(console, gpus)
    story = Story(folder, examples_folder(), len(gpus), seed, view.board, view.tell)
    with view:
        view.board.watch()
        jobs = story.run()
    weights = {name: story.weights(name) for name in ("long", again("long"))}
    losses = {name: _final_loss(jobs[name].job_id) for name in ("elastic", again("elastic"))}
    found = claims(jobs, weights, losses)
    view.show_end(list(jobs.values()), found, seed)
    if svg is not None:
        write_svg(svg, lambda canvas: View(canvas, gpus).show_end(list(jobs.values()), found, seed))
    return OK if all(claim.holds for claim in found) else FAILED


def _final_loss(job_id: str) -> float:
    """Return the final loss that a run printed."""
    with connected(None) as stub:
        log = b"".join(chunk.data for chunk in stub.ReadLogs(client_pb2.ReadLogsRequest(job_id=job_id))).decode()
    match = re.search(r"^final loss ([\d.e+-]+)", log, re.MULTILINE)
    if match is None:
        raise Failure(f"demo: job {job_id} printed no final loss")
    return float(match[1])


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    """Make a fresh EBB_HOME for this process and all that it starts."""
    folder: Path | None = None
    try:
        with interrupts.shielded():
            folder = Path(tempfile.mkdtemp(prefix="ebb-demo-"))
        os.environ["EBB_HOME"] = str(folder)
        for name in OF_OTHERS:
            os.environ.pop(name, None)
        yield folder
    finally:
        with interrupts.shielded():
            if keep:
                complain(f"everything is in {folder}")
            elif folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _cluster(folder: Path, gpus: str | None) -> Iterator[client_pb2.Node]:
    """Run a cluster in ``folder`` that is gone at the end whatever happens; yield its node."""
    from ebbtide_cli.demo.scenario import RESIZE_AFTER_S

    home = Home(folder)
    settings = LocalSettings(NODE, gpus or _profile(), policy_options={"resize_after_s": str(RESIZE_AFTER_S)})
    with StatusLine() as line:
        try:
            with exclusive(home, line):
                ensure_master(home, settings, line)
                ensure_agent(home, settings, line)
            settings.remember(home)
            node = find_node(home, NODE)
            if node is None or len(node.gpus) < FEWEST_GPUS:
                raise Failure(f"demo: --gpus {settings.gpus}: the story needs at least {FEWEST_GPUS} GPUs")
            yield node
        finally:
            with interrupts.shielded():
                try:
                    bring_down(home, kill=True, line=line)
                finally:
                    end_started()


def _profile() -> str:
    """Choose real GPUs if there are enough for the scenario, else fake ones."""
    from ebbtide_agent.gpu.nvml import NvmlUnavailable, open_nvml

    try:
        return "auto" if len(open_nvml().gpus()) >= FEWEST_GPUS else FAKE_PROFILE
    except NvmlUnavailable:
        return FAKE_PROFILE
