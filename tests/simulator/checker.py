"""Reads an event log as somebody who trusts nobody: the cluster's capacity and the jobs' wishes are all it knows."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ebbtide_core.model.types import WHOLE
from ebbtide_sim.engine import DEFAULT_GPU_MEM
from ebbtide_sim.workload import SimJob
from ebbtide_sim.workloads.nodes import SimNode

GIB = 2**30


@dataclass
class Checker:
    """Follows a log and raises ``AssertionError`` at the first line that cannot be."""

    nodes: dict[str, SimNode]
    jobs: dict[str, SimJob]
    shares: dict[str, Fraction] = field(default_factory=dict)
    gpu_mem: dict[str, int] = field(default_factory=dict)
    cpus: dict[str, float] = field(default_factory=dict)
    mem: dict[str, float] = field(default_factory=dict)
    held: dict[str, dict[str, Any]] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    preempted: dict[str, int] = field(default_factory=dict)
    now: float = 0.0

    @classmethod
    def of(cls, nodes: Iterable[SimNode], jobs: Iterable[SimJob]) -> "Checker":
        return cls({node.name: node for node in nodes}, {job.id: job for job in jobs})

    def read(self, line: dict[str, Any]) -> None:
        assert line["t"] >= self.now, f"time runs backwards: {line}"
        self.now = line["t"]
        id = line["job"]
        match line["event"]:
            case "submit":
                assert id not in self.started
                assert line["t"] == self.jobs[id].submit_s, f"came at another time: {line}"
            case "start" | "resume" | "resize" as kind:
                assert id not in self.held, f"two live attempts: {line}"
                assert id not in self.finished | self.dropped, f"runs after its end: {line}"
                assert (kind == "start") is (id not in self.started), f"{line}"
                self._hold(id, line)
            case "preempt":
                assert id in self.held, f"preempted while it held nothing: {line}"
                assert self.jobs[id].preemptible, f"preempted though not preemptible: {line}"
                self.preempted[id] = self.preempted.get(id, 0) + 1
            case "suspend" | "finish" as kind:
                assert self.held.pop(id)["gpus"] == line["gpus"], f"frees what it did not hold: {line}"
                self._use(id, line, -1)
                if kind == "finish":
                    self.finished.add(id)
            case "drop":
                self.dropped.add(id)

    def _hold(self, id: str, line: dict[str, Any]) -> None:
        job = self.jobs[id]
        total = sum(exact(share) for _, _, share in line["gpus"])
        assert Fraction(job.gpus_min, WHOLE) <= total <= Fraction(job.gpus_max, WHOLE), f"outside of its range: {line}"
        on = {node for node, _, _ in line["gpus"]}
        largest = max(node.gpus for node in self.nodes.values())
        assert len(on) <= 1 or total > largest, f"spread though a node is large enough: {line}"
        self.started.add(id)
        self.held[id] = line
        self._use(id, line, 1)

    def _use(self, id: str, line: dict[str, Any], sign: int) -> None:
        job = self.jobs[id]
        on = list(dict.fromkeys(node for node, _, _ in line["gpus"]))
        for node, gpu, share in line["gpus"]:
            self.shares[gpu] = self.shares.get(gpu, Fraction(0)) + sign * exact(share)
            assert 0 <= self.shares[gpu] <= 1, f"GPU {gpu} is booked {self.shares[gpu]} times: {line}"
            capacity = self.nodes[node].gpu_mem_bytes or DEFAULT_GPU_MEM
            memory = capacity if share == 1 else job.gpu_mem_bytes or int(capacity * exact(share))
            self.gpu_mem[gpu] = self.gpu_mem.get(gpu, 0) + sign * memory
            assert 0 <= self.gpu_mem[gpu] <= capacity, f"GPU {gpu} has no such memory: {line}"
        if on:
            assert abs(line["cpus"] - job.cpus * len(on)) < 1e-6
            assert abs(line["mem_gib"] * GIB - job.mem_bytes * len(on)) < 1
        for node in on:
            self.cpus[node] = self.cpus.get(node, 0.0) + sign * job.cpus
            self.mem[node] = self.mem.get(node, 0.0) + sign * job.mem_bytes
            assert -1e-6 <= self.cpus[node] <= self.nodes[node].cpus + 1e-6, f"{node} has no such CPUs: {line}"
            assert 0 <= self.mem[node] <= self.nodes[node].mem_bytes, f"{node} has no such memory: {line}"


def exact(share: float) -> Fraction:
    """A share as it was meant: 1/3 is written as 0.333…"""
    return Fraction(round(share * WHOLE), WHOLE)
