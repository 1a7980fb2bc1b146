"""The master's loop consumes one queue of work, and no other code touches the cluster.

The loop handles a batch of work, commits what the batch recorded in one transaction, and only then sends commands and
replies. If the journal fails, nothing has been sent, and the master stops. The users' work is taken in turns
(`ebbtide_master.throttle.fair_queue`), and a batch is short, so that no user waits for long because another one has
much to do. The loop answers questions between batches, when everything is durable.

Long work is done in parts: its facts contain `PAUSE`, or its answer is a generator. The loop commits one part of the
facts with its batch, and does other users' work before the next part.
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
from ebbtide_core.model.spec.program import text_size
from ebbtide_core.model.types import JobId

from ebbtide_master.changes import Changes
from ebbtide_master.clock import Clock
from ebbtide_master.store.journal import Store
from ebbtide_master.throttle.fair_queue import OURS, FairQueue, current_queue

MAX_BATCH: Final = 512
MAX_QUEUE: Final = 10_000
"""Pieces of work in the queue of one user."""
BATCH_S: Final = 0.005
"""Seconds after which a batch is committed, even if more work waits."""
BATCH_BYTES: Final = 4 * limits.MIB
"""Bytes of commands and scripts after which a batch is committed, because all users wait while it is written."""
ANSWERS_S: Final = 0.005
"""Seconds after which the loop stops answering questions and handles a batch, even if more questions wait."""
HOPS: Final = 8
"""Turns that other tasks get after a batch if more work waits: a call needs so many from its socket to its method."""
WAKE_MARGIN_S: Final = 0.001
LOOK_S: Final = 30.0
"""Longest time in seconds between two checks whether the next wake-up time has come."""

PAUSE: Final = None
"""A mark among facts: the loop may commit the facts before it, and do other users' work, before it goes on."""

Answer = TypeVar("Answer")
Facts = Iterable[Event | None]
Parts = Generator[None, None, Answer]
"""An answer that takes long: at each yield the loop may do other work, and the cluster may have changed afterwards."""


class StoppedError(Exception):
    """The master no longer works, and what was requested has not happened."""

    def __init__(self) -> None:
        super().__init__("the master is stopping")


class RefusedError(Exception):
    """A request was refused; ``refusal`` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(slots=True)
class _Work:
    """``begun`` holds the remaining facts, and ``answering`` the rest of the answer, once a part of each was done."""

    facts: Callable[[Cluster], Facts]
    answer: Callable[[Cluster], Any]
    done: asyncio.Future[Any]
    line: str = OURS
    begun: Iterator[Event | None] | None = None
    answering: Parts[Any] | None = None


class Observer(Protocol):
    """An observer is called after each commit and each scheduling pass."""

    def recorded(self, time: float, events: list[Event], /) -> None:
        """Take in ``events``, which are durable now and are the last ones of the journal."""

    def passed(self, seconds: float, /) -> None:
        """Take in how many seconds a scheduling pass took."""

    def committed(self, seconds: float, /) -> None:
        """Take in how many seconds a commit to the journal took."""


async def _nothing() -> None:
    pass


class MasterLoop:
    """Passes facts from its queue to the cluster.

    ``perform`` carries out a command and must not block; it returns the fact that the command cannot be carried out, or
    None.
    ``keep`` is awaited before each commit and makes durable what the journal relies on; an error of it stops the
    master. ``recorded`` is called with the time and the events of each commit, once they are durable.
    """

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        clock: Clock,
        changes: Changes,
        perform: Callable[[Command], Event | None],
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
        self._durable = asyncio.Event()  # cleared while a commit is under way
        self._durable.set()
        self._once_durable: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._wakes: list[float] = []
        self._stopped = False
        self._bytes = 0  # of commands and scripts in the batch

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` after each commit and each scheduling pass from now on."""
        self._observers.append(observer)

    @property
    def settings(self) -> Settings:
        """What the administrator configured; it does not change while the master runs."""
        return self._cluster.state.settings

    async def tell(self, facts: Callable[[Cluster], Facts], answer: Callable[[Cluster], Answer]) -> Answer:
        """Handle ``facts`` one by one, each computed after the one before took effect; then return the ``answer``.

        The answer is computed once all facts are on disk. Raises `RefusedError` at the first fact that is refused, and
        `StoppedError` if the master ended before that. The facts before a `PAUSE` may be on disk then.
        """
        answered: Answer = await self._wait_in(self._requests, facts, answer)
        return answered

    async def tell_if_any(self, facts: Callable[[Cluster], Iterable[Event]]) -> None:
        """Do the same as `tell` without an answer, but wait for no turn if there are no ``facts`` at the moment.

        This is for reports that come often and mostly change nothing. ``facts`` must only read: it may be called twice.
        A commit that is under way is awaited in any case.
        """
        while not self._durable.is_set():
            await self._durable.wait()
        if not self.is_no_news(facts):
            await self.tell(facts, lambda _: None)

    def is_no_news(self, facts: Callable[[Cluster], Iterable[Event]]) -> bool:
        """Return whether `tell_if_any` would have nothing to do but to wait for the commit that is under way."""
        return not self._stopped and not any(True for _ in facts(self._cluster))

    def once_durable(self, do: Callable[[], None]) -> bool:
        """Call ``do`` at once, or when the commit under way has succeeded; return False if too many wait for that."""
        if self._durable.is_set():
            do()
        elif len(self._once_durable) < MAX_QUEUE:
            self._once_durable.append(do)
        else:
            return False
        return True

    def read(self, answer: Callable[[Cluster], Answer]) -> Answer:
        """Read the cluster at once, with what may not be durable yet: a caller who replies with it uses `ask`."""
        return answer(self._cluster)

    async def tell_in_parts(
        self, facts: Callable[[Cluster], Facts], answer: Callable[[Cluster], Parts[Answer]]
    ) -> Answer:
        """Do the same as `tell` with an answer that takes long."""
        answered: Answer = await self._wait_in(self._requests, facts, answer)
        return answered

    async def ask(self, answer: Callable[[Cluster], Answer]) -> Answer:
        """Read the cluster: the answer includes everything that was replied before, and nothing that is not durable."""
        answered: Answer = await self._wait_in(self._questions, _no_facts, answer)
        return answered

    async def ask_in_parts(self, answer: Callable[[Cluster], Parts[Answer]]) -> Answer:
        """Do the same as `ask` with an answer that takes long."""
        answered: Answer = await self._wait_in(self._questions, _no_facts, answer)
        return answered

    async def _wait_in(
        self, turns: FairQueue[_Work], facts: Callable[[Cluster], Facts], answer: Callable[[Cluster], Any]
    ) -> Any:
        if self._stopped:
            raise StoppedError
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await turns.put(_Work(facts, answer, done, current_queue()))
        self._filled.set()
        self._fail_queued_if_stopped()  # the master may have stopped while this call waited for room in the queue
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
                    for _ in range(HOPS if self._requests or self._questions else 0):
                        await asyncio.sleep(0)  # new calls enter the queue, and take turns with those that wait
        finally:
            self._stop(batch)

    def _answer_some(self) -> None:
        clock = asyncio.get_running_loop().time
        ends = clock() + ANSWERS_S
        while self._questions:
            work = self._questions.take()
            if not self._reply(work, ends):
                self._questions.put_back(work.line, work)
            if clock() >= ends:
                return

    def _stop(self, batch: list[_Work]) -> None:
        """Fail all work, so that no caller waits for an answer that will not come."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for work in batch:
            _fail(work.done, StoppedError())
        self._fail_queued_if_stopped()

    def _fail_queued_if_stopped(self) -> None:
        """Fail the queued work. A caller that waits for room in the queue enters it then, and fails its work, too."""
        for turns in (self._requests, self._questions):
            while self._stopped and turns:
                _fail(turns.take().done, StoppedError())

    async def _handle_some(self, batch: list[_Work]) -> None:
        """Handle requests for a short time, and commit the events. ``batch`` holds the requests if the commit fails."""
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
            committed_s = await self._commit(stamped)
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

    async def _commit(self, stamped: list[tuple[float, Event]]) -> float:
        """Write events to the journal, and return how many seconds that took."""
        self._durable.clear()
        try:
            await self._keep()
            began = time.perf_counter()
            await asyncio.wrap_future(self._store.append(stamped))
            took_s = time.perf_counter() - began
        finally:
            self._durable.set()
        waiting, self._once_durable = self._once_durable, []
        for do in waiting:
            asyncio.get_running_loop().call_soon(do)  # not from here, where an error of one would end the master
        return took_s

    def _take(self, work: _Work, now: float, commands: list[Command], ends: float) -> Callable[[], None] | None:
        """Handle ``work`` or a part of it. Return what to do once it is durable, or None if a part is left."""
        news = work.begun = work.begun or self._news(work)
        while True:
            try:
                fact = next(news)
            except StopIteration:
                return lambda: self._answer(work)
            except Exception as error:  # noqa: BLE001 (the caller of `tell` gets it; reading has changed nothing)
                failed = error
                return lambda: _fail(work.done, failed)
            if fact is not PAUSE:
                commands.extend(self._cluster.handle(fact, now))
                self._changes.note(fact, self._on_node(fact))
                self._bytes += text_size(fact.spec) if isinstance(fact, JobSubmitted) else 0
            elif self._is_full(ends):
                return None

    def _is_full(self, ends: float) -> bool:
        return asyncio.get_running_loop().time() >= ends or self._bytes >= BATCH_BYTES

    def _news(self, work: _Work) -> Iterator[Event | None]:
        """Yield the facts of ``work``. Raises `RefusedError` if the cluster refuses one, or the work's own error."""
        for fact in work.facts(self._cluster):
            if fact is not PAUSE and (refusal := self._cluster.refusal(fact)) is not None:
                raise RefusedError(refusal)
            yield fact

    def _answer(self, work: _Work) -> None:
        """Reply to ``work``; an answer that takes long is continued among the questions."""
        if not self._reply(work, 0.0):
            self._questions.put_back(work.line, work)

    def _on_node(self, fact: Event) -> Iterable[JobId]:
        """Return the jobs on the node that ``fact`` is about: their state includes whether the node can be reached."""
        if not isinstance(fact, NodeEvent):
            return ()
        node = self._cluster.state.nodes.get(fact.node)
        return node.attempts if node is not None else ()

    def _reply(self, work: _Work, ends: float) -> bool:
        """Answer ``work`` and return whether the answer is complete. An answer in parts is interrupted at ``ends``."""
        clock = asyncio.get_running_loop().time
        if work.done.done():  # the caller is gone
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
        except Exception as error:  # noqa: BLE001 (the caller of `ask` gets it; reading has changed nothing)
            work.done.set_exception(error)
        return work.done.done()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Record():
                pass
            case WakeAt(time=time):
                self._wake_at(time)
            case _:
                if (refused := self._perform(command)) is not None:
                    self._put_own(lambda _: [refused])

    def _wake_at(self, time: float) -> None:
        # The core does not ask for the same time again, even if it asked for an earlier one as well.
        heapq.heappush(self._wakes, time)
        self._arm()

    def _arm(self) -> None:
        """Set the timer for the next wake-up time, unless it goes off earlier already."""
        loop = asyncio.get_running_loop()
        # Woken a rounding error too early, the core would find nothing due.
        wait_s = min(LOOK_S, max(0.0, self._wakes[0] - self._clock.now()))  # at most, as the clock may be set meanwhile
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
        self._put_own(_wake)

    def _put_own(self, facts: Callable[[Cluster], Facts]) -> None:
        """Put facts into the queue for which no caller waits."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests.put_now(_Work(facts, lambda _: None, done))
        self._filled.set()


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


def _no_facts(cluster: Cluster) -> Iterable[Event]:
    """Return the facts of a question, which has none."""
    return ()


def _wake(cluster: Cluster) -> Iterable[Event]:
    """Return the facts of a wake-up, which has none and only causes a scheduling pass."""
    return ()
