"""Ends an attempt whose supervisor has not ended it in time, because an attempt that hangs frees no GPU.

First the attempt's processes are killed, so that the supervisor can still report the end; then the supervisor is
killed. Both steps come so late that a supervisor that only had to wait for CPU time has acted before.
"""

import asyncio
import logging
import math
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from ebbtide_machine.process import Identity
from ebbtide_machine.threads import on_daemon_thread

from ebbtide_agent.attempts import recovery
from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.contract.intent import AttemptOnNode
from ebbtide_agent.supervisor.lease import boottime

log = logging.getLogger(__name__)

KILL_S: Final = 1.5
"""Seconds after the grace period or lease until the attempt's processes are killed."""
END_S: Final = 4.0
"""Seconds after the grace period or lease until the supervisor is killed, too."""
PATIENCE_S: Final = 0.3
"""Seconds to wait for the checkpoints of an overdue attempt that has lost its supervisor."""
_AGAIN_S = 0.1
# A lease runs while the machine sleeps, but the event loop's timers do not, so look this often.
_LOOK_S = 1.0


class Backstop:
    """Enforces the end of one attempt from when its deadline is known."""

    def __init__(
        self,
        place: AttemptDir,
        attempt: AttemptOnNode,
        lease_s: float | None,
        leased_at: float,
        is_over: Callable[[], bool],
        supervisor: Callable[[], Identity | None],
        give_up: Callable[[], None],
    ) -> None:
        """The attempt has a lease of `lease_s` since `leased_at` (CLOCK_BOOTTIME), or none.

        `supervisor` returns the process last heard of. `give_up` is called when that was killed or is unknown.
        """
        self._place = place
        self._attempt = attempt
        self._lease_s = lease_s
        self._is_over = is_over
        self._supervisor = supervisor
        self._give_up = give_up
        self._end_by = math.inf  # the loop's time
        self._move_by = math.inf  # the loop's time
        self._fenced = True  # until it is asked to end, nothing but its lease ends it
        self._renewed = leased_at
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether the attempt is so overdue that no step waits any longer."""
        return self._late_s() >= KILL_S

    def expect_end(self, by: float, fenced: bool) -> None:
        """Expect the attempt, which was asked to end, to end by this time of the loop; `fenced`: as its node ends."""
        self._end_by, self._fenced = min(self._end_by, by), fenced
        self._watch()

    def expect_move(self, by: float | None) -> None:
        """Expect the attempt, which was asked to leave its GPU, to be out or over by this time of the loop.

        None says that it is, or that it was not asked to.
        """
        by = math.inf if by is None else min(self._move_by, by)
        if by != self._move_by:
            self._move_by = by
            self._watch()

    def renew(self, at: float) -> None:
        """Restart the attempt's lease, if it has one, at that time (CLOCK_BOOTTIME)."""
        self._renewed = max(self._renewed, at)
        if self._lease_s is not None:
            self._watch()

    def said_its_end(self) -> None:
        """Watch that the supervisor exits, now that the attempt is over."""
        self._watch()

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _watch(self) -> None:
        self._changed.set()
        if self._task is None:
            name = f"backstop of {self._attempt.job_id}.{self._attempt.attempt}"
            self._task = asyncio.create_task(self._run(), name=name)

    def _late_s(self) -> float:
        """Return how many seconds the attempt is overdue; negative if it still has time."""
        late_s = asyncio.get_running_loop().time() - min(self._end_by, self._move_by)
        if self._lease_s is not None and self._renewed:
            late_s = max(late_s, boottime() - self._renewed - self._lease_s)
        return late_s

    async def _run(self) -> None:
        while True:
            try:
                return await self._enforce()
            except Exception:  # such as that there can be no thread; an attempt that hangs ends all the same
                log.exception("event=backstop-failed job=%s attempt=%d", self._attempt.job_id, self._attempt.attempt)
            await asyncio.sleep(_LOOK_S)

    async def _enforce(self) -> None:
        is_logged = False
        while not self._is_over():
            late_s = self._late_s()
            if late_s < KILL_S:
                await self._wait(min(KILL_S - late_s, _LOOK_S if self._lease_s else math.inf))
                continue
            if not is_logged:
                is_logged = True
                log.error("event=end-overdue job=%s attempt=%d", self._attempt.job_id, self._attempt.attempt)
            await self._kill(late_s >= END_S)
            await asyncio.sleep(_AGAIN_S)
        await self._bury()

    async def _bury(self) -> None:
        """Kill a supervisor that hangs after it has reported the end, because it keeps the lock of its job."""
        now = asyncio.get_running_loop().time
        supervisor, end_by = self._supervisor(), now() + END_S
        await asyncio.sleep(_AGAIN_S)
        while supervisor is not None and supervisor.is_alive():
            if now() >= end_by:
                log.error("event=supervisor-left job=%s attempt=%d", self._attempt.job_id, self._attempt.attempt)
                supervisor.signal(signal.SIGKILL)
                return
            await asyncio.sleep(_AGAIN_S)

    async def _wait(self, seconds: float) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                await self._changed.wait()

    async def _kill(self, supervisor_too: bool) -> None:
        supervisor = self._supervisor()
        if supervisor is None:
            with suppress(OSError, ValueError, LookupError):
                supervisor = await on_daemon_thread(partial(recovery.recorded_supervisor, self._place))
        if supervisor is not None and supervisor.is_alive():
            with suppress(OSError):
                fenced = self._fenced and self._move_by == math.inf
                what = self._place, self._attempt, supervisor, fenced
                supervisor_too &= await on_daemon_thread(partial(recovery.kill_under, *what))
            if supervisor_too:
                supervisor.signal(signal.SIGKILL)
        if supervisor_too:
            self._give_up()
