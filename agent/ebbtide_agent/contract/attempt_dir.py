"""What an attempt leaves on its node's disk.

intent.json      what was ordered                          written by the supervisor before anything else
supervisor.json  who supervises; created once, exclusively  nothing runs without it
script           the job's script, if it is part of it, and the job is the agent's account's
cgroup           the control group that it runs in, if any  written by the supervisor before the job starts
exit.json        the attempt's last status                 written when no process is left
told.json        what its script had imported by its first step  written by the supervisor, once
freed.json       the proof that its GPUs are free          written by the agent
mps.json         whether an MPS server's failure ended it  written by the agent, of a client that did not end well
forgotten        nobody wants to hear of it any more; only what it printed stays beside it
output.log       what it printed; of several ranks, put together by the supervisor
*.log.times      how long such a log was when          written by the supervisor
rank-N.log       what rank N printed, where there are several; like output.log it belongs to the job's account
ranks            how much of these is in output.log
"""

import json
import os
import re
import shutil
import stat
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.jsonfile import read_json, write_json

JOB_SOCKET: Final = "job.sock"
PARTICIPANTS_SOCKET: Final = "stop.sock"
"""Beside the other: the SDK looks for it there."""
DOORS: Final = Path("/run/ebbtide-jobs")
"""What processes of other accounts than the agent's may enter: they cannot enter the attempt's own directory."""
# Job ids become parts of paths; "17.3" is an element of an array.
_JOB_ID = re.compile(r"[0-9A-Za-z_-]{1,64}(\.[0-9]{1,20})?")
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")
_LARGEST = 2**32 - 1  # that the wire takes

AttemptKey = tuple[str, int]  # job id, attempt


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """The directory of one attempt."""

    path: Path

    @classmethod
    def of(cls, node_dir: Path, job_id: str, attempt: int) -> Self:
        """Where this attempt's directory is, whether it exists or not."""
        return cls(attempts_dir(node_dir) / f"{job_id}.{attempt}")

    @property
    def output(self) -> Path:
        return self.path / "output.log"

    def rank_output(self, rank: int) -> Path:
        """What this rank prints, if it has a file of its own."""
        return self.path / f"rank-{rank}.log"

    def has_rank_outputs(self) -> bool:
        """Whether its ranks have files of their own."""
        return any(self.path.glob("rank-*.log"))

    @property
    def ranks_record(self) -> Path:
        return self.path / "ranks"

    @property
    def control_socket(self) -> Path:
        return self.path / "control.sock"

    @property
    def door(self) -> Path:
        """Where processes of another account reach the supervisor. They cannot write here, so nothing of them is."""
        return doors_dir(self.path.parents[1]) / self.path.name

    def given_gpus(self) -> list[str] | None:
        """The GPUs that it was given, as its intent says, or its door, which both are the agent's; None: neither does.

        What is damaged says nothing.
        """
        try:
            content = self.intent() or read_json(self.door / "gpus")
            return None if content is None else [str(gpu["uuid"]) for gpu in content["gpus"]]
        except (OSError, ValueError, LookupError, TypeError):
            return None

    @property
    def process_socket(self) -> Path:
        return self.path / "guests.sock"

    @property
    def input_socket(self) -> Path:
        return self.path / "input.sock"

    @property
    def session_socket(self) -> Path:
        at_door = self.door / "session.sock"
        return at_door if at_door.exists() else self.path / "session.sock"

    @property
    def port(self) -> int | None:
        """That its server was told to listen on, if it is one that was told."""
        try:
            return int((self.path / "port").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def intent(self) -> dict[str, Any] | None:
        """Raises ValueError, like the other readers, if the file is damaged; OSError if it cannot be read."""
        return read_json(self.path / "intent.json")

    def supervisor(self) -> dict[str, Any] | None:
        return read_json(self.path / "supervisor.json")

    def final_status(self) -> dict[str, Any] | None:
        return read_json(self.path / "exit.json")

    def cgroup(self) -> Path | None:
        """The attempt's control group, if it has one."""
        try:
            return Path((self.path / "cgroup").read_text())
        except FileNotFoundError:
            return None

    def dirty_gpus(self) -> dict[str, str] | None:
        """The GPUs that were not released in time, and why; None if the others are not proven free either."""
        content = read_json(self.path / "freed.json")
        if content is None:
            return None
        reasons = content.get("dirty_reasons", {})
        return {str(uuid): str(reasons.get(uuid, "")) for uuid in content.get("dirty_gpus", [])}

    def mps_failure(self) -> str | None:
        """The failure of an MPS server that ended it; empty if none did, None if nobody has found out."""
        content = read_json(self.path / "mps.json")
        return None if content is None else str(content.get("failure", ""))

    def told(self) -> dict[str, Any] | None:
        return read_json(self.path / "told.json")

    def cut_short(self) -> frozenset[str]:
        """Checkpoint files that were being written when those who wrote them were killed, for want of a supervisor."""
        return frozenset((read_json(self.path / "cut-short.json") or {}).get("files", []))

    def killed_overdue(self) -> bool | None:
        """Whether the agent killed it in place of its supervisor because its lease was over; False: because a stop was.

        None if the agent did not.
        """
        content = read_json(self.path / "overdue.json")
        return None if content is None else bool(content.get("fenced"))

    def is_forgotten(self) -> bool:
        return (self.path / "forgotten").exists()

    def record_intent(self, content: dict[str, Any]) -> None:
        (self._draft("intent.json", content)).rename(self.path / "intent.json")

    def claim(self, content: dict[str, Any]) -> bool:
        """Become the attempt's one supervisor; False if there is, or was, another one."""
        draft = self._draft("supervisor.json", content)
        try:
            os.link(draft, self.path / "supervisor.json")
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def front(self, account: Account | None) -> Path:
        """Where the job's processes, which run as this account, reach the supervisor."""
        return self.path if account is None else self.door

    def make_door(self) -> None:
        """Create `door`. Raises OSError, also if somebody else might have put it there."""
        for folder, mode in ((DOORS, 0o711), (self.door.parent, 0o711), (self.door, 0o755)):
            if not folder.is_dir():
                folder.mkdir()
                folder.chmod(mode)  # whatever the umask is
            facts = folder.lstat()
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o022 or not stat.S_ISDIR(facts.st_mode):
                raise PermissionError(f"{folder} is not the agent's alone")

    def record_port(self, port: int) -> None:
        """The port that its server was told to listen on."""
        draft = self.path / f".port.{os.getpid()}"
        draft.write_text(str(port))
        draft.rename(self.path / "port")

    def record_cgroup(self, path: Path) -> None:
        (self.path / "cgroup").write_text(str(path))

    def record_final_status(self, content: dict[str, Any]) -> None:
        """Durable when this returns: what was reported once must not be reported differently later."""
        write_json(self.path / "exit.json", content)

    def record_freed(self, dirty: dict[str, str]) -> None:
        self._draft("freed.json", {"dirty_gpus": list(dirty), "dirty_reasons": dirty}).rename(self.path / "freed.json")

    def record_mps_failure(self, failure: str) -> None:
        """Durable, as the final status is that it belongs to."""
        write_json(self.path / "mps.json", {"failure": failure})

    def record_told(self, content: dict[str, Any]) -> None:
        self._draft("told.json", content).rename(self.path / "told.json")

    def record_cut_short(self, files: frozenset[str]) -> None:
        self._draft("cut-short.json", {"files": sorted(files)}).rename(self.path / "cut-short.json")

    def record_killed_overdue(self, fenced: bool) -> None:
        self._draft("overdue.json", {"fenced": fenced}).rename(self.path / "overdue.json")

    def forget(self) -> None:
        """Drop everything but the log. Interrupted, it is forgotten all the same."""
        (self.path / "forgotten").touch(mode=0o600)
        with os.scandir(self.path) as found:
            entries = list(found)
        for entry in entries:
            if entry.name != "forgotten" and not entry.name.startswith(("output.log", "rank-")):
                os.unlink(entry)
        shutil.rmtree(self.door, ignore_errors=True)

    def _draft(self, name: str, content: dict[str, Any]) -> Path:
        """Not durable: what does not survive the kernel is of no use after it."""
        draft = self.path / f".{name}.{os.getpid()}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(content, file)
        return draft


def is_job_id(job_id: str) -> bool:
    """Whether this can be a job's id, and with that a part of a path."""
    return _JOB_ID.fullmatch(job_id) is not None


def attempt_named(name: str) -> AttemptKey | None:
    """The attempt whose directory has this name; None if it is no attempt's."""
    job_id, _, number = name.rpartition(".")
    if not is_job_id(job_id) or _NUMBER.fullmatch(number) is None or int(number) > _LARGEST:
        return None
    return job_id, int(number)


def attempts_dir(node_dir: Path) -> Path:
    """The directory that holds every attempt of the node."""
    return node_dir / "attempts"


def doors_dir(node_dir: Path) -> Path:
    """The directory that holds the doors of the node's attempts of other accounts."""
    return DOORS / f"{zlib.crc32(os.fsencode(node_dir)):08x}"


def lock_path(node_dir: Path, job_id: str) -> Path:
    """The lock that is held as long as any process of the job lives on the node."""
    return node_dir / "locks" / f"{job_id}.lock"
