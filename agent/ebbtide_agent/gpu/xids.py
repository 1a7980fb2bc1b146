"""Handle Xids, the errors of a GPU that the driver reports as they happen, and decide which make it unhealthy."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

log = logging.getLogger(__name__)

# Errors of the application on the GPU, not of the GPU: the next process finds the GPU as it was.
OF_APPLICATIONS: Final = frozenset({13, 31, 43, 45, 68, 109})
# No process that runs on the GPU survives these.
FATAL: Final = frozenset({79, 119, 120})

_WORDS: Final = {
    13: "a kernel of the application failed",
    31: "the application reached for memory that it does not have",
    43: "the application's work was ended",
    45: "the application's channels were cleaned up",
    48: "memory error that cannot be corrected",
    62: "a controller inside the GPU halted",
    63: "a memory row was retired",
    64: "a memory row could not be retired",
    68: "the video processor failed",
    74: "an NVLink failed",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "memory error, contained to one application",
    95: "memory error, not contained",
    109: "the application's context switch took too long",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    140: "memory error that was not recovered",
}

_TIMEOUT = 10
_XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_NO_ACTION = 0
_SUCCESS = 0
# Seconds that a driver may take to find out which recovery action a GPU needs.
_SETTLES_S = 10.0
# Events that are taken in before other work has its turn.
_BATCH = 256


def words(xid: int) -> str:
    """Return the Xid in words, such as `Xid 79: the GPU has fallen off the bus`."""
    return f"Xid {xid}: {_WORDS[xid]}" if xid in _WORDS else f"Xid {xid}"


def worst(xids: Iterable[int]) -> int | None:
    """Return the worst of these Xids for the GPU; None if all are errors of applications."""
    critical = [xid for xid in xids if xid not in OF_APPLICATIONS]
    return next((xid for xid in critical if xid in FATAL), critical[0] if critical else None)


class XidEvents:
    """Collects the Xids that a driver reports from now on. No method raises: without events there are no Xids."""

    def __init__(self, library: Any, slots: Mapping[str, tuple[Any, tuple[str, ...]]]) -> None:
        """`slots` are, by the UUID of each whole GPU, its handle and the UUIDs under which it is offered."""
        self._nvml = library
        self._slots = slots
        self._waiting: defaultdict[str, list[int]] = defaultdict(list)
        self._is_wrong = False
        self._set = self._register()

    def take(self, uuid: str) -> tuple[int, ...]:
        """Return the Xids of this GPU or MIG slice since they were last taken."""
        self._look()
        return tuple(self._waiting.pop(uuid, ()))

    def _register(self) -> Any:
        try:
            events = self._nvml.nvmlEventSetCreate()
        except (self._nvml.NVMLError, AttributeError) as error:
            log.info("event=no-xids reason=%r", str(error))
            return None
        for uuid, (handle, _) in self._slots.items():
            try:
                if self._nvml.nvmlDeviceGetSupportedEventTypes(handle) & _XID_EVENT:
                    self._nvml.nvmlDeviceRegisterEvents(handle, _XID_EVENT, events)
            except self._nvml.NVMLError as error:
                log.info("event=no-xids gpu=%s reason=%r", uuid, str(error))
        return events

    def _look(self) -> None:
        """Take the events that the driver has ready, without waiting."""
        if self._set is None:
            return
        for _ in range(_BATCH):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except self._nvml.NVMLError as error:
                self._note(error)
                return
            for uuid in self._meant(event.device):
                self._waiting[uuid].append(int(event.eventData))

    def _note(self, error: Exception) -> None:
        """Log once that events cannot be read, until they can be read again."""
        is_wrong = getattr(error, "value", 0) != _TIMEOUT
        if is_wrong and not self._is_wrong:
            log.error("event=no-xids-now reason=%r", str(error))
        self._is_wrong = is_wrong

    def _meant(self, device: Any) -> list[str]:
        """Return the UUIDs that an event is reported for: on a GPU that is cut, every slice may be hit."""
        name = self._name(device)
        # A GPU that has fallen off the bus may not report its UUID any more.
        wholes = [name] if name else [uuid for uuid, (handle, _) in self._slots.items() if not self._name(handle)]
        return [uuid for whole in wholes if whole in self._slots for uuid in self._slots[whole][1]]

    def _name(self, handle: Any) -> str:
        try:
            return str(self._nvml.nvmlDeviceGetUUID(handle))
        except self._nvml.NVMLError:
            return ""


class XidVerdicts:
    """Knows which GPUs an Xid makes unhealthy, until the driver says that they need nothing, or the agent ends."""

    def __init__(self, library: Any, known: Mapping[str, int]) -> None:
        """`known` are the Xids that were seen some time ago, by UUID."""
        self._nvml = library
        self._since = {uuid: (xid, -math.inf) for uuid, xid in known.items()}

    def note(self, uuid: str, xids: Iterable[int]) -> None:
        """Note the Xids of a GPU."""
        xid = worst(xids)
        if xid is not None:
            self._since[uuid] = (xid, time.monotonic())

    def standing(self, uuid: str, handle: Any) -> int | None:
        """Return the Xid that makes this GPU unhealthy now; None if there is none."""
        if uuid not in self._since:
            return None
        xid, since = self._since[uuid]
        if time.monotonic() - since > _SETTLES_S and self._needs_nothing(handle):
            del self._since[uuid]
            return None
        return xid

    def fatal(self, uuid: str) -> int | None:
        """Return the Xid that took this GPU away, as far as is known while it cannot be read; None if none did."""
        xid, _ = self._since.get(uuid, (None, 0.0))
        return xid if xid in FATAL else None

    def _needs_nothing(self, handle: Any) -> bool:
        try:
            (answer,) = self._nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])
        except (self._nvml.NVMLError, AttributeError):
            return False
        return bool(answer.nvmlReturn == _SUCCESS and answer.value.uiVal == _NO_ACTION)
