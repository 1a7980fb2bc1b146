"""Models of how fast simulated jobs compute with the allocations that the cluster gives them."""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ebbtide_core.model.types import Allocation, JobId, NodeId


@dataclass(slots=True, eq=False)
class SimulatedAttempt:
    """An attempt that computes. ``work`` is what it has left at its start, in seconds on one GPU (or one core).

    ``ends`` is when it will end, if nothing changes; None while another run of its server ends first.
    """

    job: JobId
    attempt: int
    allocation: Allocation
    work: float
    started: float
    ends: float | None = None
    stopped: bool = False


class Physics(Protocol):
    """A model that predicts when runs end."""

    def start(self, run: SimulatedAttempt, now: float) -> Iterable[SimulatedAttempt]:
        """Start ``run``; return the runs whose ``ends`` has changed."""
        ...

    def stop(self, run: SimulatedAttempt, now: float) -> tuple[float, Iterable[SimulatedAttempt]]:
        """Stop ``run``; return the work that it did, and the runs whose ``ends`` has changed."""
        ...


class Dedicated:
    """A model in which a run's speed is the ``speedup`` of its own share of GPUs (seed 001 §III: f(v, p)).

    The curve includes the cost of co-running: at 1/n of a GPU a job is as fast as beside n - 1 others.
    """

    def __init__(self, speedup: Callable[[int], float]) -> None:
        self._speedup = speedup

    def start(self, run: SimulatedAttempt, now: float) -> Iterable[SimulatedAttempt]:
        """Start ``run``, which ends when its work is done at the speed of its share."""
        run.ends = now + run.work / self._speed(run)
        return (run,)

    def stop(self, run: SimulatedAttempt, now: float) -> tuple[float, Iterable[SimulatedAttempt]]:
        """Stop ``run``; no other run is affected."""
        if run.ends is not None and now >= run.ends:
            return run.work, ()
        return min(run.work, (now - run.started) * self._speed(run)), ()

    def _speed(self, run: SimulatedAttempt) -> float:
        share = run.allocation.share
        return self._speedup(share) if share else 1.0


@dataclass(slots=True)
class Server:
    """A server whose tasks share its cores equally; ``clock`` is the work that each task got, in CPU seconds."""

    capacity: float
    cores: int
    clock: float = 0.0
    at: float = 0.0
    running: int = 0
    queue: list[tuple[float, int, SimulatedAttempt]] = field(default_factory=list)
    expected: SimulatedAttempt | None = None
    """The run whose end was predicted last."""

    def advance(self, now: float) -> None:
        """Advance the clock to ``now``: every task gets C / max(N_c, N_r) (seed 004 §2.2)."""
        if self.running:
            self.clock += (now - self.at) * self.rate
        self.at = now

    @property
    def rate(self) -> float:
        """CPU seconds per second that each task gets."""
        return self.capacity / max(self.cores, self.running)


class SharedServers:
    """HYBRID's response-time model (seed 004 §2.2): the tasks of a server share its cores, at most one core each.

    All tasks of a server advance at the same rate, so they end in the order of server clock + work: one prediction per
    server is enough, and a change of the rate costs one heap operation instead of one per task.
    """

    def __init__(self, servers: Mapping[NodeId, Server]) -> None:
        self._servers = servers
        self._starts: dict[int, float] = {}
        self._order = 0

    def start(self, run: SimulatedAttempt, now: float) -> Iterable[SimulatedAttempt]:
        """Start ``run``, which slows down the other runs of its server if there are more runs than cores."""
        server = self._server(run)
        server.advance(now)
        server.running += 1
        self._order += 1
        self._starts[id(run)] = server.clock
        heapq.heappush(server.queue, (server.clock + run.work, self._order, run))
        return self._next(server, now)

    def stop(self, run: SimulatedAttempt, now: float) -> tuple[float, Iterable[SimulatedAttempt]]:
        """Stop ``run``; the other runs of its server may get faster."""
        server = self._server(run)
        server.advance(now)
        server.running -= 1
        run.stopped = True
        ended = run.ends is not None and now >= run.ends
        done = run.work if ended else min(run.work, server.clock - self._starts[id(run)])
        del self._starts[id(run)]
        return done, self._next(server, now)

    def _server(self, run: SimulatedAttempt) -> Server:
        return self._servers[run.allocation.nodes[0].node]

    def _next(self, server: Server, now: float) -> Iterable[SimulatedAttempt]:
        while server.queue and server.queue[0][2].stopped:
            heapq.heappop(server.queue)
        if server.expected is not None:
            server.expected.ends = None  # another run may end first now, and the predicted end is out of date
            server.expected = None
        if not server.queue:
            return ()
        target, _, run = server.queue[0]
        server.expected = run
        run.ends = now + max(0.0, target - server.clock) / server.rate
        return (run,)
