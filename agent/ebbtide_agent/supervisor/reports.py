"""Read what the job reports through the SDK: datagrams of one JSON object each, from code that is not trusted."""

import base64
import json
import math
import socket
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ebbtide_agent.supervisor.status import Progress, PublishedCheckpoint, Sdk, Start

_LARGEST_DATAGRAM = 64 * 1024
_INT64 = range(-(2**63), 2**63)
# Datagrams that are read before other work has its turn.
_BATCH = 256
# The most metrics that are taken besides the loss, and the characters that are kept of a name.
_MOST_METRICS = 32
_LONGEST_NAME = 64
# The most bytes of module names that are taken; torch with scikit-learn has 70 kB of them.
_MOST_NAMES_BYTES = 512 * 1024


@dataclass(slots=True)
class Reports:
    """What the job has reported so far; of repeated reports, the newest."""

    socket: socket.socket  # does not block
    leader_rank: int = 0
    allocate: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: {}  # answers fake_allocate()
    asked: bool = False
    acknowledged: bool = False
    acknowledged_step: int | None = None
    requeue: bool = False  # the job asked to be ended and run again
    progress: Progress | None = None
    checkpoint: PublishedCheckpoint | None = None
    checkpoints: int = 0  # published so far
    start: Start | None = None
    sdk: Sdk | None = None
    port: int | None = None  # that its server was told to listen on; None again once it is recorded
    imports: dict[str, Any] | None = None  # what the process with its `pid` had imported; see the SDK's start.py

    @property
    def publishes(self) -> bool:
        """Whether the job saves through the SDK; a report of progress does not show that."""
        return self.asked or self.checkpoints > 0

    @property
    def vouches(self) -> bool:
        """Whether the job said that it has saved, and its newest published checkpoint is not older than that."""
        published = None if self.checkpoint is None else self.checkpoint.step
        said = self.acknowledged_step
        return self.acknowledged and (published is None or said is None or published >= said)

    def read(self) -> bool:
        """Take in reports that have arrived; return False if there were none. Malformed ones are ignored."""
        for count in range(_BATCH):
            try:
                datagram, sender = self.socket.recvfrom(_LARGEST_DATAGRAM)
            except BlockingIOError:
                return count > 0
            self._take(datagram, sender)
        return True

    def drain(self) -> None:
        """Take in all that has arrived; the senders must have ended."""
        while self.read():
            pass

    def _take(self, datagram: bytes, sender: Any) -> None:
        report = _object(datagram)
        match report.get("kind"):
            case "fake_allocate":
                self._answer(sender, self.allocate(report))
            case "progress" if report.get("rank") == self.leader_rank:
                self.progress = _progress(report) or self.progress
            case "checkpoint":
                self._take_checkpoint(report)
            case "time" if report.get("rank") == self.leader_rank:
                self._take_time(report)
            case "sdk" if report.get("rank") == self.leader_rank:
                self.sdk = _sdk(report) or self.sdk
            case "start":
                self.imports = _imports(report) or self.imports
            case "port" if type(port := report.get("port")) is int and 0 < port < 1 << 16:
                self.port = port
            case "asked":
                self.asked = True
            case "requeue":
                self.requeue = True
            case "acknowledge" if report.get("rank") == self.leader_rank:
                self.acknowledged, self.acknowledged_step = True, _int64(report.get("step"))

    def _answer(self, sender: Any, answer: dict[str, Any]) -> None:
        # A sender that does not wait for an answer, or no longer does, gets none.
        with suppress(OSError):
            self.socket.sendto(json.dumps(answer).encode(), sender)

    def _take_time(self, report: dict[str, Any]) -> None:
        at = _finite(report.get("at"))
        if at is None or at < 0:
            return
        start = self.start or Start()
        match report.get("what"):
            case "job":
                self.start = replace(start, job_at=start.job_at or at)
            case "loaded":
                self.start = replace(start, loaded_at=start.loaded_at or at)
            case "stepped" if not start.stepped_at:
                self.start = replace(start, stepped_at=at, first_step=_int64(report.get("step")) or 0)

    def _take_checkpoint(self, report: dict[str, Any]) -> None:
        step, size, path = _int64(report.get("step")), _int64(report.get("bytes")), report.get("path")
        if step is not None and size is not None and size >= 0 and isinstance(path, str) and path.isprintable():
            self.checkpoint = PublishedCheckpoint(step, size, path, report.get("verified") is True)
            self.checkpoints += 1
            # Progress is reported only a few times a second: only a checkpoint tells the last step before a suspension.
            if self.progress is not None and step > self.progress.step:
                self.progress = replace(self.progress, step=step)


def _object(datagram: bytes) -> dict[str, Any]:
    """Return the object that the datagram holds; an empty one if it holds none."""
    try:
        report = json.loads(datagram)
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def _progress(report: dict[str, Any]) -> Progress | None:
    step, metrics = _int64(report.get("step")), report.get("metrics")
    if step is None:
        return None
    known = dict(islice(metrics.items(), _MOST_METRICS)) if isinstance(metrics, dict) else {}
    metrics = {name[:_LONGEST_NAME]: _finite(value) for name, value in known.items() if name.isprintable()}
    numbers = {name: value for name, value in metrics.items() if value is not None}
    diverged = [name for name, value in metrics.items() if value is None]
    return Progress(step, _int64(report.get("total")), _finite(report.get("loss")), numbers, diverged)


def _sdk(report: dict[str, Any]) -> Sdk | None:
    version, contract = report.get("version"), _int64(report.get("contract"))
    if not isinstance(version, str) or not version.isprintable() or contract is None:
        return None
    return Sdk(version[:_LONGEST_NAME], contract)


def _imports(report: dict[str, Any]) -> dict[str, Any] | None:
    """Return the report with its modules as a list; None if it is malformed."""
    pid, changed = report.get("pid"), report.get("changed")
    if type(pid) is not int or not isinstance(changed, dict):
        return None
    try:
        unpacked = zlib.decompressobj().decompress(base64.b85decode(report["modules"]), _MOST_NAMES_BYTES)
        names = unpacked.decode().split()
    except (ValueError, LookupError, TypeError, zlib.error):
        return None
    return {"pid": pid, "modules": names, "changed": {str(name): str(value) for name, value in changed.items()}}


def _int64(value: object) -> int | None:
    return value if type(value) is int and value in _INT64 else None


def _finite(value: object) -> float | None:
    """Return the number; None if it is not finite, because JSON has no word for that."""
    return float(value) if isinstance(value, int | float) and _is_finite(value) else None


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False
