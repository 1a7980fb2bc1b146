"""Find sessions that are not used, and since when: no byte moves through a channel, and no CPU or GPU is busy.

The node only reports this: the master warns of it and ends the sessions, because that belongs in the job's history. A
session is reported when its end is near, when it is used again, and when its time is up.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ebbtide_agent.contract.attempt_dir import AttemptKey
from ebbtide_agent.gpu.reader import Readings
from ebbtide_agent.gpu_use.attribution import Owners
from ebbtide_agent.processes import procfs

WARNING_S: Final = 600.0
"""Seconds before its end at which a session is warned; one with a short limit is warned after three quarters of it."""
BUSY_CPU: Final = 0.05
"""The part of one CPU above which a session is busy; a prompt or server that waits uses less, on the whole."""
BUSY_GPU: Final = 0.05


class SessionAttempts(Protocol):
    """What `UnusedSessions` needs of the attempts."""

    def idle_limits(self) -> dict[AttemptKey, float]: ...
    def pids_of(self, job_id: str, attempt: int) -> tuple[int, ...]: ...
    def gpus_of(self, job_id: str, attempt: int) -> frozenset[str]: ...
    def note_unused(self, job_id: str, attempt: int, since: float, left_s: float) -> None: ...


class Traffic(Protocol):
    """What `UnusedSessions` needs of the channels."""

    def bytes_of(self, job_id: str, attempt: int) -> int: ...
    def warn(self, job_id: str, attempt: int, words: str) -> None: ...


@dataclass(slots=True)
class _SessionUse:
    """What was seen of one session; times are on the monotonic clock."""

    used_at: float
    looked_at: float
    bytes: int
    cpu_s: float
    notice: str = ""  # "", "warned" or "over"


class UnusedSessions:
    """Looks at the sessions at every heartbeat."""

    def __init__(
        self, sessions: SessionAttempts, traffic: Traffic, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sessions = sessions
        self._traffic = traffic
        self._clock = clock
        self._records: dict[AttemptKey, _SessionUse] = {}

    def look(self, readings: Readings, owners: Owners) -> None:
        """Look at what the sessions do; `readings` say how busy the GPUs are."""
        limits = self._sessions.idle_limits()
        self._records = {key: record for key, record in self._records.items() if key in limits}
        for key, limit_s in limits.items():
            self._look_at(key, limit_s, readings)

    def _look_at(self, key: AttemptKey, limit_s: float, readings: Readings) -> None:
        now, moved, cpu_s = self._clock(), self._traffic.bytes_of(*key), self._cpu_s(key)
        record = self._records.setdefault(key, _SessionUse(now, now, moved, cpu_s))
        busy_cpu = cpu_s - record.cpu_s > BUSY_CPU * (now - record.looked_at)
        busy_gpu = any(
            (reading.utilisation or 0.0) >= BUSY_GPU
            for uuid in self._sessions.gpus_of(*key)
            if (reading := readings.get(uuid)) is not None
        )
        if busy_cpu or busy_gpu or moved != record.bytes:
            record.used_at = now
        record.looked_at, record.bytes, record.cpu_s = now, moved, cpu_s
        self._tell(key, record, limit_s, now - record.used_at)

    def _cpu_s(self, key: AttemptKey) -> float:
        stats = [procfs.read_stat(pid) for pid in self._sessions.pids_of(*key)]
        return sum(stat.cpu_s for stat in stats if stat is not None)

    def _tell(self, key: AttemptKey, record: _SessionUse, limit_s: float, unused_s: float) -> None:
        left_s = limit_s - unused_s
        news = "over" if left_s <= 0 else "warned" if left_s <= min(WARNING_S, limit_s / 4) else ""
        if news == record.notice:
            return
        record.notice = news
        since = time.time() - unused_s if news else 0.0
        self._sessions.note_unused(*key, since, max(0.0, left_s) if news else 0.0)
        if news == "warned":
            self._traffic.warn(*key, f"job {key[0]} is unused: it is ended in {left_s:.0f} s unless it is used")
