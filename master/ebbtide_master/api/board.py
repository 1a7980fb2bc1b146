"""Tells what everybody may see of the whole cluster, computed once for all who watch (`ebb dashboard`).

Nothing is computed while nobody watches. What changed is gathered for `GATHER_S`, states are sent ahead of progress and
of readings, and whoever reads slowly gets the newest state of each row only.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from ebbtide_core.cluster import Cluster
from ebbtide_core.events import NodeRegistered
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_core.state import ClusterState
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api import board_rows as rows
from ebbtide_master.api.context import Context
from ebbtide_master.changes import Watcher
from ebbtide_master.loop import Parts
from ebbtide_master.throttle.fair_queue import use_queue

GATHER_S: Final = 0.25
"""Seconds for which changes are gathered before they are sent."""
PROGRESS_S: Final = 2.0
"""Seconds between two tellings of progress, and of readings of GPUs."""
QUIET_S: Final = 5.0
"""Seconds after which an update without any news says that the master is there."""
NODES_AT_ONCE: Final = 250
"""Nodes whose readings are sent at a time; the others have their turn the next times."""
MOST_FINISHED: Final = 200
"""Finished jobs that are sent, the last ones to end."""
KNOWN_FINISHED: Final = 2000
"""Finished jobs of which the ids are kept, for those that are sent in the place of removed ones."""
MOST_GONE: Final = 2000
"""Rows that went away which are remembered for those who read slowly."""
ROWS_OF_A_MESSAGE: Final = 200
PART: Final = 20
"""Rows that are made without a break, in less than a millisecond."""

Rows = dict[str, tuple[int, Any]]
"""Rows by id, each with the number of the change by which it became what it is."""


class BoardService:
    """Lets any number of clients watch one board."""

    def __init__(self, master: Context) -> None:
        self._board = ClusterBoard(master)

    async def WatchBoard(
        self, request: client_pb2.WatchBoardRequest, context: Any
    ) -> AsyncIterator[client_pb2.BoardUpdate]:
        """Send the board, and then whatever changes of it."""
        with self._board.watched() as board:
            seen = 0
            while True:
                seen, messages = await board.after(seen)
                for message in messages:
                    yield message
                    await asyncio.sleep(0)


class ClusterBoard:
    """What watchers are sent of the cluster now. A task keeps it up to date for as long as somebody watches."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop
        self._clock = master.clock
        self._changes = master.changes
        self._sessions = master.sessions
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._clear()

    def _clear(self) -> None:
        self._version = 0
        self._forgotten = 0
        self._news = asyncio.Event()
        self._jobs: Rows = {}
        self._nodes: Rows = {}
        self._loads: Rows = {}
        self._singles: Rows = {}
        self._gone: dict[str, deque[tuple[int, str]]] = {"jobs": deque(), "nodes": deque()}
        self._keys: dict[str, tuple[object, ...]] = {}
        self._facts: dict[NodeId, NodeRegistered] = {}  # of which the nodes' rows were made
        self._late: set[JobId] = set()
        self._finished: dict[JobId, None] = {}  # the last ones to end, in this order
        self._older = False  # whether others ended before these
        self._sent: set[JobId] = set()  # the finished ones that have a row
        self._turns: deque[NodeId] = deque()
        self._made: dict[int, list[client_pb2.BoardUpdate]] = {}

    # --- for those who watch ---

    @contextmanager
    def watched(self) -> Iterator["ClusterBoard"]:
        """Keep the board up to date for as long as the block lasts."""
        if not self._watchers:
            self._clear()
            self._task = asyncio.create_task(self._keep_up(), name="board")
        self._watchers += 1
        try:
            yield self
        finally:
            self._watchers -= 1
            if not self._watchers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def after(self, seen: int) -> tuple[int, list[client_pb2.BoardUpdate]]:
        """Wait until there is something after version ``seen``; return the version then, and the messages about it.

        Those who have seen the same get the same messages. Raises what ended the task that keeps the board.
        """
        assert self._task is not None
        while self._version == seen:
            news = asyncio.ensure_future(self._news.wait())
            try:
                await asyncio.wait({news, self._task}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
            if self._task.done():
                self._task.result()
        seen = seen if seen >= self._forgotten else 0  # what went meanwhile is not known any more
        if seen not in self._made:
            self._made[seen] = self._messages(seen)
        return self._version, self._made[seen]

    def _messages(self, seen: int) -> list[client_pb2.BoardUpdate]:
        """Return what changed after version ``seen``, in messages of a bounded size."""
        found = [client_pb2.BoardUpdate(first=not seen, now=self._clock.now())]

        def room(taken: int, most: int = ROWS_OF_A_MESSAGE) -> client_pb2.BoardUpdate:
            if taken % most == 0 and taken:
                found.append(client_pb2.BoardUpdate(now=found[0].now))
            return found[-1]

        for name, most in (("nodes", 50), ("loads", 50), ("jobs", ROWS_OF_A_MESSAGE)):
            kept: Rows = getattr(self, f"_{name}")
            changed = [row for version, row in kept.values() if version > seen]
            for number, row in enumerate(changed):
                getattr(room(number, most), name).append(row)
        for version, row in self._singles.values():
            if version > seen and isinstance(row, client_pb2.BoardNotices):
                found[-1].notices.CopyFrom(row)
            elif version > seen:
                found[-1].queues.append(row)
        if seen:
            for name, gone in self._gone.items():
                ids = {id for version, id in gone if version > seen} - getattr(self, f"_{name}").keys()
                getattr(found[-1], f"{name}_gone").extend(sorted(ids))
        found[-1].last = True
        return found

    # --- keeping up ---

    async def _keep_up(self) -> None:
        use_queue("board")
        clock = asyncio.get_running_loop().time
        with self._changes.watch() as watcher:
            await self._loop.ask_in_parts(self._look_at_all)
            self._publish()
            ticked = published = clock()
            while True:
                changed = await self._gathered(watcher, ticked + PROGRESS_S - clock())
                tick = clock() - ticked >= PROGRESS_S
                ticked = clock() if tick else ticked
                news = await self._loop.ask_in_parts(lambda cluster: self._look(cluster, changed, tick))  # noqa: B023
                if news or clock() - published >= QUIET_S:
                    self._publish()
                    published = clock()

    async def _gathered(self, watcher: Watcher, at_most_s: float) -> set[JobId]:
        """Return the jobs that changed, `GATHER_S` after the first change; none if nothing changed in ``at_most_s``."""
        try:
            async with asyncio.timeout(max(0.0, at_most_s)):
                changed = await watcher.wait_changed()
        except TimeoutError:
            return set()
        await asyncio.sleep(GATHER_S)
        watcher.add(())
        return changed | await watcher.wait_changed()

    def _publish(self) -> None:
        self._version += 1
        self._made.clear()
        for gone in self._gone.values():
            while len(gone) > MOST_GONE:
                self._forgotten = max(self._forgotten, gone.popleft()[0])
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _look_at_all(self, cluster: Cluster) -> Parts[None]:
        state, now = cluster.state, self._clock.now()
        self._find_finished(state)
        finished = [state.jobs[id] for id in self._last_finished()]
        yield
        for number, job in enumerate([*finished, *state.unfinished.values()]):
            self._take_job(job, now)
            if not number % PART:
                yield
        for name in list(state.nodes):
            self._look_at_node(cluster, name, now)
            yield
        self._turns.extend(state.nodes)
        self._look_at_singles(cluster)

    def _look(self, cluster: Cluster, changed: set[JobId], tick: bool) -> Parts[bool]:
        """Take in what changed, and at each ``tick`` what may wait; return whether something is to be sent."""
        state, now = cluster.state, self._clock.now()
        news, touched = False, set[NodeId]()
        for number, id in enumerate(changed):
            job = state.jobs.get(id)
            if job is None:
                news |= self._drop("jobs", id)
                self._keys.pop(id, None)
                self._finished.pop(id, None)
                self._sent.discard(id)
            elif rows.job_key(job) != self._keys.get(id):
                touched.update(rows.nodes_of(job))
                self._take_job(job, now)
                news = True
            elif not job.state.finished:
                self._late.add(id)
            if not number % PART:
                yield
        news |= yield from self._keep_finished(state, now)
        for name in [name for name in list(state.nodes) if self._is_other(cluster, name)]:
            touched.add(name)
        gone = [name for name in self._nodes if NodeId(name) not in state.nodes]
        for lost in gone:
            self._loads.pop(lost, None)
            self._facts.pop(NodeId(lost), None)
            news |= self._drop("nodes", lost)
        for name in touched:
            news |= self._look_at_node(cluster, name, now)
            yield
        if tick:
            news |= yield from self._look_at_late(cluster, now)
        news |= self._look_at_singles(cluster)
        return news

    def _look_at_late(self, cluster: Cluster, now: float) -> Parts[bool]:
        """Take in progress, and the readings of those nodes whose turn it is."""
        news = False
        late, self._late = self._late, set()
        for number, id in enumerate(late):
            if (job := cluster.state.jobs.get(id)) is not None:
                self._take_job(job, now)
                news = True
            if not number % PART:
                yield
        for pool in cluster.state.pools.values():  # why these wait changes with what happens to others
            for job in islice(pool.queue, rows.MOST_QUEUED):
                if rows.job_key(job) != self._keys.get(job.id):
                    self._take_job(job, now)
                    news = True
            yield
        known = set(self._turns)
        self._turns.extend(name for name in cluster.state.nodes if name not in known)
        for _ in range(min(NODES_AT_ONCE, len(self._turns))):
            name = self._turns.popleft()
            if name in cluster.state.nodes:
                self._turns.append(name)
                news |= self._look_at_node(cluster, name, now)
                yield
        return news

    # --- rows ---

    def _take_job(self, job: Job, now: float) -> None:
        if job.state.finished:
            self._finished[job.id] = None
            self._sent.add(job.id)
        self._keys[job.id] = rows.job_key(job)
        self._jobs[job.id] = (self._version + 1, rows.job_row(job, now))

    def _find_finished(self, state: ClusterState) -> None:
        """Look through all jobs for the last ones to end."""
        over = (job for job in list(state.jobs.values()) if job.end is not None)
        last = heapq.nlargest(KNOWN_FINISHED, over, key=_ended)
        self._finished = dict.fromkeys(job.id for job in reversed(last))
        self._older = len(state.jobs) - len(state.unfinished) > len(last)

    def _last_finished(self) -> list[JobId]:
        """Return those that are sent, the last one first."""
        return list(islice(reversed(self._finished), MOST_FINISHED))

    def _keep_finished(self, state: ClusterState, now: float) -> Parts[bool]:
        """Keep the rows of the last jobs to end, and no others' that ended; return whether there is news of them."""
        if self._older and len(self._finished) < MOST_FINISHED:  # most of those that were known have been removed
            self._find_finished(state)
            yield
        while len(self._finished) > KNOWN_FINISHED:
            del self._finished[next(iter(self._finished))]
            self._older = True
        last, news = self._last_finished(), False
        for id in self._sent.difference(last):
            self._sent.discard(id)
            self._keys.pop(id, None)
            news |= self._drop("jobs", id)
        for number, id in enumerate([id for id in last if id not in self._sent]):
            if (job := state.jobs.get(id)) is not None:
                self._take_job(job, now)
                news = True
            if not number % PART:
                yield
        return news

    def _drop(self, name: str, id: str) -> bool:
        """Forget a row; return whether there was one."""
        if getattr(self, f"_{name}").pop(id, None) is None:
            return False
        self._gone[name].append((self._version + 1, id))
        return True

    def _is_other(self, cluster: Cluster, name: NodeId) -> bool:
        return self._keys.get(f"node {name}") != rows.node_key(cluster.state.nodes[name])

    def _look_at_node(self, cluster: Cluster, name: NodeId, now: float) -> bool:
        """Take in a node; return whether there is news of it."""
        node = cluster.state.nodes.get(name)
        if node is None:
            return False
        self._keys[f"node {name}"] = rows.node_key(node)
        news = False
        if self._facts.get(name) is not node.facts:
            self._facts[name] = node.facts
            news = self._put(self._nodes, name, rows.node_row(node))
        load = rows.load_row(cluster.state, node, now, self._sessions.readings(name))
        return news | self._put(self._loads, name, load)

    def _look_at_singles(self, cluster: Cluster) -> bool:
        news = self._put(self._singles, "notices", rows.notices(cluster.state))
        for queue in rows.queue_rows(cluster.state):
            news |= self._put(self._singles, f"queue {queue.pool}", queue)
        return news

    def _put(self, kept: Rows, id: str, row: Any) -> bool:
        """Keep a row if it is another one than before; return whether it is."""
        if id in kept and kept[id][1] == row:
            return False
        kept[id] = (self._version + 1, row)
        return True


def _ended(job: Job) -> float:
    return job.end.at if job.end is not None else 0.0
