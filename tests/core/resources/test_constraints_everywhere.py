"""Whatever nodes, needs and policy: no job runs where its needs forbid it, and one that could start does."""

from dataclasses import replace
from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import InvariantError
from ebbtide_core.commands import Launch
from ebbtide_core.job.job import Job
from ebbtide_core.model.constraints import Needs, Selector
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.types import WHOLE, ExitFacts, GpuFacts, GpuId, NodeId, SuspendMode
from ebbtide_core.resources.bookings import lead_s
from ebbtide_core.resources.infeasible import infeasible_refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.lab import GIB, Lab, registration

POLICIES = (
    "fifo", "fitgpp", "priority", "fair-share", "hybrid", "rigid-fcfs", "reservation",
    "moldable-equipartition", "malleable-equipartition", "malleable-proportional", "tide",
)  # fmt: skip
MODELS = {"A100": (40, "8.0"), "H100": (80, "9.0"), "V100": (32, "7.0")}
NAMES = "abcd"
names = st.sampled_from(NAMES).map(NodeId)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> e.NodeRegistered:
    models = draw(st.lists(st.sampled_from(sorted(MODELS)), min_size=1, max_size=4))
    if draw(st.booleans()):
        models = models[:1] * len(models)
    gpus = tuple(
        GpuFacts(GpuId(f"{name}{i}"), i, model, MODELS[model][0] * GIB, compute_capability=MODELS[model][1])
        for i, model in enumerate(models)
    )
    labels = draw(st.dictionaries(st.sampled_from(("zone", "rack")), st.sampled_from("xy"), max_size=2))
    taints = draw(st.sampled_from(((), (), (), ("gold",), ("gold", "slow"))))
    cpus = draw(st.sampled_from((32.0, 64.0)))
    plain = registration(name, gpus=0, cpus=cpus, labels=labels, taints=taints, checkpoint_root_id="shared")
    return replace(plain, gpus=gpus)


clusters = st.integers(1, 4).flatmap(lambda count: st.tuples(*(nodes(name) for name in NAMES[:count])))
needs = st.builds(
    Needs,
    select=st.sampled_from(((), (), (Selector("zone", ("x",)),), (Selector("rack", ("x", "y")),))),
    tolerate=st.sampled_from(((), ("gold",), ("slow", "gold"))),
    on=st.one_of(st.just(()), st.just(()), st.tuples(names), st.tuples(names, names)),
    exclude=st.one_of(st.just(()), st.just(()), st.tuples(names)),
    gpu_types=st.sampled_from(((), (), ("a100",), ("h100", "v100"))),
    compute_capability=st.sampled_from(("", "", "8.0")),
    gpu_total_mem_bytes=st.sampled_from((0, 0, 50 * GIB)),
    mixed_gpus=st.booleans(),
)
sizes = st.sampled_from(
    (
        {"gpus": 1}, {"gpus": 1}, {"gpus": 2}, {"gpus": 3}, {"gpus": "1/2"}, {"gpus": "1/4"}, {"gpus": 1, "to": 3},
        {"gpus": "1/2", "to": 2}, {"gpus": 2, "nodes": 2}, {"gpus": 4, "nodes": 2}, {"gpus": 4, "max_nodes": 2},
        {"gpus": 3, "max_nodes": 3, "spread": True}, {"gpus": 2, "to": 4, "max_nodes": 2, "spread": True},
    )
)  # fmt: skip
jobs = st.fixed_dictionaries(
    {"size": sizes, "needs": needs, "te": st.booleans(), "priority": st.sampled_from((3, 10, 42, 90))}
)
steps = st.lists(
    st.one_of(
        jobs,
        jobs,
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("drain"), names, st.sampled_from((None, 0.0, 500.0))),
        st.tuples(st.just("resume"), names),
        st.tuples(st.just("node ends"), names, st.sampled_from((None, 20.0, 100.0, 900.0))),
        st.tuples(st.just("exclude"), st.integers(0, 9), names),
        st.tuples(st.just("wait"), st.sampled_from((10.0, 700.0))),
    ),
    min_size=1,
    max_size=12,
)


def forbidden(made: Lab, job: Job, launch: Launch) -> str:
    """What is wrong with where an attempt starts, looked at anew and one by one."""
    wanted, models = job.spec.needs, set()
    for piece in launch.allocation:
        node = made.cluster.state.nodes[piece.node]
        checks = {
            "on": not wanted.on or node.id in wanted.on,
            "exclude": node.id not in wanted.exclude and node.id not in job.eligibility.excluded,
            "select": all(node.facts.labels.get(each.key) in each.values for each in wanted.select),
            "taint": set(node.facts.taints) <= set(wanted.tolerate),
            "drain": node.drain is None,
            "end": node.loan is None or job.attempts[-1].placed + 2 * lead_s(job) < node.loan.until,
        }
        for slice in piece.gpus:
            gpu = node.gpus[slice.gpu]
            models.add(gpu.model)
            checks["type"] = not wanted.gpu_types or gpu.model.lower() in wanted.gpu_types
            checks["capability"] = float(gpu.compute_capability) >= float(wanted.compute_capability or 0)
            checks["memory"] = gpu.mem_bytes >= wanted.gpu_total_mem_bytes
            if not all(checks.values()):
                break
        if not all(checks.values()):
            return f"{node.id}: {checks}"
    return "" if wanted.mixed_gpus or len(models) <= 1 else f"models {models}"


class WatchedLab(Lab):
    """A lab that looks at every launch."""

    def tell(self, event: e.Event) -> list[Any]:
        commands = super().tell(event)
        for command in commands:
            if isinstance(command, Launch):
                job = self.cluster.state.jobs[command.job]
                assert not forbidden(self, job, command), (job.id, forbidden(self, job, command))
        return commands

    def submit_if_possible(self, wanted: dict[str, Any]) -> Job | None:
        size = dict(wanted["size"])
        options = {"needs": wanted["needs"], "te": wanted["te"], "priority": wanted["priority"], "grace_s": 30.0}
        job = self.submit(size.pop("gpus"), size.pop("to", None), hold=True, **size, **options)
        if infeasible_refusal(self.cluster.state.pools[DEFAULT_POOL], job.spec) is not None:
            self.tell(e.CancelRequested(job.id))
            return None
        self.tell(e.ReleaseRequested(job.id))
        return job


def lab_of(policy: str, cluster: tuple[e.NodeRegistered, ...]) -> WatchedLab:
    made = WatchedLab(policy, nodes="")
    for node in cluster:
        made.tell(node)
    return made


def carry_out(made: WatchedLab, step: Any) -> None:
    live = [job for job in made.cluster.state.jobs.values() if job.running]
    known = made.cluster.state.nodes
    match step:
        case ("end", int() as index) if live:
            made.end(live[index % len(live)], ExitFacts())
        case ("drain", node, seconds) if node in known:
            deadline = None if seconds is None else made.now + seconds
            made.tell(e.NodeDrained(node=node, deadline=deadline))
        case ("resume", node) if node in known:
            made.tell(e.NodeResumed(node))
        case ("node ends", node, seconds) if node in known:
            made.tell(e.LoanChanged(node, seconds))
        case ("exclude", int() as index, node) if made.cluster.state.unfinished and node in known:
            unfinished = list(made.cluster.state.unfinished.values())
            made.tell(e.NodeExcluded(unfinished[index % len(unfinished)].id, node, "ECC errors"))
        case ("wait", seconds):
            made.wait(seconds)
        case dict():
            made.submit_if_possible(step)
        case _:
            pass


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=8, deadline=None)
@given(cluster=clusters, history=steps)
def test_no_job_ever_runs_where_its_needs_forbid_it(policy, cluster, history):
    made = lab_of(policy, cluster)
    for step in history:
        carry_out(made, step)
        made.settle()
    again = Lab(policy, nodes="")
    for time, event in made.journal:
        again.cluster.replay(event, time)
    assert {id: (job.state, job.eligibility.excluded) for id, job in again.cluster.state.jobs.items()} == {
        id: (job.state, job.eligibility.excluded) for id, job in made.cluster.state.jobs.items()
    }
    assert not made.cluster.state.problems, InvariantError


def could_start(cluster: tuple[e.NodeRegistered, ...], job: Job, share: int) -> bool:
    """Whether an idle cluster has room for ``share`` parts of GPUs, found by trying every model."""
    wanted, count = job.spec.needs, -(-share // WHOLE)
    if set(wanted.on) - {node.node for node in cluster}:
        return False  # nobody knows that name
    per_model: dict[str, list[int]] = {}
    for node in cluster:
        if (wanted.on and node.node not in wanted.on) or node.node in wanted.exclude:
            continue
        if any(node.labels.get(each.key) not in each.values for each in wanted.select):
            continue
        if set(node.taints) - set(wanted.tolerate):
            continue
        suited = [
            "any" if wanted.mixed_gpus else gpu.model
            for gpu in node.gpus
            if (not wanted.gpu_types or gpu.model.lower() in wanted.gpu_types)
            and float(gpu.compute_capability) >= float(wanted.compute_capability or 0)
            and gpu.mem_bytes >= wanted.gpu_total_mem_bytes
        ]
        for model in set(suited):
            per_model.setdefault(model, []).append(suited.count(model))
    for counts in per_model.values():
        if job.spec.nodes > 1:
            if sum(each >= count // job.spec.nodes for each in counts) >= job.spec.nodes:
                return True
        elif sum(sorted(counts)[-job.spec.max_nodes :]) >= count:
            return True
    return False


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=12, deadline=None)
@given(cluster=clusters, wanted=jobs)
def test_a_job_that_an_idle_cluster_has_room_for_starts_and_any_other_is_refused(policy, cluster, wanted):
    made = lab_of(policy, cluster)
    job = made.submit_if_possible(wanted)
    spec = made.cluster.state.jobs["1"]
    assert (job is not None) is could_start(cluster, spec, spec.gpus_min)
    assert job is None or job.attempts


@settings(max_examples=12, deadline=None)
@given(cluster=clusters, wanted=st.lists(jobs, min_size=1, max_size=6), policy=st.sampled_from(POLICIES))
def test_all_leave_a_drained_node_by_its_deadline_and_all_come_back(cluster, wanted, policy):
    made = lab_of(policy, cluster)
    started = [job for each in wanted if (job := made.submit_if_possible(each)) is not None]
    made.settle()
    name = cluster[0].node
    made.tell(e.NodeDrained(node=name, deadline=made.now + 300.0))
    made.wait(270.0)
    made.settle()
    assert not made.cluster.state.nodes[name].attempts
    made.tell(e.NodeResumed(name))
    for _ in range(len(started) * 2):
        made.settle()
        running = [job for job in started if job.running]
        if running:
            made.end(running[0], ExitFacts())
    assert all(job.state.finished for job in started), [(job.id, job.reason) for job in started]


@settings(max_examples=12, deadline=None)
@given(cluster=clusters, wanted=st.lists(jobs, min_size=1, max_size=6), policy=st.sampled_from(POLICIES))
def test_all_leave_a_node_before_it_ends_and_go_on_elsewhere_or_when_it_stays(policy, cluster, wanted):
    made = lab_of(policy, cluster)
    started = [job for each in wanted if (job := made.submit_if_possible(each)) is not None]
    made.settle()
    name = cluster[0].node
    made.tell(e.LoanChanged(name, 300.0))
    made.wait(300.0 - 40.0)
    made.settle()
    assert not made.cluster.state.nodes[name].attempts
    made.tell(e.LoanChanged(name, None))
    for _ in range(len(started) * 2):
        made.settle()
        if running := [job for job in started if job.running]:
            made.end(running[0], ExitFacts())
    assert all(job.state.finished for job in started), [(job.id, job.reason) for job in started]


def test_a_job_that_lives_in_host_memory_stays_on_its_drained_node():
    made = Lab("fifo")
    job = made.running(1, suspend=SuspendMode.SWAP)
    made.tell(e.NodeDrained(node=NodeId("a"), deadline=made.now))
    assert job.running
