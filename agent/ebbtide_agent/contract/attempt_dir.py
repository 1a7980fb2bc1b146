"""Reads and writes the files of an attempt in its directory on its node.

intent.json      the intent; the supervisor writes it before anything else
supervisor.json  the supervisor's process; created once, exclusively, and nothing runs without it
script           the job's script, if the job brings one and runs as the agent's account
cgroup           the attempt's control group, if any; the supervisor writes it before the job starts
exit.json        the attempt's last status; written when no process is left
.exit.json       the room on the disk for that, until it is written
told.json        what the script had imported by its first step; the supervisor writes it, once
freed.json       the proof that the attempt's GPUs are free; the agent writes it
mps.json         whether an MPS server's failure ended the attempt; the agent writes it if a client has not ended well
forgotten        marks an attempt that the master has forgotten; only its logs stay beside this file
output.log       the output; for several ranks, the supervisor merges their output
*.log.times      how long such a log was at which time; the supervisor writes it
rank-N.log       the output of rank N, if there are several; like output.log it belongs to the job's account
ranks            how much of the ranks' output is in output.log
"""

import json
import os
import re
import shutil
import stat
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.jsonfile import read_json, reserve, write_json, write_json_into

JOB_SOCKET: Final = "job.sock"
PARTICIPANTS_SOCKET: Final = "stop.sock"
"""Lies beside JOB_SOCKET, where the SDK looks for it."""
SOCKET_DIRS: Final = Path("/run/ebbtide-jobs")
"""The parent of the socket directories for processes of other accounts, which cannot enter the attempt's directory."""
# Job ids become parts of paths; "17.3" is an element of an array.
_JOB_ID = re.compile(r"[0-9A-Za-z_-]{1,64}(\.[0-9]{1,20})?")
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")
_LARGEST = 2**32 - 1  # the wire's largest attempt number
# As good as every last status is shorter.
_FINAL_STATUS_BYTES: Final = 16 * 1024

AttemptKey = tuple[str, int]
"""Which attempt of which job: the job's id, and the attempt's number."""


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """The directory of one attempt."""

    path: Path

    @classmethod
    def of(cls, node_dir: Path, job_id: str, attempt: int) -> Self:
        """Return this attempt's directory, whether it exists or not."""
        return cls(attempts_dir(node_dir) / f"{job_id}.{attempt}")

    @property
    def output(self) -> Path:
        return self.path / "output.log"

    def rank_output(self, rank: int) -> Path:
        """Return the file of this rank's output, whether the rank has one or not."""
        return self.path / f"rank-{rank}.log"

    def has_rank_outputs(self) -> bool:
        """Return whether the attempt's ranks have files of their own."""
        return any(self.path.glob("rank-*.log"))

    @property
    def _room(self) -> Path:
        return self.path / ".exit.json"

    @property
    def ranks_record(self) -> Path:
        return self.path / "ranks"

    @property
    def control_socket(self) -> Path:
        return self.path / "control.sock"

    @property
    def socket_dir(self) -> Path:
        """The directory where processes of another account reach the supervisor; they cannot write to it."""
        return socket_dirs(self.path.parents[1]) / self.path.name

    def given_gpus(self) -> list[str] | None:
        """Return the UUIDs of the attempt's GPUs by its intent, or else by `socket_dir`; only the agent writes there.

        Return None if there is neither, or the file is damaged.
        """
        try:
            content = self.intent() or read_json(self.socket_dir / "gpus")
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
        in_socket_dir = self.socket_dir / "session.sock"
        return in_socket_dir if in_socket_dir.exists() else self.path / "session.sock"

    @property
    def port(self) -> int | None:
        """The port that the attempt's server was given; None if it was given none."""
        try:
            return int((self.path / "port").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def intent(self) -> dict[str, Any] | None:
        """Read the intent. Like the other readers, raises ValueError if the file is damaged, OSError if unreadable."""
        return read_json(self.path / "intent.json")

    def supervisor(self) -> dict[str, Any] | None:
        return read_json(self.path / "supervisor.json")

    def final_status(self) -> dict[str, Any] | None:
        return read_json(self.path / "exit.json")

    def cgroup(self) -> Path | None:
        """Return the attempt's control group; None if it has none."""
        try:
            return Path((self.path / "cgroup").read_text())
        except FileNotFoundError:
            return None

    def dirty_gpus(self) -> dict[str, str] | None:
        """Return the GPUs that were not released in time, with reasons; None if nothing is proven of any GPU yet."""
        content = read_json(self.path / "freed.json")
        if content is None:
            return None
        reasons = content.get("dirty_reasons", {})
        return {str(uuid): str(reasons.get(uuid, "")) for uuid in content.get("dirty_gpus", [])}

    def mps_failure(self) -> str | None:
        """Return the MPS server's failure that ended the attempt; empty if none did, None if that is not known."""
        content = read_json(self.path / "mps.json")
        return None if content is None else str(content.get("failure", ""))

    def imports(self) -> dict[str, Any] | None:
        return read_json(self.path / "told.json")

    def cut_short(self) -> frozenset[str]:
        """Return the checkpoint files whose writers the agent killed, in a supervisor's place, while they wrote."""
        return frozenset((read_json(self.path / "cut-short.json") or {}).get("files", []))

    def killed_overdue(self) -> bool | None:
        """Return whether the agent killed the attempt because its lease was over, or its node ends; False: because it
        had been asked to stop.

        None if the agent did not kill it.
        """
        content = read_json(self.path / "overdue.json")
        return None if content is None else bool(content.get("fenced"))

    def is_forgotten(self) -> bool:
        return (self.path / "forgotten").exists()

    def record_intent(self, content: dict[str, Any]) -> None:
        (self._draft("intent.json", content)).rename(self.path / "intent.json")

    def claim(self, content: dict[str, Any]) -> bool:
        """Become the attempt's only supervisor. Return False if there is, or was, another one."""
        draft = self._draft("supervisor.json", content)
        try:
            os.link(draft, self.path / "supervisor.json")
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def front(self, account: Account | None) -> Path:
        """Return the directory where the job's processes, which run as this account, reach the supervisor."""
        return self.path if account is None else self.socket_dir

    def make_socket_dir(self) -> None:
        """Create `socket_dir`. Raises OSError, also if another account could have made it."""
        for folder, mode in ((SOCKET_DIRS, 0o711), (self.socket_dir.parent, 0o711), (self.socket_dir, 0o755)):
            with suppress(FileExistsError):  # another attempt's supervisor may make the first two at the same time
                folder.mkdir()
                folder.chmod(mode)  # independent of the umask
            facts = folder.lstat()
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o022 or not stat.S_ISDIR(facts.st_mode):
                raise PermissionError(f"{folder} is not the agent's alone")

    def record_port(self, port: int) -> None:
        """Record the port that the attempt's server was given."""
        draft = self.path / f".port.{os.getpid()}"
        draft.write_text(str(port))
        draft.rename(self.path / "port")

    def record_cgroup(self, path: Path) -> None:
        (self.path / "cgroup").write_text(str(path))

    def reserve_final_status(self) -> None:
        """Take the room for the last status, so that it is not lost on a disk that is full by then. Raises OSError."""
        reserve(self._room, _FINAL_STATUS_BYTES)

    def record_final_status(self, content: dict[str, Any]) -> None:
        """Record the last status durably, because a reported end must not be reported differently later."""
        write_json_into(self._room, self.path / "exit.json", content)

    def record_freed(self, dirty: dict[str, str]) -> None:
        self._draft("freed.json", {"dirty_gpus": list(dirty), "dirty_reasons": dirty}).rename(self.path / "freed.json")

    def record_mps_failure(self, failure: str) -> None:
        """Record the failure durably, like the final status that it belongs to."""
        write_json(self.path / "mps.json", {"failure": failure})

    def record_imports(self, content: dict[str, Any]) -> None:
        self._draft("told.json", content).rename(self.path / "told.json")

    def record_cut_short(self, files: frozenset[str]) -> None:
        self._draft("cut-short.json", {"files": sorted(files)}).rename(self.path / "cut-short.json")

    def record_killed_overdue(self, fenced: bool) -> None:
        self._draft("overdue.json", {"fenced": fenced}).rename(self.path / "overdue.json")

    def forget(self) -> None:
        """Delete everything but the logs. The attempt counts as forgotten even if this is interrupted."""
        with suppress(FileNotFoundError):  # the directory was removed
            (self.path / "forgotten").touch(mode=0o600)
            with os.scandir(self.path) as found:
                entries = list(found)
            for entry in entries:
                if entry.name != "forgotten" and not entry.name.startswith(("output.log", "rank-")):
                    os.unlink(entry)
        shutil.rmtree(self.socket_dir, ignore_errors=True)

    def _draft(self, name: str, content: dict[str, Any]) -> Path:
        """Write a draft without fsync, because these files are of no use after a reboot."""
        draft = self.path / f".{name}.{os.getpid()}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(content, file)
        return draft


def is_job_id(job_id: str) -> bool:
    """Return whether this is a valid job id, which is safe as a part of a path."""
    return _JOB_ID.fullmatch(job_id) is not None


def attempt_named(name: str) -> AttemptKey | None:
    """Return the attempt whose directory has this name; None if the name is not an attempt's."""
    job_id, _, number = name.rpartition(".")
    if not is_job_id(job_id) or _NUMBER.fullmatch(number) is None or int(number) > _LARGEST:
        return None
    return job_id, int(number)


def attempts_dir(node_dir: Path) -> Path:
    """Return the directory that holds every attempt of the node."""
    return node_dir / "attempts"


def socket_dirs(node_dir: Path) -> Path:
    """Return the directory that holds the `socket_dir` of each of the node's attempts of other accounts."""
    return SOCKET_DIRS / f"{zlib.crc32(os.fsencode(node_dir)):08x}"


def lock_path(node_dir: Path, job_id: str) -> Path:
    """Return the path of the lock that is held while any process of the job lives on the node."""
    return node_dir / "locks" / f"{job_id}.lock"
