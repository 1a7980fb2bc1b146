"""What proves that a process is an attempt's: what only this node's agents can have put into its hands.

Anybody may give their own processes any environment, any name, and by mounts of their own any path that a link in /proc
tells. So a path is a hint at most. What counts is what the agent alone can make: the attempt's intent and its door,
which say whose processes its are, and the inode of its job's lock, which nobody else can open.
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
    doors_dir,
    is_job_id,
    lock_path,
)
from ebbtide_agent.processes import procfs

_SOCKET: Final = b"EBB_SOCKET="
_ENVIRONMENT_BYTES: Final = 8 << 20
"""The kernel lets arguments and environment together have less; what claims to have more is not read on."""
_LOCK_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Belonging:
    """Tells whose a process is, among the attempts of one node."""

    node_dir: Path

    def by_any_sign(self, pid: int) -> AttemptKey | None:
        """The attempt that launched the process, by its environment or else by its job's lock. May block."""
        return self.by_socket(pid) or self.by_lock(pid)

    def by_socket(self, pid: int) -> AttemptKey | None:
        """The attempt whose socket the process has in its environment, if it is of the attempt's account. May block.

        Where nothing says any more whose the attempt was, root's processes are not believed: programs that are set to
        root's id have the environment of whoever starts them.
        """
        value = variable(pid, _SOCKET)
        for folder in (attempts_dir(self.node_dir), doors_dir(self.node_dir)):
            prefix, suffix = os.fsencode(folder) + b"/", b"/" + os.fsencode(JOB_SOCKET)
            if value.startswith(prefix) and value.endswith(suffix):
                key = attempt_named(value[len(prefix) : -len(suffix)].decode("ascii", errors="replace"))
                return key if key is not None and procfs.real_uid(pid) == self._uid(key) else None
        return None

    def by_lock(self, pid: int) -> AttemptKey | None:
        """The attempt that held the lock last which the process has open, as that itself says. May block."""
        return next((key for key in map(self._holder, self._locks(pid)) if key is not None), None)

    def holds(self, pid: int, job_id: str) -> bool:
        """Whether the process has the job's lock open, be it removed or empty. May block."""
        return any(self._job(lock) == job_id for lock in self._locks(pid))

    def _uid(self, key: AttemptKey) -> int | None:
        """Whose processes the attempt's are; None if nothing proves it."""
        place = AttemptDir.of(self.node_dir, *key)
        try:
            intent = place.intent()
            if intent is not None:
                account = intent.get("account")
                return int(account["uid"]) if account else os.geteuid()
        except (OSError, ValueError, LookupError, TypeError):
            pass  # damaged; the door may be whole
        try:
            facts = (place.door / JOB_SOCKET).lstat()
        except OSError:
            return os.geteuid() or None
        return facts.st_uid if stat.S_ISSOCK(facts.st_mode) else None

    def _locks(self, pid: int) -> Iterator["_Lock"]:
        """What the process has open and is a lock of this node, or was."""
        folder = f"{lock_path(self.node_dir, '').parent}/"
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            return
        for descriptor in descriptors:
            link = f"/proc/{pid}/fd/{descriptor}"
            target = _target(link).removesuffix(" (deleted)")
            if target.startswith(folder) and target.endswith(".lock"):  # a hint: only what is looked at proves anything
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
        """Whether it is a file that nobody but the agent's account can open, on the node's own disk."""
        private = facts.st_uid == os.geteuid() and not stat.S_IMODE(facts.st_mode) & 0o077
        return private and stat.S_ISREG(facts.st_mode) and facts.st_dev in self._devices()

    def _devices(self) -> set[int]:
        """Of the locks: some file systems number their files' device otherwise than their directories'."""
        folder = lock_path(self.node_dir, "").parent
        try:
            with os.scandir(folder) as entries:
                files = {entry.stat(follow_symlinks=False).st_dev for entry in itertools.islice(entries, 1)}
            return files | {folder.lstat().st_dev}
        except OSError:
            return set()

    def _job(self, lock: "_Lock") -> str:
        """Whose lock it is: it says so itself, or, one of before, has its place."""
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
        """As the lock itself says; empty if it does not."""
        lines = self.content.split(b"\n")
        job = lines[1].decode("ascii", errors="replace") if len(lines) > 2 else ""
        return job if is_job_id(job) else ""

    @property
    def attempt(self) -> int:
        number = self.content.partition(b"\n")[0]
        return int(number) if number.isdigit() else 0


def variable(pid: int, prefix: bytes) -> bytes:
    """What follows the prefix in the process's environment; empty if nothing has it, or it is not ours to look into.

    May block for ever: the process may have put its environment where only it can be read from.
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
