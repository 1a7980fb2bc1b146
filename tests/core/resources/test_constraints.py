"""Which node a job gets: labels, taints, models of GPUs, nodes that are named or excluded."""

from dataclasses import replace
from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.events.codec import decode_event, encode
from ebbtide_core.model.constraints import Needs, Selector, is_of_type
from ebbtide_core.model.spec import JobSpec, SpecError, validate
from ebbtide_core.model.types import (
    WHOLE,
    AttemptRef,
    ExitFacts,
    GpuFacts,
    GpuId,
    JobId,
    NodeId,
    RefusalCause,
    StopCause,
    SuspendMode,
)
from ebbtide_core.views.explain import explain

from tests.core.lab import DONE, GIB, Lab, gpus_of, registration
from tests.core.nodes.test_silence import dead, lose

A100, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"
DATA = Needs(require_paths=("/data",))


def gpus(name: str, *models: str) -> tuple[GpuFacts, ...]:
    """GPUs of these models, named like ``a0``, ``a1``; an H100 is twice as large as all others."""
    return tuple(
        GpuFacts(
            GpuId(f"{name}{index}"),
            index,
            model,
            (80 if model == H100 else 40) * GIB,
            compute_capability="9.0" if model == H100 else "8.0",
        )
        for index, model in enumerate(models)
    )


def lab(policy: str = "fifo", *nodes: e.NodeRegistered) -> Lab:
    """A cluster of these nodes, which share their checkpoints."""
    made = Lab(policy, nodes="")
    for node in nodes:
        made.tell(node)
    return made


def node(name: str, *models: str, **facts: Any) -> e.NodeRegistered:
    facts = {"checkpoint_root_id": "r"} | facts
    return replace(registration(name, gpus=0, **facts), gpus=gpus(name, *models or (A100,)))


def where(job) -> tuple[str, ...]:
    return job.attempts[-1].allocation.node_ids if job.attempts else ()


def refusal(made: Lab, **spec) -> str:
    wanted = JobSpec(**{"command": ("x",), "workdir": "/"} | spec)
    found = made.cluster.refusal(e.JobSubmitted(JobId("9"), wanted, "ann"))
    return "" if found is None else found.message


@pytest.mark.parametrize(
    ("model", "wanted", "matches"),
    [
        (A100, "a100", True),
        (A100, "A100", True),
        (A100, "a10", False),
        (A100, "a100-sxm4", True),
        (A100, "sxm4-40gb", True),
        (A100, "100", False),
        ("NVIDIA GeForce RTX 4090", "rtx4090", True),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", True),
        ("NVIDIA GeForce RTX 4090", "409", False),
        ("RTX4090", "rtx 4090", True),
        (A100, "--", False),
    ],
)
def test_a_gpu_type_matches_whole_words_of_the_model(model, wanted, matches):
    assert is_of_type(model, wanted) is matches


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (Needs(select=(Selector("zone", ("east",)),)), "b"),
        (Needs(select=(Selector("zone", ("east", "north")),)), "b"),
        (Needs(on=(NodeId("b"),)), "b"),
        (Needs(exclude=(NodeId("a"),)), "b"),
        (Needs(gpu_types=("h100",)), "b"),
        (Needs(gpu_types=("h200", "H100")), "b"),
        (Needs(compute_capability="8.9"), "b"),
        (Needs(gpu_total_mem_bytes=41 * GIB), "b"),
        (Needs(), "a"),
        (Needs(tolerate=("gold",), gpu_types=("v100",)), "c"),
        (Needs(mixed_gpus=True), "a"),
    ],
)
def test_a_job_goes_where_its_needs_are_met(needs, expected):
    made = lab(
        "fifo",
        node("a", A100, A100, labels={"zone": "west"}),
        node("b", H100, H100, labels={"zone": "east"}),
        node("c", "Tesla V100", "Tesla V100", labels={"zone": "west"}, taints=("gold",)),
    )
    assert where(made.submit(2, needs=needs)) == (expected,)


def test_a_taint_keeps_out_all_but_those_who_tolerate_it():
    made = lab("fifo", node("a", A100, taints=("gold", "slow")), node("b", A100))
    first, second = made.submit(1), made.submit(1)
    assert (where(first), second.state.name) == (("b",), "PENDING")
    assert "tainted gold" in explain(made.cluster.state, second, made.now).nodes[0].obstacle
    made.tell(e.CancelRequested(second.id))
    half = made.submit(1, needs=Needs(tolerate=("gold",)))
    assert half.state.name == "PENDING"
    made.tell(e.CancelRequested(half.id))
    assert where(made.submit(1, needs=Needs(tolerate=("slow", "gold")))) == ("a",)


def test_a_job_on_a_node_with_two_models_gets_gpus_of_one():
    made = lab("fifo", node("a", A100, H100, A100, H100, A100))
    assert gpus_of(made.submit(3)) == {"a0", "a2", "a4"}
    assert gpus_of(made.submit(2)) == {"a1", "a3"}


def test_mixed_gpus_takes_whatever_is_free():
    made = lab("fifo", node("a", A100, H100, A100))
    assert gpus_of(made.submit(3, needs=Needs(mixed_gpus=True))) == {"a0", "a1", "a2"}


@pytest.mark.parametrize("spec", [{"nodes": 2}, {"max_nodes": 3, "spread": True}, {"max_nodes": 2}])
def test_a_gang_is_on_nodes_of_one_model(spec):
    made = lab("fifo", node("a", A100, A100), node("b", H100, H100), node("c", A100, A100))
    assert set(where(made.submit(4, **spec))) == {"a", "c"}
    made = lab("fifo", node("a", A100, A100), node("b", H100, H100))
    job = made.submit(4, **spec)
    assert job.state.name == "PENDING"


@pytest.mark.parametrize("policy", ["fifo", "tide"])
def test_a_gang_is_where_most_gpus_are_of_its_model_not_where_most_are_idle(policy):
    made = lab(policy, node("a", A100), node("b", A100, A100), node("c", A100, A100), node("d", A100, H100, H100))
    assert set(where(made.submit(4, max_nodes=2))) == {"b", "c"}


def test_shares_of_a_gpu_are_packed_where_they_are_allowed():
    made = lab("fifo", node("a", A100, H100))
    first, other = made.submit("1/2", needs=Needs(gpu_types=("h100",))), made.submit("1/2")
    assert gpus_of(first) == {"a1"}
    assert gpus_of(other) == {"a1"}  # the best fit
    assert gpus_of(made.submit("1/2", needs=Needs(gpu_types=("a100",)))) == {"a0"}


def test_an_elastic_job_grows_on_gpus_of_its_model():
    made = lab("fifo", node("a", A100, H100, A100, H100))
    job = made.running(1, 4)
    made.wait(100)
    made.settle()
    assert gpus_of(job) == {"a0", "a2"}


def test_the_victim_is_where_the_job_may_go():
    made = lab("fitgpp", node("a", A100), node("b", H100))
    made.running(1, needs=Needs(gpu_types=("a100",)))
    there = made.running(1, needs=Needs(gpu_types=("h100",)))
    made.submit(1, te=True, needs=Needs(gpu_types=("h100",)))
    made.submit(1, te=True, needs=Needs(gpu_types=("h100",)))
    assert there.attempts[0].stop is not None
    assert made.cluster.state.jobs["1"].attempts[0].stop is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"needs": Needs(gpu_types=("h200",))}, f"--gpu-type h200: the nodes that would do have {A100}, {H100}"),
        ({"needs": Needs(on=(NodeId("z"),))}, "--on: there is no node 'z': there are a, b"),
        (
            {"needs": Needs(select=(Selector("zone", ("x",)),))},
            "--select zone=x: the nodes that would do have zone=east",
        ),
        ({"needs": Needs(select=(Selector("rack", ("1",)),))}, "--select rack=1: no node has a label rack"),
        ({"needs": Needs(exclude=(NodeId("a"), NodeId("b")))}, "--exclude: no node is left"),
        ({"needs": Needs(compute_capability="10.0")}, "--compute-capability 10.0: the nodes"),
        ({"needs": Needs(gpu_total_mem_bytes=81 * GIB)}, "--gpu-total-mem 81 GiB: the nodes that would do"),
        ({"needs": Needs(on=(NodeId("b"),))}, "--tolerate: every node that would do has a taint"),
        ({"gpus_min": 3 * 720720, "gpus_max": 3 * 720720}, "--gpus: 3 of one model (--mixed-gpus takes several) are"),
        (
            {"needs": Needs(on=(NodeId("a"),)), "cpus": 40},
            "--cpus: 40 is more than the 32 of the largest node that would",
        ),
    ],
)
def test_what_no_node_can_ever_run_is_refused_and_the_option_named(spec, message):
    made = lab(
        "fifo", node("a", A100, A100, H100, labels={"zone": "east"}), node("b", A100, taints=("gold",), cpus=64.0)
    )
    assert refusal(made, **spec).startswith(message)


def test_a_node_that_is_down_counts_as_one_that_could_run_it():
    made = lab("fifo", node("a", A100), node("b", H100))
    made.tell(e.NodeLost(NodeId("b"), 60))
    needs = Needs(gpu_types=("h100",))
    assert refusal(made, needs=needs) == ""
    job = made.submit(1, needs=needs)
    assert job.reason == "waiting for 1 GPU: none of the connected nodes will do (a: no GPU meets --gpu-type)"


@pytest.mark.parametrize(
    ("needs", "gpu_count", "message"),
    [
        (Needs(gpu_types=("a100",)), 0, "--gpu-type: the job asks for no GPU"),
        (Needs(compute_capability="8"), 1, "--compute-capability: '8' is not of the form 8.0"),
        (Needs(select=(Selector("a b", ("c",)),)), 1, "--select: 'a b' is not a label"),
        (Needs(select=(Selector("zone", ("",)),)), 1, "--select: '' is not a value of zone"),
        (Needs(tolerate=("",)), 1, "--tolerate: '' is not a taint"),
        (Needs(require_paths=("data",)), 1, "--require-path: 'data' is not an absolute path"),
        (Needs(gpu_types=("a100",) * 65), 1, "--gpu-type: is given more than 64 times"),
    ],
)
def test_needs_that_make_no_sense_are_refused(needs, gpu_count, message):
    share = gpu_count * 720720
    with pytest.raises(SpecError, match="^" + message.replace("(", r"\(")):
        validate(JobSpec(command=("x",), workdir="/", gpus_min=share, gpus_max=share, needs=needs))


def test_a_node_without_a_required_path_is_remembered_and_the_job_goes_elsewhere():
    made = lab("fifo", node("a"), node("b"))
    job = made.submit(1, needs=DATA)
    [first] = where(job)
    made.tell(e.AttemptRefused(job.id, 1, RefusalCause.NO_PATH, f"node {first} has no /data (--require-path)"))
    [second] = where(job)
    assert {first, second} == {"a", "b"}
    made.tell(e.AttemptRefused(job.id, 2, RefusalCause.NO_PATH, f"node {second} has no /data (--require-path)"))
    assert (job.state.name, job.eligibility.excluded) == ("PENDING", {"a", "b"})
    assert "a: node a has no /data (--require-path)" in job.reason
    made.tell(e.ReleaseRequested(job.id))
    assert where(job) == ("a",)


def test_an_exclusion_regroups_a_job_that_waits():
    made = lab("fifo", node("a", A100))
    running = made.running(1)
    first, second = made.submit(1), made.submit(1)
    made.tell(e.NodeExcluded(first.id, NodeId("a"), "ECC errors"))
    made.tell(e.NodeExcluded(first.id, NodeId("a"), "ECC errors"))
    made.tell(node("b"))
    assert where(first) == ("b",)
    made.end(running, ExitFacts())
    assert where(second) == ("a",)
    assert [type(event).__name__ for _, event in first.story].count("NodeExcluded") == 1


def test_a_gang_leaves_out_the_node_that_has_not_what_it_needs():
    made = lab("fifo", node("a"), node("b"), node("c"))
    job = made.submit(2, nodes=2, needs=DATA)
    lacking = where(job)[0]
    made.tell(e.AttemptRefused(job.id, 1, RefusalCause.NO_PATH, "no /data", NodeId(lacking)))
    assert lacking not in where(job)
    assert len(job.attempts) == 2


def test_old_journals_have_neither_needs_nor_labels():
    old = encode(JobSpec(command=("x",), workdir="/"))
    del old["needs"]
    event = decode_event("JobSubmitted", {"job": "1", "spec": old, "user": "ann"})
    assert event.spec.needs == Needs()
    body = encode(registration("a"))
    del body["labels"], body["taints"]
    for facts in body["gpus"]:
        del facts["compute_capability"]
    assert decode_event("NodeRegistered", body) == registration("a")


def test_needs_come_back_from_the_journal_as_they_were():
    needs = Needs(select=(Selector("zone", ("a", "b")),), gpu_types=("a100",), on=(NodeId("n"),))
    event = e.JobSubmitted(JobId("1"), JobSpec(command=("x",), workdir="/", needs=needs), "ann")
    assert decode_event("JobSubmitted", encode(event)) == event
    assert hash(decode_event("JobSubmitted", encode(event)).spec.needs) == hash(needs)


@pytest.mark.parametrize("policy", ["fifo", "fitgpp", "lrtp", "priority", "hybrid", "pri", "fair-share", "reservation"])
def test_who_waits_for_a_node_that_is_not_in_service_holds_up_nobody(policy):
    made = lab(policy, node("a", *[A100] * 4), node("b", *[H100] * 6))
    made.tell(e.NodeDrained(node=NodeId("b")))
    picky = made.submit(1, te=True, needs=Needs(gpu_types=("h100",)), priority=1, time_limit_s=100.0)
    large = made.submit(6, te=True, priority=1, time_limit_s=100.0)
    other = made.submit(1, time_limit_s=100.0)
    assert (len(picky.attempts), len(large.attempts), where(other)) == (0, 0, ("a",))
    made.start(other)
    made.tell(e.NodeResumed(NodeId("b")))
    made.tell(e.SchedulingDue())
    assert where(picky) == ("b",)
    assert not large.attempts


@pytest.mark.parametrize("policy", ["fifo", "fitgpp", "lrtp", "priority", "hybrid", "pri", "fair-share", "reservation"])
def test_a_job_that_is_too_large_for_every_node_since_one_was_removed_holds_up_nobody(policy):
    made = lab(policy, node("a", *[A100] * 4), node("b", *[A100] * 2))
    first = made.running(4, te=True, priority=1, time_limit_s=100.0)
    large = made.submit(4, te=True, priority=1, time_limit_s=100.0)
    made.end(first, DONE)
    made.start(large)
    lose(made, "a")
    made.tell(dead(NodeId("a")))
    made.tell(e.NodeRemoved(NodeId("a"), "ann"))
    other = made.submit(1, time_limit_s=100.0)
    assert (len(large.attempts), where(other)) == (1, ("b",))


@pytest.mark.parametrize("policy", ["fifo", "fitgpp", "lrtp", "priority", "hybrid", "pri", "fair-share", "reservation"])
@pytest.mark.parametrize("size", [{"nodes": 2}, {"max_nodes": 2}])
def test_a_gang_for_which_too_few_nodes_are_left_since_one_was_removed_holds_up_nobody(policy, size):
    made = lab(policy, *(node(name, *[A100] * 4, checkpoint_root_id="shared") for name in "ab"))
    gang = made.running(8, te=True, priority=1, time_limit_s=100.0, **size)
    lose(made, "a")
    made.tell(dead(NodeId("a")))
    made.free(gang)
    made.tell(e.NodeRemoved(NodeId("a"), "ann"))
    other = made.submit(1, time_limit_s=100.0)
    assert (gang.live, where(other)) == (None, ("b",))


# --- drain ---


def drain(name: str, **how) -> e.NodeDrained:
    return e.NodeDrained(node=NodeId(name), user="root", **how)


def test_a_drained_node_gets_nothing_new_and_keeps_what_runs():
    made = lab("fifo", node("a", A100, A100), node("b", A100))
    running = made.running(1, needs=Needs(on=(NodeId("a"),)))
    made.tell(drain("a", reason="new fans"))
    waiting = [made.submit(1), made.submit(1)]
    assert where(waiting[0]) == ("b",)
    assert waiting[1].state.name == "PENDING"
    assert running.running
    made.tell(e.NodeResumed(NodeId("a"), "root"))
    assert where(waiting[1]) == ("a",)


def test_those_who_can_go_on_elsewhere_leave_their_grace_period_before_the_deadline():
    made = lab("fifo", node("a", A100, A100), node("b", A100))
    on_a = Needs(exclude=(NodeId("x"),))
    leaver = made.running(1, grace_s=100.0, needs=on_a)
    stayer = made.running(1, suspend=SuspendMode.NONE)
    there = where(leaver)
    made.tell(drain(there[0], deadline=made.now + 1000))
    assert made.wakes[-1][1] <= made.now + 900
    made.wait(890)
    assert leaver.running
    made.wait(12)
    assert leaver.attempts[0].stop.cause is StopCause.DRAINED
    made.end(leaver)
    made.wait(500)
    assert len(leaver.attempts) == 2
    assert stayer.running
    assert set(where(leaver)).isdisjoint(there)


def test_force_ends_those_who_cannot_go_on_elsewhere():
    made = lab("fifo", node("a", A100))
    job = made.running(1, suspend=SuspendMode.NONE, grace_s=10.0)
    made.tell(drain("a", deadline=made.now, force=True, reason="fans"))
    assert job.attempts[0].stop.cause is StopCause.EXPELLED
    made.end(job)
    assert (job.state.name, job.reason) == ("FAILED", "node a is drained: fans, and it cannot go on elsewhere")


def test_a_drain_survives_a_restart_of_master_and_agent():
    made = lab("fifo", node("a", A100), node("b", A100))
    made.tell(drain("a", reason="fans"))
    since = made.cluster.state.nodes["a"].drain.since
    made.tell(node("a", A100, boot_id="boot-2"))
    assert made.cluster.state.nodes["a"].drain.reason == "fans"
    again = Lab("fifo", nodes="")
    for time, event in made.journal:
        again.cluster.replay(event, time)
    assert again.cluster.state.nodes["a"].drain == made.cluster.state.nodes["a"].drain
    assert again.cluster.state.nodes["a"].drain.since == since


def test_room_kept_on_a_node_that_is_drained_is_given_up():
    made = lab("fitgpp", node("a", A100), node("b", A100, A100))
    victim = made.running(1, needs=Needs(on=(NodeId("a"),)))
    urgent = made.submit(1, te=True, needs=Needs(on=(NodeId("a"),)))
    assert urgent.claiming
    made.tell(drain("a"))
    assert not urgent.claiming
    made.end(victim)
    assert urgent.state.name == "PENDING"
    assert "drained" in explain(made.cluster.state, urgent, made.now).nodes[0].obstacle


def test_an_unknown_node_cannot_be_drained():
    made = lab("fifo", node("a"))
    assert made.cluster.refusal(drain("z")).message == "node z does not exist"
    assert made.cluster.refusal(e.NodeResumed(NodeId("a"))) is None


def test_one_who_is_known_there_is_not_asked_twice():
    made = lab("fifo", node("a", A100), node("b", A100))
    job = made.running(1, grace_s=10.0)
    made.tell(drain(where(job)[0], deadline=made.now))
    asked = sum(isinstance(event, e.StopRequested) for _, event in made.journal)
    made.tell(node(where(job)[0], A100, known=(AttemptRef(job.id, 1),)))
    made.wait(60)
    assert sum(isinstance(event, e.StopRequested) for _, event in made.journal) == asked == 1


# --- more nodes may be borrowed ---


def whole(gpus: int, more: dict[str, Any]) -> dict[str, Any]:
    return {"gpus_min": gpus * WHOLE, "gpus_max": gpus * WHOLE} | more


@pytest.mark.parametrize(("gpus", "more"), [(2, {"nodes": 2}), (6, {"nodes": 6}), (4, {"max_nodes": 4})])
def test_a_job_waits_for_as_many_nodes_like_a_borrowed_one_as_it_needs(gpus, more):
    own, borrowed = node("own"), node("hpc-1", labels={"supply": "hpc"})
    assert "more than the 1" in refusal(lab("fifo", own), **whole(gpus, more))
    assert not refusal(lab("fifo", borrowed), **whole(gpus, more))
    assert not refusal(lab("fifo", own, borrowed), **whole(gpus, more))


@pytest.mark.parametrize(
    ("gpus", "more", "words"),
    [
        (2, {}, "--gpus: 2 is more than the 1 of the largest node"),
        (4, {"nodes": 2}, "--nodes: 2 nodes with 2 GPUs each"),
        (1, {"gpu_mem_bytes": 41 * GIB}, "--gpu-mem"),
        (1, {"cpus": 1000.0}, "--cpus"),
        (2, {"nodes": 2, "needs": Needs(gpu_types=("H100",))}, "--nodes: 2 nodes with 1 GPU each"),
    ],
)
def test_no_job_waits_for_more_than_such_nodes_have(gpus, more, words):
    assert words in refusal(lab("fifo", node("hpc-1", labels={"supply": "hpc"})), **whole(gpus, more))
