"""Writes the history on a thread of its own, from the lines of the journal as they become durable.

The master's loop does no more for it than to say that there are new lines. The thread reads these, and at its start the
whole journal, as one call of ``ebb usage`` does; what of it the file has already is not written again.
"""

import logging
import sqlite3
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ebbtide_core.events import Event, JobRemoved, JournalCompacted
from ebbtide_core.views.phases import KINDS
from ebbtide_core.views.timeline import Began, Change, Ended, RestSpan, Timeline

from ebbtide_master.history.file import HISTORY_NAME, HistoryError, HistoryFile, SourceJournal
from ebbtide_master.store.journal import Store, StoreError
from ebbtide_master.store.reserve import free_bytes
from ebbtide_master.store.sqlite import RESERVED_BYTES

LINES_AT_ONCE: Final = 200
"""Lines that are read and written at once."""
SHARE_OF_TIME: Final = 0.5
"""The part of the time that the thread works at most, because the master's loop waits for it now and then."""
GATHER_S: Final = 0.5
"""Seconds for which new lines are gathered."""
LOOK_S: Final = 5.0
"""Longest time in seconds until it is noticed that the file was deleted."""
RETRY_S: Final = 30.0
"""Seconds after which a history that could not be kept is tried again."""
CLOSE_S: Final = 5.0
"""Longest time in seconds that the end of the master waits for the thread."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HistoryProgress:
    """How much of the journal is in the history, from 0 to 1, and why it is not kept now, or empty."""

    done: float = 0.0
    problem: str = ""


class HistoryRecorder:
    """Keeps the history of the journal in ``store``, beside it, while `start` was called and `close` was not."""

    def __init__(self, store: Store) -> None:
        self.path: Path = store.folder / HISTORY_NAME
        self.progress = HistoryProgress()
        """How far it is; the thread replaces it, and any thread may read it."""
        self._store = store
        self._rests_anew = False  # whether the file gets how GPUs rested once more, by the present rules
        self._news = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Start to keep the history."""
        self._thread.start()

    def close(self) -> None:
        """Stop. Blocks until the thread has ended, but not for longer than `CLOSE_S`."""
        self._ending.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    # --- what the loop says ---

    def recorded(self, time: float, events: list[Event], /) -> None:
        """Note that there are new lines."""
        self._news.set()

    def passed(self, seconds: float, /) -> None:
        """Do nothing."""

    def committed(self, seconds: float, /) -> None:
        """Do nothing."""

    # --- on the thread ---

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._follow()
            except (HistoryError, StoreError, sqlite3.Error, OSError) as error:
                self._fail(str(error))
                self._ending.wait(RETRY_S)
            except Exception:  # the history has a fault, which must not end the master
                log.exception("history=broken")
                self.progress = replace(self.progress, problem="the history has a fault, which the master's log tells")
                return

    def _fail(self, problem: str) -> None:
        if problem != self.progress.problem:
            log.warning("history=failed %s", problem)
        self.progress = replace(self.progress, problem=problem)

    def _follow(self) -> None:
        """Read the journal from its beginning, and then what is added, until the end or until the file is deleted."""
        self._check_disk()
        file = HistoryFile(
            self.path, SourceJournal(self._store.cluster_id, self._store.restored), self._store.last_sequence
        )
        try:
            self._note_what_is_missing(file)
            self._forget_names(file)
            self._rests_anew = file.drop_old_rests()
            timeline, last = Timeline(), 0
            while not self._ending.is_set() and file.is_there():
                self._news.clear()
                end = self._store.last_sequence
                while last < end and not self._ending.is_set():
                    began = time.perf_counter()
                    last = self._read(timeline, file, last, end)
                    self.progress = HistoryProgress(min(1.0, last / end))
                    self._ending.wait((time.perf_counter() - began) * (1.0 / SHARE_OF_TIME - 1.0))
                if self._ending.is_set():
                    return
                if self._rests_anew:
                    file.note_rests()
                    self._rests_anew = False
                self.progress = HistoryProgress(1.0)
                self._news.wait(LOOK_S)
                self._ending.wait(GATHER_S)
        finally:
            file.close()

    def _note_what_is_missing(self, file: HistoryFile) -> None:
        """Note which jobs were removed from the journal by a compaction before the history had followed them."""
        reached, missed = file.reached, list[float]()
        for line in self._store.events(reached.line, kinds=(JournalCompacted.__name__,)):
            had_all = line.sequence == reached.line + 1  # a compaction's own line follows those that it found
            if isinstance(line.event, JournalCompacted) and line.event.before > reached.time and not had_all:
                missed.append(line.event.before)
        if missed:
            file.write((), replace(reached, known_since=max(reached.known_since, *missed)))

    def _forget_names(self, file: HistoryFile) -> None:
        """Take the names of removed jobs out of a file that an older version wrote, which kept them."""
        if file.keeps_removed_names:
            lines = self._store.events(kinds=(JobRemoved.__name__,))
            file.forget_names(line.event.job for line in lines if isinstance(line.event, JobRemoved))

    def _read(self, timeline: Timeline, file: HistoryFile, after: int, end: int) -> int:
        """Take in the lines behind ``after``; return the last line that was read, or ``end`` if none is left."""
        count, changes, at = 0, list[Change](), file.reached.time
        damaged = {line.job for line in self._store.damage.values()}
        for line in self._store.events(after, limit=LINES_AT_ONCE, kinds=KINDS):
            if line.sequence > end:
                break
            after, count = line.sequence, count + 1
            found = list[Change]()
            if getattr(line.event, "job", None) not in damaged:
                found = timeline.take(line.sequence, line.event, line.time)
            if line.sequence > file.reached.line:
                changes += found
                at = max(at, line.time)
            elif self._rests_anew:
                changes += [one for one in found if isinstance(one, Began | Ended) and isinstance(one.what, RestSpan)]
        last = after if count == LINES_AT_ONCE else end
        if last > file.reached.line:
            self._check_disk()
            file.write(changes, replace(file.reached, line=last, time=at))
        elif changes:
            self._check_disk()
            file.write(changes, file.reached)
        return last

    def _check_disk(self) -> None:
        """Raise `HistoryError` unless the disk has room beside what is kept for the journal."""
        if free_bytes(self.path.parent) <= RESERVED_BYTES:
            raise HistoryError("the disk is full: the history is kept again when there is room")
