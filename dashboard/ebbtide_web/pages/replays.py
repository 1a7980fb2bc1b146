"""Runs ``ebb replay`` for people who ask what if: in processes that are bounded, and ended when nobody waits for them.

The journal goes from the master, as far as whoever asks may see it, into a process that has no token and reads no file.
"""

import asyncio
import json
import os
import resource
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

from ebbtide_protos.v1 import client_pb2

from ebbtide_web.access.sessions import Session
from ebbtide_web.reach import Master

AT_ONCE: Final = 2
"""Simulations that run at a time for all users; each user has one, and others wait for their turn."""
MOST_S: Final = 300.0
"""Seconds after which a simulation is given up, reading included."""
MOST_CPU_S: Final = 240
MOST_MEMORY_BYTES: Final = 2 * 2**30
NICE: Final = 5
"""So that a simulation gives way to the master and the agent, and still ends in time where all CPUs are busy."""
LEFT_S: Final = 3.0
"""Seconds after which a simulation that nobody waits for is ended; a page that lost its connection is back sooner."""
KEPT_S: Final = 600.0
MOST_KEPT: Final = 50
LONGEST_LINE: Final = 2**20
READING: Final = 0.5
"""The part of all, from 0 to 1, that reading the journal counts as."""
_SEEN: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")
"""What a simulation gets of this process's environment, in which a token may be."""
_ALONE: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class ReplayFailedError(Exception):
    """A simulation has no result; the message says why."""


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """What is done now, in words, and how much of all is, from 0 to 1."""

    words: str
    done: float


@dataclass(frozen=True, slots=True)
class Replay:
    """A simulation: the arguments of ``ebb replay``, and when its span ends, in Unix seconds; 0 if that is now."""

    arguments: tuple[str, ...]
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """What ``ebb replay --json`` printed, and how many events it was not given, as whoever asked may not see them."""

    printed: Mapping[str, Any]
    left_out: int


@dataclass(slots=True)
class _Run:
    """A simulation that somebody has asked for, and how many wait for it."""

    task: asyncio.Task[Replayed]
    progress: ReplayProgress
    news: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    until: float = 0.0

    def say(self, words: str, done: float) -> None:
        self.progress = ReplayProgress(words, done)
        news, self.news = self.news, asyncio.Event()
        news.set()

    @property
    def is_over(self) -> bool:
        """Whether it has to be done again: it failed, or its result is old."""
        if not self.task.done():
            return False
        return self.task.cancelled() or self.task.exception() is not None or time.monotonic() >= self.until


class Replays:
    """All simulations; ``command`` runs ``ebb replay``."""

    def __init__(self, master: Master, command: Sequence[str]) -> None:
        self._master = master
        self._command = tuple(command)
        self._runs: dict[tuple[str, Replay], _Run] = {}
        self._tasks = set[asyncio.Task[Replayed]]()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._room = asyncio.Semaphore(AT_ONCE)

    async def replies(self, session: Session, wanted: Replay) -> AsyncGenerator[ReplayProgress | Replayed, None]:
        """Yield what is done, and at last the result. The simulation ends when nobody reads on.

        Raises `ReplayFailedError`, and `AwayError` and `MasterRefusedError` about the journal.
        """
        key = (session.token_id, wanted)
        run = self._runs.get(key)
        if run is None or run.is_over:
            self._forget()
            run = self._runs[key] = self._begin(session, wanted)
        run.waiting += 1
        try:
            while not run.task.done():
                yield run.progress
                news = asyncio.ensure_future(run.news.wait())
                try:
                    await asyncio.wait({news, run.task}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
            yield run.task.result()
        finally:
            run.waiting -= 1
            if not run.waiting:
                asyncio.get_running_loop().call_later(LEFT_S, self._leave, key, run)

    async def close(self) -> None:
        """End all simulations."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _leave(self, key: tuple[str, Replay], run: _Run) -> None:
        if not run.waiting and not run.task.done():
            run.task.cancel()
            if self._runs.get(key) is run:
                del self._runs[key]

    def _forget(self) -> None:
        """Forget the results that are old, and the oldest of too many."""
        self._runs = {key: run for key, run in self._runs.items() if not run.is_over}
        done = [key for key, run in self._runs.items() if run.task.done()]
        for key in done[: max(0, len(done) - MOST_KEPT)]:
            del self._runs[key]

    def _begin(self, session: Session, wanted: Replay) -> _Run:
        async def work() -> Replayed:
            turn = self._turns.get(session.user)
            if turn is None:
                turn = self._turns[session.user] = asyncio.Lock()
            async with turn, self._room:
                try:
                    async with asyncio.timeout(MOST_S):
                        found = await self._replayed(session.token, wanted, run)
                except TimeoutError:
                    raise ReplayFailedError(f"it took more than {MOST_S:g} s: choose a shorter time") from None
            run.until = time.monotonic() + KEPT_S
            return found

        waits = ReplayProgress("waiting for its turn: another simulation runs", 0.0)
        run = _Run(asyncio.create_task(work(), name="what-if"), waits)
        self._tasks.add(run.task)
        run.task.add_done_callback(self._done)
        return run

    def _done(self, task: asyncio.Task[Replayed]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # perhaps nobody waits for it any more

    async def _replayed(self, token: str, wanted: Replay, run: _Run) -> Replayed:
        """Let a process simulate what is ``wanted``."""
        run.say("reading the journal", 0.0)
        newest = await self._master.call("QueryEvents", client_pb2.QueryEventsRequest(limit=1), token)
        process = await self._started(wanted)
        following = asyncio.create_task(_progress(process, run))
        reading = asyncio.create_task(_output(process))
        try:
            left_out = await self._feed(process, token, wanted, newest.last_sequence, run)
            printed, last = await reading, await following
            code = await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
            for task in (following, reading):
                task.cancel()
            await asyncio.wait({following, reading})
            await process.wait()
        if code:
            ended = f"it was ended by {signal.Signals(-code).name}: choose a shorter time" if code < 0 else last
            raise ReplayFailedError(ended or "it failed, and did not say why")
        return Replayed(json.loads(printed), left_out)

    async def _started(self, wanted: Replay) -> Process:
        environment = {name: os.environ[name] for name in _SEEN if name in os.environ} | _ALONE
        process = await asyncio.create_subprocess_exec(
            *self._command, *wanted.arguments, "--export", "-", "--progress", "--json",
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, cwd="/", start_new_session=True, limit=LONGEST_LINE,
        )  # fmt: skip
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        return process

    async def _feed(self, process: Process, token: str, wanted: Replay, last: int, run: _Run) -> int:
        """Send the journal to a process, up to the first event behind the span, which tells it that this is over.

        Return how many events were left out, as whoever asks may not see them.
        """
        assert process.stdin is not None
        left_out, shown = 0, 0
        request = client_pb2.WatchEventsRequest()
        with suppress(BrokenPipeError, ConnectionResetError):  # it has read enough, or failed and says so itself
            async with aclosing(self._master.stream("WatchEvents", request, token)) as events:
                async for event in events:
                    if event.json:
                        process.stdin.write(_line(event))
                    else:
                        left_out += 1
                    await process.stdin.drain()
                    if event.json and 0 < wanted.until < event.time:
                        break
                    if (percent := 100 * event.sequence // max(1, last)) > shown:
                        shown = percent
                        run.say("reading the journal", READING * min(1.0, percent / 100))
            process.stdin.close()
            await process.stdin.wait_closed()
        return left_out


def _line(event: client_pb2.Event) -> bytes:
    """Return an event as a line of an export."""
    kind, moment = json.dumps(event.kind), json.dumps(event.time)
    return f'{{"sequence":{event.sequence},"time":{moment},"kind":{kind},"body":{event.json}}}\n'.encode()


async def _output(process: Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.read()


async def _progress(process: Process, run: _Run) -> str:
    """Pass on how far a process says that it is; return the last line of what else it says."""
    assert process.stderr is not None
    last = ""
    async for line in process.stderr:
        text = line.decode("utf-8", "replace").strip()
        try:
            report = json.loads(text)
            run.say(str(report["words"]), READING + (1.0 - READING) * float(report["done"]))
        except (ValueError, TypeError, KeyError):
            last = text.removeprefix("ebb: ") or last
    return last
