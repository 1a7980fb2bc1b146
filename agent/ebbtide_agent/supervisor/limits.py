"""Limit how much of its node's CPUs and memory an attempt uses; the kernel enforces that where the attempt's group
allows it.

Elsewhere nothing keeps an attempt from using more CPUs than it requested, and its memory is measured at intervals. A
job that requested no amount has no limit.
"""

import math
import selectors
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from ebbtide_agent.contract.intent import NodeShare
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.helper.task import HelperTask
from ebbtide_agent.processes import cgroup, procfs
from ebbtide_agent.processes.cgroup import ControlGroup

EVERY_S: Final = 1.0
_SHARE_OF_TIME: Final = 0.02  # of time that measuring may take
_RAREST_S: Final = 10.0  # the longest interval, however long a measurement takes
_WEIGHING_S: Final = 10.0
_GIB: Final = 1 << 30
_MIB: Final = 1 << 20


def cpus_are() -> str:
    """Say how a job's CPUs are limited on this node: `enforced`, or only `booked`."""
    return "enforced" if cgroup.CPU in cgroup.limited() else "booked"


def memory_is() -> str:
    """Say how a job's memory is limited on this node: `enforced`, or `watched`."""
    return "enforced" if cgroup.MEMORY in cgroup.limited() else "watched"


def enforce(share: NodeShare, group: ControlGroup | None) -> bool:
    """Have the kernel limit what the job requested; return False if the memory has to be watched."""
    if group is not None and share.cpus:
        group.limit_cpus(share.cpus)
    return not share.mem_bytes or (group is not None and group.limit_memory(allowed_bytes(share)))


def allowed_bytes(share: NodeShare) -> int:
    """Return the host memory that the attempt may use; GPU memory that is swapped to the host is added, as in the
    books."""
    return share.mem_bytes + (sum(gpu.mem_bytes for gpu in share.gpus) if share.swaps else 0)


def failure(share: NodeShare) -> str:
    """Say that an attempt used too much memory."""
    unit, name = (_GIB, "GiB") if share.mem_bytes >= _GIB else (_MIB, "MiB")
    return f"it used more than its --mem {share.mem_bytes / unit:.4g} {name}"


def kernel_failure(share: NodeShare, group: ControlGroup | None) -> str:
    """Say why the kernel killed processes of the attempt for lack of memory; empty if it did not.

    Kills in a group that the job made and limited itself are the job's own business, and do not count.
    """
    killed, at_limit, below = (0, False, False) if group is None else group.memory_kills()
    if not killed or below:
        return ""
    return failure(share) if at_limit else "the node ran out of memory, and the kernel killed a process of it"


class MemoryWatch:
    """Checks whether an attempt uses more memory than it may, where the kernel does not enforce that.

    First it adds up the memory of all processes, which is cheap. They may share pages, so if the sum is too large, a
    process that can be given up weighs each page once, which may take long.
    """

    def __init__(
        self, share: NodeShare, enforced: bool, selector: selectors.BaseSelector, pids: Callable[[], Sequence[int]]
    ) -> None:
        """`pids` returns the processes of the attempt now."""
        self._allowed_bytes = allowed_bytes(share)
        self._selector = selector
        self._pids = pids
        self._weighing: HelperTask[int] | None = None
        self._began = 0.0  # when the last measurement began
        self._next_at = math.inf if enforced else time.monotonic() + EVERY_S

    @property
    def next_at(self) -> float:
        """When to measure again, on the monotonic clock."""
        return self._next_at if self._weighing is None else self._weighing.deadline

    def finds_too_much(self, now: float) -> bool:
        """Measure if it is time to, and return whether the attempt uses more than it may."""
        if self._weighing is not None:
            return self._receive(self._weighing)
        if now < self._next_at:
            return False
        self._began = time.monotonic()
        pids = self._pids()
        most = sum(procfs.memory_bytes(pid) for pid in pids)
        self._pause()
        if most > self._allowed_bytes:
            with suppress(OSError):  # e.g. there can be no further process
                self._weighing = HelperTask(total_memory_bytes, pids, account=None, within_s=_WEIGHING_S)
                self._selector.register(self._weighing, selectors.EVENT_READ, _do_nothing)
        return False

    def close(self) -> None:
        """Stop watching."""
        self._next_at = math.inf
        if self._weighing is not None:
            self._end(self._weighing).drop()

    def _receive(self, weighing: HelperTask[int]) -> bool:
        if not weighing.receive():
            return False
        found = self._end(weighing).end()
        self._pause()
        return not isinstance(found, NoAnswer) and found > self._allowed_bytes

    def _end(self, weighing: HelperTask[int]) -> HelperTask[int]:
        self._selector.unregister(weighing)
        self._weighing = None
        return weighing

    def _pause(self) -> None:
        """Choose the time of the next measurement: the longer one takes, the fewer are made."""
        now = time.monotonic()
        self._next_at = now + min(_RAREST_S, max(EVERY_S, (now - self._began) / _SHARE_OF_TIME))


def total_memory_bytes(pids: Sequence[int]) -> int:
    """Return the bytes of memory that these processes have together, each page once; runs in a helper's process, as it
    may hang."""
    return sum(procfs.proportional_bytes(pid) for pid in pids)


def _do_nothing() -> None:
    pass
