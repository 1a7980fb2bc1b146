"""What each GPU shows as used when nothing runs on it: the driver's memory, a display's, what an admin keeps there.

It is learned while nothing runs, because no constant is right: a display holds a gigabyte on one workstation and
nothing on the next. It is kept on disk, so that an agent that starts while memory is stuck does not take that for idle.
"""

import logging
from collections.abc import Collection
from pathlib import Path

from ebbtide_protos.process import boot_id

from ebbtide_agent.gpu.reader import Readings
from ebbtide_agent.jsonfile import read_json, write_json

log = logging.getLogger(__name__)

# Context leftovers and accounting noise above what the GPU shows when idle.
TOLERANCE_BYTES = 512 * 1024 * 1024
# What changes by less is not written down.
_NOTEWORTHY_BYTES = 64 * 1024 * 1024


class Idle:
    """What is known of the idle GPUs of this node, and which of them are set aside because a job left memory there."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` is the file that this is kept in. One that is damaged, or of before a reboot, says nothing."""
        self._path = path
        self._bytes, self._stuck = _load(path)
        self._written = dict(self._bytes)

    def of(self, uuid: str) -> int | None:
        """What the GPU shows as used when it is idle, in bytes; None: not known, for it was never seen so."""
        return self._bytes.get(uuid)

    def learn(self, readings: Readings, held: Collection[str]) -> None:
        """Look at the GPUs that show no process, but for those held by an attempt."""
        for uuid, reading in readings.items():
            if reading.processes == () and uuid not in held and reading.mem_used_bytes is not None:
                self._learn(uuid, reading.mem_used_bytes)
        if any(abs(self._bytes[uuid] - self._written.get(uuid, -1)) >= _NOTEWORTHY_BYTES for uuid in self._bytes):
            self._write()

    def set_aside(self, uuids: Collection[str]) -> None:
        """A job's memory is stuck on these: they do not show what idle means before it is gone."""
        if not self._stuck.issuperset(uuids):
            self._stuck |= set(uuids)
            self._write()

    def _learn(self, uuid: str, used: int) -> None:
        if uuid in self._stuck:
            if used > self._bytes.get(uuid, 0) + TOLERANCE_BYTES:
                return
            self._stuck.remove(uuid)
            self._write()
        self._bytes[uuid] = used

    def _write(self) -> None:
        self._written = dict(self._bytes)
        if self._path is None:
            return
        try:
            write_json(self._path, {"boot_id": boot_id(), "idle_bytes": self._bytes, "stuck": sorted(self._stuck)})
        except OSError as error:  # it is learned again
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
