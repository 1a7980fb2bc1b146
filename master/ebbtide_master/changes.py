"""Wakes the watchers of jobs and of the journal when something changed."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ebbtide_core.events import Event
from ebbtide_core.model.types import JobId


class Watcher:
    """Collects the ids of changed jobs until a reader takes them; each id once, so a slow reader costs no memory."""

    def __init__(self) -> None:
        self._jobs: set[JobId] = set()
        self._changed = asyncio.Event()

    def add(self, jobs: Iterable[JobId]) -> None:
        """Note changed jobs; an empty set still wakes the reader."""
        self._jobs.update(jobs)
        self._changed.set()

    async def wait_changed(self) -> set[JobId]:
        """Wait for a change, and return the ids of the jobs that changed since the last call."""
        await self._changed.wait()
        self._changed.clear()
        jobs, self._jobs = self._jobs, set()
        return jobs


class Changes:
    """Collects the changes of a batch and passes them to all watchers after it."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()
        self._noted: set[JobId] = set()
        self._news = False

    @contextmanager
    def watch(self) -> Iterator[Watcher]:
        """Give a watcher that is informed for as long as the block lasts."""
        watcher = Watcher()
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def note(self, event: Event, jobs: Iterable[JobId] = ()) -> None:
        """Remember that ``event``, durable or not, was handled in this batch and changed ``jobs`` besides its own."""
        self._news = True
        self._noted.update(jobs)
        if isinstance(job := getattr(event, "job", None), str):
            self._noted.add(JobId(job))

    def publish(self, records: Iterable[Event]) -> None:
        """Inform the watchers of everything that was noted and recorded in this batch, if there was anything.

        A batch of questions alone wakes no watcher: a watcher asks a question when it wakes, and would wake itself.
        """
        for event in records:
            self.note(event)
        if not self._news:
            return
        noted, self._noted, self._news = self._noted, set(), False
        for watcher in self._watchers:
            watcher.add(noted)
