"""One queue, one consumer: the only place that touches the cluster.

A batch of work is handled, what it recorded is committed in one transaction, and only then do commands and replies
leave. If the journal fails, nothing has left and the master stops.
"""

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ebbtide_core.cluster import Cluster, Refusal
from ebbtide_core.commands import Command, Record, WakeAt
from ebbtide_core.events import Event, NodeEvent, SchedulingDue
from ebbtide_core.model import JobId
from ebbtide_core.settings import Settings

from ebbtide_master.changes import Changes
from ebbtide_master.clock import Clock
from ebbtide_master.store import Store

MAX_BATCH: Final = 512
MAX_QUEUE: Final = 10_000
WAKE_MARGIN_S: Final = 0.001

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class StoppedError(Exception):
    """The master no longer works: whatever was asked for has not happened."""

    def __init__(self) -> None:
        super().__init__("the master is stopping")


class RefusedError(Exception):
    """A wish was refused; see ``refusal``."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(slots=True)
class _Work:
    facts: Callable[[Cluster], Iterable[Event]]
    answer: Callable[[Cluster], Any]
    done: asyncio.Future[Any]


class MasterLoop:
    """Feeds the cluster from its queue. ``perform`` carries a command out; it must not block."""

    def __init__(
        self, cluster: Cluster, store: Store, clock: Clock, changes: Changes, perform: Callable[[Command], None]
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._clock = clock
        self._changes = changes
        self._perform = perform
        self._queue: asyncio.Queue[_Work] = asyncio.Queue(MAX_QUEUE)
        self._timer: asyncio.TimerHandle | None = None
        self._wakes: list[float] = []
        self._stopped = False
        self.recorded: Callable[[float, list[Event]], None] = lambda time, events: None
        """Is told of what was recorded, and when, once it is durable and is the end of the journal."""

    @property
    def settings(self) -> Settings:
        """What the administrator decided; it stays as it is for as long as the master runs."""
        return self._cluster.state.settings

    async def tell(self, facts: Callable[[Cluster], Iterable[Event]], answer: Callable[[Cluster], Answer]) -> Answer:
        """Handle ``facts`` one by one, each computed after the one before took effect; ``answer`` once all are on disk.

        Raises `RefusedError` at the first fact that is refused, and `StoppedError` if the master ended before that.
        """
        if self._stopped:
            raise StoppedError
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        await self._queue.put(_Work(facts, answer, done))
        self._fail_queued_if_stopped()  # while this waited for room in the queue
        return await done

    async def ask(self, answer: Callable[[Cluster], Answer]) -> Answer:
        """Read the cluster, in turn with everything else: the answer holds nothing that is not durable."""
        return await self.tell(lambda _: (), answer)

    async def run(self) -> None:
        """Work until cancelled. Raises `StoreError` or the core's own errors: the master must stop then."""
        batch: list[_Work] = []
        try:
            while True:
                batch = [await self._queue.get()]
                while len(batch) < MAX_BATCH and not self._queue.empty():
                    batch.append(self._queue.get_nowait())
                await self._handle(batch)
        finally:
            self._stop(batch)

    def _stop(self, batch: list[_Work]) -> None:
        """Let nobody wait for an answer that will not come."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for work in batch:
            _fail(work.done, StoppedError())
        self._fail_queued_if_stopped()

    def _fail_queued_if_stopped(self) -> None:
        """Tell those in the queue; who waits for room in it gets in then, and does the same."""
        while self._stopped and not self._queue.empty():
            _fail(self._queue.get_nowait().done, StoppedError())

    async def _handle(self, batch: list[_Work]) -> None:
        now = self._clock.now()
        commands: list[Command] = []
        replies = [self._take(work, now, commands) for work in batch]
        if commands or any(work.facts is _wake for work in batch):
            commands.extend(self._cluster.handle(SchedulingDue(), now))
        records = [command.event for command in commands if isinstance(command, Record)]
        if records:
            stamped = [(now, event) for event in records]
            await asyncio.wrap_future(self._store.append(stamped))
            self.recorded(now, records)
        for command in commands:
            self._carry_out(command)
        for reply in replies:
            reply()
        self._changes.publish(records)

    def _take(self, work: _Work, now: float, commands: list[Command]) -> Callable[[], None]:
        """Handle one piece of work; returns what to do once it is durable."""
        for fact in work.facts(self._cluster):
            refusal = self._cluster.refusal(fact)
            if refusal is not None:
                error = RefusedError(refusal)
                return lambda: _fail(work.done, error)
            commands.extend(self._cluster.handle(fact, now))
            self._changes.note(fact, self._on_node(fact))
        return lambda: self._reply(work)

    def _on_node(self, fact: Event) -> Iterable[JobId]:
        """The jobs on the node that ``fact`` is about: whether it can be reached is part of their state."""
        if not isinstance(fact, NodeEvent):
            return ()
        node = self._cluster.state.nodes.get(fact.node)
        return node.attempts if node is not None else ()

    def _reply(self, work: _Work) -> None:
        if work.done.done():  # whoever asked is gone
            return
        try:
            work.done.set_result(work.answer(self._cluster))
        except Exception as error:  # noqa: BLE001 (it is whoever asked that gets it; reading has changed nothing)
            work.done.set_exception(error)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Record():
                pass
            case WakeAt(time=time):
                self._wake_at(time)
            case _:
                self._perform(command)

    def _wake_at(self, time: float) -> None:
        # The core does not ask for the same time again, even if it asked for an earlier one as well.
        heapq.heappush(self._wakes, time)
        self._arm()

    def _arm(self) -> None:
        """See to it that the next time to wake is not missed."""
        loop = asyncio.get_running_loop()
        # Woken a rounding error too early, the core would find nothing due.
        when = loop.time() + max(0.0, self._wakes[0] - self._clock.now()) + WAKE_MARGIN_S
        if self._timer is None or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(when, self._wake)

    def _wake(self) -> None:
        self._timer, now = None, self._clock.now()
        while self._wakes and self._wakes[0] <= now:
            heapq.heappop(self._wakes)
        if self._wakes:
            self._arm()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait(_Work(_wake, lambda _: None, done))
        except asyncio.QueueFull:
            log.warning("queue=full wake-up left to the next event")


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


def _wake(cluster: Cluster) -> Iterable[Event]:
    """The facts of a wake-up: none, only a scheduling pass."""
    return ()
