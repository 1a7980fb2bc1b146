"""Sums up GPU time from the journal, outside the loop's thread (``ebb usage``)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from ebbtide_core.model.spec import SpecError
from ebbtide_core.views.gpu_time import Dimension, GpuTime, Periods, check
from ebbtide_core.views.ledger import Ledger
from ebbtide_core.views.phases import KINDS
from ebbtide_protos.v1 import usage_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.identity.caller import caller
from ebbtide_master.throttle.concurrency import OnePerUser

EVENTS_AT_ONCE: Final = 500
"""Events that are read without a break, so that the loop gets its turn in between."""
TELL_EVERY: Final = 10
"""Number of such reads after which the client gets the progress."""
MAX_EDGES: Final = 1000
LEDGERS: Final = 2
"""Ledgers that are read at a time, for all users."""


class UsageService:
    """Sums up GPU time."""

    def __init__(self, master: Context) -> None:
        self._clock = master.clock
        self._store = master.store
        self._ledgers = OnePerUser(LEDGERS)

    async def Usage(self, request: usage_pb2.UsageRequest, context: Any) -> AsyncIterator[usage_pb2.UsageReply]:
        """Send the progress, and then the summed GPU time. Events that come meanwhile are left out."""
        ledger = Ledger(_periods(request), _dimensions(request), request.user or None)
        async with self._ledgers.turn(caller().user):
            async for reply in self._used(ledger, request.edges[-1]):
                yield reply

    async def _used(self, ledger: Ledger, until: float) -> AsyncIterator[usage_pb2.UsageReply]:
        now, end, last, rounds = self._clock.now(), self._store.last_sequence, 0, 0
        while last < end:
            last = await asyncio.to_thread(self._read, ledger, last, end)
            rounds += 1
            if rounds % TELL_EVERY == 0:
                yield usage_pb2.UsageReply(done=min(1.0, last / end))
        yield await asyncio.to_thread(_reply, ledger, now, until)

    def _read(self, ledger: Ledger, after: int, end: int) -> int:
        """Take in the lines behind ``after``; return the last line that was read, or ``end`` if none is left."""
        count = 0
        for line in self._store.events(after, limit=EVENTS_AT_ONCE, kinds=KINDS):
            if line.sequence > end:
                return end
            ledger.take(line.event, line.time)
            after, count = line.sequence, count + 1
        return after if count == EVENTS_AT_ONCE else end


def _periods(request: usage_pb2.UsageRequest) -> Periods:
    if len(request.edges) > MAX_EDGES:
        raise SpecError("--since", f"{len(request.edges) - 1} days are over the limit of {MAX_EDGES - 1}")
    try:
        return Periods(tuple(request.edges))
    except ValueError as error:
        raise SpecError("--since", str(error)) from None


def _dimensions(request: usage_pb2.UsageRequest) -> list[Dimension]:
    try:
        return [Dimension(name) for name in request.by]
    except ValueError:
        known = ", ".join(dimension.value for dimension in Dimension)
        raise SpecError("--by", f"there are only {known}") from None


def _reply(ledger: Ledger, now: float, until: float) -> usage_pb2.UsageReply:
    usage = ledger.close(now)
    gpus = list(usage.gpus.values())
    return usage_pb2.UsageReply(
        done=1.0,
        accounts=[_account_message(account, key) for key, account in sorted(usage.accounts.items())],
        total=_account_message(usage.total),
        gpus=usage_pb2.GpuUsage(
            gpus=sum(1 for gpu in gpus if gpu.known),
            known_gpu_s=sum(gpu.known for gpu in gpus),
            allocated_gpu_s=sum(gpu.allocated for gpu in gpus),
            idle_gpu_s=sum(gpu.idle for gpu in gpus),
            foreign_gpu_s=sum(gpu.foreign for gpu in gpus),
            unavailable_gpu_s=sum(gpu.unavailable for gpu in gpus),
        ),
        foreign_gpu_s=usage.foreign,
        problems=check(usage),
        until=min(now, until),
        known_since=ledger.known_since,
    )


def _account_message(account: GpuTime, key: tuple[str, ...] = ()) -> usage_pb2.UsageAccount:
    return usage_pb2.UsageAccount(
        key=key,
        jobs=len(account.jobs),
        allocated_gpu_s=account.allocated,
        starting_gpu_s=account.starting,
        computing_gpu_s=account.computing,
        leaving_gpu_s=account.leaving,
        lost_gpu_s=account.lost,
        unknown_gpu_s=account.unknown,
        idle_gpu_s=account.idle,
        wasted_gpu_s=account.wasted,
        waiting_s=account.waiting,
        held_s=account.held,
        suspended_s=account.suspended,
        placed_s=account.placed,
    )
