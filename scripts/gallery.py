"""Run the examples of docs/tutorial/gallery.md, suspend each once, and record what it printed and how its loss fell.

    python scripts/gallery.py            # all of them: five minutes
    python scripts/gallery.py jax bag    # these

An example is a block of the page, below a comment with its name. The first line of the block is the command; what
follows it is the record, and the curve beside it is docs/figures/gallery-NAME.svg.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from ebbtide.cluster import Cluster, Job, JobArray
from ebbtide_sim.draw import COLORS, drawn

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/tutorial/gallery.md"
BLOCK = re.compile(r"^<!-- example: (\S+) -->\n```console\n(\$ .*)\n(?:.*\n)*?```$", re.MULTILINE)
STEP = re.compile(r"^(?:step|record) (\d+)/(\d+)(?: loss ([\d.]+))?", re.MULTILINE)
TOLD = "loss|record|resumed"
"""What lines have that the record keeps."""
POLL_S = 0.1
AWAY_S = 3.0
"""How long a job stays suspended, so that the gap can be seen in its curve."""
TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Point:
    """How far a job was at a time, in Unix seconds."""

    time: float
    attempt: int
    step: int
    total: int
    loss: float | None


@dataclass
class Record:
    """What an example did."""

    printed: list[str] = field(default_factory=list)
    curves: dict[str, list[Point]] = field(default_factory=dict)
    """Of each job, by its id."""
    away: tuple[float, float] = (0.0, 0.0)
    """When the GPU of the job that was suspended became free, and when the job was placed again, in Unix seconds."""


FOR_JOBS: Final = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
"""What each example is run with: two jobs with a thread for each core would wait for each other."""


def examples(page: str) -> dict[str, str]:
    """Return the command of each example, by its name."""
    return {name: line.removeprefix("$ ") for name, line in BLOCK.findall(page)}


@dataclass(frozen=True)
class Stage:
    """A cluster of two fake GPUs, and a directory with a copy of the examples."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables of everything that runs here."""
        own = {"EBB_HOME": f"{self.folder}/home", "XDG_CONFIG_HOME": f"{self.folder}/config", **FOR_JOBS}
        return {**os.environ, **own, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(self, *command: str) -> list[str]:
        """Run a command to its end; the lines that it printed."""
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=self.environment)
        return done.stdout.splitlines()

    def start(self, command: str, output: IO[str]) -> "subprocess.Popen[bytes]":
        """Start a command beside this."""
        return subprocess.Popen(shlex.split(command), stdout=output, cwd=self.folder, env=self.environment)


@contextmanager
def staged() -> Iterator[Stage]:
    """Yield a stage, whose cluster ends with the block."""
    with tempfile.TemporaryDirectory(prefix="ebb-gallery-") as folder:
        shutil.copytree(ROOT / "examples", Path(folder, "examples"))
        settings = Path(folder, "config/ebbtide/submit.toml")
        settings.parent.mkdir(parents=True)
        settings.write_text(f"env_pass = {list(FOR_JOBS)}\n")
        stage = Stage(Path(folder))
        stage.run("ebb", "up", "--gpus", "2xRTX4090")
        try:
            yield stage
        finally:
            stage.run("ebb", "down", "--now")


class Recorder:
    """Runs one example, and suspends one of its jobs once a third of it is done."""

    def __init__(self, command: str, stage: Stage) -> None:
        self._command = command
        self._stage = stage
        self._cluster = Cluster.connect(f"unix:{stage.folder}/home")
        self._before = {job.id for job in self._cluster.jobs(all=True)}
        self._record = Record()

    def run(self) -> Record:
        """Run it to its end. Raises RuntimeError if it fails."""
        with (self._stage.folder / "printed").open("w+") as output, ThreadPoolExecutor(1) as beside:
            process = self._stage.start(self._command, output)
            typed = self._follow(process, beside)
            output.seek(0)
            lines = output.read().splitlines()
        failed = [f"job {job.id} {job.state}" for job in self._jobs() if job.state != "COMPLETED"]
        if process.returncode or failed:
            raise RuntimeError(f"{self._command}: exit code {process.returncode}; {', '.join(failed)}")
        stopped = self.suspended()
        (suspension,) = stopped.facts()["suspensions"]
        self._record.away = (suspension["gpu_free"], suspension["placed"])
        log = [f"$ ebb logs {stopped.id} | grep -E '{TOLD}'"]
        log += shortened([line for line in stopped.logs().splitlines() if re.search(TOLD, line)])
        if self._command.startswith("ebb submit "):
            self._record.printed = [f"$ {self._command}", *lines, *typed, *log]
        elif typed:
            begun = [f"$ {self._command}", *shortened(lines)]
            self._record.printed = [*begun, "$ # meanwhile, in another terminal", *typed]
        else:
            self._record.printed = [f"$ {self._command}", *self._cells()]
        return self._record

    def suspended(self) -> Job[Any]:
        """The job that was suspended."""
        return next(job for job in self._jobs() if job.facts()["suspensions"])

    def _jobs(self) -> list[Job[Any]]:
        """The jobs of this example, an array's tasks one by one."""
        new = [job for job in self._cluster.jobs(all=True) if job.id not in self._before]
        return [task for job in new for task in (job if isinstance(job, JobArray) else [job])]

    def _follow(self, process: "subprocess.Popen[bytes]", beside: ThreadPoolExecutor) -> list[str]:
        """Note how far the jobs are until all have ended; the commands by which one was suspended and resumed."""
        give_up = time.monotonic() + TIMEOUT_S
        typed: Future[list[str]] | None = None
        while True:
            ended = process.poll() is not None
            jobs = self._jobs()
            for job in jobs:
                facts = job.facts()
                self._note(job, facts)
                if typed is None and not facts["suspensions"] and self._third_done(job.id):
                    typed = beside.submit(self._suspend, job.id)
            if ended and all(job.done() for job in jobs):
                return [] if typed is None else typed.result()
            if time.monotonic() > give_up:
                process.kill()
                raise RuntimeError(f"{self._command} did not end in {TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)

    def _note(self, job: Job[Any], facts: dict[str, Any]) -> None:
        """Add a point to the job's curve if it has gone on."""
        curve = self._record.curves.setdefault(job.id, [])
        reported = facts["progress"]
        if reported and reported["step"] and reported["total"]:
            step, total, loss = reported["step"], reported["total"], reported["loss"]
        elif printed := STEP.findall(job.logs(tail=1)):  # a script that reports nothing
            step, total, loss = printed[-1]
        else:
            return
        point = Point(time.time(), facts["attempt"], int(step), int(total), float(loss) if loss else None)
        if point.step > (curve[-1].step if curve else 0):
            curve.append(point)

    def _third_done(self, job: str) -> bool:
        curve = self._record.curves[job]
        return bool(curve) and curve[-1].total / 3 <= curve[-1].step < curve[-1].total

    def _suspend(self, job: str) -> list[str]:
        """Suspend the job and resume it; what was typed and printed."""
        if "notebook" in self._command:  # it does so itself
            return []
        lines = [f"$ ebb suspend --wait {job}", *self._stage.run("ebb", "suspend", "--wait", job)]
        time.sleep(AWAY_S)
        return [*lines, f"$ ebb resume --wait {job}", *self._stage.run("ebb", "resume", "--wait", job)]

    def _cells(self) -> list[str]:
        """What the cells of the notebook printed, which is executed in place."""
        (book,) = [part for part in shlex.split(self._command) if part.endswith(".ipynb")]
        cells = json.loads((self._stage.folder / book).read_text())["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        return "".join("".join(output["text"]) for output in outputs if output["name"] == "stdout").splitlines()


def shortened(lines: list[str]) -> list[str]:
    """Leave the first two and the last two lines, and those around a resumption."""
    resumed = [index for index, line in enumerate(lines) if line.startswith("resumed from")]
    kept = {0, 1, len(lines) - 2, len(lines) - 1} | {near for index in resumed for near in range(index - 1, index + 2)}
    short: list[str] = []
    for index, line in enumerate(lines):
        if index in kept or len(lines) <= len(kept) + 3:
            short.append(line)
        elif not short or short[-1] != "…":
            short.append("…")
    return short


def draw(record: Record, path: Path) -> None:
    """Draw the loss of each job over the time, or how far it is if it has none; the suspension is a grey band."""
    import matplotlib

    begun = min(curve[0].time for curve in record.curves.values())
    losses = [point.loss for curve in record.curves.values() for point in curve if point.loss is not None]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gallery"}), drawn(path, 7, 2.4) as figure:
        axes = figure.subplots()
        axes.axvspan(*(at - begun for at in record.away), color="0.85")
        for color, (job, curve) in zip(COLORS * len(record.curves), record.curves.items(), strict=False):
            for attempt in sorted({point.attempt for point in curve}):
                points = [point for point in curve if point.attempt == attempt]
                values = [point.loss if losses else 100 * point.step / point.total for point in points]
                label = f"job {job}" if attempt == curve[0].attempt else None
                times = [point.time - begun for point in points]
                axes.plot(times, values, color=color, marker=".", markersize=3, linewidth=1, label=label)
        if losses and min(losses) > 0 and max(losses) / min(losses) > 10:
            axes.set_yscale("log")
        axes.set_xlabel("seconds since the first step")
        axes.set_ylabel("loss" if losses else "% done")
        axes.grid(alpha=0.3)
        if len(record.curves) > 1:
            axes.legend(fontsize=7, ncols=2)
    drawing = re.sub(r"<metadata>.*?</metadata>\s*", "", path.read_text(), flags=re.DOTALL)
    drawing = drawing[drawing.index("<svg") :].replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    path.write_text(re.sub(" +$", "", drawing.replace("xlink:href", "href"), flags=re.MULTILINE))


def keep(name: str, record: Record) -> None:
    """Put the record into the page, and the curve beside it."""
    draw(record, ROOT / f"docs/figures/gallery-{name}.svg")
    block = "\n".join([f"<!-- example: {name} -->", "```console", *record.printed, "```"])
    page = PAGE.read_text()
    PAGE.write_text(BLOCK.sub(lambda found: block if found[1] == name else found[0], page))


def main(names: Iterable[str]) -> None:
    """Record these examples, or all."""
    known = examples(PAGE.read_text())
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no example is called {unknown[0]}: there are {', '.join(known)}")
    with staged() as stage:
        for name in list(names) or known:
            print(f"{name} …", flush=True)
            keep(name, Recorder(known[name], stage).run())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="record only these examples")
    main(parser.parse_args().names)
