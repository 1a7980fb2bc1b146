"""Answers how much GPU time was used, from the sums that the ledger keeps (``ebb usage``)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from ebbtide_core.model.spec import SpecError
from ebbtide_core.views.gpu_time import Dimension, GpuTime, Periods, Usage, check
from ebbtide_protos.v1 import usage_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.identity.caller import caller
from ebbtide_master.throttle.concurrency import OnePerUser

MAX_EDGES: Final = 1000
ANSWERS: Final = 2
"""Answers that are made at a time, for all users: one may have a line for each job."""


class UsageService:
    """Answers how much GPU time was used."""

    def __init__(self, master: Context) -> None:
        self._clock = master.clock
        self._loop = master.loop
        self._ledger = master.ledger
        self._answers = OnePerUser(ANSWERS)

    async def Usage(self, request: usage_pb2.UsageRequest, context: Any) -> AsyncIterator[usage_pb2.UsageReply]:
        """Send the summed GPU time."""
        periods, by = _periods(request), _dimensions(request)
        async with self._answers.turn(caller().user):
            now = self._clock.now()
            usage = await self._loop.ask_in_parts(
                lambda cluster: self._ledger.usage(periods, by, request.user or None, now)
            )
            yield await asyncio.to_thread(_reply, usage, min(now, periods.whole[1]), self._ledger.known_since)


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


def _reply(usage: Usage, until: float, known_since: float) -> usage_pb2.UsageReply:
    gpus = usage.gpus
    reply = usage_pb2.UsageReply(
        done=1.0,
        total=usage_pb2.UsageAccount(**_sums(usage.total)),
        gpus=usage_pb2.GpuUsage(
            gpus=gpus.gpus,
            known_gpu_s=gpus.known,
            allocated_gpu_s=gpus.allocated,
            idle_gpu_s=gpus.idle,
            foreign_gpu_s=gpus.foreign,
            unavailable_gpu_s=gpus.unavailable,
        ),
        foreign_gpu_s=usage.foreign,
        problems=check(usage),
        until=until,
        known_since=known_since,
    )
    for key in sorted(usage.accounts):
        reply.accounts.add(key=key, **_sums(usage.accounts[key]))
    return reply


def _sums(account: GpuTime) -> dict[str, Any]:
    """Return the fields of the account's message but its key."""
    return {
        "jobs": account.jobs,
        "allocated_gpu_s": account.allocated,
        "starting_gpu_s": account.starting,
        "computing_gpu_s": account.computing,
        "leaving_gpu_s": account.leaving,
        "lost_gpu_s": account.lost,
        "unknown_gpu_s": account.unknown,
        "idle_gpu_s": account.idle,
        "wasted_gpu_s": account.wasted,
        "waiting_s": account.waiting,
        "held_s": account.held,
        "suspended_s": account.suspended,
        "placed_s": account.placed,
    }
