"""One queue, one consumer: the only place that touches the cluster.

A batch of work is handled, what it recorded is committed in one transaction, and only then do commands and replies
leave. If the journal fails, nothing has left and the master stops. Who brings it takes turns
(`ebbtide_master.throttle.fair_queue`), and a batch is short, so that nobody waits for long because somebody else has
much to do. Questions are answered between batches, when everything is durable.

What takes long is done in parts: facts of which some are `PAUSE`, and answers that are generators. A part of the facts
is committed with its batch, and then it is others' turn before the next part.
"""

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, Final, Protocol, TypeVar

from ebbtide_core.cluster import Cluster, Refusal
from ebbtide_core.commands import Command, Record, WakeAt
from ebbtide_core.events import Event, JobSubmitted, NodeEvent, SchedulingDue
from ebbtide_core.model import limits
from ebbtide_core.model.settings import Settings
from ebbtide_core.model.spec import text_size
from ebbtide_core.model.types import JobId

from ebbtide_master.changes import Changes
from ebbtide_master.clock import Clock
from ebbtide_master.store.journal import Store
from ebbtide_master.throttle.fair_queue import OURS, FairQueue, own_line

MAX_BATCH: Final = 512
MAX_QUEUE: Final = 10_000
"""In one line of it."""
BATCH_S: Final = 0.005
"""After so long a batch is committed, while more waits."""
BATCH_BYTES: Final = 4 * limits.MIB
"""Of commands and scripts, after which it is, too: all wait for what is written."""
ANSWERS_S: Final = 0.005
"""For so long questions are answered, while more wait."""
HOPS: Final = 8
"""Turns that everything else has between two of those: from its socket to its method, a call takes that many."""
WAKE_MARGIN_S: Final = 0.001
LOOK_S: Final = 30.0
"""It is looked at least so often whether the next time to wake has come."""

PAUSE: Final = None
"""Among facts: those before it may be committed, and others have their turn, before it goes on with those behind it."""

Answer = TypeVar("Answer")
Facts = Iterable[Event | None]
Parts = Generator[None, None, Answer]
"""An answer that takes long: others have their turn wherever it yields, and the cluster may be another then."""


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
    """``begun`` is what is left of its facts, and ``answering`` of its answer, once something of them was done."""

    facts: Callable[[Cluster], Facts]
    answer: Callable[[Cluster], Any]
    done: asyncio.Future[Any]
    line: str = OURS
    begun: Iterator[Event | None] | None = None
    answering: Parts[Any] | None = None


class Observer(Protocol):
    """Is told what the loop does."""

    def recorded(self, time: float, events: list[Event], /) -> None:
        """These events are durable, and the end of the journal."""

    def passed(self, seconds: float, /) -> None:
        """A scheduling pass took so long."""

    def committed(self, seconds: float, /) -> None:
        """A commit to the journal took so long."""


async def _nothing() -> None:
    pass


class MasterLoop:
    """Feeds the cluster from its queue. ``perform`` carries a command out; it must not block.

    ``keep`` makes durable what the journal relies on, before each commit; an error of it stops the master.
    ``recorded`` is told of what was recorded, and when, once it is durable and is the end of the journal.
    """

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        clock: Clock,
        changes: Changes,
        perform: Callable[[Command], None],
        keep: Callable[[], Awaitable[None]] = _nothing,
        recorded: Callable[[float, list[Event]], None] = lambda time, events: None,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._clock = clock
        self._changes = changes
        self._perform = perform
        self._keep = keep
        self._recorded = recorded
        self._observers: list[Observer] = []
        self._requests: FairQueue[_Work] = FairQueue(MAX_QUEUE)
        self._questions: FairQueue[_Work] = FairQueue(MAX_QUEUE)
        self._filled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes: list[float] = []
        self._stopped = False
        self._bytes = 0  # of commands and scripts in the batch

    def observe(self, observer: Observer) -> None:
        """Tell ``observer`` from now on what is done, and how long it takes."""
        self._observers.append(observer)

    @property
    def settings(self) -> Settings:
        """What the administrator decided; it stays as it is for as long as the master runs."""
        return self._cluster.state.settings

    async def tell(self, facts: Callable[[Cluster], Facts], answer: Callable[[Cluster], Answer]) -> Answer:
        """Handle ``facts`` one by one, each computed after the one before took effect; ``answer`` once all are on disk.

        Raises `RefusedError` at the first fact that is refused, and `StoppedError` if the master ended before that.
        What was before a `PAUSE` may be on disk then.
        """
        answered: Answer = await self._wait_in(self._requests, facts, answer)
        return answered

    async def tell_in_parts(
        self, facts: Callable[[Cluster], Facts], answer: Callable[[Cluster], Parts[Answer]]
    ) -> Answer:
        """The same with an answer that takes long."""
        answered: Answer = await self._wait_in(self._requests, facts, answer)
        return answered

    async def ask(self, answer: Callable[[Cluster], Answer]) -> Answer:
        """Read the cluster: the answer holds all that was replied to before, and nothing that is not durable."""
        answered: Answer = await self._wait_in(self._questions, _no_facts, answer)
        return answered

    async def ask_in_parts(self, answer: Callable[[Cluster], Parts[Answer]]) -> Answer:
        """The same where the answer takes long."""
        answered: Answer = await self._wait_in(self._questions, _no_facts, answer)
        return answered

    async def _wait_in(
        self, turns: FairQueue[_Work], facts: Callable[[Cluster], Facts], answer: Callable[[Cluster], Any]
    ) -> Any:
        if self._stopped:
            raise StoppedError
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await turns.put(_Work(facts, answer, done, own_line()))
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
                while self._requests or self._questions:
                    self._answer_some()
                    await self._handle_some(batch)
                    batch.clear()
                    for _ in range(HOPS):  # let in who comes meanwhile, to take turns with those who wait
                        await asyncio.sleep(0)
        finally:
            self._stop(batch)

    def _answer_some(self) -> None:
        """Answer questions, for a short time."""
        clock = asyncio.get_running_loop().time
        ends = clock() + ANSWERS_S
        while self._questions:
            work = self._questions.take()
            if not self._reply(work, ends):
                self._questions.put_back(work.line, work)
            if clock() >= ends:
                return

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
        for turns in (self._requests, self._questions):
            while self._stopped and turns:
                _fail(turns.take().done, StoppedError())

    async def _handle_some(self, batch: list[_Work]) -> None:
        """Handle wishes, for a short time, and commit what they came to. They are in ``batch`` if that fails."""
        now, ends, self._bytes = self._clock.now(), asyncio.get_running_loop().time() + BATCH_S, 0
        commands: list[Command] = []
        replies: list[Callable[[], None]] = []
        unfinished: list[_Work] = []
        while self._requests and len(batch) < MAX_BATCH and (not batch or not self._is_full(ends)):
            batch.append(work := self._requests.take())
            reply = self._take(work, now, commands, ends)
            if reply is None:
                unfinished.append(work)
            else:
                replies.append(reply)
        if commands or any(work.facts is _wake for work in batch):
            began = time.perf_counter()
            commands.extend(self._cluster.handle(SchedulingDue(), now))
            passed_s = time.perf_counter() - began
            for observer in self._observers:
                observer.passed(passed_s)
        records = [command.event for command in commands if isinstance(command, Record)]
        if records:
            stamped = [(now, event) for event in records]
            await self._keep()
            began = time.perf_counter()
            await asyncio.wrap_future(self._store.append(stamped))
            committed_s = time.perf_counter() - began
            self._recorded(now, records)
            for observer in self._observers:
                observer.committed(committed_s)
                observer.recorded(now, records)
        for command in commands:
            self._carry_out(command)
        for reply in replies:
            reply()
        self._changes.publish(records)
        for work in unfinished:
            self._requests.put_back(work.line, work)

    def _take(self, work: _Work, now: float, commands: list[Command], ends: float) -> Callable[[], None] | None:
        """Handle work, or some of it; returns what to do once it is durable, None if more of it follows."""
        news = work.begun = work.begun or self._news(work)
        while True:
            try:
                fact = next(news)
            except StopIteration:
                return lambda: self._answer(work)
            except Exception as error:  # noqa: BLE001 (it is whoever tells that gets it; reading has changed nothing)
                failed = error
                return lambda: _fail(work.done, failed)
            if fact is not PAUSE:
                commands.extend(self._cluster.handle(fact, now))
                self._changes.note(fact, self._on_node(fact))
                self._bytes += text_size(fact.spec) if isinstance(fact, JobSubmitted) else 0
            elif self._is_full(ends):
                return None

    def _is_full(self, ends: float) -> bool:
        """Whether the batch is to be committed as it is."""
        return asyncio.get_running_loop().time() >= ends or self._bytes >= BATCH_BYTES

    def _news(self, work: _Work) -> Iterator[Event | None]:
        """Its facts, none of which is refused. Raises `RefusedError`, or whatever is wrong with them."""
        for fact in work.facts(self._cluster):
            if fact is not PAUSE and (refusal := self._cluster.refusal(fact)) is not None:
                raise RefusedError(refusal)
            yield fact

    def _answer(self, work: _Work) -> None:
        """Reply to what was told; where that takes long, as to a question."""
        if not self._reply(work, 0.0):
            self._questions.put_back(work.line, work)

    def _on_node(self, fact: Event) -> Iterable[JobId]:
        """The jobs on the node that ``fact`` is about: whether it can be reached is part of their state."""
        if not isinstance(fact, NodeEvent):
            return ()
        node = self._cluster.state.nodes.get(fact.node)
        return node.attempts if node is not None else ()

    def _reply(self, work: _Work, ends: float) -> bool:
        """Whether the answer is complete; of one in parts, there may be more to do at ``ends``."""
        clock = asyncio.get_running_loop().time
        if work.done.done():  # whoever asked is gone
            return True
        try:
            answer = work.answering or work.answer(self._cluster)
            if not isinstance(answer, GeneratorType):
                work.done.set_result(answer)
                return True
            work.answering = answer
            next(answer)
            while clock() < ends:
                next(answer)
        except StopIteration as last:
            work.done.set_result(last.value)
        except Exception as error:  # noqa: BLE001 (it is whoever asked that gets it; reading has changed nothing)
            work.done.set_exception(error)
        return work.done.done()

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
        wait_s = min(LOOK_S, max(0.0, self._wakes[0] - self._clock.now()))  # the clock may be set meanwhile
        when = loop.time() + wait_s + WAKE_MARGIN_S
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
        self._requests.put_now(_Work(_wake, lambda _: None, done))
        self._filled.set()


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


def _no_facts(cluster: Cluster) -> Iterable[Event]:
    """The facts of a question."""
    return ()


def _wake(cluster: Cluster) -> Iterable[Event]:
    """The facts of a wake-up: none, only a scheduling pass."""
    return ()
