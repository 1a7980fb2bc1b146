"""How fast jobs begin, step aside and come back: Ebbtide, a tuned Slurm and HyperQueue in turn on one machine.

    python benchmarks/launches.py
    python benchmarks/launches.py --rounds 5 --tasks 1000 --hyperqueue HQ_VENV/bin/python

Each has 8 GPUs, or 8 cores, and starts the same commands of ``sh`` and ``bash``, which write the time themselves:

- from a submit to the job's first line, by a call of the API and by the command (``ebb submit``, ``sbatch``);
- 8 jobs of one GPU each fill the cluster; an urgent job comes, which takes half a second: from its submit to its first
  line, and from its end to the first line of the job that had to go for it. Slurm lets that wait for two minutes by
  itself, which are taken back by ``scontrol update StartTime=now``;
- an array of 5,000 tasks that do next to nothing: jobs a second, and CPU time of all processes for each job.

Slurm is Debian's, as tests/slurm starts it (as root), with settings for many short jobs. HyperQueue runs in an
interpreter that has it (``pip install hyperqueue``); it has no preemption. Who is missing is left out, and named.
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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

from ebbtide_cli.masters.connection import ask, connected
from ebbtide_protos.v1 import client_pb2, job_pb2
from marks import OURS, Measured, quantile
from suspend_resume import REPOSITORY, cluster, ebb

sys.path.insert(0, str(REPOSITORY))
from tests.slurm import rig

GPUS: Final = 8
TASKS: Final = 5000
ROUNDS: Final = 20
PATIENCE_S: Final = 120.0
LOOK_S: Final = 0.002
URGENT_S: Final = 0.5
FIRST_LINE: Final = "echo $EPOCHREALTIME >> {file}"
URGENT: Final = f"echo $EPOCHREALTIME >> {{file}}; sleep {URGENT_S}; echo $EPOCHREALTIME >> {{file}}"
VICTIM: Final = "echo $EPOCHREALTIME >> {file}; trap 'kill $!; exit 85' TERM; sleep 600 & wait"
TASK: Final = "echo >> {file}"
NO_SLURM: Final = "Slurm is left out: it takes root, cgroup v1 and Debian's slurmctld, slurmd, slurm-client and munge"
NO_HYPERQUEUE: Final = "HyperQueue is left out: --hyperqueue names no Python that has it (pip install hyperqueue)"


class EbbtideJobs:
    """Jobs of a cluster of its own, with 8 fake GPUs on one node."""

    name = OURS

    def submit(self, script: str, tasks: int = 0, urgent: bool = False) -> None:
        """Queue the script for one GPU, or an array of it, by a call."""
        spec = job_pb2.JobSpec(command=["/bin/bash", "-c", script], workdir="/", env={"PATH": os.environ["PATH"]})
        spec.gpus_min.CopyFrom(job_pb2.Share(numerator=1, denominator=1))
        spec.job_class = job_pb2.JOB_CLASS_TRIAL_AND_ERROR if urgent else job_pb2.JOB_CLASS_BEST_EFFORT
        array = [client_pb2.ArrayTask(index=index) for index in range(tasks)]
        with connected(None) as stub:
            ask(stub.Submit, client_pb2.SubmitRequest(spec=spec, tasks=array))

    def submit_by_command(self, script: str) -> None:
        """Queue the script for one GPU, as a user does."""
        ebb("submit", "--gpus", "1", "--", "/bin/bash", "-c", script)

    def let_return(self) -> None:
        """Nothing: who was preempted comes back by itself."""

    def clear(self) -> None:
        """Cancel all jobs, and wait until they are gone."""
        with connected(None) as stub:
            left = [job.job_id for job in ask(stub.ListJobs, client_pb2.ListJobsRequest()).jobs]
        if left:
            ebb("cancel", "--now", "--wait", *left)


class TunedSlurm(rig.Slurm):
    """Slurm with the settings that its guide to high throughput names; jobs to go are given no grace period."""

    name = "Slurm"
    _SETTINGS: Final = {
        "SchedulerParameters": "batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1,"
        "default_queue_depth=10000,bf_max_job_test=1000",
        "KillWait": "1",
        "MaxArraySize": "10001",
        "MaxJobCount": "50000",
        "MinJobAge": "2",
        "SlurmctldDebug": "error",
        "SlurmdDebug": "error",
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, tracking="linuxproc")

    def submit(self, script: str, tasks: int = 0, urgent: bool = False) -> None:
        """Queue the script for one GPU, or an array of it; Slurm has no other way in than its command."""
        options = [
            "--gres=gpu:1",
            "-c",
            "1",
            "--mem=100",
            "-o",
            "/dev/null",
            f"--partition={'high' if urgent else 'low'}",
        ]
        options += ["--requeue", *([f"--array=0-{tasks - 1}"] if tasks else [])]
        self.batch(script, *options)

    submit_by_command = submit

    def let_return(self) -> None:
        """Take back the two minutes for which Slurm lets a preempted job wait by itself."""
        for job in self.command("squeue", "-h", "-t", "PENDING", "-o", "%i").split():
            self.command("scontrol", "update", f"JobId={job}", "StartTime=now")

    def clear(self) -> None:
        """Cancel all jobs, and wait until they are gone."""
        self.try_command("scancel", "--full", "--user", "root")
        _until(lambda: not self.try_command("squeue", "-h").stdout.strip())

    def _write(self) -> None:
        super()._write()
        path = self.folder / "slurm.conf"
        lines = [line for line in path.read_text().splitlines() if line.partition("=")[0] not in self._SETTINGS]
        settings = [f"{key}={value}" for key, value in self._SETTINGS.items()]
        where = next(number for number, line in enumerate(lines) if line.startswith("PartitionName"))
        text = "\n".join([*lines[:where], *settings, *lines[where:]]) + "\n"
        path.write_text(text.replace(f"GraceTime={rig.GRACE_S}", "GraceTime=0"))


class HyperQueueTasks:
    """Tasks of HyperQueue, whose server and worker are in one process of another interpreter."""

    name = "HyperQueue"

    def __init__(self, python: str, folder: Path) -> None:
        script = str(Path(__file__).with_name("hyperqueue_tasks.py"))
        self._process = subprocess.Popen(
            [python, script, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env={**os.environ, "RUST_LOG": "error"},
        )  # fmt: skip
        assert self._answer() == "ready"

    def submit(self, script: str, tasks: int = 0, urgent: bool = False) -> None:
        """Queue the script for one core, or so many tasks of it."""
        assert not urgent, "it preempts nothing"
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([["/bin/bash", "-c", script], tasks or 1]) + "\n")
        self._process.stdin.flush()
        self._answer()

    def clear(self) -> None:
        """Nothing is left of tasks that are over."""

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def has_hyperqueue(python: str) -> bool:
    """Whether that interpreter is there and can import it."""
    command = [python, "-c", "import hyperqueue"]
    return shutil.which(python) is not None and subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


class CpuTime:
    """The CPU time of all processes that this one starts from now on: a group of the kernel's own accounts."""

    def __init__(self) -> None:
        old, new = Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup")
        self._folder = (old if old.is_dir() else new) / f"ebb-launches-{os.getpid()}"
        self._folder.mkdir()
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def seconds(self) -> float:
        """What they have used so far."""
        if (old := self._folder / "cpuacct.usage").exists():
            return int(old.read_text()) / 1e9
        return int((self._folder / "cpu.stat").read_text().split()[1]) / 1e6

    def close(self) -> None:
        """Leave the group, and remove it if nothing is left in it."""
        with suppress(OSError):
            (self._folder.parent / "cgroup.procs").write_text(str(os.getpid()))
            self._folder.rmdir()


def _until(done: Callable[[], Any], look_s: float = LOOK_S) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not come about within {PATIENCE_S:g} s")
        time.sleep(look_s)


def _times(file: Path) -> list[float]:
    """The times that were written into the file so far, in Unix seconds."""
    return [float(line) for line in file.read_text().splitlines()] if file.exists() else []


def first_line_s(submit: Callable[[str], None], file: Path) -> float:
    """From a submit to the first line of the job."""
    asked_at = time.time()
    submit(FIRST_LINE.format(file=file))
    _until(lambda: _times(file))
    return _times(file)[0] - asked_at


def steps_aside_s(system: Any, folder: Path) -> tuple[float, float]:
    """From the submit of an urgent job to its first line, and from its end to the next line of a victim."""
    victims, urgent = folder / "victims", folder / "urgent"
    for file in (victims, urgent):
        file.unlink(missing_ok=True)
    for _ in range(GPUS):
        system.submit(VICTIM.format(file=victims))
    _until(lambda: len(_times(victims)) == GPUS)
    time.sleep(URGENT_S)  # the last one that began has set its trap
    asked_at = time.time()
    system.submit(URGENT.format(file=urgent), urgent=True)
    _until(lambda: _times(urgent))
    system.let_return()
    _until(lambda: len(_times(urgent)) == 2)
    _until(lambda: len(_times(victims)) > GPUS)
    began, ended = _times(urgent)
    system.clear()
    return began - asked_at, _times(victims)[GPUS] - ended


def array_s(system: Any, folder: Path, tasks: int) -> float:
    """From the submit of an array until its last task has written its line."""
    file, began = folder / f"array-{system.name}", time.time()
    system.submit(TASK.format(file=file), tasks=tasks)
    last, at = 0, time.monotonic()
    while last < tasks:
        time.sleep(0.02)
        if (size := file.stat().st_size if file.exists() else 0) > last:
            last, at = size, time.monotonic()
        if time.monotonic() > at + PATIENCE_S:
            raise TimeoutError(f"{system.name}: {last} of {tasks} tasks have ended, and no more do")
    return file.stat().st_mtime - began


@contextmanager
def systems(folder: Path, hyperqueue: str | None) -> Iterator[list[Any]]:
    """All that are there; why others are not is printed."""
    with ExitStack() as closing:
        found: list[Any] = [EbbtideJobs()]
        closing.enter_context(cluster(f"{GPUS}xA100-40GB"))
        if rig.available():
            (place := folder / "slurm").mkdir()
            found.append(slurm := TunedSlurm(place))
            closing.callback(slurm.stop)
            slurm.start()
        else:
            print(NO_SLURM, file=sys.stderr, flush=True)
        if hyperqueue and has_hyperqueue(hyperqueue):
            found.append(queue := HyperQueueTasks(hyperqueue, folder / "hyperqueue"))
            closing.callback(queue.close)
        else:
            print(NO_HYPERQUEUE, file=sys.stderr, flush=True)
        yield found


def _in_turn(measured: dict[str, Callable[[], float]], rounds: int, name: str, shown: str) -> Iterator[Measured]:
    """Medians of ``rounds`` in which each comes once, in milliseconds, and our 95th percentile."""
    took: dict[str, list[float]] = {who: [] for who in measured}
    for _ in range(rounds):
        for who, measure in measured.items():
            took[who].append(1000 * measure())
    beside = {who: median(values) for who, values in took.items() if who != OURS}
    yield Measured(name=name, value=median(took[OURS]), unit="ms", beside=beside, shown=shown)
    beside = {who: quantile(values, 0.95) for who, values in took.items() if who != OURS}
    yield Measured(name=f"{name}, 95th percentile", value=quantile(took[OURS], 0.95), unit="ms", beside=beside)


def begins(found: Sequence[Any], folder: Path, rounds: int) -> Iterator[Measured]:
    """From submits to first lines."""
    files = (folder / f"first-{number}" for number in range(1 << 20))

    def of(submit: Callable[[str], None]) -> Callable[[], float]:
        return lambda: first_line_s(submit, next(files))

    calls = {system.name: of(system.submit) for system in found}
    yield from _in_turn(calls, rounds, "submit by a call (Slurm: sbatch) → first line", "launches")
    commands = {each.name: of(each.submit_by_command) for each in found if hasattr(each, "submit_by_command")}
    yield from _in_turn(commands, rounds, "submit by the command → first line", "launches")


def steps_aside(found: Sequence[Any], folder: Path, rounds: int) -> Iterator[Measured]:
    """From an urgent submit to its first line, and from its end to the victim's return."""
    preempting = [system for system in found if system.name != HyperQueueTasks.name]
    took: dict[str, list[tuple[float, float]]] = {system.name: [] for system in preempting}
    for _ in range(rounds):
        for system in preempting:
            took[system.name].append(steps_aside_s(system, folder))
    for which, name in enumerate(("preempt → the urgent job's first line", "urgent job ends → the victim is back")):
        values = {who: [1000 * each[which] for each in pairs] for who, pairs in took.items()}
        middle = {who: median(each) for who, each in values.items()}
        yield Measured(name=name, value=middle.pop(OURS), unit="ms", beside=middle, shown="launches")


def arrays(found: Sequence[Any], folder: Path, tasks: int, cpu: CpuTime | None) -> Iterator[Measured]:
    """Jobs a second, and the CPU time of each."""
    rates, costs = dict[str, float](), dict[str, float]()
    for system in found:
        before = cpu.seconds() if cpu else 0.0
        rates[system.name] = tasks / array_s(system, folder, tasks)
        time.sleep(1.0)  # what follows from the last ends
        costs[system.name] = 1000 * ((cpu.seconds() if cpu else 0.0) - before) / tasks
        print(f"{system.name}: {rates[system.name]:.0f} jobs a second", file=sys.stderr, flush=True)
        system.clear()
    name = f"array of {tasks:,} tasks"
    yield Measured(name=name, value=rates.pop(OURS), unit="jobs/s", beside=rates, shown="array")
    if cpu:
        yield Measured(name=f"{name}: CPU of a job", value=costs.pop(OURS), unit="ms", beside=costs, shown="array")


def measured(rounds: int = ROUNDS, tasks: int = TASKS, hyperqueue: str | None = None) -> Iterator[Measured]:
    """All values, one after the other."""
    with tempfile.TemporaryDirectory(prefix="ebb-launches-") as name, ExitStack() as closing:
        folder, cpu = Path(name), None
        with suppress(OSError):
            cpu = CpuTime()
            closing.callback(cpu.close)
        with systems(folder, hyperqueue) as found:
            yield from begins(found, folder, rounds)
            yield from steps_aside(found, folder, max(1, rounds // 4))
            yield from arrays(found, folder, tasks, cpu)


def main() -> None:
    """Print the values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--hyperqueue", help="a Python that has HyperQueue")
    given = parser.parse_args()
    for value in measured(given.rounds, given.tasks, given.hyperqueue):
        print(value, flush=True)


if __name__ == "__main__":
    main()
