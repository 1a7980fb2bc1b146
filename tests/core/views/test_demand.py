"""How many more nodes the waiting jobs have a use for: the pool's own policy says it, on a copy."""

from dataclasses import replace

import pytest
from ebbtide_core.events import NodeDrained
from ebbtide_core.model.dependency import AfterKind, Dependency
from ebbtide_core.model.types import GpuId, Loan, NodeId, SuspendMode
from ebbtide_core.policies.registry import POLICIES
from ebbtide_core.views.demand import copy_of, demand
from ebbtide_core.views.digest import digest
from ebbtide_core.views.forecast import fork

from tests.core.lab import Lab, registration


def more(count, gpus=4, **facts):
    return [registration(f"new{number}", gpus, checkpoint_root_id="shared", **facts) for number in range(count)]


def wanted(lab, nodes, after_s=0.0):
    return demand(fork(lab.cluster), nodes, lab.now, after_s)


@pytest.fixture
def lab():
    return Lab("fifo", gpus=4)


def test_nobody_waits(lab):
    lab.running(4)
    assert wanted(lab, more(3)).nodes == ()


def test_waiting_jobs_are_packed_on_as_few_nodes_as_they_need(lab):
    lab.running(4)
    jobs = [lab.submit(1).id for _ in range(5)]
    seen = wanted(lab, more(9))
    assert (len(seen.nodes), set(seen.jobs)) == (2, {*jobs})


def test_idle_gpus_count_for_those_whom_they_are_enough_for():
    lab = Lab("fifo", nodes="ab", gpus=4)
    lab.running(3)
    lab.running(3)
    lab.submit(2)
    assert len(wanted(lab, more(4)).nodes) == 1
    lab.submit(1)  # it has room, and starts as soon as the other one need not wait
    assert len(wanted(lab, more(4)).nodes) == 1


def test_no_more_than_there_are_are_wanted(lab):
    lab.running(4)
    for _ in range(20):
        lab.submit(4)
    assert len(wanted(lab, more(3)).nodes) == 3


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_says_what_it_would_use_and_nothing_changes(policy):
    lab = Lab(policy, gpus=4)
    lab.running(4)
    for _ in range(3):
        lab.submit(4)
    before = digest(lab.cluster.state)
    assert len(wanted(lab, more(8)).nodes) == 3
    assert digest(lab.cluster.state) == before


def test_jobs_that_wait_for_something_else_or_for_others_need_no_node(lab):
    first = lab.running(4)
    lab.submit(1, hold=True)
    lab.submit(1, begin_at=lab.now + 3600.0)
    for _ in range(12):
        lab.submit(4, after=(Dependency(first.id, AfterKind.OK),))
    assert wanted(lab, more(3)).nodes == ()


def test_a_job_that_no_such_node_could_run_asks_for_none(lab):
    lab.running(4)
    lab.submit(8)
    assert wanted(lab, more(3)).nodes == ()


def test_a_job_on_two_gpus_asks_for_no_node_whose_gpus_are_slices(lab):
    lab.running(4)
    lab.submit(2)
    whole = registration("new", 2, checkpoint_root_id="shared")
    sliced = replace(whole, gpus=tuple(replace(gpu, parent=GpuId("G")) for gpu in whole.gpus))
    assert len(wanted(lab, [copy_of(whole, 0)]).nodes) == 1
    assert wanted(lab, [copy_of(sliced, 0)]).nodes == ()


def test_a_job_that_has_not_waited_long_enough_asks_for_none(lab):
    lab.running(4)
    old = lab.submit(4)
    lab.wait(60.0)
    lab.submit(4)
    seen = wanted(lab, more(3), after_s=30.0)
    assert (len(seen.nodes), seen.jobs) == (1, (old.id,))


def test_an_elastic_job_counts_with_its_smallest_size(lab):
    lab.running(4)
    for _ in range(4):
        lab.submit(1, 4)
    assert len(wanted(lab, more(4)).nodes) == 1


@pytest.mark.parametrize("policy", list(POLICIES))
def test_an_elastic_job_for_a_node_that_is_away_keeps_as_few_from_a_loan_as_a_rigid_one(policy):
    counts = []
    for most in (6, 8):
        lab = Lab(policy, gpus=4)
        lab.tell(registration("b", 8))
        lab.tell(NodeDrained(node=NodeId("b")))
        lab.running(4, suspend=SuspendMode.NONE)
        lab.submit(6, most)
        for _ in range(3):
            lab.submit(4)
        counts.append(len(wanted(lab, more(3)).nodes))
    assert counts[0] == counts[1] >= 2


def test_a_job_on_several_nodes_asks_for_all_of_them(lab):
    lab.running(4)
    lab.submit(8, nodes=2)
    assert len(wanted(lab, more(4)).nodes) == 2
    assert wanted(lab, more(1)).nodes == ()


@pytest.mark.parametrize(("nodes", "idle_gpus", "beside"), [(2, 4, (NodeId("lent"),)), (1, 3, ())])
def test_a_node_that_is_there_is_needed_beside_new_ones_only_by_a_job_on_both(lab, nodes, idle_gpus, beside):
    lab.running(4)
    lab.tell(registration("lent", idle_gpus, checkpoint_root_id="shared"))
    lab.submit(4 * nodes, nodes=nodes)
    seen = wanted(lab, more(4))
    assert (len(seen.nodes), seen.beside) == (1, beside)


def test_a_node_that_ends_too_soon_for_a_job_is_of_no_use_to_it(lab):
    lab.running(4)
    lab.submit(1, time_limit_s=7200.0, suspend=SuspendMode.NONE)
    assert wanted(lab, more(2, loan=Loan(lab.now + 3600.0))).nodes == ()
    assert wanted(lab, more(2, loan=Loan(lab.now + 14400.0))).nodes == (NodeId("new0"),)
