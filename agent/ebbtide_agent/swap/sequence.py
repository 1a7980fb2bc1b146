"""Moves a job off its GPU and back in one fixed order, and refuses jobs that cannot be swapped.

    suspend   check - reserve host memory - lock - checkpoint - proof by NVML - freeze
    resume    check, the GPU's memory among it - start the driver - thaw - restore - proof by NVML - unlock

The driver works with a thread inside the job's process, so the process must not be frozen before `freeze`, nor after
`thaw`. An operation that fails either leaves the job as it was, or the job must be killed: `SwapResult.ending` says
which.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from ebbtide_machine.process import Identity

from ebbtide_agent.processes.process_tree import descendants
from ebbtide_agent.swap import freezing, host_memory
from ebbtide_agent.swap.driver import CheckpointDriver, DriverError, ProcessState
from ebbtide_agent.swap.gpus import GpuError, GpuLook, SwapGpus

# With older drivers PyTorch's processes could not be checkpointed everywhere.
OLDEST_DRIVER = 580
# What a restore needs beyond what the process held, if the GPU had so much to spare before.
MARGIN_BYTES = 256 * 1024 * 1024
# What a process may seem to hold more or less than it does, by the driver's accounting.
NOISE_BYTES = 512 * 1024 * 1024
_PAUSE_S = 0.01


class SwapStep(StrEnum):
    """The step that an operation is in; it decides what an operation that is killed has left."""

    CHECK = "check"
    RESERVE = "reserve host memory"
    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    PROVE = "wait for the GPU to be free"
    FREEZE = "freeze"
    START = "start the driver"
    THAW = "thaw"
    RESTORE = "restore"
    PROVE_BACK = "wait for the process to be on its GPU"
    UNLOCK = "unlock"


HARMLESS = frozenset({SwapStep.CHECK, SwapStep.RESERVE, SwapStep.START})
"""Steps that leave the job as it was, wherever they fail."""


class SwapAction(StrEnum):
    """The operation that is ordered."""

    SUSPEND = "suspend"
    RESUME = "resume"


class SwapOutcome(StrEnum):
    """Whether an operation was done, and if not, what it left."""

    DONE = "done"
    UNTOUCHED = "untouched"  # not done: the job runs on, or stays swapped out, as before
    BROKEN = "broken"  # not done, and nothing but SIGKILL helps the job


@dataclass(frozen=True, slots=True)
class Swapped:
    """What is in host memory: that of one process, or of none if the job had not begun to use its GPU."""

    process: Identity | None = None
    mem_bytes: int = 0
    need_bytes: int = 0  # must be free on the GPU before a restore is tried

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Parse the content; raises KeyError, TypeError or ValueError for anything else."""
        process = content["process"]
        return cls(
            None if process is None else Identity.from_json(process),
            int(content["mem_bytes"]),
            int(content["need_bytes"]),
        )


@dataclass(frozen=True, slots=True)
class SwapOrder:
    """One operation on the processes below `root`."""

    do: SwapAction
    root: int
    gpu: str
    fake_gpu_dir: str  # empty: the GPUs are real
    reservations: str
    lock_timeout_s: float = 10.0
    patience_s: float = 10.0  # how long to wait until NVML shows what the driver has done
    swapped: Swapped = field(default_factory=Swapped)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Parse the content; raises KeyError, TypeError or ValueError for anything else."""
        return cls(**{**content, "do": SwapAction(content["do"]), "swapped": Swapped.from_json(content["swapped"])})


@dataclass(frozen=True, slots=True)
class SwapResult:
    """How an operation ended; `reason` is empty if it is done."""

    ending: SwapOutcome
    reason: str = ""
    swapped: Swapped = field(default_factory=Swapped)
    parts_s: dict[str, float] = field(default_factory=dict)  # seconds by step

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Parse the content; raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            SwapOutcome(content["ending"]),
            str(content["reason"]),
            Swapped.from_json(content["swapped"]),
            dict(content["parts_s"]),
        )


class _Stop(Exception):
    """Ends the operation with a reason."""

    def __init__(self, reason: str, ending: SwapOutcome = SwapOutcome.UNTOUCHED) -> None:
        super().__init__(reason)
        self.ending = ending


class Sequence:
    """One operation; `tell` is called with each step before it begins."""

    def __init__(
        self, order: SwapOrder, driver: CheckpointDriver, gpus: SwapGpus, tell: Callable[[SwapStep], None]
    ) -> None:
        self._order = order
        self._driver = driver
        self._gpus = gpus
        self._tell = tell
        self._now = SwapStep.CHECK
        self._parts_s: dict[str, float] = {}
        self._swapped = order.swapped

    def run(self) -> SwapResult:
        """Carry the order out and return the result. If the driver hangs, it never returns; kill this process then."""
        try:
            if self._order.do is SwapAction.SUSPEND:
                self._suspend()
            else:
                self._resume()
        except _Stop as stop:
            return SwapResult(stop.ending, str(stop), self._swapped, self._parts_s)
        except (DriverError, GpuError, host_memory.NoHostMemory, OSError) as error:
            ending = SwapOutcome.UNTOUCHED if self._now in HARMLESS else SwapOutcome.BROKEN
            return SwapResult(ending, str(error), self._swapped, self._parts_s)
        return SwapResult(SwapOutcome.DONE, "", self._swapped, self._parts_s)

    def _suspend(self) -> None:
        with self._step(SwapStep.CHECK):
            before = self._gpus.look(self._order.gpu)
            process = self._the_process(before)
        if process is not None:
            self._empty_gpu(process.pid, before)
        with self._step(SwapStep.FREEZE):
            freezing.freeze(self._order.root)
            self._prove_frozen()

    def _the_process(self, look: GpuLook) -> Identity | None:
        """Return the one process of the job on its GPU, or None; raises _Stop for a job that cannot be swapped."""
        if self._order.gpu.startswith("MIG-"):
            raise _Stop("the driver cannot checkpoint on a MIG device")
        if (version := self._gpus.driver_version()) < OLDEST_DRIVER:
            raise _Stop(f"driver {version} is too old to swap: it takes {OLDEST_DRIVER}")
        job = frozenset(descendants(self._order.root)) - {os.getpid()}
        if others := self._gpus.others_of(job, self._order.gpu):
            raise _Stop(f"only jobs on one GPU can be swapped, and this one uses {others[0]}, too")
        pids = sorted(job & look.processes.keys())
        if len(pids) > 1:
            raise _Stop(f"only jobs with one process on their GPU can be swapped, and this one has {len(pids)}")
        if not pids:
            return None
        if pids[0] in look.through_mps:
            raise _Stop(f"process {pids[0]} uses its GPU through MPS, which the driver cannot checkpoint")
        process, mem_bytes = Identity.of(pids[0]), look.processes[pids[0]]
        if process is None:
            raise _Stop(f"process {pids[0]} ended")
        if mem_bytes is None:
            raise _Stop(f"the driver does not say how much GPU memory process {pids[0]} holds")
        if (state := self._driver.state(pids[0])) is not ProcessState.RUNNING:
            raise _Stop(f"process {pids[0]} is {state.name} already, because of another process")
        self._swapped = Swapped(process, mem_bytes, mem_bytes + min(MARGIN_BYTES, look.free_bytes))
        return process

    def _empty_gpu(self, pid: int, before: GpuLook) -> None:
        with ExitStack() as kept:
            with self._step(SwapStep.RESERVE):
                room = self._driver.host_room_bytes(pid)
                directory = Path(self._order.reservations)
                kept.enter_context(host_memory.reserved(directory, self._swapped.mem_bytes, room))
            self._lock(pid)
            self._checkpoint(pid)
        with self._step(SwapStep.PROVE):
            self._await(lambda look: self._is_released(pid, before, look), "the GPU's memory was not released")

    def _lock(self, pid: int) -> None:
        with self._step(SwapStep.LOCK), self._undoing(pid):
            self._driver.lock(pid, self._order.lock_timeout_s)

    def _checkpoint(self, pid: int) -> None:
        with self._step(SwapStep.CHECKPOINT), self._undoing(pid):
            self._driver.checkpoint(pid)

    @contextmanager
    def _undoing(self, pid: int) -> Iterator[None]:
        """If the driver refuses, unlock the process, and see whether it runs on as if nothing had been asked."""
        try:
            yield
        except DriverError as error:
            runs = self._runs_again(pid)
            raise _Stop(str(error), SwapOutcome.UNTOUCHED if runs else SwapOutcome.BROKEN) from None

    def _runs_again(self, pid: int) -> bool:
        try:
            if self._driver.state(pid) is ProcessState.LOCKED:
                self._driver.unlock(pid)
            return self._driver.state(pid) is ProcessState.RUNNING
        except DriverError:
            return False

    def _is_released(self, pid: int, before: GpuLook, look: GpuLook) -> bool:
        if pid in look.processes:
            return False
        # If other processes are there, the change in free memory says nothing of this one.
        gained = look.free_bytes - before.free_bytes
        return bool(look.processes) or gained + NOISE_BYTES >= self._swapped.mem_bytes

    def _prove_frozen(self) -> None:
        """Raise _Stop if a process of the job came to use the GPU between the first look and the freeze."""
        listed = self._gpus.look(self._order.gpu).processes
        late = [pid for pid in descendants(self._order.root) if pid in listed and pid != os.getpid()]
        if not late:
            return
        runs = self._swapped.process is None
        if runs:
            freezing.thaw(self._order.root)
        reason = f"process {late[0]} came to use the GPU meanwhile"
        raise _Stop(reason, SwapOutcome.UNTOUCHED if runs else SwapOutcome.BROKEN)

    def _resume(self) -> None:
        process = self._order.swapped.process
        with self._step(SwapStep.CHECK):
            if process is not None and not process.is_alive():
                raise _Stop(f"process {process.pid} has ended", SwapOutcome.BROKEN)
            self._await(self._has_room, "the GPU has no room for what was swapped out")
        if process is None:
            freezing.thaw(self._order.root)
            return
        with self._step(SwapStep.START):
            self._driver.initialise()
        with self._step(SwapStep.THAW):
            freezing.thaw(self._order.root)
        with self._step(SwapStep.RESTORE):
            self._driver.restore(process.pid)
        with self._step(SwapStep.PROVE_BACK):
            self._await(lambda look: process.pid in look.processes, "the process did not return to its GPU")
        with self._step(SwapStep.UNLOCK):
            self._driver.unlock(process.pid)

    def _has_room(self, look: GpuLook) -> bool:
        return self._order.swapped.process is None or look.free_bytes >= self._order.swapped.need_bytes

    def _await(self, condition: Callable[[GpuLook], bool], otherwise: str) -> None:
        deadline = time.monotonic() + self._order.patience_s
        while not condition(look := self._gpus.look(self._order.gpu)):
            if time.monotonic() > deadline:
                ending = SwapOutcome.UNTOUCHED if self._now in HARMLESS else SwapOutcome.BROKEN
                raise _Stop(
                    f"{otherwise} within {self._order.patience_s:g} s: {look.free_bytes} bytes are free", ending
                )
            time.sleep(_PAUSE_S)

    @contextmanager
    def _step(self, step: SwapStep) -> Iterator[None]:
        self._now = step
        self._tell(step)
        started = time.monotonic()
        try:
            yield
        finally:
            self._parts_s[step] = round(time.monotonic() - started, 4)
