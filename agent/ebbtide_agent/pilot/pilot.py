"""Gives a lent node back: when its lender asks, when its time is over, or when nobody has needed it for a while."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_machine.process import boot_id
from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.gpu_use.telemetry import Telemetry
from ebbtide_agent.jsonfile import write_json
from ebbtide_agent.node_end import NOTICE
from ebbtide_agent.pilot.slurm import SlurmStep, end_of

log = logging.getLogger(__name__)

ASSUMED_S: Final = 20.0
"""Seconds that are left after a signal, where the lender does not say."""
WANTED_S: Final = 10.0
"""Seconds for which a node counts as used after the master has said that jobs wait for it and for others."""
UNHEARD_S: Final = 300.0
"""Seconds after which a node counts as idle that no master has heard."""
FIRST_S: Final = 1.0
"""Seconds from when the master hears a node until it counts as idle, in which its first job comes."""
IDLE_S: Final = 30.0
"""Seconds after which a node that leaves because it is idle is gone; none of its jobs starts in between."""
_HEARD_S: Final = 3.0  # in which the master learns of it by a heartbeat
_QUIET_S: Final = 2.0  # in which the master goes on to read the log of an attempt that it has done with
_LOOK_S: Final = 0.1
_ASK_AGAIN_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Lent:
    """How a node is lent by ``owner``: by Slurm to ``step``, or None; given back after ``idle_s`` without a job.

    The time before the master has heard the node is not idle time, up to `UNHEARD_S`.

    After SIGTERM ``notice_s`` seconds are left, if the lender does not say otherwise.
    """

    owner: str = ""
    step: SlurmStep | None = None
    idle_s: float | None = None
    notice_s: float = ASSUMED_S


class Pilot:
    """Decides when the node leaves. `statuses` returns those of all attempts that the master has not done with.

    `read_at` returns when a log was read last, by the monotonic clock: the master copies the logs of what has ended.
    """

    def __init__(
        self,
        lent: Lent,
        node_dir: Path,
        telemetry: Telemetry,
        statuses: Callable[[], Sequence[agent_pb2.AttemptStatus]],
        read_at: Callable[[], float],
    ) -> None:
        self._lent = lent
        self._notice = node_dir / NOTICE
        self._telemetry = telemetry
        self._statuses = statuses
        self._read_at = read_at
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Have the node leave now."""
        self._asked.set()

    async def run(self) -> list[agent_pb2.AttemptStatus]:
        """Serve until the node has left. Return the statuses of the attempts that are left on it."""
        self._notice.unlink(missing_ok=True)  # what was said to an earlier agent of this node is over
        self._telemetry.note_shutdown(False)
        learning = asyncio.create_task(self._learn_end(), name="end of the lender's job")
        try:
            why = await self._reason_to_leave()
        finally:
            learning.cancel()
        if why != "over":
            self._note_end(time.time() + (IDLE_S if why == "idle" else await self._left_s()))
            self._telemetry.note_leaving()
        log.info("event=leaving why=%s", why)
        return await self._emptied()

    async def _learn_end(self) -> None:
        """Ask Slurm when its job ends until it has said so."""
        step = self._lent.step
        while step is not None and step.until is None and self._telemetry.end.until is None:
            if (until := await end_of(step.job)) is not None and not self._asked.is_set():
                self._note_end(until)
                self._telemetry.note_shutdown(True)
                return
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _reason_to_leave(self) -> str:
        started = busy_at = time.monotonic()
        while not self._asked.is_set():
            until = self._telemetry.end.until
            if until is not None and until <= time.time():
                return "over"
            if self._statuses() or time.monotonic() - self._telemetry.wanted_at < WANTED_S:
                busy_at = time.monotonic()
            elif self._lent.idle_s is not None:
                heard_at = self._telemetry.heard_at
                open_at = started + UNHEARD_S if heard_at is None else heard_at + FIRST_S
                if time.monotonic() - max(busy_at, open_at) >= self._lent.idle_s:
                    return "idle"
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._asked.wait()
        return "asked"

    async def _left_s(self) -> float:
        """Return for how many seconds the lender leaves the node to us.

        Slurm has moved the end of a job that it preempts. If the end is where it was, the signal has another cause,
        such as `scancel`, after which Slurm kills what is left once its KillWait is over.
        """
        step, known, now = self._lent.step, self._telemetry.end.until, time.time()
        until = None if step is None else await end_of(step.job)
        moved = until is not None and until > now and (known is None or until < known - 1.0)
        left_s = until - now if moved and until is not None else self._lent.notice_s
        return left_s if known is None else min(left_s, max(known - now, 0.0))

    def _note_end(self, until: float) -> None:
        try:
            write_json(self._notice, {"until": until, "boot_id": boot_id(), "owner": self._lent.owner})
        except OSError as error:  # such as a full disk; the attempts are to save all the same
            log.error("event=notice-not-written error=%r", str(error))
            self._telemetry.end.announce(until, self._lent.owner)

    async def _emptied(self) -> list[agent_pb2.AttemptStatus]:
        """Wait until the master has done with all attempts here, or the node's time is over. Return what is left."""
        busy_at = time.monotonic()
        heard_at = busy_at + _HEARD_S
        while (left := list(self._statuses())) or time.monotonic() < self._quiet_at(busy_at, heard_at):
            busy_at = time.monotonic() if left else busy_at
            until = self._telemetry.end.until
            if until is not None and time.time() >= until:
                break
            await asyncio.sleep(_LOOK_S)
        return left

    def _quiet_at(self, busy_at: float, heard_at: float) -> float:
        """Return when the master needs nothing of this node any more, by the monotonic clock."""
        return max(heard_at, max(busy_at, self._read_at()) + _QUIET_S)
