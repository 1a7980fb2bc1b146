"""Proves that a process belongs to an attempt, by things that only this node's agents can have given to it.

Users can give their processes any environment and any name, and with mounts of their own also any path that a link in
/proc shows. So a path is only a hint. The proof is what the agent alone can make: the attempt's intent and its socket
directory, which show the account of its processes, and the inode of its job's lock, which no other account can open.
"""

import itertools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_agent.contract.attempt_dir import (
    JOB_SOCKET,
    AttemptDir,
    AttemptKey,
    attempt_named,
    attempts_dir,
    is_job_id,
    lock_path,
    socket_dirs,
)
from ebbtide_agent.processes import procfs

_SOCKET: Final = b"EBB_SOCKET="
_ENVIRONMENT_BYTES: Final = 8 << 20
"""Bytes that are read of an environment; the kernel limits arguments and environment together to less."""
_LOCK_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class AttemptOwnership:
    """Finds the attempt of one node that a process belongs to."""

    node_dir: Path

    def by_socket(self, pid: int) -> AttemptKey | None:
        """Return the attempt whose socket the process's environment names, if both have the same account. May block.

        When an attempt's account cannot be found any more, root's processes prove nothing: a setuid-root program has
        the environment of the user who starts it.
        """
        value = variable(pid, _SOCKET)
        if not value:
            return None  # as of most processes of the machine
        for folder in (attempts_dir(self.node_dir), socket_dirs(self.node_dir)):
            prefix, suffix = os.fsencode(folder) + b"/", b"/" + os.fsencode(JOB_SOCKET)
            if value.startswith(prefix) and value.endswith(suffix):
                key = attempt_named(value[len(prefix) : -len(suffix)].decode("ascii", errors="replace"))
                return key if key is not None and procfs.real_uid(pid) == self._uid(key) else None
        return None

    def by_lock(self, pid: int) -> AttemptKey | None:
        """Return the attempt that is named in the lock that the process has open, its last holder. May block."""
        return next((key for key in map(self._holder, self._locks(pid)) if key is not None), None)

    def holds(self, pid: int, job_id: str) -> bool:
        """Return whether the process has the job's lock open, even one that is removed or empty. May block."""
        return any(self._job(lock) == job_id for lock in self._locks(pid))

    def _uid(self, key: AttemptKey) -> int | None:
        """Return the uid of the attempt's processes; None if nothing proves it."""
        place = AttemptDir.of(self.node_dir, *key)
        try:
            intent = place.intent()
            if intent is not None:
                account = intent.get("account")
                return int(account["uid"]) if account else os.geteuid()
        except (OSError, ValueError, LookupError, TypeError):
            pass  # damaged; the socket may be whole
        try:
            facts = (place.socket_dir / JOB_SOCKET).lstat()
        except OSError:
            return os.geteuid() or None
        return facts.st_uid if stat.S_ISSOCK(facts.st_mode) else None

    def _locks(self, pid: int) -> Iterator["_Lock"]:
        """Yield the locks of this node that the process has open, removed ones too."""
        try:
            links = [f"/proc/{pid}/fd/{descriptor}" for descriptor in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            return
        if not links:
            return  # as of a thread of the kernel
        folder = f"{lock_path(self.node_dir, '').parent}/"
        for link in links:
            target = _target(link).removesuffix(" (deleted)")
            if target.startswith(folder) and target.endswith(".lock"):  # only a hint; _look_at proves it
                lock = self._look_at(link, target.removeprefix(folder).removesuffix(".lock"))
                if lock is not None:
                    yield lock

    def _look_at(self, link: str, named: str) -> "_Lock | None":
        try:
            if not self._is_ours(os.stat(link)):
                return None
            handle = os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            facts = os.fstat(handle)
            if not self._is_ours(facts):
                return None
            return _Lock(facts, named, os.pread(handle, _LOCK_BYTES, 0))
        except OSError:
            return None
        finally:
            os.close(handle)

    def _is_ours(self, facts: os.stat_result) -> bool:
        """Return whether only the agent's account can open the file, and it is on the locks' file system."""
        private = facts.st_uid == os.geteuid() and not stat.S_IMODE(facts.st_mode) & 0o077
        return private and stat.S_ISREG(facts.st_mode) and facts.st_dev in self._devices()

    def _devices(self) -> set[int]:
        """Return the device numbers of the locks and of their directory, which differ on some file systems."""
        folder = lock_path(self.node_dir, "").parent
        try:
            with os.scandir(folder) as entries:
                files = {entry.stat(follow_symlinks=False).st_dev for entry in itertools.islice(entries, 1)}
            return files | {folder.lstat().st_dev}
        except OSError:
            return set()

    def _job(self, lock: "_Lock") -> str:
        """Return the job that the lock names, or, for an older agent's lock, the job whose path it still has."""
        if lock.job:
            return lock.job
        try:
            there = lock_path(self.node_dir, lock.named).lstat() if is_job_id(lock.named) else None
        except OSError:
            return ""
        return lock.named if there is not None and os.path.samestat(there, lock.facts) else ""

    def _holder(self, lock: "_Lock") -> AttemptKey | None:
        return attempt_named(f"{self._job(lock)}.{lock.attempt}")


@dataclass(frozen=True, slots=True)
class _Lock:
    facts: os.stat_result
    named: str  # by its path
    content: bytes

    @property
    def job(self) -> str:
        """The job that the lock names; empty if it names none."""
        lines = self.content.split(b"\n")
        job = lines[1].decode("ascii", errors="replace") if len(lines) > 2 else ""
        return job if is_job_id(job) else ""

    @property
    def attempt(self) -> int:
        number = self.content.partition(b"\n")[0]
        return int(number) if number.isdigit() else 0


def variable(pid: int, prefix: bytes) -> bytes:
    """Return the rest of the environment entry with this prefix; empty if there is none or it may not be read.

    May block for ever: a process can move its environment into memory that blocks its readers.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read(_ENVIRONMENT_BYTES)
    except OSError:
        return b""
    entries = [entry for entry in environment.split(b"\0") if entry.startswith(prefix)]
    return entries[0].removeprefix(prefix) if entries else b""


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
