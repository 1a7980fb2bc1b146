"""What Ebbtide does with each script: the table of docs/reference/awkward-scripts.md says the same in words."""

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebbtide_core.job.outcome import Ending, Outcome, read_exit
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import Checkpointed, ExitZero, StopCause
from ebbtide_master.convert import exit_from_message
from ebbtide_protos.v1 import agent_pb2, job_pb2

from tests.agent.supervisor.node import OVER, RUNNING, Node

SCRIPTS = Path(__file__).parent
ENVIRONMENT = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

WHERE_IT_WAS = "where it was"
LAST_CHECKPOINT = "its last checkpoint"
BEGINNING = "the beginning"

SUSPENDED, COMPLETED = Ending.SUSPENDED, Ending.COMPLETED
YES, NO, UNKNOWN = Checkpointed.YES, Checkpointed.NO, Checkpointed.UNKNOWN


@dataclass(frozen=True)
class Case:
    """A script, how it is submitted, and what follows when it is asked to suspend."""

    script: str  # as it stands in the document
    command: list[str]
    checkpointed: Checkpointed
    goes_on_from: str = WHERE_IT_WAS
    ending: Ending = SUSPENDED
    clean: bool = True
    killed: bool = False
    grace_s: float = 30.0
    exit_zero: ExitZero = ExitZero.SUSPENDED
    dies_after: str = ""  # how the line begins after which its grace period is cut to ``grace_s``; it had two minutes
    ready: str = "up"  # how the line begins that each of its processes prints when it may be suspended
    processes: int = 1
    slow: bool = False  # others go the same way in less time: `make test-all` has it
    options: dict[str, Any] = field(default_factory=dict)


def python(script: str, *arguments: str) -> list[str]:
    return ["python", str(SCRIPTS / script), *arguments]


def bash(script: str) -> list[str]:
    return ["bash", str(SCRIPTS / script)]


def torchrun(script: str, *arguments: str) -> list[str]:
    return ["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPTS / script), *arguments]


CASES = [
    *(
        Case(f"`traps_and_exits.py {code}`", python("traps_and_exits.py", str(code)), YES, slow=code not in (0, 85))
        for code in (0, 75, 85, 99, 143)
    ),
    Case("`traps_and_exits.py 1`", python("traps_and_exits.py", "1"), UNKNOWN, clean=False),
    Case(
        "`traps_and_exits.py 0`, `--exit0 completed`",
        python("traps_and_exits.py", "0"),
        YES,
        ending=COMPLETED,
        exit_zero=ExitZero.COMPLETED,
    ),
    Case(
        "`traps_and_exits.py 0 SIGUSR1`, `--signal USR1`",
        python("traps_and_exits.py", "0", "SIGUSR1"),
        YES,
        options={"signal": "SIGUSR1"},
    ),
    Case("`written_for_slurm.py`, `--signal USR2`", python("written_for_slurm.py"), YES, options={"signal": "SIGUSR2"}),
    Case("`dies_by_the_signal.py`", python("dies_by_the_signal.py"), YES),
    Case("`has_no_handler.py`", python("has_no_handler.py"), NO, LAST_CHECKPOINT, ready="saved"),
    Case(
        "`ignores_sigterm.py`",
        python("ignores_sigterm.py"),
        YES,
        LAST_CHECKPOINT,
        clean=False,
        killed=True,
        grace_s=5.0,
        ready="saved",
    ),
    Case(
        "`saves_and_goes_on.py`, `--signal USR1`",
        python("saves_and_goes_on.py"),
        UNKNOWN,
        clean=False,
        killed=True,
        grace_s=1.5,
        dies_after="saved",
        options={"signal": "SIGUSR1"},
    ),
    Case("`waits_for_the_signal.py`", python("waits_for_the_signal.py"), YES),
    Case("`double_forks.py`", python("double_forks.py"), YES),
    Case("`keeps_forking.py`", python("keeps_forking.py"), YES),
    Case("`starts_from_scratch.py`", python("starts_from_scratch.py"), NO, BEGINNING),
    Case("`bash_without_exec.sh`", bash("bash_without_exec.sh"), YES),
    Case(
        "`bash_that_traps.sh`, `--signal-target all`",
        bash("bash_that_traps.sh"),
        YES,
        options={"signal_target": job_pb2.SIGNAL_TARGET_ALL},
    ),
    Case("`bash_that_traps.sh`", bash("bash_that_traps.sh"), YES),
    Case("`bash_with_exit_trap.sh`", bash("bash_with_exit_trap.sh"), YES),
    Case("`bash_and_then.sh`", bash("bash_and_then.sh"), YES),
    Case("`bash_with_a_loop.sh`", bash("bash_with_a_loop.sh"), YES),
    Case("`wraps.py dies`", python("wraps.py", "dies"), UNKNOWN, clean=False),
    Case("`wraps.py swallows`", python("wraps.py", "swallows"), YES),
    Case("`bash_in_background.sh`", bash("bash_in_background.sh"), YES),
    Case("`python -m as_module`", ["python", "-m", "as_module"], YES),
    Case("`prints_too_much.py`", python("prints_too_much.py"), YES, slow=True),
    Case("`closes_stdout.py`", python("closes_stdout.py"), YES),
    Case("`changes_directory.py`", python("changes_directory.py"), YES),
    Case("`stops_itself.py`", python("stops_itself.py"), YES),
    Case("`own_modules/train.py`", python("own_modules/train.py"), YES),
    Case("`trains_with_workers.py`", python("trains_with_workers.py"), YES),
    Case("`runs_under_torchrun.py`", torchrun("runs_under_torchrun.py"), YES, processes=2, slow=True),
    Case("`runs_under_torchrun.py sdk`", torchrun("runs_under_torchrun.py", "sdk"), YES, processes=2),
    Case(
        "`trains_under_torchrun.py`", torchrun("trains_under_torchrun.py"), UNKNOWN, clean=False, processes=2, slow=True
    ),
    Case("`trains_under_torchrun.py sdk`", torchrun("trains_under_torchrun.py", "sdk"), YES, processes=2, slow=True),
    Case(
        "`saves_too_slowly.py`",
        python("saves_too_slowly.py"),
        NO,
        BEGINNING,
        clean=False,
        killed=True,
        grace_s=1.5,
        dies_after="saving",
    ),
]

CHECKPOINT_BEFORE = "the checkpoint before"
OUT_OF_DISK = [
    Case("`fills_the_disk.py`", python("fills_the_disk.py"), NO, CHECKPOINT_BEFORE, clean=False),
    Case("`fills_the_disk.py sdk`", python("fills_the_disk.py", "sdk"), NO, CHECKPOINT_BEFORE, clean=False),
]


async def suspend(node: Node, case: Case, attempt: int = 1) -> agent_pb2.AttemptStatus:
    """Launch the script, ask it to suspend once it is up, and return the status of its end."""
    await launch(node, case, attempt)
    await up(node, case, attempt)
    if case.dies_after:
        await node.attempts.stop("1", attempt, 120.0)
        await node.until(lambda: re.search(f"^{case.dies_after}", log(node, attempt), re.MULTILINE))
    return await node.stop(case.grace_s, attempt=attempt)


async def launch(node: Node, case: Case, attempt: int = 1) -> None:
    options = {"workdir": str(SCRIPTS), "env": ENVIRONMENT, "grace_s": case.grace_s, **case.options}
    await node.launch(case.command, attempt=attempt, **options)


async def up(node: Node, case: Case, attempt: int = 1) -> None:
    """Wait until the script has come as far as it needs to for being suspended."""

    def ready() -> bool:
        # Python writes a line and its end one after the other, so that those of two processes may mix: "upup\n\n".
        beginnings = re.findall(f"^(?:{re.escape(case.ready)})+", log(node, attempt), re.MULTILINE)
        return sum(map(len, beginnings)) >= case.processes * len(case.ready)

    def phase() -> Any:
        return node.status(attempt=attempt).phase

    await node.until(lambda: phase() in OVER or (phase() == RUNNING and ready()))
    assert phase() == RUNNING, log(node, attempt)


def log(node: Node, attempt: int = 1) -> str:
    """The end of what the attempt printed, which may be too much for looking at all of it again and again."""
    path = node.place(attempt=attempt).output
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 64 * 1024))
        return file.read().decode(errors="replace")


def read(status: agent_pb2.AttemptStatus, case: Case, cause: StopCause = StopCause.SUSPENDED) -> Outcome:
    """What the master makes of the end."""
    signal = case.options.get("signal", "SIGTERM")
    spec = JobSpec(
        command=tuple(case.command), workdir="/", grace_s=case.grace_s, exit_zero=case.exit_zero, signal=signal
    )
    return read_exit(exit_from_message(status), spec, cause)


def saved(text: str) -> list[int]:
    """The steps that the script says it saved."""
    return [int(step) for step in re.findall(r"^saved (\d+)$", text, re.MULTILINE)]


def went_on_from(text: str) -> list[int]:
    """The steps that the script says it went on from."""
    return [int(step) for step in re.findall(r"^going on from (\d+)$", text, re.MULTILINE)]
