"""What malleable policies leave out changes no plan: every pass is planned once more by the plain definitions."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import pytest
from ebbtide_core import events as e
from ebbtide_core.job.job import Job
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.types import WHOLE, GpuSlice
from ebbtide_core.planning import malleable
from ebbtide_core.planning.balance import GpuPlace
from ebbtide_core.planning.policy import Policy
from ebbtide_core.resources import gpu_selection
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.gpu_selection import left_over, memory_of
from ebbtide_core.resources.node_usage import NodeUse
from ebbtide_core.snapshot import Plan, Snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.lab import DONE, GIB, Lab, registration
from tests.core.policies.equipartition import PAPER
from tests.drawing import share_of


def plainly_shared(job: Job, share: int, node: Node, use: NodeUse) -> tuple[GpuSlice, ...] | None:
    """The GPU of least cost, of all that have room (no GPU here is shared by MPS)."""
    holding = job.holding
    own = set() if holding is None else set(holding.allocation.gpu_ids)
    for offers in (node.slices, node.beside):
        found = []
        for id, offered in offers.items():
            whole = replace(offered, mem_bytes=node.gpus[id].mem_bytes)
            if (left := left_over(job, share, whole, offered, use)) is not None:
                leaving = node.held.share(id) + share > WHOLE
                found.append(((leaving and id not in own, id not in own, left), len(found), id, whole))
        if found:
            _, _, id, whole = min(found, key=lambda each: each[:2])
            return (GpuSlice(id, share, memory_of(job, share, whole)),)
    return None


@contextmanager
def no_shortcuts() -> Iterator[None]:
    """All jobs are placed anew if one found no room, and each in turn is asked whether its GPU takes it."""
    with (
        patch.object(GpuPlace, "keeps", lambda *_: False),
        patch.object(malleable, "_most_jobs", lambda *_: math.inf),
        patch.object(gpu_selection, "_pick_shared", plainly_shared),
    ):
        yield


class Twice:
    """Plans every pass twice."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def plan(self, snapshot: Snapshot) -> Plan:
        plan = self.policy.plan(snapshot)
        with no_shortcuts():
            plain = self.policy.plan(snapshot)
        assert plan == plain
        assert list(plan.placements) == list(plain.placements)
        for member in snapshot.ranking.all:
            job = member.job
            assert (member.running, member.preemptible) == (job.running, job.preemptible)
            assert member.started == (job.attempts[-1].started if job.attempts else None)
            assert member.in_range == (job.gpus_min <= job.planned.share <= job.gpus_max)
        return plan


def planned_twice(policy: str, *nodes: e.NodeRegistered, **options: str) -> Lab:
    lab = Lab(policy, "", **options)
    lab.cluster.policies[DEFAULT_POOL] = Twice(lab.cluster.policy)  # type: ignore[assignment]
    for node in nodes:
        lab.tell(node)
    return lab


Step = tuple[str, int, int, int]
KINDS = ["submit"] * 6 + ["settle"] * 5 + ["end"] * 2 + ["exit", "free", "wait", "memory", "drain", "lose", "back"]
LOWS = st.sampled_from([("1/4",), ("1/4", "1/3"), ("1/4", "1/3", "1/2", 1, 2)])
HIGHS = ("1/2", 1, 2, 4)
MEMORY = st.sampled_from([(5 * GIB,), (5 * GIB, 9 * GIB), (0, 5 * GIB, 9 * GIB, 15 * GIB)])
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=8, max_size=50
)


def take(lab: Lab, gpus: int, jobs: list[Job], step: Step, lows: Sequence[float | str], memory: Sequence[int]) -> None:
    what, first, second, _ = step
    live = [job for job in jobs if job.live is not None]
    match what:
        case "submit":
            jobs.append(submitted(lab, step, lows, memory))
        case "end" if live:
            lab.end(live[first % len(live)], DONE)
        case "exit" if live:
            lab.exit(live[first % len(live)])
        case "free":
            for job in [job for job in jobs if job.live is None and job.holding is not None]:
                lab.free(job)
        case "settle":
            settle(lab, live)
        case "wait":
            lab.wait(60.0 * first)
        case "memory" if live:
            job = live[first % len(live)]
            lab.tell(e.GpuMemoryChanged(job.id, (second + 5) * GIB, job.gpus_min, job.gpus_max, "measured"))
        case "drain" | "lose" | "back":
            change_node(lab, what, node("ab"[first % 2], gpus), live)


def submitted(lab: Lab, step: Step, lows: Sequence[float | str], memory: Sequence[int]) -> Job:
    _, first, second, third = step
    low, high = lows[first % len(lows)], HIGHS[second % len(HIGHS)]
    gang: dict[str, Any] = {"max_nodes": 2} if third % 5 == 4 else {}
    work = 500.0 * (third + 1) if second % 2 else None
    needs = memory[third % len(memory)]
    return lab.submit(low, max(low, high, key=Fraction), gpu_mem_bytes=needs, work_s=work, **gang)


def settle(lab: Lab, live: list[Job]) -> None:
    for job in [job for job in live if job.holding is not None]:
        if job.attempts[-1].stop is not None:
            lab.end(job)
        elif job.running and job.attempts[-1].started is None:
            lab.start(job)


def change_node(lab: Lab, what: str, node: e.NodeRegistered, live: list[Job]) -> None:
    if what == "drain":
        lab.tell(e.NodeDrained(node=node.node))
    elif what == "lose":
        lab.tell(e.NodeDisconnected(node.node))
    else:
        lab.tell(e.NodeResumed(node.node))
        there = [job for job in live if node.node in job.attempts[-1].allocation.node_ids]
        lab.tell(replace(node, known=tuple(ref for job in there for ref in lab.known(job))))


def node(name: str, gpus: int) -> e.NodeRegistered:
    return registration(name, gpus, checkpoint_root_id="shared")


@pytest.mark.replaces
@pytest.mark.parametrize("policy", ["malleable-equipartition", "malleable-proportional"])
@settings(max_examples=share_of(250), deadline=None)
@given(gpus=st.integers(1, 3), paper=st.booleans(), lows=LOWS, memory=MEMORY, steps=STEPS)
def test_after_any_history_a_pass_plans_what_the_plain_definitions_say(
    policy: str, gpus: int, paper: bool, lows: tuple[float | str, ...], memory: tuple[int, ...], steps: list[Step]
) -> None:
    lab = planned_twice(policy, node("a", gpus), node("b", gpus), **(PAPER if paper else {}))
    jobs: list[Job] = []
    for step in steps:
        take(lab, gpus, jobs, step, lows, memory)


def test_jobs_keep_their_gpu_unseen_only_if_its_memory_suffices_for_all() -> None:
    lab = planned_twice("malleable-equipartition", node("a", 1), **PAPER)
    jobs = [lab.submit("1/4", 1, gpu_mem_bytes=15 * GIB) for _ in range(2)]
    lab.settle()
    assert [job.planned.share for job in jobs if job.planned is not None] == [WHOLE // 2] * 2
    on_node = lab.cluster.state.nodes[node("a", 1).node]
    [gpu] = on_node.slices.values()
    books, now = lab.cluster.state.pools[DEFAULT_POOL].books, {job.id: job.planned for job in jobs}
    enough = 2 * memory_of(jobs[0], WHOLE // 2, gpu)
    for memory, keeps in ((enough, True), (enough - 1, False)):
        place = GpuPlace(books, on_node, gpu, 0, memory=memory)
        assert place.keeps(jobs, now) is keeps
        assert place.jobs == (jobs if keeps else [])
