"""Carries out the master's orders: one after the other for one attempt, concurrently for different attempts."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ebbtide_agent.contract.attempt_dir import AttemptKey
from ebbtide_agent.link.membership import Membership

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """An order; `what` names it in the log, and `master` is the membership under which it was given."""

    what: str
    master: Membership
    carry_out: Callable[[], Awaitable[None]]


class Orders:
    """Queues orders by attempt, and drops those that another master than the current one gave."""

    def __init__(self) -> None:
        self.master = Membership()
        self._queues: dict[AttemptKey, deque[Order]] = {}
        self._workers: dict[AttemptKey, asyncio.Task[None]] = {}

    def give(self, key: AttemptKey, order: Order) -> None:
        """Carry out the order after all earlier ones for the same attempt."""
        self._queues.setdefault(key, deque()).append(order)
        if key not in self._workers:
            self._workers[key] = asyncio.create_task(self._work(key), name=f"orders {key[0]}.{key[1]}")

    async def close(self) -> None:
        """Abandon the orders that are queued or under way; the master repeats those that matter."""
        workers = list(self._workers.values())
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, key: AttemptKey) -> None:
        queue = self._queues[key]
        while queue:
            await self._carry_out(key, queue.popleft())
        del self._queues[key], self._workers[key]

    async def _carry_out(self, key: AttemptKey, order: Order) -> None:
        if order.master != self.master:
            log.warning("event=order-dropped order=%s job=%s attempt=%d epoch=%d", order.what, *key, order.master.epoch)
            return
        try:
            await order.carry_out()
        except Exception:  # an order that fails must not block the next ones
            log.exception("event=order-failed order=%s job=%s attempt=%d", order.what, *key)
