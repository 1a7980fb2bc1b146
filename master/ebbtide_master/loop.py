"""One queue, one consumer: the only place that touches the cluster.

A batch of work is handled, what it recorded is committed in one transaction, and only then do commands and replies
leave. If the journal fails, nothing has left and the master stops. Who brings it takes turns (`ebbtide_master.turns`),
and a batch is short, so that nobody waits for long because somebody else has much to do. Questions are answered
between batches, when everything is durable.
"""

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ebbtide_core.cluster import Cluster, Refusal
from ebbtide_core.commands import Command, Record, WakeAt
from ebbtide_core.events import Event, NodeEvent, SchedulingDue
from ebbtide_core.model import JobId
from ebbtide_core.settings import Settings

from ebbtide_master.changes import Changes
from ebbtide_master.clock import Clock
from ebbtide_master.store.journal import Store
from ebbtide_master.turns import Turns

MAX_BATCH: Final = 512
MAX_QUEUE: Final = 10_000
"""In one line of it."""
BATCH_S: Final = 0.01
"""After so long a batch is committed, and so long questions are answered, while more of either waits."""
WAKE_MARGIN_S: Final = 0.001

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
        self._wishes: Turns[_Work] = Turns(MAX_QUEUE)
        self._questions: Turns[_Work] = Turns(MAX_QUEUE)
        self._filled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes: list[float] = []
        self._stopped = False
        self.before: Callable[[], Awaitable[None]] = _nothing
        """Makes durable what the journal relies on; an error of it stops the master."""
        self.recorded: Callable[[float, list[Event]], None] = lambda time, events: None
        """Is told of what was recorded, and when, once it is durable and is the end of the journal."""
        self.passed: Callable[[float], None] = lambda seconds: None
        self.committed: Callable[[float], None] = lambda seconds: None
        """Are told how long each pass, and each commit to the journal, took."""

    @property
    def settings(self) -> Settings:
        """What the administrator decided; it stays as it is for as long as the master runs."""
        return self._cluster.state.settings

    async def tell(self, facts: Callable[[Cluster], Iterable[Event]], answer: Callable[[Cluster], Answer]) -> Answer:
        """Handle ``facts`` one by one, each computed after the one before took effect; ``answer`` once all are on disk.

        Raises `RefusedError` at the first fact that is refused, and `StoppedError` if the master ended before that.
        """
        return await self._wait_in(self._wishes, facts, answer)

    async def ask(self, answer: Callable[[Cluster], Answer]) -> Answer:
        """Read the cluster: the answer holds all that was replied to before, and nothing that is not durable."""
        return await self._wait_in(self._questions, _no_facts, answer)

    async def _wait_in(
        self, turns: Turns[_Work], facts: Callable[[Cluster], Iterable[Event]], answer: Callable[[Cluster], Answer]
    ) -> Answer:
        if self._stopped:
            raise StoppedError
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        await turns.put(_Work(facts, answer, done))
        self._filled.set()
        self._fail_queued_if_stopped()  # while this waited for room in the queue
        return await done

    async def run(self) -> None:
        """Work until cancelled. Raises `StoreError` or the core's own errors: the master must stop then."""
        batch: list[_Work] = []
        try:
            while True:
                await self._filled.wait()
                self._filled.clear()
                while self._wishes or self._questions:
                    self._answer_some()
                    await self._handle_some(batch)
                    batch.clear()
                    await asyncio.sleep(0)  # let in who comes meanwhile, to take turns with those who wait
        finally:
            self._stop(batch)

    def _answer_some(self) -> None:
        """Answer questions, for a short time."""
        clock = asyncio.get_running_loop().time
        ends = clock() + BATCH_S
        while self._questions and clock() < ends:
            self._reply(self._questions.take())

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
        for turns in (self._wishes, self._questions):
            while self._stopped and turns:
                _fail(turns.take().done, StoppedError())

    async def _handle_some(self, batch: list[_Work]) -> None:
        """Handle wishes, for a short time, and commit what they came to. They are in ``batch`` if that fails."""
        clock = asyncio.get_running_loop().time
        now, ends = self._clock.now(), clock() + BATCH_S
        commands: list[Command] = []
        replies: list[Callable[[], None]] = []
        while self._wishes and len(batch) < MAX_BATCH and clock() < ends:
            batch.append(self._wishes.take())
            replies.append(self._take(batch[-1], now, commands))
        if commands or any(work.facts is _wake for work in batch):
            began = time.perf_counter()
            commands.extend(self._cluster.handle(SchedulingDue(), now))
            self.passed(time.perf_counter() - began)
        records = [command.event for command in commands if isinstance(command, Record)]
        if records:
            stamped = [(now, event) for event in records]
            await self.before()
            began = time.perf_counter()
            await asyncio.wrap_future(self._store.append(stamped))
            self.committed(time.perf_counter() - began)
            self.recorded(now, records)
        for command in commands:
            self._carry_out(command)
        for reply in replies:
            reply()
        self._changes.publish(records)

    def _take(self, work: _Work, now: float, commands: list[Command]) -> Callable[[], None]:
        """Handle one piece of work; returns what to do once it is durable."""
        news = self._news(work)
        while True:
            try:
                fact = next(news, None)
            except Exception as error:  # noqa: BLE001 (it is whoever tells that gets it; reading has changed nothing)
                failed = error
                return lambda: _fail(work.done, failed)
            if fact is None:
                return lambda: self._reply(work)
            commands.extend(self._cluster.handle(fact, now))
            self._changes.note(fact, self._on_node(fact))

    def _news(self, work: _Work) -> Iterator[Event]:
        """Its facts, none of which is refused. Raises `RefusedError`, or whatever is wrong with them."""
        for fact in work.facts(self._cluster):
            refusal = self._cluster.refusal(fact)
            if refusal is not None:
                raise RefusedError(refusal)
            yield fact

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
        self._wishes.put_now(_Work(_wake, lambda _: None, done))
        self._filled.set()


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


def _no_facts(cluster: Cluster) -> Iterable[Event]:
    """The facts of a question."""
    return ()


async def _nothing() -> None:
    pass


def _wake(cluster: Cluster) -> Iterable[Event]:
    """The facts of a wake-up: none, only a scheduling pass."""
    return ()
