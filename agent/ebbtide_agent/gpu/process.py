"""Ask about GPUs in a process that the agent can afford to lose: the agent's end of `serving`."""

import importlib.util
import json
import logging
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ebbtide_agent.gpu.backend import DeviceLink, DeviceLinkKind, Driver, Gpu, GpuProcess, GpuReading, GpuSettings, Kind
from ebbtide_agent.gpu.xids import worst
from ebbtide_agent.processes.isolated import package_roots

log = logging.getLogger(__name__)

# Longer than `reader` waits, because on a busy machine the process may only not have been scheduled.
TIMEOUT_S = 5.0
# The first call to a driver that no process uses attaches every GPU, which takes seconds with eight of them.
OPEN_S = 30.0
# Seconds between looks whether there is a driver by now, or whether a GPU that is gone is back.
AGAIN_S = 30.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
# After a process has answered for this many seconds, its failure is taken for a new one, and the pause is short again.
_STEADY_S = 60.0
_END_S = 1.0
_SILENT = "NVML does not answer; asked again"

# The process is isolated from what the agent's user has set or installed, so it gets the paths of its packages.
_BOOT = """
import sys
sys.path += sys.argv[2:]
from ebbtide_agent.gpu.serving import main
main(int(sys.argv[1]))
"""


class NoNvmlAnswer(Exception):
    """The process hangs, has ended, or sends what makes no sense; the message says which."""


class NvmlProcess:
    """A `GpuBackend` whose calls return within a timeout, whatever the driver does.

    A process that does not answer is killed, and another one is started after a pause that grows; until that answers,
    every GPU is unhealthy. When there is no driver, or a GPU cannot be read, a new process looks again from time to
    time, because only a new process sees what changed. A GPU that was found once stays in the list.
    """

    def __init__(
        self,
        gpus: str,
        state_dir: Path,
        timeout_s: float = TIMEOUT_S,
        first_pause_s: float = FIRST_PAUSE_S,
        again_s: float = AGAIN_S,
    ) -> None:
        """Start the first process. `gpus` is "auto" for real GPUs, "fake" for those of `state_dir`."""
        self._order = {"gpus": gpus, "state_dir": str(state_dir)}
        self._timeout_s = timeout_s
        self._first_pause_s = first_pause_s
        self._again_s = again_s
        self._turn = threading.Lock()
        self._child: _NvmlProcess | None = None
        self._opened_at = self._next_at = 0.0
        self._pause_s = first_pause_s
        self._trouble = ""
        self._gpus: dict[str, Gpu] = {}
        self._links: tuple[DeviceLink, ...] = ()
        self._driver = Driver()
        self._missing = False  # whether the last process found no GPUs, or some without a name
        self._amiss: dict[str, float] = {}  # GPUs that a new process may be able to read, and since when
        self._xids: dict[str, int] = {}  # the Xid that stands against each GPU, for the next process
        with self._turn:
            self._ready()

    @property
    def kind(self) -> Kind:
        """The kind of GPUs that there are."""
        if self._order["gpus"] == "fake":
            return "fake"
        return "nvml" if self._gpus else "none"

    @property
    def pid(self) -> int | None:
        """The pid of the process that asks NVML now; None if there is none."""
        child = self._child
        return None if child is None else child.pid

    def gpus(self) -> tuple[Gpu, ...]:
        with self._turn:
            self._ready()
            return tuple(self._gpus.values())

    def links(self) -> tuple[DeviceLink, ...]:
        return self._links

    def driver(self) -> Driver:
        return self._driver

    def settings(self, uuid: str) -> GpuSettings:
        with self._turn:
            answer = self._ask({"settings": uuid})
        return GpuSettings() if answer is None or "error" in answer else GpuSettings(**answer)

    def read(self, uuid: str) -> GpuReading:
        with self._turn:
            answer = self._ask({"read": uuid})
            if answer is None:
                return GpuReading(uuid, unhealthy_reason=self._trouble or _SILENT)
            reading = _reading(uuid, answer)
            self._note(reading)
        return reading

    def close(self) -> None:
        """End the process, even while a call waits for it."""
        self._next_at = math.inf
        self._end()

    def _note(self, reading: GpuReading) -> None:
        """Remember the Xid that the next process has to know, and whether a new process should look at the GPU."""
        if (xid := worst(reading.xids)) is not None:
            self._xids[reading.uuid] = xid
        if reading.healthy:
            self._xids.pop(reading.uuid, None)
        # An Xid stands until the driver withdraws it, so a new process would change nothing.
        stands = reading.uuid in self._xids and not reading.gone
        if reading.healthy or stands or reading.uuid not in self._gpus:
            self._amiss.pop(reading.uuid, None)
        else:
            self._amiss.setdefault(reading.uuid, time.monotonic())

    def _ask(self, request: Mapping[str, str]) -> dict[str, Any] | None:
        child = self._ready()
        if child is None:
            return None
        try:
            return child.ask(request, self._timeout_s)
        except NoNvmlAnswer as error:
            self._give_up(error)
            return None

    def _ready(self) -> "_NvmlProcess | None":
        """Return the process to ask; start one if there is none and the pause is over, or if a new look is due."""
        now = time.monotonic()
        # A new process costs seconds with eight GPUs, so it is not started for a fault that the next reading clears.
        amiss_since = self._opened_at if self._missing else min(self._amiss.values(), default=math.inf)
        if self._child is not None and now - amiss_since > self._again_s:
            self._end()
        if self._child is None and now >= self._next_at:
            self._open()
        return self._child

    def _open(self) -> None:
        self._opened_at = time.monotonic()
        try:
            self._child = _NvmlProcess()
            found = self._child.ask({**self._order, "xids": self._xids}, OPEN_S)
            if "unavailable" not in found:
                self._take(found)
                return
        except NoNvmlAnswer as error:
            self._give_up(error)
            return
        self._end()
        self._say_trouble(str(found["unavailable"]))
        self._next_at = max(self._next_at, time.monotonic() + self._again_s)

    def _take(self, found: dict[str, Any]) -> None:
        """Take over what a new process found. Raises NoNvmlAnswer if that makes no sense."""
        try:
            gpus = [Gpu(**gpu) for gpu in found["gpus"]]
            links = tuple(
                DeviceLink(link["one"], link["other"], DeviceLinkKind(link["kind"])) for link in found["links"]
            )
            self._driver = Driver(**found["driver"])
            self._missing = bool(found["unnamed"]) or not gpus
        except (LookupError, TypeError, ValueError) as error:
            raise NoNvmlAnswer(f"it found {error!r}") from None
        known = self._gpus | {gpu.uuid: self._as_known(gpu) for gpu in gpus}
        self._gpus = dict(sorted(known.items(), key=lambda item: item[1].index))
        self._links = links or self._links
        self._amiss.clear()
        self._say_trouble("")

    def _as_known(self, gpu: Gpu) -> Gpu:
        """Return the GPU with the number that it had before, and its memory, if that can no longer be read."""
        before = self._gpus.get(gpu.uuid, gpu)
        return replace(gpu, index=before.index, mem_bytes=gpu.mem_bytes or before.mem_bytes)

    def _give_up(self, error: NoNvmlAnswer) -> None:
        """End a process that does not answer; the next one is started after a pause."""
        log.error("event=nvml-silent reason=%r pause_s=%g", str(error), self._pause_s)
        self._trouble = _SILENT
        self._end()
        now = time.monotonic()
        if now - self._opened_at > _STEADY_S:
            self._pause_s = self._first_pause_s
        self._next_at = max(self._next_at, now + self._pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _say_trouble(self, reason: str) -> None:
        if reason != self._trouble:
            log.warning("event=%s reason=%r", "no-nvml" if reason else "nvml-answers", reason or "-")
        self._trouble = reason


class _NvmlProcess:
    """One process that asks NVML. Raises NoNvmlAnswer."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-I", "-S", "-c", _BOOT, str(theirs.fileno()), *_roots()]
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True
                )
            except OSError as error:
                self._socket.close()
                raise NoNvmlAnswer(f"cannot start a process: {error}") from None
        self._received = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        until = time.monotonic() + timeout_s
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            while b"\n" not in self._received:
                self._socket.settimeout(max(0.001, until - time.monotonic()))
                data = self._socket.recv(1 << 16)
                if not data:
                    raise NoNvmlAnswer("it has ended")
                self._received += data
        except TimeoutError:
            raise NoNvmlAnswer(f"no answer in {timeout_s:g} s") from None
        except OSError as error:
            raise NoNvmlAnswer(str(error)) from None
        line, _, self._received = self._received.partition(b"\n")
        return _parsed(line)

    def end(self) -> None:
        self._socket.close()
        self._process.kill()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            # The process is stuck in the driver, where no signal reaches it, and is reaped when it comes back.
            log.error("event=nvml-process-stuck pid=%d", self._process.pid)
            threading.Thread(target=self._process.wait, name="burial", daemon=True).start()


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        raise NoNvmlAnswer(f"it said {line[:80]!r}") from None
    if not isinstance(answer, dict):
        raise NoNvmlAnswer(f"it said {line[:80]!r}")
    return answer


def _reading(uuid: str, answer: dict[str, Any]) -> GpuReading:
    if "error" in answer:
        return GpuReading(uuid, unhealthy_reason=f"cannot be read: {answer['error']}")
    listed = answer["processes"]
    processes = None if listed is None else tuple(GpuProcess(**process) for process in listed)
    return GpuReading(**{**answer, "processes": processes, "xids": tuple(answer["xids"])})


def _roots() -> list[str]:
    """Return the directories that the agent's packages and NVML's binding are imported from."""
    roots = package_roots()
    binding = importlib.util.find_spec("pynvml")
    if binding is not None and binding.origin is not None:
        roots.append(str(Path(binding.origin).parent))
    return roots
