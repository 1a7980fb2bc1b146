"""Launchers and shells, and what follows when one that trains is suspended, preempted, resized, or killed.

docs/reference/stopping.md says the same in words.
"""

import contextlib
import itertools
import os
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.cluster import REPOSITORY, Cluster, processes_of, wait_for

TRAIN = Path(__file__).with_name("train.py")
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
GPUS = 2
STEPS = 15  # that an attempt takes at least
PATIENCE_S = 180.0  # of launchers, some of which load torch themselves
HOW = ("sdk", "own", "framework", "none")

Command = Callable[[list[str], Path], list[str]]
"""What is submitted to have this command run, with files in this folder if need be."""


@dataclass(frozen=True)
class Launcher:
    """Something that starts a training."""

    name: str
    command: Command
    programs: tuple[str, ...] = ()  # that it needs, and that a machine may lack
    ranks: str = ""  # how a training with data loaders finds the others; else it is alone
    # The signal, and calls it no failure to be ended by it: with nobody else to catch it, nobody knows what was saved.
    catches: bool = False
    options: tuple[str, ...] = ()  # of `ebb submit`
    elastic: bool = True  # so many processes as the job has GPUs
    hows: tuple[str, ...] = HOW
    loaders: tuple[bool, ...] = (False, True)


@dataclass(frozen=True)
class Cell:
    """Who starts it, who saves, and whether it has data loaders."""

    launcher: Launcher
    how: str
    workers: bool

    @property
    def checkpointed(self) -> set[str]:
        """What `ebb show` may say when it was asked to leave."""
        match self.how:
            case "sdk" | "own":
                return {"yes"}  # where Ebbtide wanted it
            case "framework":
                return {"unknown"}  # it was saved elsewhere
        if self.launcher.name == "deepspeed":
            # The process that is asked ends with a code that says that it failed; its parent may reap it before that is
            # seen.
            return {"no", "unknown"}
        return {"unknown"} if self.launcher.catches else {"no"}

    @property
    def events(self) -> tuple[str, ...]:
        """What happens to it, one after the other.

        Loading torch takes most of the time: where it is there for data loaders only, and the SDK is not, those who
        preempt it are left out, of whom the agent knows no more than of those who suspend it.
        """
        resizes = self.how == "sdk" and self.launcher.elastic and (bool(self.launcher.ranks) or not self.workers)
        preempts = self.how == "sdk" or not self.workers
        between = (*(("preempt",) if preempts else ()), *(("resize",) if resizes else ()))
        return ("suspend", *between, "kill")

    def __str__(self) -> str:
        return f"{self.launcher.name}-{self.how}{'-workers' if self.workers else ''}"


def cells(launchers: list[Launcher]) -> list[Any]:
    """A parameter for each cell, marked with what it needs."""
    found = []
    for launcher in launchers:
        marks = [pytest.mark.slow, pytest.mark.matrix]
        if launcher.programs:
            marks.append(pytest.mark.programs(*launcher.programs))
        for how, workers in itertools.product(launcher.hows, launcher.loaders):
            cell = Cell(launcher, how, workers)
            found.append(pytest.param(cell, id=str(cell), marks=marks))
    return found


class Run:
    """The job of a cell on a cluster."""

    def __init__(self, cluster: Cluster, cell: Cell, folder: Path) -> None:
        self.cluster = cluster
        self.cell = cell
        self.folder = folder
        training = [sys.executable, str(TRAIN), cell.how, str(folder), *(["--workers"] if cell.workers else [])]
        training += [cell.launcher.ranks] if cell.workers and cell.launcher.ranks else []
        command = cell.launcher.command(training, folder)
        environment = {"PATH": PATH, "PYTHONPATH": str(REPOSITORY / "sdk"), "OMP_NUM_THREADS": "1"}
        options = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        gpus = f"1-{GPUS}" if "resize" in cell.events else str(GPUS)
        options += ["--gpus", gpus, "--workdir", str(folder), "--no-warm", "--retries", "9", "--grace", "60s"]
        self.job = cluster.submit(*options, *cell.launcher.options, "--", *command)
        self.attempts = 1
        self.asked = True  # whether the training of the attempt before was, and not killed itself

    def trains(self) -> None:
        """Wait until the newest attempt has taken some steps."""

        def has_trained() -> bool:
            return len(self.steps(self.attempts)) >= STEPS

        try:
            wait_for(f"attempt {self.attempts} of {self.cell} trains", has_trained, PATIENCE_S)
        except pytest.fail.Exception as failure:
            shown = self.cluster.ebb("show", self.job).out
            pytest.fail(f"{failure}\n{shown}\n{self.cluster.log(self.job)}")

    def losses(self) -> list[tuple[int, int, int]]:
        """Attempt, step and loss of all that were taken."""
        file = self.folder / "losses"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        whole = [line.split() for line in lines if line.endswith("\n")]
        return [(int(attempt), int(step), int(loss)) for attempt, step, loss in whole]

    def steps(self, attempt: int) -> list[int]:
        return [step for number, step, _ in self.losses() if number == attempt]

    def happens(self, event: str) -> None:
        """Have it happen, and wait until all of the attempt has left."""
        before = self.show()
        match event:
            case "suspend":
                self.cluster.ebb("suspend", "--wait", self.job, code=None, seconds=PATIENCE_S)
                assert self.show()["state"] == "SUSPENDED"
                self.cluster.ebb("resume", self.job)
            case "preempt":
                urgent = self.cluster.submit("--te", "--gpus", str(GPUS), "--", "true")
                self.cluster.wait_for_state(urgent, "COMPLETED", seconds=PATIENCE_S)
                assert self.show()["preemptions"] == before["preemptions"] + 1
            case "resize":
                self.cluster.ebb("resize", "--wait", self.job, "--gpus", "1", seconds=PATIENCE_S)
                assert self.show()["gpus"]["allocated"] == 1
            case "kill":
                self.asked = str(TRAIN) not in psutil.Process(before["pid"]).cmdline()[1:2]
                os.kill(before["pid"], signal.SIGKILL)
        self.attempts += 1
        self.trains()
        after = self.show()
        if event == "kill":
            assert after["attempts"][-2]["outcome"] == "failed with signal SIGKILL", after["attempts"][-2]
        else:
            assert len(after["suspensions"]) == len(before["suspensions"]) + 1
            assert after["suspensions"][-1]["checkpointed"] in self.cell.checkpointed, after["suspensions"][-1]

    def check_steps(self, event: str) -> None:
        """Check where the newest attempt went on, after that had happened to the one before."""
        last, first = self.steps(self.attempts - 1)[-1], self.steps(self.attempts)[0]
        if self.cell.how == "none":
            every = 10  # steps there is a checkpoint; it may not have been written after the last one
            assert first - 1 in ((last // every) * every, ((last - 1) // every) * every), (last, first)
        elif event != "kill" or (self.asked and self.cell.how == "sdk"):
            assert first in (last, last + 1), f"{event}: after step {last} it went on with {first}"

    def show(self) -> dict[str, Any]:
        return self.cluster.show(self.job)

    def check(self) -> None:
        """Check that each step gave what it would have given in peace, and that no other command was begun."""
        losses = self.losses()
        expected = in_peace(max(step for _, step, _ in losses))
        for attempt, step, loss in losses:
            assert loss == expected[step], f"step {step} of attempt {attempt}"
        assert not (self.folder / "after").exists(), "what stands behind the training was begun"

    def end(self) -> None:
        """Cancel it, and check that nobody is left."""
        self.cluster.ebb("cancel", "--now", "--wait", self.job)
        wait_for("nobody is left", lambda: not self.processes(), 30)

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in processes_of(self.cluster.home):
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("EBB_JOB_ID") == self.job:
                    found.append(process)
        return found


def in_peace(steps: int) -> list[int]:
    """The loss after each step, as train.py computes it."""
    losses = [0]
    for number in range(steps):
        losses.append((losses[-1] * 31 + number + 1) % 9973)
    return losses


def runs_through(cluster: Cluster, cell: Cell, folder: Path, events: tuple[str, ...]) -> None:
    """Have all of these happen to the cell, one after the other, and check it each time."""
    run = Run(cluster, cell, folder)
    run.trains()
    for event in events:
        run.happens(event)
        run.check_steps(event)
        run.check()
    run.end()


def then(folder: Path) -> str:
    """A command that must not be begun."""
    return f"touch {folder / 'after'}"


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def shell_script(name: str, text: str) -> Command:
    """`text` has {train} and {then}."""

    def command(training: list[str], folder: Path) -> list[str]:
        filled = text.replace("{train}", shlex.join(training)).replace("{then}", then(folder))
        return [name, written(folder, "job.sh", filled)]

    return command


def inline(name: str, text: str) -> Command:
    def command(training: list[str], folder: Path) -> list[str]:
        return [name, "-c", text.replace("{train}", shlex.join(training)).replace("{then}", then(folder))]

    return command


def before(*words: str) -> Command:
    """Stands before the command."""
    return lambda training, folder: [*words, *training]


def make(training: list[str], folder: Path) -> list[str]:
    return ["make", "-f", written(folder, "Makefile", f"all:\n\t{shlex.join(training)}\n\t{then(folder)}\n")]


def snakemake(training: list[str], folder: Path) -> list[str]:
    rules = f"""
rule all:
    input: "after"
rule train:
    output: "trained"
    shell: {shlex.join(training) + " && touch trained"!r}
rule evaluate:
    input: "trained"
    output: "after"
    shell: "touch after"
"""
    written(folder, "Snakefile", rules)
    return ["snakemake", "--cores", "1", "--nolock", "--rerun-incomplete"]


def xargs(training: list[str], folder: Path) -> list[str]:
    return ["xargs", "-n", "1", "-a", written(folder, "turns", "first\nsecond\n"), *training]


def parallel(training: list[str], folder: Path) -> list[str]:
    return ["parallel", "-j1", *training, ":::", "first", "second"]


def poetry(training: list[str], folder: Path) -> list[str]:
    text = '[tool.poetry]\nname = "a"\nversion = "1"\ndescription = ""\nauthors = []\npackage-mode = false\n'
    written(folder, "pyproject.toml", text + '[tool.poetry.dependencies]\npython = ">=3.11"\n')
    return ["poetry", "run", *training]


# The shell itself trains; a step that it has said may be missing from what it saves, as it is in progress then.
BY_ITSELF = """
step=0 loss=0
if [ -n "$EBB_RESUME_DIR" ]; then read step loss < "$EBB_RESUME_DIR/state"; fi
trap 'echo "$step $loss" > "$EBB_CHECKPOINT_DIR/state"; exit 85' TERM
while :; do
    next=$(((loss * 31 + step + 1) % 9973))
    echo "$EBB_ATTEMPT $((step + 1)) $next" >> losses
    step=$((step + 1)) loss=$next
    sleep 0.01
done
"""
TRAP = "SCRATCH=$(mktemp -d)\ntrap 'rm -rf \"$SCRATCH\"' EXIT\n"

PLAIN = Launcher("python", before())
BASH = Launcher("bash", shell_script("bash", f"{TRAP}{{train}} && {{then}}\n{{then}}\n"), catches=True)
SHELLS = [
    PLAIN,
    BASH,
    Launcher("bash-itself", shell_script("bash", BY_ITSELF), hows=("own",), loaders=(False,)),
    Launcher("sh-itself", shell_script("sh", BY_ITSELF), hows=("own",), loaders=(False,)),
    Launcher("zsh-itself", shell_script("zsh", BY_ITSELF), ("zsh",), hows=("own",), loaders=(False,)),
    Launcher("sh", inline("sh", "{train}; {then}")),
    Launcher("zsh", inline("zsh", "for n in 1 2; do {train} && {then}; done; {then}"), ("zsh",)),
    Launcher("make", make),
    Launcher("snakemake", snakemake, ("snakemake",)),
    Launcher("xargs", xargs),
    Launcher("parallel", parallel, ("parallel",)),
]
TIMEOUT = Launcher("timeout", before("timeout", "7200"), catches=True)
WRAPPERS = [
    TIMEOUT,
    Launcher("nohup", before("nohup")),
    Launcher("setsid", before("setsid", "-w")),
    Launcher("strace", before("strace", "-f", "-e", "trace=none", "-o", "/dev/null"), ("strace",)),
    Launcher("xvfb-run", before("xvfb-run", "-a"), ("xvfb-run", "Xvfb", "xauth")),
    Launcher("uv", before("uv", "run", "--no-project", "--offline"), ("uv",), catches=True),
    Launcher("poetry", poetry, ("poetry",), options=("--env", "POETRY_VIRTUALENVS_CREATE=false")),
]


def ranks(line: str) -> Command:
    """Starts {ranks} processes of {train}, the interpreter's words after its name, or of {training}, all of them.

    There are as many as the job has GPUs, or one if the training does not find the others.
    """

    def command(training: list[str], folder: Path) -> list[str]:
        several = not {"--ranks", "--mpi"}.isdisjoint(training)
        filled = line.replace("{training}", shlex.join(training)).replace("{train}", shlex.join(training[1:]))
        return ["sh", "-c", "exec " + filled.replace("{ranks}", "$EBB_GPU_COUNT" if several else "1")]

    return command


def accelerate(training: list[str], folder: Path) -> list[str]:
    several = f"--multi_gpu --num_processes {GPUS}" if "--ranks" in training else "--cpu --num_processes 1"
    line = f"accelerate launch {several} --num_machines 1 --mixed_precision no --dynamo_backend no"
    return [*line.split(), *training[1:]]


RANKS = [
    Launcher("torchrun", ranks("torchrun --nproc-per-node {ranks} {train}"), ranks="--ranks"),
    Launcher("accelerate", accelerate, ranks="--ranks", elastic=False),
    Launcher(
        "deepspeed",
        ranks("deepspeed --num_gpus {ranks} {train}"),
        ("deepspeed",),
        ranks="--ranks",
        catches=True,
        options=("--env", "DS_ACCELERATOR=cpu"),
    ),
    Launcher(
        "mpirun",
        ranks("mpirun --allow-run-as-root --oversubscribe -n {ranks} {training}"),
        ("mpirun",),
        ranks="--mpi",
    ),
    Launcher("lightning", before(), ranks="--fabric", loaders=(True,)),
    Launcher("ebb-ddp", before(), ranks="--ranks", options=("--launch", "ddp")),
]
