"""Move an attempt off its GPU and back, for its supervisor: one operation at a time, each in a process."""

import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ebbtide_agent.contract.intent import NodeShare
from ebbtide_agent.swap.operation import Operation
from ebbtide_agent.swap.sequence import SwapAction, SwapOrder, SwapOutcome, Swapped, SwapResult

# A resume that takes more seconds than this will not end: forty gigabytes come back in ten seconds.
_RESUME_S = 180.0
# The most seconds to wait for a job whose stream never drains; its grace period may be longer.
_LONGEST_LOCK_S = 30.0


@dataclass(frozen=True, slots=True)
class SwapEnd:
    """How an operation ended; `out` says whether it moved the attempt out or back."""

    out: bool
    result: SwapResult
    seconds: float


class Swapping:
    """Knows whether the attempt is off its GPU. `count` is how often it has left, and names each stay away."""

    def __init__(self, share: NodeShare, reservations: Path, root: int, selector: selectors.BaseSelector) -> None:
        self._share = share
        self._reservations = reservations
        self._root = root
        self._selector = selector
        self._operation: Operation | None = None
        self._do = SwapAction.SUSPEND
        self._began = 0.0
        self._swapped = Swapped()
        self.is_out = False
        self.count = 0

    @property
    def busy(self) -> bool:
        """Whether an operation is under way."""
        return self._operation is not None

    @property
    def deadline(self) -> float | None:
        """When the operation that is under way is killed, on the monotonic clock."""
        return None if self._operation is None else self._operation.deadline

    @property
    def mem_bytes(self) -> int:
        """Bytes of GPU memory that lie in host memory."""
        return self._swapped.mem_bytes if self.is_out else 0

    def begin_out(self, deadline_s: float) -> None:
        """Start to move the attempt to host memory. Raises OSError."""
        lock_s = min(_LONGEST_LOCK_S, deadline_s / 2)
        self._begin(SwapAction.SUSPEND, deadline_s, lock_s)

    def begin_back(self) -> None:
        """Start to move the attempt back to its GPU. Raises OSError."""
        self._begin(SwapAction.RESUME, _RESUME_S, 0.0)

    def end_if_late(self) -> SwapEnd | None:
        """Kill an operation whose deadline is over, and return how it ended, without waiting for its process."""
        operation = self._operation
        if operation is None or time.monotonic() < operation.deadline:
            return None
        operation.kill_if_late(time.monotonic())
        self._forget(operation)
        return self._moved(operation.abandon())

    def reaped(self, pid: int, returncode: int) -> SwapEnd | None:
        """Return how the operation ended, if this was its process."""
        operation = self._operation
        if operation is None or operation.pid != pid:
            return None
        self._forget(operation)
        return self._moved(operation.ended(returncode))

    def _forget(self, operation: Operation) -> None:
        self._operation = None
        if operation.fileno() in self._selector.get_map():
            self._selector.unregister(operation)

    def _moved(self, result: SwapResult) -> SwapEnd:
        out = self._do is SwapAction.SUSPEND
        if out or result.ending is not SwapOutcome.DONE:
            self._swapped = result.swapped
        if out and result.ending is SwapOutcome.DONE:
            self.is_out = True
            self.count += 1
        elif not out:
            self.is_out = result.ending is SwapOutcome.UNTOUCHED
            self.count += result.ending is SwapOutcome.UNTOUCHED
        return SwapEnd(out, result, time.monotonic() - self._began)

    def _begin(self, do: SwapAction, deadline_s: float, lock_s: float) -> None:
        order = SwapOrder(
            do=do,
            root=self._root,
            gpu=self._share.gpus[0].uuid,
            fake_gpu_dir=self._share.fake_gpu_dir,
            reservations=str(self._reservations),
            lock_timeout_s=lock_s,
            swapped=self._swapped if do is SwapAction.RESUME else Swapped(),
        )
        self._do, self._began = do, time.monotonic()
        self._operation = Operation(order, deadline_s)
        self._selector.register(self._operation, selectors.EVENT_READ, self._listener(self._operation))

    def _listener(self, operation: Operation) -> Callable[[], None]:
        def listen() -> None:
            if not operation.receive():
                self._selector.unregister(operation)

        return listen
