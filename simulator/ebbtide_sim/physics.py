"""How fast simulated jobs get on: what the cluster's decisions are played out against."""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ebbtide_core.model.types import Allocation, JobId, NodeId


@dataclass(slots=True, eq=False)
class SimulatedAttempt:
    """One attempt that computes. ``work`` is what it has left at its start, in seconds on one GPU (or one core).

    ``ends`` is when it is known to end; None while another run of its server ends first.
    """

    job: JobId
    attempt: int
    allocation: Allocation
    work: float
    started: float
    ends: float | None = None
    stopped: bool = False


class Physics(Protocol):
    """Tells when runs end."""

    def start(self, run: SimulatedAttempt, now: float) -> Iterable[SimulatedAttempt]:
        """``run`` starts to compute; returns the runs whose ``ends`` has changed."""
        ...

    def stop(self, run: SimulatedAttempt, now: float) -> tuple[float, Iterable[SimulatedAttempt]]:
        """``run`` computes no more; returns the work that it did, and the runs whose ``ends`` has changed."""
        ...


class Dedicated:
    """Every run has its share of GPUs to itself, and ``speedup`` of it (seed 001 §III: f(v, p)).

    What co-running costs is in the curve: at 1/n of a GPU a job is as fast as beside n - 1 others.
    """

    def __init__(self, speedup: Callable[[int], float]) -> None:
        self._speedup = speedup

    def start(self, run: SimulatedAttempt, now: float) -> Iterable[SimulatedAttempt]:
        """It ends when its work is done at the speed of its share."""
        run.ends = now + run.work / self._speed(run)
        return (run,)

    def stop(self, run: SimulatedAttempt, now: float) -> tuple[float, Iterable[SimulatedAttempt]]:
        """Nobody else is affected."""
        if run.ends is not None and now >= run.ends:
            return run.work, ()
        return min(run.work, (now - run.started) * self._speed(run)), ()

    def _speed(self, run: SimulatedAttempt) -> float:
        share = run.allocation.share
        return self._speedup(share) if share else 1.0


@dataclass(slots=True)
class Server:
    """A server whose cores are shared equally by what runs there; ``clock`` counts the work that each of them got."""

    capacity: float
    cores: int
    clock: float = 0.0
    at: float = 0.0
    running: int = 0
    queue: list[tuple[float, int, SimulatedAttempt]] = field(default_factory=list)
    expected: SimulatedAttempt | None = None
    """The run whose end was predicted last."""

    def advance(self, now: float) -> None:
        """Let time pass: every task gets C / max(N_c, N_r) (seed 004 §2.2)."""
        if self.running:
            self.clock += (now - self.at) * self.rate
        self.at = now

    @property
    def rate(self) -> float:
        """CPU seconds per second that each task gets."""
        return self.capacity / max(self.cores, self.running)


class SharedServers:
    """HYBRID's response-time model (seed 004 §2.2): tasks of a server share its cores, at most one core each.

    All tasks of a server advance at the same rate, so they end in the order of server clock + work: one prediction per
    server is enough, and a change of the rate costs one heap operation instead of one per task.
    """

    def __init__(self, servers: Mapping[NodeId, Server]) -> None:
        self._servers = servers
        self._starts: dict[int, float] = {}
        self._order = 0

    def start(self, run: SimulatedAttempt, now: float) -> Iterable[SimulatedAttempt]:
        """It joins those of its server, and slows them down if there are more than cores."""
        server = self._server(run)
        server.advance(now)
        server.running += 1
        self._order += 1
        self._starts[id(run)] = server.clock
        heapq.heappush(server.queue, (server.clock + run.work, self._order, run))
        return self._next(server, now)

    def stop(self, run: SimulatedAttempt, now: float) -> tuple[float, Iterable[SimulatedAttempt]]:
        """It leaves them, and they get faster."""
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
            server.expected.ends = None  # it may have been overtaken, and what was predicted is over
            server.expected = None
        if not server.queue:
            return ()
        target, _, run = server.queue[0]
        server.expected = run
        run.ends = now + max(0.0, target - server.clock) / server.rate
        return (run,)
