"""A simulation request as plain values, which can be sent between processes, and the scenario that it describes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Final

from ebbtide_core.model.limits import MAX_GPUS_PER_NODE
from ebbtide_core.model.types import parts
from ebbtide_core.policies.registry import POLICIES, create_policy, option_names

from ebbtide_sim.borrowing import SimulatedSupply
from ebbtide_sim.engine import SimulatedWorld
from ebbtide_sim.simulate import Scenario
from ebbtide_sim.workload import Workload, WorkloadError, elastic, offline
from ebbtide_sim.workloads.curve import load_speedup
from ebbtide_sim.workloads.loading import load_workload
from ebbtide_sim.workloads.nodes import MAX_NODES, SimNode, read_cluster

GIB: Final = 2**30
RIGID: Final = frozenset(name for name, kind in POLICIES.items() if kind.rigid)
"""Policies that give a job what it asks for or nothing, so ``elastic`` bounds are ignored for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One simulation as plain values. ``nodes`` is ``NODESxGPUS``; ``elastic`` is ``MIN-MAX`` GPUs, or empty.

    With a ``supply``, nodes are borrowed beside them, and ``nodes`` may be ``0``.

    ``node_cpus``, ``node_mem_bytes`` and ``gpu_mem_bytes`` apply to each node and GPU; a ``cluster`` file replaces all
    of these. ``limit`` is how many of the workload's first jobs are kept. ``times`` says whether policies know
    ``exact`` run times or those that the jobs' users ``requested``. ``seed`` is also the policy's, unless ``options``
    have one.
    """

    workload: str = "bags"
    nodes: str = "4x8"
    node_cpus: float = 32.0
    node_mem_bytes: int = 256 * GIB
    gpu_mem_bytes: int = 80 * GIB
    cluster: str = ""
    policy: str = "fitgpp"
    options: Mapping[str, str] = field(default_factory=dict)
    offline: bool = False
    elastic: str = ""
    speedup: str = "linear"
    restart_cost_s: float = 0.0
    resumable: bool = True
    times: str = "exact"
    limit: int | None = None
    arrival: str = "submit"
    seed: int = 0
    supply: SimulatedSupply | None = None

    def scenario(self) -> Scenario:
        """Build the scenario; raise `WorkloadError` or `PolicyError`, in one line, if a value is invalid."""
        create_policy(self.policy, self.options)
        drawn = {"seed": str(self.seed)} if "seed" in option_names(self.policy) else {}
        workload = _loaded(self.workload, self.seed, self.limit, self.arrival)
        speedup = load_speedup(self.speedup)
        if self.elastic and self.policy not in RIGID:
            low, high = parse_elastic(self.elastic)
            workload = elastic(workload, low, high, speedup)
        if self.offline:
            workload = offline(workload)
        world = SimulatedWorld(
            speedup=speedup,
            restart_cost_s=self.restart_cost_s,
            resumable=self.resumable,
            requested=_requested(self.times),
        )
        if self.supply is not None and not self.resumable:
            raise WorkloadError(
                "--not-resumable: with --supply, jobs that lose their work when a node ends may never end"
            )
        return Scenario(
            workload=workload,
            nodes=self._nodes(),
            policy=self.policy,
            options={**drawn, **self.options},
            world=world,
            supply=self.supply,
            seed=self.seed,
        )

    def _nodes(self) -> tuple[SimNode, ...]:
        if self.cluster:
            return tuple(read_cluster(Path(self.cluster)))
        if self.nodes == "0" and self.supply is not None:
            return ()
        count, gpus = parse_nodes(self.nodes)
        node = SimNode(
            name="node0",
            gpus=gpus,
            gpu_mem_bytes=self.gpu_mem_bytes,
            cpus=self.node_cpus,
            mem_bytes=self.node_mem_bytes,
        )
        return tuple(replace(node, name=f"node{number}") for number in range(count))


@lru_cache(maxsize=1)
def _loaded(name: str, seed: int, limit: int | None, arrival: str) -> Workload:
    """Load a workload, only once per process however many simulations run there."""
    return load_workload(name, seed, jobs=limit, arrival=arrival)


def _requested(times: str) -> bool:
    if times not in ("exact", "requested"):
        raise WorkloadError(f"--times: {times[:40]!r} is neither exact nor requested")
    return times == "requested"


def parse_nodes(text: str) -> tuple[int, int]:
    """Parse a text such as ``84x8``, which means 84 nodes with 8 GPUs each."""
    count, times, gpus = text.partition("x")
    if not (times and count.isdecimal() and gpus.isdecimal()) or len(text) > 20:
        raise WorkloadError(f"--nodes: {text[:40]!r} is not NODESxGPUS, such as 84x8")
    if not 1 <= int(count) <= MAX_NODES or int(gpus) > MAX_GPUS_PER_NODE:
        raise WorkloadError(f"--nodes: {text} is not within 1 to {MAX_NODES} nodes of at most {MAX_GPUS_PER_NODE} GPUs")
    return int(count), int(gpus)


def parse_elastic(text: str) -> tuple[int, int]:
    """Parse a text such as ``1/4-4``, which means from a quarter of a GPU to four; return both in parts."""
    low, dash, high = text.partition("-")
    try:
        if not dash or len(text) > 20:
            raise ValueError
        return parts(Fraction(low)), parts(Fraction(high))
    except (ValueError, ZeroDivisionError):
        raise WorkloadError(f"--elastic: {text[:40]!r} is not MIN-MAX GPUs, such as 1-8 or 1/4-4") from None
