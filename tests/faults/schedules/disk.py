"""The master's disk: a journal and a vault that keep what was committed when the power failed, and nothing else."""

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any

from ebbtide_core.events import Event
from ebbtide_core.events.codec import decode_event, encode
from ebbtide_master.store.journal import ANYTHING, About, StoredEvent
from ebbtide_master.store.vault import EntryKind

CLUSTER = "c1"


class Disk:
    """What outlives every master."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str, str]] = []
        self.entries: dict[EntryKind, dict[str, str]] = {}
        self.epoch = 0
        self.told: dict[str, int] = {}


class SimulatedStore:
    """One master's hold on the disk. A commit takes a moment; after `crash` nothing reaches the disk any more."""

    def __init__(self, disk: Disk, rng: Random, slowest_s: float) -> None:
        self.cluster_id = CLUSTER
        self.folder = Path("/nowhere")
        self._disk = disk
        self._rng = rng
        self._slowest_s = slowest_s
        self._waiting: list[tuple[list[tuple[float, Event]], Future[None]]] = []
        self._dead = False
        self.fail: Callable[[], None] | None = None  # is called within the next commit
        self.last_sequence = len(disk.lines)
        self.last_time = disk.lines[-1][0] if disk.lines else 0.0
        self.vault = self
        self.damage: dict[int, Any] = {}
        self.restored = None

    def append(self, batch: Iterable[tuple[float, Event]]) -> Future[None]:
        done: Future[None] = Future()
        self._waiting.append((list(batch), done))
        if self.fail is not None:
            asyncio.get_running_loop().call_soon(self.fail)
            self.fail = None
        asyncio.get_running_loop().call_later(self._rng.uniform(0.0, self._slowest_s), self._commit)
        return done

    def _commit(self) -> None:
        if self._dead:
            return
        batch, done = self._waiting.pop(0)
        self._write(batch)
        done.set_result(None)

    def _write(self, batch: list[tuple[float, Event]]) -> None:
        for time, event in batch:
            self._disk.lines.append((time, type(event).__name__, json.dumps(encode(event))))
        self.last_sequence += len(batch)

    def crash(self) -> None:
        """The power fails: a transaction that was under way is in the journal or is not, but never half of it."""
        self._dead = True
        if self._waiting and self._rng.random() < 0.5:
            self._write(self._waiting[0][0])

    def events(
        self, after: int = 0, job: str | None = None, limit: int = -1, kinds: Collection[str] = ()
    ) -> Iterator[StoredEvent]:
        for sequence, (time, kind, body) in enumerate(self._disk.lines, start=1):
            if sequence > after:
                yield StoredEvent(sequence, time, decode_event(kind, json.loads(body)))

    def newest(self, before: int, after: int = 0, limit: int = -1, about: About = ANYTHING) -> Iterator[StoredEvent]:
        raise AssertionError("nobody asks for events here")

    def recorded(self, since: float, until: float, before: int, after: int = 0) -> range:
        raise AssertionError("nobody asks for events by their times here")

    def put(self, kind: EntryKind, entries: Mapping[str, str | None]) -> Future[None]:
        done: Future[None] = Future()
        if not self._dead:
            kept = self._disk.entries.setdefault(kind, {})
            for key, value in entries.items():
                if value is None:
                    kept.pop(key, None)
                else:
                    kept[key] = value
            done.set_result(None)
        return done

    def read(self, kind: EntryKind) -> dict[str, str]:
        return dict(self._disk.entries.get(kind, {}))

    def has_room(self) -> bool:
        return True

    def next_epoch(self) -> int:
        self._disk.epoch += 1
        return self._disk.epoch

    def notified(self) -> dict[str, int]:
        return dict(self._disk.told)

    def note_notified(self, told: Mapping[str, int]) -> Future[None]:
        done: Future[None] = Future()
        if not self._dead:
            self._disk.told = dict(told)
            done.set_result(None)
        return done

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulated store has no {name}")
