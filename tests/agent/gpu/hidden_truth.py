"""A node's GPUs and processes as they really are, on a clock that runs as fast as it is read.

The agent sees them only through readings, which fail, hang or leave something out; who really holds what is known here.
"""

import asyncio
import heapq
import random
import selectors
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ebbtide_agent.contract.attempt_dir import AttemptKey
from ebbtide_agent.gpu.backend import Gpu, GpuProcess, GpuReading
from ebbtide_agent.gpu_use.idle_use import TOLERANCE_BYTES
from ebbtide_agent.processes.procfs import ProcessStat

GIB = 1 << 30
TOTAL = 24 * GIB
UUIDS = ("GPU-0", "GPU-1", "GPU-2")
_PIDS = range(2**22 + 1, 2**22 + 61)  # none that this machine has, and so few that they are used again
NEVER = float("inf")


class _FastSelector(selectors.DefaultSelector):
    """Does not wait, but lets the time go by that it was to wait for."""

    now = 0.0

    def select(self, timeout=None):
        if timeout is None:
            raise RuntimeError("nothing will ever happen")
        self.now += timeout
        return super().select(0)


class FastLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits for its clock."""

    def __init__(self) -> None:
        self._clock = _FastSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


@dataclass(eq=False)
class Process:
    pid: int
    starttime: int
    owner: AttemptKey | None  # None: somebody else's
    gpus: dict[str, int]
    release_s: float = 0.0  # how long its memory stays after its end
    stuck_until: float = 0.0  # it hangs in the driver, and no signal reaches it before
    alive: bool = True
    killed: bool = False
    in_tree: bool = True  # below its supervisor
    wiped: bool = False  # its environment names nobody
    knowable: bool = True


@dataclass
class Leak:
    """Memory that no process has any more."""

    owner: AttemptKey | None
    bytes: int
    until: float
    listed_until: float  # the driver goes on to list its dead process
    pid: int


@dataclass
class Device:
    uuid: str
    idle_bytes: int
    leaks: list[Leak] = field(default_factory=list)
    mode: str = "well"
    blind: bool = False  # memory was stuck while the driver told of none: nobody can be blamed for that


class Node:
    """The truth, and what is seen of it."""

    kind = "fake"

    def __init__(self, rng: random.Random, clock: Callable[[], float]) -> None:
        self.rng, self.clock = rng, clock
        self.devices = {uuid: Device(uuid, rng.choice((0, GIB // 8, 2 * GIB))) for uuid in UUIDS}
        self.processes: dict[int, Process] = {}
        self.over = set[AttemptKey]()  # attempts of which the supervisor said that they have ended
        self.freed = set[AttemptKey]()  # and whose GPUs were given back
        self.hanging = False
        self.violations: list[str] = []
        self._pids = deque(_PIDS)
        self._deaths: list[tuple[float, int, Process]] = []
        self._started = 0

    # --- what happens ---

    def start(self, owner: AttemptKey | None, gpus: dict[str, int], **more: object) -> Process:
        self._started += 1
        process = Process(self._pids.popleft(), self._started, owner, gpus, **more)
        self.processes[process.pid] = process
        return process

    def end(self, process: Process) -> None:
        """It ends, as soon as it can."""
        if not process.alive:
            return
        if process.stuck_until > self.clock():
            heapq.heappush(self._deaths, (process.stuck_until, process.starttime, process))
            return
        process.alive = False
        del self.processes[process.pid]
        self._pids.append(process.pid)
        listed_s = self.rng.choice((0.0, 0.0, 0.05, 1.0))
        for uuid, mem_bytes in process.gpus.items():
            now = self.clock()
            leak = Leak(
                process.owner if process.knowable else None,
                mem_bytes,
                now + max(process.release_s, listed_s),
                now + listed_s,
                process.pid,
            )
            self.devices[uuid].leaks.append(leak)

    def catch_up(self) -> None:
        """Let happen what was due by now."""
        while self._deaths and self._deaths[0][0] <= self.clock():
            self.end(heapq.heappop(self._deaths)[2])
        for device in self.devices.values():
            device.leaks = [leak for leak in device.leaks if leak.until > self.clock()]

    def heal(self) -> None:
        """Everything works again, and what was stuck comes loose."""
        self.hanging = False
        for device in self.devices.values():
            device.mode, device.leaks = "well", []
        for process in list(self.processes.values()):
            process.stuck_until, process.release_s = 0.0, 0.0
            if process.killed or process.owner is None:
                self.end(process)

    # --- what is true ---

    def dirt(self, uuid: str, keys: set[AttemptKey]) -> str:
        """What attempts that are over have left on the GPU; empty: nothing that anybody could have seen."""
        self.catch_up()
        device = self.devices[uuid]
        left = [p for p in self.processes.values() if p.owner in keys and p.knowable and uuid in p.gpus]
        if left:
            return f"process {left[0].pid} of {left[0].owner} is on {uuid}"
        stuck = sum(leak.bytes for leak in device.leaks if leak.owner in keys)
        return f"{stuck} bytes are stuck on {uuid}" if stuck > TOLERANCE_BYTES and not device.blind else ""

    def signal(self, pid: int, starttime: int) -> bool:
        """SIGKILL from the agent."""
        process = self.processes.get(pid)
        if process is None or process.starttime != starttime:
            return False
        if process.owner not in self.over:
            self.violations.append(f"process {pid} of {process.owner} was killed, which lives by right")
        process.killed = True
        self.end(process)
        return True

    # --- what is seen ---

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(Gpu(uuid, index, "T4", TOTAL) for index, uuid in enumerate(UUIDS))

    def links(self) -> tuple[()]:
        return ()

    def read(self, uuid: str) -> GpuReading:
        self.catch_up()
        device = self.devices[uuid]
        match device.mode:
            case "lost":
                return GpuReading(uuid, unhealthy_reason="GPU is lost", gone=True)
            case "fails":
                return GpuReading(uuid, unhealthy_reason="Unknown Error")
        here = [process for process in self.processes.values() if uuid in process.gpus]
        used = device.idle_bytes + sum(p.gpus[uuid] for p in here) + sum(leak.bytes for leak in device.leaks)
        if device.mode == "no figures":
            device.blind |= any(leak.owner is not None for leak in device.leaks)
            return GpuReading(uuid, None, TOTAL, processes=self._listed(device, here, hidden=True))
        if device.mode == "no processes":
            return GpuReading(uuid, used, TOTAL, processes=None)
        return GpuReading(uuid, used, TOTAL, processes=self._listed(device, here, hidden=False))

    def _listed(self, device: Device, here: list[Process], hidden: bool) -> tuple[GpuProcess, ...]:
        living = {process.pid: process.gpus[device.uuid] for process in here}
        dead = {leak.pid: leak.bytes for leak in device.leaks if leak.listed_until > self.clock()}
        return tuple(GpuProcess(pid, None if hidden else used) for pid, used in (dead | living).items())

    def stat(self, pid: int) -> ProcessStat | None:
        process = self.processes.get(pid)
        if process is None:
            return None
        in_kernel = process.stuck_until > self.clock()
        return ProcessStat(pid, process.starttime, 1, "python", True, 0.0, in_kernel=in_kernel)

    def tree(self) -> dict[AttemptKey, tuple[int, ...]]:
        found: dict[AttemptKey, tuple[int, ...]] = {}
        for process in self.processes.values():
            if process.owner is not None and process.in_tree:
                found[process.owner] = (*found.get(process.owner, ()), process.pid)
        return found

    def environments(self, pids: frozenset[int]) -> dict[int, AttemptKey]:
        found = [self.processes[pid] for pid in pids if pid in self.processes]
        readable = [process for process in found if not process.wiped and process.stuck_until <= self.clock()]
        return {process.pid: process.owner for process in readable if process.owner is not None}


def instead_of_a_thread(node: Node, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> asyncio.Future:
    """What `blocking_calls` does, on the fast clock: an answer at once, or late, or never."""
    result = loop.create_future()
    answer = call()
    delay_s = NEVER if node.hanging else node.rng.choice((0.0, 0.0, 0.002, 0.2))
    if delay_s < NEVER:
        loop.call_later(delay_s, lambda: result.cancelled() or result.set_result(answer))
    else:
        node.rng.random()
        loop.call_later(20.0, lambda: result.cancelled() or result.set_result(answer))
    return result
