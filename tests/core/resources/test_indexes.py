"""What is counted as nodes and jobs change equals what a look at all of them finds."""

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial

import pytest
from ebbtide_core import events as e
from ebbtide_core.job.job import Job
from ebbtide_core.model import limits
from ebbtide_core.model.types import WHOLE, Loan, NodeId
from ebbtide_core.planning import elastic
from ebbtide_core.planning.draft import Draft
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.elastic_jobs import resizable_at
from ebbtide_core.resources.node_values import NodeValues
from ebbtide_core.resources.placing import Trial
from ebbtide_core.resources.pools import PoolState
from ebbtide_core.state import ClusterState
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.lab import Lab, registration, stepped_aside

NAMES = "abcdef"


def check_indexes(state: ClusterState) -> None:
    """Whatever is indexed is what a look at all nodes and jobs finds."""
    roots = {node.facts.checkpoint_root_id for node in state.nodes.values() if node.reachable}
    for pool in state.pools.values():
        books = pool.books
        usable = [node for node in books.nodes.values() if node.usable]
        models = {model for node in usable for model in node.models}
        assert set(books.roots) == roots
        assert books.heterogeneous == (bool(books.tainted) or bool(books.loans) or len(models) > 1)
        assert books.largest == max((node.together for node in usable), default=0)
        check_elastic(pool)
        gpus = Counter[NodeId]()
        for job in pool.came_back.jobs.values():
            gpus.update({piece.node: len(piece.gpus) for piece in (job.planned.nodes if job.planned else ())})
        assert pool.came_back.gpus == gpus


def check_elastic(pool: PoolState) -> None:
    index = pool.elastic
    sizes = {id: job.planned.share for id, job in index.jobs.items() if job.planned is not None}
    assert sizes.keys() == index.jobs.keys()
    assert index.jobs.items() <= pool.planned.items()
    assert index.surplus.by_id == {id: job for id, job in index.jobs.items() if sizes[id] > job.gpus_min}
    assert index.growable.by_id == {id: job for id, job in index.jobs.items() if sizes[id] < job.gpus_max}
    assert index.spread == {id: job for id, job in index.growable.by_id.items() if job.spec.spread}
    for jobs in (index.surplus, index.growable):
        for after_s in (60.0, 5.0):
            dues = {id: resizable_at(job, after_s) if job.running else None for id, job in jobs.by_id.items()}
            due = [(at, jobs.by_id[id]) for id, at in dues.items() if at is not None]
            assert list(jobs.later(after_s, 0.0)) == sorted(due, key=lambda found: (found[0], found[1].sequence))
    surplus = sorted((job.gpus_min - sizes[id], job.sequence, id) for id, job in index.surplus.by_id.items())
    assert index.greatest_surplus_first == surplus
    assert index.leaving == {id: job for id, job in index.surplus.by_id.items() if job.spec.spread}
    check_spare(pool)


def check_spare(pool: PoolState) -> None:
    parts = Counter[NodeId]()
    for job in pool.elastic.surplus.by_id.values():
        assert job.planned is not None
        if job.spec.spread:
            parts.update({piece.node: piece.share for piece in job.planned.nodes})
        else:
            parts[job.planned.node_ids[0]] += job.planned.share - job.gpus_min
    assert pool.elastic.spare == {node: math.ceil(Fraction(count, WHOLE)) for node, count in parts.items()}
    for count in (1, 2, 4):
        idle = {node.id: node.idle(node.promised) for node in pool.books.usable.values()}
        enough = {id for id, free in idle.items() if free + pool.elastic.spare.get(id, 0) >= count}
        found = pool.elastic.nodes_with(count, pool.books.room.idle)
        assert enough == {id for id in found if id in idle}
        assert pool.elastic.how_many_with(count, pool.books.room.idle) == len(found)
        trial = Trial(pool.books)
        found = trial.nodes_with_spare(pool.elastic, count * WHOLE)
        assert trial.how_many_with_spare(pool.elastic, count * WHOLE) >= len(found)
        assert {id for id in idle if trial.has_spare(pool.elastic, id, count * WHOLE)} == found & idle.keys()


# --- nodes ---


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sets(st.integers(0, 3), max_size=2))))
def test_the_values_that_some_node_has_are_counted_and_their_changes_too(steps: list[tuple[str, set[int]]]) -> None:
    values_of_nodes, held = NodeValues[int](), dict[str, set[int]]()
    for name, values in steps:
        before, changes = {value for each in held.values() for value in each}, values_of_nodes.changes
        held[name] = values
        values_of_nodes.note(NodeId(name), tuple(sorted(values)))
        now = {value for each in held.values() for value in each}
        assert (set(values_of_nodes), len(values_of_nodes)) == (now, len(now))
        assert (values_of_nodes.changes > changes) == (now != before)


def scanned(state: ClusterState, now: float) -> tuple[frozenset[NodeId], int] | None:
    """Which nodes fell silent together, and how many count, by a look at all of them."""

    def fell_silent(node: Node) -> bool:
        if node.connected or node.dead or (node.loan is not None and not node.attempts):
            return False
        return now - (node.lost_since if node.lost else node.last_seen) <= limits.TOGETHER_S

    doubted = state.silent.doubted
    silent = {node.id for node in state.nodes.values() if fell_silent(node)} | doubted
    known = len(silent) + sum(1 for node in state.nodes.values() if node.connected and node.id not in silent)
    if silent != doubted and known >= limits.DOUBTFUL_NODES and 2 * len(silent) > known:
        return frozenset(silent), known
    return None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["register", "lend", "disconnect", "lose", "kill", "believe", "submit", "end", "wait", "ends"]),
        st.sampled_from(NAMES),
    ),
    max_size=60,
)


def step(lab: Lab, what: str, name: str) -> None:
    """Let something happen to a node, if it can."""
    state, lent = lab.cluster.state, Loan(1e9, "ann")
    node = NodeId(name)
    there, jobs = state.nodes[node], [job for job in state.jobs_on(state.nodes[node]) if job.live is not None]
    facts: dict[str, tuple[bool, e.Event]] = {
        "register": (True, registration(name, 1)),
        "lend": (True, registration(name, 1, loan=lent)),
        "disconnect": (True, e.NodeDisconnected(node)),
        "lose": (not there.connected, e.NodeLost(node, 20.0)),
        "kill": (not there.connected, e.NodeConfirmedDead(node=node, user="ann")),
        "believe": (bool(state.silent.doubted), e.SilenceBelieved("ann")),
        "ends": (True, e.LoanAnnounced(node, lent if there.loan is None else None)),
        "wait": (True, e.SchedulingDue()),
    }
    if what == "submit":
        lab.submit(1)
    elif what == "end" and jobs:
        lab.end(jobs[0])
    elif what in facts and facts[what][0]:
        lab.now += 70.0 if what == "wait" else 0.0
        lab.tell(facts[what][1])


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)
@given(STEPS)
def test_which_nodes_fell_silent_together_is_what_a_look_at_all_nodes_finds(steps: list[tuple[str, str]]) -> None:
    lab = Lab(nodes=NAMES, gpus=1)
    state = lab.cluster.state
    for what, name in steps:
        step(lab, what, name)
        check_indexes(state)
        doubted = state.silent.doubted
        for now in (lab.now, lab.now + limits.TOGETHER_S):
            assert state.silent.to_doubt(now) == scanned(state, now)
        settled = [id for id in doubted if state.nodes[id].connected or state.nodes[id].dead]
        assert state.silent.is_settled() == (2 * len(settled) >= len(doubted))


def calls_to(work: Callable[[], object]) -> int:
    """How many functions are called."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_a_node_that_comes_or_goes_costs_the_same_beside_a_thousand_others_as_beside_a_hundred() -> None:
    costs = []
    for count in (100, 1000):
        lab = Lab(nodes="")
        for number in range(count):
            lab.cluster.handle(registration(f"n{number}", 1), lab.now)
        steps = registration("late", 1), e.NodeDisconnected(NodeId("late")), e.NodeLost(NodeId("late"), 20.0)
        costs.append(sum(calls_to(partial(lab.cluster.handle, each, lab.now)) for each in steps))
    assert costs[1] < costs[0] + 20


# --- elastic jobs ---


def scan_all(draft: Draft) -> list[Job]:
    return draft.elastic()


def at_all_nodes(draft: Draft, job: Job, after_s: float) -> Iterator[tuple[NodeId | None, list[Job]]]:
    return elastic._choices(draft, job, after_s, draft.elastic())


def journal_of(seed: int, policy: str) -> tuple[list[tuple[float, e.Event]], list[tuple[float, float]]]:
    """What a cluster decides, and when it asks to be woken, while jobs come, go and change."""
    dice = random.Random(seed)
    lab = Lab(policy, nodes="abc", gpus=4, resize_after_s="20")
    for _ in range(60):
        jobs = [job for job in lab.cluster.state.jobs.values() if job.live is not None]
        match dice.choice(["submit", "submit", "start", "start", "end", "end", "wait", "range", "rigid", "drain"]):
            case "submit":
                least = dice.choice(["1/4", 1, 2])
                lab.submit(least, dice.choice([2, 4, 8]), max_nodes=dice.choice([1, 1, 1, 2]), te=dice.random() < 0.2)
            case "rigid":
                lab.submit(dice.choice(["1/2", 1, 4]), te=dice.random() < 0.5)
            case "start":
                for job in jobs:
                    if job.attempts[-1].started is None and job.attempts[-1].stop is None:
                        lab.start(job)
            case "end" if jobs:
                job = dice.choice(jobs)
                lab.end(job, stepped_aside() if job.attempts[-1].stop is not None else None)
            case "wait":
                lab.wait(dice.choice([1.0, 15.0, 100.0]))
            case "drain":
                node = NodeId(dice.choice("abc"))
                if lab.cluster.state.nodes[node].drain is None:
                    lab.tell(e.NodeDrained(node=node, user="ann", reason="", deadline=None))
                else:
                    lab.tell(e.NodeResumed(node, "ann"))
            case _:
                lab.settle()
        check_indexes(lab.cluster.state)
    return lab.journal, lab.wakes


@pytest.mark.parametrize("policy", ["fitgpp", "fifo", "priority", "tide", "fair-share", "hybrid"])
@pytest.mark.parametrize("seed", range(4))
def test_looking_only_where_there_is_room_decides_the_same_as_looking_at_all_elastic_jobs(
    seed: int, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = journal_of(seed, policy)
    monkeypatch.setattr(elastic, "_near_room", scan_all)
    monkeypatch.setattr(elastic, "_nodes_with_spare", at_all_nodes)
    monkeypatch.setattr(elastic, "_may_suffice", lambda draft, job, best, greatest: True)
    monkeypatch.setattr(elastic, "_recheck_growable", lambda draft, after_s, keep: None)
    monkeypatch.setattr(elastic, "_recheck_surplus", lambda draft, after_s: None)
    assert journal_of(seed, policy) == near


@pytest.mark.parametrize("policy", ["fitgpp", "fifo", "priority", "tide"])
def test_a_job_without_gpus_waits_though_an_elastic_one_with_a_surplus_is_on_a_node_that_is_drained(
    policy: str,
) -> None:
    lab = Lab(policy, nodes="ab", gpus=4, resize_after_s="20")
    elastic_job = lab.running(1, 4)
    assert elastic_job.planned is not None
    assert elastic_job.planned.share > elastic_job.gpus_min
    lab.wait(100.0)
    [there] = elastic_job.planned.node_ids
    lab.tell(e.NodeDrained(node=there, user="ann", reason="", deadline=None))
    waiting = lab.submit(0, cpus=100_000.0)
    lab.wait(100.0)
    assert waiting.planned is None
