"""Borrow nodes from Slurm: each loan is a job there, with one step in which a pilot runs."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ebbtide_agent.pilot.slurm import UNIX_TIMES, read_time
from ebbtide_core.supply.supply import LenderFacts, LenderState

from ebbtide_cli.supplying.lender import (
    ANSWER_S,
    LenderAwayError,
    LenderRefusedError,
    last_line,
    log_of,
    pilot_command,
    read_log,
)
from ebbtide_cli.supplying.settings import Borrowing, SlurmOptions

_PREFIX: Final = "ebb-"
"""What the names of our jobs begin with there."""
_WAITING: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD"})
_RUNNING: Final = frozenset({"RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "SUSPENDED", "STOPPED", "RESIZING"})
_UNPROVED: Final = frozenset({"NODE_FAIL", "BOOT_FAIL", "REVOKED", "SPECIAL_EXIT"})
"""States after which processes may go on on a node that Slurm does not reach."""
_NEVER: Final = frozenset(
    {
        *("AccountNotAllowed", "AssocMaxWallDurationPerJobLimit", "BadConstraints", "InvalidAccount", "InvalidQOS"),
        *("JobHeldAdmin", "JobHeldUser", "PartitionNodeLimit", "PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit"),
        *("AssocMaxCpuPerJobLimit", "AssocMaxGRESPerJob", "AssocMaxMemPerJob", "QOSMaxCpuPerJobLimit"),
        *("QOSMaxGRESPerJob", "QOSMaxMemoryPerJob", "launch_failed_requeued_held"),
    }
)
"""Reasons for waiting that time does not end."""
_UNANSWERED: Final = re.compile(
    r"timed out|Unable to contact slurm controller|Zero Bytes were transmitted|Communication \w+ failure"
    r"|Message (send|receive) failure|Connection (refused|reset)|controller in standby mode",
    re.IGNORECASE,
)
"""What sbatch says where it does not know whether Slurm has taken the job."""


class Slurm:
    """Asks Slurm for the loans of one supply; ``folder`` has their scripts and logs."""

    def __init__(self, borrowing: Borrowing, options: SlurmOptions, folder: Path) -> None:
        self._borrowing = borrowing
        self._options = options
        self._folder = folder
        self._proves: bool | None = None

    def script(self, id: str, invitation: Path, kept: bool) -> str:
        """Return the batch script of a loan."""
        wanted, seconds = self._borrowing, int(self._borrowing.time_s)
        options = [
            f"--job-name={_PREFIX}{id}",
            "--nodes=1",
            "--no-requeue",
            f"--time={max(1, -(-seconds // 60))}",
            f"--output={log_of(self._folder, id)}",
            "--open-mode=append",
            *([f"--gres=gpu:{wanted.gpus}"] if wanted.gpus else []),
            *self._options.sbatch,
        ]
        lines = [f"#SBATCH {shlex.quote(option)}" for option in options]
        home = f"export EBB_HOME={shlex.quote(str(wanted.home))}"
        pilot = shlex.join(pilot_command(wanted, id, invitation, kept))
        return "\n".join(["#!/bin/bash", *lines, home, f"exec srun --overlap --nodes=1 --ntasks=1 {pilot}", ""])

    def ask(self, id: str, invitation: Path, kept: bool) -> str:
        """Ask for a loan; return the job's id. Raises LenderRefusedError, LenderAwayError, OSError."""
        self._borrowing.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        script = self._folder / f"{id}.sh"
        script.write_text(self.script(id, invitation, kept))
        done = self._run("sbatch", "--parsable", str(script))
        if done.returncode:
            said = _said(done.stderr) or f"sbatch ended with exit code {done.returncode}"
            raise LenderAwayError(said) if _UNANSWERED.search(said) else LenderRefusedError(said)
        return done.stdout.strip().partition(";")[0]

    def preview(self, id: str, invitation: Path) -> Iterator[str]:
        """Yield the script of a loan, and what Slurm would do with it. Raises LenderRefusedError, LenderAwayError."""
        script = self._folder / "try.sh"
        script.write_text(self.script(id, invitation, kept=False))
        try:
            yield script.read_text()
            done = self._run("sbatch", "--test-only", str(script))
        finally:
            script.unlink()
        said = _said(done.stderr)
        if done.returncode:
            raise LenderRefusedError(said)
        yield f"Slurm: {said}"
        if not self.proves_death():
            yield (
                "Slurm here does not track processes by cgroup (ProctrackType): a job whose pilot was killed stays "
                "UNREACHABLE until somebody confirms that its node is dead."
            )

    def log(self, id: str) -> str:
        """Return what the pilot of a loan has printed. Raises LenderRefusedError."""
        return read_log(self._folder, id)

    def look(self) -> dict[str, LenderFacts]:
        """Return all loans that Slurm knows, by their ids; one call, however many there are. Raises LenderAwayError."""
        command = ("squeue", "--me", "--noheader", "--states=all", "--format=%j|%i|%T|%e|%r")
        done = self._run(*command, **UNIX_TIMES)
        if done.returncode:
            raise LenderAwayError(_said(done.stderr))
        prefix, found = f"{_PREFIX}{self._borrowing.name}-", dict[str, LenderFacts]()
        for line in done.stdout.splitlines():
            name, _, rest = line.strip().partition("|")
            if name.startswith(prefix) and name.removeprefix(prefix).isdecimal():
                found[name.removeprefix(_PREFIX)] = self._facts(*rest.split("|", 3))
        return found

    def _facts(self, job: str, state: str, end: str, reason: str) -> LenderFacts:
        if state in _WAITING:
            waits = LenderState.NEVER_STARTS if reason.replace(" ", "_") in _NEVER else LenderState.WAITS
            return LenderFacts(waits, job, reason)
        until = read_time(end)
        if state in _RUNNING:
            return LenderFacts(LenderState.RUNS, job, until=until)
        why = state if reason in ("None", "") else f"{state} ({reason})"
        return LenderFacts(LenderState.OVER, job, why, until, state not in _UNPROVED and self.proves_death())

    def call_off(self, id: str, job: str) -> None:
        """End a loan. Raises LenderAwayError."""
        self._run("scancel", job)

    def proves_death(self) -> bool:
        """Return whether no process of a job is left once Slurm says that the job has ended. Raises LenderAwayError."""
        if self._proves is None:
            done = self._run("scontrol", "show", "config")
            if done.returncode:
                raise LenderAwayError(_said(done.stderr))
            lines = (line.partition("=") for line in done.stdout.splitlines())
            self._proves = any(
                name.strip() == "ProctrackType" and value.strip() == "proctrack/cgroup" for name, _, value in lines
            )
        return self._proves

    def _run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=ANSWER_S,
                errors="replace",
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LenderAwayError(f"{command[0]}: {error}") from None


def _said(text: str) -> str:
    return last_line(text).removeprefix("sbatch: error: ").removeprefix("sbatch: ")
