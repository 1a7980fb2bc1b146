"""Who wants to know that something changed: watchers of jobs and of the journal."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ebbtide_core.events import Event
from ebbtide_core.model.types import JobId


class Watcher:
    """Collects the ids of changed jobs until they are taken; each at most once, so a slow reader costs no memory."""

    def __init__(self) -> None:
        self._jobs: set[JobId] = set()
        self._changed = asyncio.Event()

    def add(self, jobs: Iterable[JobId]) -> None:
        """Note changed jobs; an empty set still wakes the reader."""
        self._jobs.update(jobs)
        self._changed.set()

    async def wait_changed(self) -> set[JobId]:
        """The jobs that changed since the last call; waits for the first change."""
        await self._changed.wait()
        self._changed.clear()
        jobs, self._jobs = self._jobs, set()
        return jobs


class Changes:
    """Spreads the word after each batch."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()
        self._noted: set[JobId] = set()
        self._news = False

    @contextmanager
    def watch(self) -> Iterator[Watcher]:
        """A watcher, for as long as the block lasts."""
        watcher = Watcher()
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def note(self, event: Event, jobs: Iterable[JobId] = ()) -> None:
        """Remember that ``event`` was handled in this batch, durable or not; ``jobs`` it changed besides its own."""
        self._news = True
        self._noted.update(jobs)
        if isinstance(job := getattr(event, "job", None), str):
            self._noted.add(JobId(job))

    def publish(self, records: Iterable[Event]) -> None:
        """Tell the watchers about everything noted and recorded in this batch, if there was anything.

        A batch of mere questions is no news: a watcher asks when it is told, and would be told because it asked.
        """
        for event in records:
            self.note(event)
        if not self._news:
            return
        noted, self._noted, self._news = self._noted, set(), False
        for watcher in self._watchers:
            watcher.add(noted)
