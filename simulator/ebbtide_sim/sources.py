"""Sources of what comes and goes in a simulation.

Jobs come from a recorded list, or from users who keep the cluster at a certain load. Nodes stay, or are borrowed (see
`ebbtide_sim.borrowing`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.model.types import WHOLE

from ebbtide_sim.workload import SimJob
from ebbtide_sim.workloads.nodes import SimNode


class JobSource(Protocol):
    """A source that submits jobs to a simulation."""

    def next_time(self) -> float | None:
        """Return when the next job arrives by itself; None if none does."""
        ...

    def take(self, now: float) -> Iterable[SimJob]:
        """Return the jobs that arrive at ``now``; called after all other events of that moment."""
        ...

    def ended(self, job: SimJob) -> None:
        """Note that ``job`` is done, or was dropped."""
        ...


class Recorded:
    """Jobs that arrive at their recorded times."""

    def __init__(self, jobs: Iterable[SimJob]) -> None:
        self._jobs = iter(jobs)
        self._next = next(self._jobs, None)

    def next_time(self) -> float | None:
        """Return when the next job was submitted."""
        return None if self._next is None else self._next.submit_s

    def take(self, now: float) -> Iterable[SimJob]:
        """Return the jobs submitted by ``now``."""
        return () if self._next is None or self._next.submit_s > now else self._submitted(now)

    def _submitted(self, now: float) -> Iterator[SimJob]:
        while self._next is not None and self._next.submit_s <= now:
            job, self._next = self._next, next(self._jobs, None)
            yield job

    def ended(self, job: SimJob) -> None:
        """Do nothing, because arrivals do not depend on the end of jobs."""


class ClosedLoop:
    """Users who submit the next of ``jobs`` as soon as the load falls below ``load``.

    Load is the demand of all jobs that wait or run, over the capacity of ``nodes``: the largest of the ratios of GPUs,
    CPUs and memory. FitGpp's "load kept at 2.0" (seed 000 §3) has a steady state only with such arrivals. ``recorded``
    holds the jobs with their arrival times, so that they can be replayed under other policies.
    """

    def __init__(self, jobs: Iterable[SimJob], nodes: Iterable[SimNode], load: float) -> None:
        self._jobs = iter(jobs)
        self._next = next(self._jobs, None)
        self._load = load
        nodes = list(nodes)
        self._capacity = [
            float(sum(node.gpus for node in nodes) * WHOLE),
            sum(node.cpus for node in nodes),
            float(sum(node.mem_bytes for node in nodes)),
        ]
        self._demand = [0.0, 0.0, 0.0]
        self.recorded: list[SimJob] = []

    def next_time(self) -> float | None:
        """Return 0 for the first jobs, then None, because later jobs arrive when other events happen."""
        return None if self.recorded or self._next is None else 0.0

    def take(self, now: float) -> Iterator[SimJob]:
        """Yield jobs until the load is reached."""
        while self._next is not None and self._current() < self._load:
            job = replace(self._next, submit_s=now)
            self._next = next(self._jobs, None)
            self.recorded.append(job)
            self._count(job, 1)
            yield job

    def ended(self, job: SimJob) -> None:
        """Subtract the demand of ``job`` from the load."""
        self._count(job, -1)

    def _current(self) -> float:
        return max(demand / capacity for demand, capacity in zip(self._demand, self._capacity, strict=True) if capacity)

    def _count(self, job: SimJob, sign: int) -> None:
        self._demand[0] += sign * job.gpus_max
        self._demand[1] += sign * job.cpus
        self._demand[2] += sign * job.mem_bytes


class NodeSource(Protocol):
    """A source of nodes that come and go during a simulation."""

    def next_time(self, more_come: bool, unfinished: bool) -> float | None:
        """Return when something may happen to nodes, if ``more_come``, or some jobs are ``unfinished``."""
        ...

    def take(self, cluster: Cluster, now: float) -> Iterable[Event]:
        """Yield what happens to nodes at ``now``; each event has been handled before the next one is asked for."""
        ...

    def finish(self) -> None:
        """Note that the simulation is over."""
        ...


class NodesStay:
    """No node comes or goes."""

    def next_time(self, more_come: bool, unfinished: bool) -> float | None:
        """Return None."""
        return None

    def take(self, cluster: Cluster, now: float) -> Iterable[Event]:
        """Return nothing."""
        return ()

    def finish(self) -> None:
        """Do nothing."""
