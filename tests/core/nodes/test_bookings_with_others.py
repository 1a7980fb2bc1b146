"""Booked GPUs together with what jobs need, pools, gangs, nodes out of service, gates, and what is foreseen."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.model.constraints import Needs
from ebbtide_core.model.dependency import AfterKind, Dependency
from ebbtide_core.model.settings import PoolSettings, Settings
from ebbtide_core.model.types import JobState, NodeId
from ebbtide_core.nodes.booking_placement import ImpossibleError
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.resources.bookings import FREEING_S
from ebbtide_core.views.forecast import forecast, fork

from tests.core.lab import DONE, gpus_of, registration
from tests.core.nodes.test_bookings import WINDOW, BookedLab
from tests.core.resources.test_constraints import A100, H100, node

V100 = "Tesla V100-SXM2-32GB"


def of_nodes(*nodes: e.NodeRegistered, policy: str = "fifo") -> BookedLab:
    lab = BookedLab(policy, nodes="")
    for one in nodes:
        lab.tell(one)
    return lab


def test_a_booking_is_of_gpus_of_one_model_if_there_are_enough_of_one() -> None:
    lab = of_nodes(node("a", A100, V100, V100), node("b", A100, H100))
    assert lab.book(2, after=100.0, length=10.0) == ["a1", "a2"]
    assert lab.book(2, after=300.0, length=10.0, gpu_type="a100") == ["a0", "b0"]
    assert lab.book(3, after=500.0, length=10.0) == ["a0", "a1", "a2"]


def test_a_gpu_type_means_the_same_for_a_booking_as_for_a_job() -> None:
    lab = of_nodes(node("a", A100), node("b", H100))
    with pytest.raises(ImpossibleError, match="only 0 GPUs of type a10 are there"):
        lab.book(1, gpu_type="a10")
    assert lab.book(1, gpu_type="h100") == ["b0"]


def test_a_tainted_node_is_booked_only_by_name() -> None:
    lab = of_nodes(node("a", taints=("broken-fan",)), node("b"))
    with pytest.raises(ImpossibleError, match="only 1 GPUs are there"):
        lab.book(2)
    assert lab.book(1, on_node="a") == ["a0"]
    assert lab.of_bob(1).attempts[-1].allocation.node_ids == ("b",)
    assert gpus_of(lab.of_bob(1, needs=Needs(tolerate=("broken-fan",)))) == {"a0"}


def test_whoever_needs_a_model_gets_neither_the_others_nor_what_is_booked() -> None:
    lab = of_nodes(node("a", A100, A100, H100, H100))
    assert lab.book(1, gpu_type="a100") == ["a0"]
    assert lab.submit(2, needs=Needs(gpu_types=("a100",))).state is JobState.PENDING
    assert gpus_of(lab.submit(1, needs=Needs(gpu_types=("a100",)))) == {"a1"}
    assert gpus_of(lab.of_bob(1, needs=Needs(gpu_types=("h100",)))) <= {"a2", "a3"}


def test_a_gang_on_gpus_of_one_model_leaves_out_what_is_booked() -> None:
    lab = of_nodes(node("a", A100, A100), node("b", A100, A100), node("c", H100, H100))
    lab.book(1, on_node="b")
    assert lab.submit(4, max_nodes=2).state is JobState.PENDING
    assert gpus_of(lab.submit(3, max_nodes=2)) == {"a0", "a1", "b1"}


def test_who_may_not_go_to_the_nodes_where_its_user_has_booked_goes_elsewhere() -> None:
    lab = BookedLab(nodes="ab", gpus=1)
    lab.book(1, on_node="a")
    job = lab.of_bob(1, needs=Needs(exclude=(NodeId("a"),)))
    assert gpus_of(job) == {"b0"}


def test_a_booking_leaves_a_node_that_is_taken_out_of_service() -> None:
    lab = BookedLab(nodes="ab", gpus=2)
    assert lab.book(2, after=500.0) == ["a0", "a1"]
    lab.tell(e.NodeDrained(node=NodeId("a"), reason="new fans"))
    [booking] = lab.cluster.state.bookings.by_id.values()
    assert [booked.gpu for booked in booking.gpus] == ["b0", "b1"]
    [moved] = [event for _, event in lab.journal if isinstance(event, e.BookingMoved)]
    assert moved.reason == "node a is out of service"
    lab.tell(e.NodeResumed(node=NodeId("a")))
    assert [booked.gpu for booked in lab.cluster.state.bookings.by_id["1"].gpus] == ["b0", "b1"]


def in_pools() -> BookedLab:
    lab = BookedLab(nodes="")
    settings = Settings(pools={name: PoolSettings(policy="fifo") for name in ("default", "big")})
    lab.cluster = Cluster(create_policy("fifo", {}), settings=settings)
    lab.tell(registration("a", 2))
    lab.tell(registration("b", 4, pool="big"))
    return lab


def test_a_booking_is_of_one_pool_and_keeps_others_out_there_only() -> None:
    lab = in_pools()
    with pytest.raises(ImpossibleError, match=r"only [24] GPUs are there"):
        lab.book(6)
    assert lab.book(2) == ["a0", "a1"]
    here, there = lab.submit(1), lab.submit(4, pool="big")
    assert (here.state, there.state) == (JobState.PENDING, JobState.STARTING)
    assert gpus_of(lab.of_bob(2)) == {"a0", "a1"}


def test_a_job_that_is_moved_to_another_pool_is_blocked_there_no_more() -> None:
    lab = in_pools()
    lab.book(2)
    job = lab.submit(1)
    assert job.id in lab.cluster.state.blocked_by_bookings
    lab.tell(e.JobMoved(job.id, "big", "default"))
    assert job.state is JobState.STARTING
    assert not lab.cluster.state.blocked_by_bookings


def test_whoever_waits_for_another_job_does_not_get_what_its_user_has_booked_before_that() -> None:
    lab = BookedLab(gpus=2)
    lab.book(1)
    first = lab.of_bob(1)
    second = lab.of_bob(1, after=(Dependency(first.id, AfterKind.OK),))
    assert second.state is JobState.PENDING
    lab.start(first)
    lab.end(first, DONE)
    assert gpus_of(second) == {"a0"}


def test_it_is_foreseen_that_a_job_starts_when_the_reservation_is_over() -> None:
    lab = BookedLab(gpus=2)
    lab.book(2, length=700.0)
    end = lab.cluster.state.bookings.by_id["1"].until
    job = lab.submit(2)
    seen = forecast(fork(lab.cluster), job.id, lab.now, ())
    assert seen.start == end
    assert seen.basis == f"once this is over: 2 GPUs are reserved for bob, {WINDOW} (reservation 1)"
    assert job.id in lab.cluster.state.blocked_by_bookings, "the cluster itself is as it was"


def test_an_elastic_gang_does_not_grow_onto_booked_gpus_of_its_model() -> None:
    lab = of_nodes(node("a", A100, A100, A100, H100), policy="fitgpp")
    lab.book(1, gpu_type="a100")
    job = lab.submit(1, to=4, needs=Needs(gpu_types=("a100",)))
    lab.settle()
    assert gpus_of(job) == {"a1", "a2"}


def test_who_can_leave_in_time_uses_booked_gpus_of_the_model_that_it_needs() -> None:
    lab = of_nodes(node("a", A100, H100))
    lab.book(1, after=500.0, gpu_type="h100")
    job = lab.submit(1, needs=Needs(gpu_types=("h100",)), grace_s=20.0)
    assert gpus_of(job) == {"a1"}
    lab.start(job)
    lab.now = lab.cluster.state.bookings.by_id["1"].since - 20.0 - FREEING_S
    lab.tell(e.SchedulingDue())
    assert job.attempts[-1].stop is not None
    lab.end(job)
    assert job.state is JobState.SUSPENDED, "the other GPU is none that it can use"
