"""What a suspend, a resume and a resize cost beyond what the job does itself: three marks, on a cluster of its own.

    python benchmarks/suspend_resume.py            # all three; some minutes on two cores
    python benchmarks/suspend_resume.py suspend    # one of: suspend, resume, resize

suspend: from the client's call to the GPU free by the master's record, minus the job's own save (to write, sync and
publish its checkpoint). resume: from the client's call to the first training step, a warm interpreter against a cold
one, in turn. resize: from the client's call to the first step with the other number of GPUs, minus save and load.
The jobs are the examples, on fake GPUs. Everything is gone at the end: processes, files.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.watching import wait_for
from ebbtide_protos.v1 import client_pb2, job_pb2

REPOSITORY: Final = Path(__file__).resolve().parents[1]
SUSPEND_S: Final = 0.050
RESUME_RATIO: Final = 0.35
RESIZE_S: Final = 1.5
"""The marks, all for medians."""
QUIET_S: Final = 0.3
PATIENCE_S: Final = 60.0
STEPS: Final = "1000000000"
SMALL: Final = ("--batch", "4", "--context", "32", "--width", "32", "--layers", "1")
"""Steps of some milliseconds, for a suspend waits for the end of the one that is under way."""


@dataclass(frozen=True)
class Figure:
    """One mark and what was measured; seconds, or a ratio."""

    name: str
    median: float
    p95: float
    mark: float
    rounds: int
    parts: dict[str, float]

    @property
    def holds(self) -> bool:
        """Whether the mark was met."""
        return self.median <= self.mark


class Training:
    """One job of the cluster, and what it notes of itself."""

    def __init__(self, home: Path, example: str, arguments: Sequence[str], *options: str) -> None:
        self._notes = home / f"notes-{len(list(home.glob('notes-*')))}"
        self._notes.touch()
        script = [sys.executable, "benchmarks/timed.py", f"examples/{example}", "--steps", STEPS]
        settings = ["--env", f"NOTES={self._notes}", "--env", "OMP_NUM_THREADS=1", "--name", example]
        job = ["--", *script, "--log-every", STEPS, "--checkpoint-every", "0", *arguments]
        self.id = ebb("submit", *settings, *options, *job)

    def wait(self, done: Callable[[client_pb2.Job], bool]) -> client_pb2.Job:
        """The job as soon as ``done`` is true of it."""
        return wait_for(None, [self.id], done, drawn=False)[0]

    def ask(self, call: str, **fields: Any) -> float:
        """Ask the master for something; when that was, in Unix seconds."""
        request = client_pb2.ResizeRequest if call == "Resize" else client_pb2.JobRequest
        with connected(None) as stub:
            asked_at = time.time()
            ask(getattr(stub, call), request(job_id=self.id, **fields))
        return asked_at

    def note(self, what: str, after: float) -> dict[str, float] | None:
        """The last note of this kind after a time, the slowest rank's if several ranks wrote one."""
        lines = [json.loads(line) for line in self._notes.read_text().splitlines()]
        return max((line for line in lines if line["what"] == what and line["at"] > after), key=_seconds, default=None)

    def wait_for_note(self, what: str, after: float) -> dict[str, float]:
        """The same, as soon as there is one."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.note(what, after)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {self.id} noted no {what} in {PATIENCE_S:g} s")
            time.sleep(0.02)
        return found

    def settle(self, home: Path, started_at: float, warm: bool) -> None:
        """Wait until it trains, a ``warm`` one's next interpreter is ready, and nothing else of the node is busy."""
        self.wait_for_note("first step", started_at)
        if warm:
            until_held_ready(home)
        until_quiet(home, besides=self.id)

    def cancel(self) -> None:
        """End it for good."""
        ebb("cancel", "--wait", self.id)


def ebb(*arguments: str) -> str:
    """What an ``ebb`` command prints."""
    command = [sys.executable, "-m", "ebbtide_cli.main", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@contextmanager
def cluster(gpus: str) -> Iterator[Path]:
    """A cluster in a directory of its own; yields its home."""
    home = Path(tempfile.mkdtemp(prefix="ebb-suspend-resume-"))
    os.environ["EBB_HOME"] = str(home)
    os.environ.pop("EBB_MASTER", None)
    try:
        ebb("up", "--gpus", gpus)
        yield home
    finally:
        ebb("down", "--now")
        shutil.rmtree(home)


def agent_of(home: Path) -> psutil.Process:
    """The node's agent."""
    return psutil.Process(json.loads(next(home.glob("nodes/*/agent.json")).read_text())["pid"])


def until_held_ready(home: Path) -> None:
    """Wait until an interpreter is held ready, though it may still be at its imports."""
    agent, deadline = agent_of(home), time.monotonic() + PATIENCE_S
    while not any(process.name() == "ebb:standby" for process in agent.children(recursive=True)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no interpreter is held ready after {PATIENCE_S:g} s")
        time.sleep(0.05)


def until_quiet(home: Path, besides: str = "") -> None:
    """Wait until no process of the node but those of the job ``besides`` has used the CPU for a moment."""
    agent = agent_of(home)
    deadline = time.monotonic() + PATIENCE_S
    before = _cpu_s(agent, besides)
    while time.monotonic() < deadline:
        time.sleep(QUIET_S)
        now = _cpu_s(agent, besides)
        if now - before < 0.1 * QUIET_S:
            return
        before = now


def _cpu_s(agent: psutil.Process, besides: str) -> float:
    total = 0.0
    for process in agent.children(recursive=True):
        try:
            if not besides or process.environ().get("EBB_JOB_ID") != besides:
                times = process.cpu_times()
                total += times.user + times.system
        except psutil.Error:
            continue
    return total


def measure_suspend(home: Path, rounds: int) -> Figure:
    """How long a GPU stays taken after its job was told to leave it, besides the job's save."""
    training = Training(home, "charlm.py", SMALL, "--gpus", "1", "--no-warm")
    beyond, saves, started_at = [], [], 0.0
    for _ in range(rounds):
        training.settle(home, started_at, warm=False)
        asked_at = training.ask("Suspend")
        suspension = training.wait(_is_free).suspensions[-1]
        save_s = training.wait_for_note("save", asked_at)["s"]
        beyond.append(suspension.gpu_free - asked_at - save_s)
        saves.append(save_s)
        started_at = training.ask("Resume")
    training.cancel()
    return _figure("suspend: request to GPU free, minus the save", beyond, SUSPEND_S, {"save_s": median(saves)})


def measure_resume(home: Path, rounds: int) -> Figure:
    """How long the first step takes on a warm interpreter, in parts of what it takes on a cold one."""
    took: dict[str, list[float]] = {"--warm": [], "--no-warm": []}
    for _ in range(rounds):
        for option, times in took.items():
            training = Training(home, "digits.py", (), "--gpus", "1", option)
            training.settle(home, 0.0, warm=option == "--warm")
            training.ask("Suspend")
            training.wait(_is_free)
            until_quiet(home)
            asked_at = training.ask("Resume")
            times.append(training.wait_for_note("first step", asked_at)["at"] - asked_at)
            training.cancel()
    warm, cold = took["--warm"], took["--no-warm"]
    parts = {"warm_s": median(warm), "cold_s": median(cold)}
    ratios = [ours / theirs for ours, theirs in zip(warm, cold, strict=True)]
    return _figure("resume: warm, in parts of cold", ratios, RESUME_RATIO, parts)


def measure_resize(home: Path, rounds: int) -> Figure:
    """How long a training on two GPUs or one stands still for a resize, besides saving and loading."""
    training = Training(home, "digits_ddp.py", (), "--gpus", "1", "--launch", "ddp")
    beyond, saves, loads, asked_at = [], [], [], 0.0
    for number in range(rounds):
        training.settle(home, asked_at, warm=True)
        gpus = job_pb2.Share(numerator=2 - number % 2, denominator=1)
        asked_at = training.ask("Resize", gpus_min=gpus, gpus_max=gpus)
        first = training.wait_for_note("first step", asked_at)
        save_s, load_s = (training.wait_for_note(what, asked_at)["s"] for what in ("save", "load"))
        beyond.append(first["at"] - asked_at - save_s - load_s)
        saves.append(save_s)
        loads.append(load_s)
    training.cancel()
    parts = {"save_s": median(saves), "load_s": median(loads)}
    return _figure("resize: request to first step, minus save and load", beyond, RESIZE_S, parts)


def _is_free(job: client_pb2.Job) -> bool:
    return job.state == job_pb2.JOB_STATE_SUSPENDED and job.suspensions[-1].HasField("gpu_free")


def _seconds(line: dict[str, float]) -> float:
    return line["s"]


def _figure(name: str, values: Sequence[float], mark: float, parts: dict[str, float]) -> Figure:
    p95 = sorted(values)[max(0, -(-95 * len(values) // 100) - 1)]
    return Figure(name, median(values), p95, mark, len(values), parts)


def _print(figures: Sequence[Figure], as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(figure) | {"holds": figure.holds} for figure in figures]))
        return
    print(f"{'':52} {'median':>8} {'p95':>8} {'mark':>8}  rounds")
    for figure in figures:
        verdict = "" if figure.holds else "  MISSED"
        numbers = f"{figure.median:8.3f} {figure.p95:8.3f} {figure.mark:8.3f}  {figure.rounds:6}"
        parts = ", ".join(f"{name} {value:.3f}" for name, value in figure.parts.items())
        print(f"{figure.name:52} {numbers}{verdict}  ({parts})")


MEASURES: Final = {"suspend": (measure_suspend, 30), "resume": (measure_resume, 8), "resize": (measure_resize, 8)}


def main() -> int:
    """Read the command line; 1 if a mark was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="suspend|resume|resize", help="what to measure (default: all)")
    parser.add_argument("--rounds", type=int, help="how often (default: suspend 30, resume 8, resize 8)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    if unknown := set(args.what) - MEASURES.keys():
        parser.error(f"{unknown.pop()!r} is none of {', '.join(MEASURES)}")
    figures = []
    with cluster("2xA100-40GB") as home:
        for measure, rounds in (MEASURES[name] for name in args.what or MEASURES):
            figures.append(measure(home, args.rounds or rounds))
    _print(figures, args.json)
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
