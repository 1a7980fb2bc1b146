"""Learn how much memory each GPU shows as used while idle: the driver's, a display's, or what an admin keeps there.

This is learned while nothing runs, because no constant is right: a display holds a gigabyte on one workstation and
nothing on the next. The driver may give back late what a process had, so more than was known counts only once it has
stayed for a while. It is kept on disk, so that an agent that starts while memory is stuck does not count that as idle.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ebbtide_machine.process import boot_id

from ebbtide_agent.gpu.reader import Readings
from ebbtide_agent.jsonfile import read_json, write_json

log = logging.getLogger(__name__)

# Context leftovers and accounting noise above what the GPU shows when idle; the master ends a quarantine by the same.
TOLERANCE_BYTES = 512 * 1024 * 1024
# A smaller change is not written to disk.
_NOTEWORTHY_BYTES = 64 * 1024 * 1024
# Seconds without a process after which more use counts as idle: twice as many as a job's memory has to be given back.
STAYS_S = 20.0


@dataclass(slots=True)
class _Rise:
    """More use than was known, while the GPU shows no process: `bytes` is the least that was seen since then."""

    since: float
    bytes: int


class IdleMemory:
    """Knows the idle use of this node's GPUs, and which GPUs are set aside because a job's memory is stuck there."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` is the file that this is kept in. A file that is damaged, or from before a reboot, is ignored."""
        self._path = path
        self._bytes, self._stuck = _load(path)
        self._written = dict(self._bytes)
        self._rises: dict[str, _Rise] = {}

    def of(self, uuid: str) -> int | None:
        """Return the bytes that the GPU shows as used when it is idle; None if it was never seen idle."""
        return self._bytes.get(uuid)

    def learn(self, readings: Readings, held: Collection[str], now: float) -> None:
        """Learn from the GPUs that show no process and are not held by an attempt, at this time of a steady clock.

        The first use that is seen of a GPU counts at once, and so does less than was known.
        """
        for uuid, reading in readings.items():
            if reading.processes == () and uuid not in held and reading.mem_used_bytes is not None:
                self._learn(uuid, reading.mem_used_bytes, now)
            else:
                self._rises.pop(uuid, None)
        if any(self._is_news(uuid) for uuid in self._bytes):
            self._write()

    def mark_stuck(self, uuids: Collection[str]) -> None:
        """Note that a job's memory is stuck on these GPUs: nothing is learned from them before that is gone."""
        if not self._stuck.issuperset(uuids):
            self._stuck |= set(uuids)
            self._write()

    def _learn(self, uuid: str, used: int, now: float) -> None:
        if uuid in self._stuck:
            if used > self._bytes.get(uuid, 0) + TOLERANCE_BYTES:
                return
            self._stuck.remove(uuid)
            self._write()
        if used <= self._bytes.get(uuid, used):
            self._bytes[uuid] = used
            self._rises.pop(uuid, None)
        else:
            self._watch_rise(uuid, used, now)

    def _watch_rise(self, uuid: str, used: int, now: float) -> None:
        """Take more use for idle once it has stayed; it begins anew when more is added to it."""
        rise = self._rises.get(uuid)
        if rise is None or used > rise.bytes + TOLERANCE_BYTES:
            rise = self._rises[uuid] = _Rise(now, used)
        rise.bytes = min(rise.bytes, used)
        if now - rise.since >= STAYS_S:
            self._bytes[uuid] = rise.bytes
            del self._rises[uuid]

    def _is_news(self, uuid: str) -> bool:
        """Return whether the next agent would be wrong about the GPU by much, or would not know it."""
        written = self._written.get(uuid)
        return written is None or abs(self._bytes[uuid] - written) >= _NOTEWORTHY_BYTES

    def _write(self) -> None:
        self._written = dict(self._bytes)
        if self._path is None:
            return
        try:
            write_json(self._path, {"boot_id": boot_id(), "idle_bytes": self._bytes, "stuck": sorted(self._stuck)})
        except OSError as error:  # the next agent learns it again
            log.error("event=idle-not-written reason=%r", str(error))


def _load(path: Path | None) -> tuple[dict[str, int], set[str]]:
    try:
        content = (read_json(path) if path is not None else None) or {}
        if content.get("boot_id") != boot_id():
            return {}, set()
        return {str(uuid): int(used) for uuid, used in content["idle_bytes"].items()}, set(content["stuck"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        log.error("event=idle-not-read reason=%r", str(error))
        return {}, set()
