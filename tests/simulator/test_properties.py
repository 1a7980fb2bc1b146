"""What holds for every policy, whatever the workload: seen from the event log alone."""

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from ebbtide_core.estimates.work import Speedup
from ebbtide_core.model.types import WHOLE, JobClass
from ebbtide_core.policies.registry import POLICIES
from ebbtide_sim.engine import SimulatedWorld
from ebbtide_sim.setup import RIGID
from ebbtide_sim.simulate import Scenario, simulate
from ebbtide_sim.workload import SimJob, Workload
from ebbtide_sim.workloads.nodes import SimNode
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.drawing import share_of
from tests.simulator.checker import Checker

GIB = 2**30
policies = pytest.mark.parametrize("policy", POLICIES)
careful = settings(
    max_examples=share_of(25),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)

NODES = st.lists(
    st.builds(
        SimNode,
        name=st.just(""),
        gpus=st.integers(1, 4),
        gpu_mem_bytes=st.sampled_from([16 * GIB, 40 * GIB]),
        cpus=st.sampled_from([8.0, 32.0]),
        mem_bytes=st.sampled_from([64 * GIB, 256 * GIB]),
    ),
    min_size=1,
    max_size=4,
)
RANGES = st.sampled_from(
    [(1, 1), (2, 2), (3, 3), (6, 6), (1, 4), (2, 8), (0.25, 0.25), (0.5, 0.5), (0.25, 4), (0.5, 1)]
)


@st.composite
def workloads(draw: Any) -> list[SimJob]:
    jobs = []
    for number in range(draw(st.integers(1, 14))):
        low, high = draw(RANGES)
        jobs.append(
            SimJob(
                id=str(number),
                submit_s=float(draw(st.integers(0, 200))),
                runtime_s=float(draw(st.integers(1, 400))),
                job_class=draw(st.sampled_from(JobClass)),
                user=draw(st.sampled_from(["ann", "bob"])),
                gpus_min=int(low * WHOLE),
                gpus_max=int(high * WHOLE),
                gpu_mem_bytes=draw(st.sampled_from([0, 0, 4 * GIB, 30 * GIB])),
                cpus=float(draw(st.sampled_from([0, 1, 8]))),
                mem_bytes=draw(st.sampled_from([0, 16 * GIB])),
                grace_s=float(draw(st.integers(0, 20))),
                priority=draw(st.integers(1, 12)),
                weight=float(draw(st.sampled_from([1, 3]))),
                preemptible=draw(st.sampled_from([True, True, False])),
            )
        )
    return sorted(jobs, key=lambda job: job.submit_s)


WORLDS = st.builds(
    SimulatedWorld,
    speedup=st.sampled_from([Speedup(), Speedup(((WHOLE // 2, 0.75), (WHOLE, 1.0), (4 * WHOLE, 3.0)))]),
    restart_cost_s=st.sampled_from([0.0, 5.0]),
    resumable=st.just(True),
)


def simulated(
    policy: str, jobs: list[SimJob], nodes: list[SimNode], world: SimulatedWorld, **options: str
) -> tuple[str, Checker]:
    log = io.StringIO()
    scenario = Scenario(
        workload=Workload("drawn", jobs), nodes=tuple(nodes), policy=policy, options=options, world=world
    )
    simulate(scenario, events=log)
    checker = Checker.of(nodes, jobs)
    for line in log.getvalue().splitlines():
        checker.read(json.loads(line))
    return log.getvalue(), checker


def named(nodes: list[SimNode]) -> list[SimNode]:
    return [replace(node, name=f"n{number}") for number, node in enumerate(nodes)]


@policies
@careful
@given(jobs=workloads(), nodes=NODES, world=WORLDS)
def test_nothing_is_booked_twice_nobody_starves_and_the_same_run_is_the_same(
    policy: str, jobs: list[SimJob], nodes: list[SimNode], world: SimulatedWorld
) -> None:
    nodes = named(nodes)
    jobs = [replace(job, gpus_min=job.gpus_max) for job in jobs] if policy in RIGID else jobs
    jobs = [job for job in jobs if could_run(job, nodes)]
    log, checker = simulated(policy, jobs, nodes, world)
    note(log)
    assert checker.finished | checker.dropped == {job.id for job in jobs}
    assert not checker.held
    if policy != "pri-limit":
        assert not checker.dropped
    assert simulated(policy, jobs, nodes, world)[0] == log


@st.composite
def small_nodes_and_jobs_larger_than_they_are(draw: Any) -> tuple[list[SimNode], list[SimJob]]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=5))
    ranges = st.sampled_from([(1, 1), (2, 2), (4, 4), (1, 4), (1, 8), (2, 8), (3, 8)])
    drawn = draw(
        st.lists(st.tuples(ranges, st.sampled_from([1, 361, 1000]), st.sampled_from([0, 30, 120, 500])), min_size=2)
    )
    jobs = [
        SimJob(id=str(number), submit_s=submit, runtime_s=run, gpus_min=low * WHOLE, gpus_max=high * WHOLE)
        for number, ((low, high), run, submit) in enumerate(sorted(drawn, key=lambda each: each[2]))
    ]
    return named([SimNode(name="", gpus=count) for count in sizes]), jobs


@pytest.mark.parametrize("policy", ["malleable-equipartition", "malleable-proportional"])
@settings(careful, max_examples=share_of(100))
@given(drawn=small_nodes_and_jobs_larger_than_they_are())
def test_who_grows_or_shrinks_is_on_one_node_if_one_is_large_enough(
    policy: str, drawn: tuple[list[SimNode], list[SimJob]]
) -> None:
    nodes, jobs = drawn
    jobs = [job for job in jobs if could_run(job, nodes)]
    log, checker = simulated(policy, jobs, nodes, SimulatedWorld())
    note(log)
    assert checker.finished == {job.id for job in jobs}


def could_run(job: SimJob, nodes: list[SimNode]) -> bool:
    """Whether the empty cluster has room for it at its least size; else waiting for ever is right."""
    able = [
        node for node in nodes
        if node.cpus >= job.cpus and node.mem_bytes >= job.mem_bytes and node.gpu_mem_bytes >= job.gpu_mem_bytes
    ]  # fmt: skip
    largest = max(node.gpus for node in nodes) * WHOLE
    if job.gpus_min > largest:
        return sum(node.gpus for node in able) * WHOLE >= job.gpus_min
    return any(node.gpus * WHOLE >= job.gpus_min for node in able)


@policies
def test_two_gangs_of_the_whole_cluster_do_not_wait_for_each_other(policy: str) -> None:
    nodes = [SimNode(name=f"n{i}", gpus=4, cpus=32.0, mem_bytes=256 * GIB) for i in range(4)]
    whole = {"gpus_min": 16 * WHOLE, "gpus_max": 16 * WHOLE}
    jobs = [SimJob(id=id, submit_s=0.0, runtime_s=60.0, grace_s=5.0, **whole) for id in ("a", "b")]
    _, checker = simulated(policy, jobs, nodes, SimulatedWorld())
    assert checker.finished == {"a", "b"}


TWO_LEVELS = st.fixed_dictionaries(
    {
        "preemption": st.sampled_from(["on", "on", "off"]),
        "backfill": st.sampled_from(["on", "off"]),
        "victims": st.sampled_from(["newest", "cheapest"]),
        "classes": st.sampled_from(["on", "off"]),
        "sticky": st.sampled_from(["0", "0.3", "1", "2", "100"]),
        "min_run_s": st.sampled_from(["0", "600"]),
    }
)


@settings(careful, max_examples=share_of(60))
@given(jobs=workloads(), nodes=NODES, world=WORLDS, options=TWO_LEVELS)
def test_the_same_holds_for_policies_inside_of_priorities(
    jobs: list[SimJob], nodes: list[SimNode], world: SimulatedWorld, options: dict[str, str]
) -> None:
    nodes = named(nodes)
    jobs = [job for job in jobs if could_run(job, nodes)]
    log, checker = simulated("priority", jobs, nodes, world, **options)
    note(log)
    assert checker.finished == {job.id for job in jobs}
    assert not checker.held
    if options["preemption"] == "off":
        assert not checker.preempted
    assert simulated("priority", jobs, nodes, world, **options)[0] == log


@careful
@given(jobs=workloads(), nodes=NODES, p=st.integers(0, 2))
def test_fitgpp_preempts_no_job_more_often_than_p(jobs: list[SimJob], nodes: list[SimNode], p: int) -> None:
    nodes = named(nodes)
    jobs = [job for job in jobs if could_run(job, nodes)]
    _, checker = simulated("fitgpp", jobs, nodes, SimulatedWorld(), p=str(p), min_run_s="0")
    assert max(checker.preempted.values(), default=0) <= p


@careful
@given(jobs=workloads(), nodes=NODES)
def test_fitgpp_as_in_the_paper_preempts_one_job_for_each_trial(jobs: list[SimJob], nodes: list[SimNode]) -> None:
    nodes = named(nodes)
    jobs = [job for job in jobs if could_run(job, nodes)]
    _, checker = simulated("fitgpp", jobs, nodes, SimulatedWorld(), fallback="wait", min_run_s="0")
    trials = sum(job.job_class is JobClass.TRIAL_AND_ERROR for job in jobs)
    assert sum(checker.preempted.values()) <= trials
