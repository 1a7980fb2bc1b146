"""The simulated world: what jobs do with the decisions of the cluster."""

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from ebbtide_core.cluster import InvariantError
from ebbtide_core.estimates.work import Speedup
from ebbtide_core.model.types import WHOLE, JobClass, NodeId
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.policy import Policy
from ebbtide_core.planning.resizing import shrunk
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.snapshot import Plan, Snapshot
from ebbtide_sim.engine import SimulatedWorld, Simulation
from ebbtide_sim.eventlog import EventLog
from ebbtide_sim.metrics import Metrics, Report
from ebbtide_sim.physics import Server, SharedServers
from ebbtide_sim.simulate import Scenario, simulate
from ebbtide_sim.sources import ClosedLoop, Recorded
from ebbtide_sim.workload import SimJob, Workload
from ebbtide_sim.workloads.bags import bags
from ebbtide_sim.workloads.fitgpp import fitgpp_jobs
from ebbtide_sim.workloads.nodes import SimNode

GIB = 2**30
TE = JobClass.TRIAL_AND_ERROR


def job(id: str, submit_s: float, runtime_s: float, gpus: int = 1, **more: Any) -> SimJob:
    return SimJob(id=id, submit_s=submit_s, runtime_s=runtime_s, gpus_min=gpus * WHOLE, gpus_max=gpus * WHOLE, **more)


def nodes(count: int = 1, gpus: int = 1) -> tuple[SimNode, ...]:
    return tuple(SimNode(name=f"n{i}", gpus=gpus, cpus=32.0, mem_bytes=256 * GIB) for i in range(count))


def run(
    jobs: Sequence[SimJob],
    where: Iterable[SimNode],
    policy: str = "fifo",
    world: SimulatedWorld | None = None,
    **options: str,
) -> tuple[Report, list[dict[str, Any]]]:
    log = io.StringIO()
    scenario = Scenario(
        workload=Workload("test", jobs),
        nodes=tuple(where),
        policy=policy,
        options=options,
        world=world or SimulatedWorld(),
    )
    report = simulate(scenario, events=log)
    return report, [json.loads(line) for line in log.getvalue().splitlines()]


def times(log: list[dict[str, Any]], name: str) -> list[tuple[float, str]]:
    return [(line["t"], line["event"]) for line in log if line["job"] == name]


class TestReservations:
    def test_a_job_is_ended_when_its_time_is_up(self) -> None:
        report, log = run([job("a", 0, 10, time_limit_s=4.0), job("b", 0, 4, time_limit_s=4.0)], nodes())
        assert times(log, "a")[-1][0] == 4
        assert times(log, "b") == [(0, "submit"), (4, "start"), (8, "finish")]
        assert (report.finished, report.jobs) == (1, 2)

    def test_a_job_reserves_by_what_its_script_took_and_goes_on_in_the_next_reservation(self) -> None:
        early = [job(f"e{n}", 0, 10, user="ann", script="train") for n in range(5)]
        late = job("late", 60, 15, user="ann", script="train", time_auto=True, grace_s=1.0)
        log = run([*early, late], nodes(), world=SimulatedWorld(restart_cost_s=2.0))[1]
        assert times(log, "late") == [
            (60, "submit"), (60, "start"), (71, "suspend"), (71, "resume"), (78, "finish")
        ]  # fmt: skip


class TestTime:
    def test_jobs_run_one_after_the_other_on_one_gpu(self) -> None:
        report, log = run([job("a", 0, 10), job("b", 2, 5)], nodes())
        assert times(log, "a") == [(0, "submit"), (0, "start"), (10, "finish")]
        assert times(log, "b") == [(2, "submit"), (10, "start"), (15, "finish")]
        assert (report.makespan_s, report.utilisation, report.busy) == (15, 1.0, 1.0)

    def test_fairness_goes_by_the_mean_of_each_user(self) -> None:
        alone = [job("a", 0, 10, user="ann"), job("c", 20, 10, user="ann")]
        report, _ = run([alone[0], job("b", 0, 10, user="bob"), alone[1]], nodes())
        assert report.fairness == pytest.approx({"slowdown": 9 / (2 * 5), "stretch": 9 / (2 * 5)})  # of 1 and 2
        assert run(alone, nodes())[0].fairness is None

    def test_a_preempted_job_waits_through_its_grace_period_and_restart(self) -> None:
        jobs = [job("be", 0, 100, grace_s=7), job("te", 10, 20, job_class=TE)]
        report, log = run(jobs, nodes(), "fitgpp", SimulatedWorld(restart_cost_s=3), min_run_s="0")
        assert times(log, "be") == [
            (0, "submit"), (0, "start"), (10, "preempt"), (17, "suspend"), (37, "resume"), (130, "finish"),
        ]  # fmt: skip
        assert times(log, "te") == [(10, "submit"), (17, "start"), (37, "finish")]
        assert report.slowdown["be"]["p50"] == pytest.approx(1.3)  # 130 s for 100 s of computing
        assert report.slowdown["te"]["p50"] == pytest.approx(27 / 20)
        assert report.wasted_gpu_s == pytest.approx(7 + 3)
        assert report.reschedule_interval_s["p50"] == 27
        assert (report.preemptions, report.preempted_jobs, report.preemptions_per_job_max) == (1, 1, 1)

    def test_a_job_that_saves_sooner_than_its_grace_period_leaves_sooner_but_scores_by_its_grace_period(self) -> None:
        slow = job("slow", 0, 100, grace_s=20, save_s=3)
        fast = job("fast", 0, 100, grace_s=10, save_s=9)
        _, log = run([slow, fast, job("te", 10, 20, job_class=TE)], nodes(gpus=2), "fitgpp", min_run_s="0")
        assert times(log, "fast")[2:4] == [(10, "preempt"), (19, "suspend")]
        assert times(log, "slow")[-1] == (100, "finish")

    def test_what_cannot_resume_starts_again_from_nothing(self) -> None:
        jobs = [job("be", 0, 100, grace_s=7), job("te", 10, 20, job_class=TE)]
        report, log = run(jobs, nodes(), "fitgpp", SimulatedWorld(resumable=False), min_run_s="0")
        assert times(log, "be")[2:] == [(10, "preempt"), (10, "suspend"), (30, "resume"), (130, "finish")]
        assert report.wasted_gpu_s == 10

    def test_a_job_on_more_gpus_is_as_fast_as_the_curve_says(self) -> None:
        halved = Speedup(((WHOLE, 1.0), (2 * WHOLE, 1.5)))
        elastic = SimJob(id="e", submit_s=0, runtime_s=30, gpus_min=WHOLE, gpus_max=2 * WHOLE)
        _, log = run([elastic], nodes(gpus=2), world=SimulatedWorld(speedup=halved))
        assert times(log, "e")[-1] == (20, "finish")

    def test_a_rigid_jobs_run_time_is_that_at_its_own_size(self) -> None:
        halved = Speedup(((WHOLE, 1.0), (2 * WHOLE, 1.5)))
        report, log = run([job("r", 0, 30, 2)], nodes(gpus=2), world=SimulatedWorld(speedup=halved))
        assert times(log, "r")[-1] == (30, "finish")
        assert report.stretch["mean"] == pytest.approx(30 / 45)

    def test_a_gang_larger_than_a_node_takes_several_and_smaller_jobs_one(self) -> None:
        _, log = run([job("small", 0, 5, 2), job("gang", 0, 5, 6)], nodes(3, 4))
        starts = {line["job"]: line for line in log if line["event"] == "start"}
        assert len({node for node, _, _ in starts["small"]["gpus"]}) == 1
        assert len(starts["gang"]["gpus"]) == 6
        assert starts["gang"]["t"] == 0


class TestWhatCannotBe:
    def test_a_job_that_no_cluster_of_this_size_can_run_is_dropped_and_counted(self) -> None:
        report, log = run([job("big", 0, 5, 9), job("ok", 0, 5)], nodes(2, 4))
        assert (report.jobs, report.finished, report.dropped) == (2, 1, 1)
        assert times(log, "big") == [(0, "submit"), (0, "drop")]

    def test_a_job_that_the_policy_gives_up_is_dropped(self) -> None:
        low = job("low", 0, 100, priority=50)
        high = [job(f"h{i}", 10 + 20 * i, 5, priority=10) for i in range(5)]
        report, log = run([low, *high], nodes(), "pri-limit", limit="3", min_run_s="0")
        assert times(log, "low")[-2:] == [(50, "drop"), (50, "suspend")] or "drop" in {e for _, e in times(log, "low")}
        assert (report.finished, report.dropped) == (5, 1)

    def test_a_policy_that_never_comes_to_rest_is_named_instead_of_waited_for(self) -> None:
        elastic = replace(job("elastic", 0, 100), gpus_max=2 * WHOLE)
        with pytest.raises(InvariantError, match=r"Undecided.* never comes to rest at 0 s"):
            Simulation(nodes(1, 2), Recorded([elastic]), Undecided()).run()


class Undecided(Policy):
    """Starts jobs, and gives whoever runs the other of one and two GPUs."""

    def plan(self, snapshot: Snapshot) -> Plan:
        draft = Draft(snapshot)
        for waiting in snapshot.queue:
            draft.admit(waiting)
        for running in snapshot.elastic():
            if running.running and (live := running.planned) is not None:
                resize = draft.trial.grown if live.share == WHOLE else partial(shrunk, draft.trial)
                draft.place(running, resize(running, live, 3 * WHOLE - live.share), "why not", claim=True)
        return draft.plan()


class TestSources:
    def test_a_closed_loop_holds_the_load_and_replays_as_it_was(self) -> None:
        source = ClosedLoop(fitgpp_jobs(400, 3), nodes(4, 8), 2.0)
        metrics = Metrics()
        world = Simulation(nodes(4, 8), source, create_policy("fifo", {}), [metrics])
        world.run()
        first = metrics.report("fifo", 32, {}, 0.0, world.events)
        assert len(source.recorded) == 400
        again, _ = run(source.recorded, nodes(4, 8))
        assert (again.makespan_s, again.slowdown) == (first.makespan_s, first.slowdown)

    def test_at_any_time_the_closed_loop_offers_just_above_its_load(self) -> None:
        source = ClosedLoop(fitgpp_jobs(300, 1), nodes(2, 8), 2.0)
        loads = []

        class Watch(Metrics):
            def recorded(self, now: float, event: Any) -> None:
                loads.append(source._current())
                super().recorded(now, event)

        Simulation(nodes(2, 8), source, create_policy("fifo", {}), [Watch()]).run()
        steady = loads[100:-600]
        assert steady
        assert min(steady) > 1.0
        assert max(steady) < 3.0


@pytest.mark.parametrize("policy", ["fitgpp", "rand", "hybrid"])
def test_the_same_seed_writes_the_same_log_byte_for_byte(policy: str) -> None:
    def log() -> str:
        out = io.StringIO()
        world = Simulation(
            nodes(2, 4), Recorded(bags(120, 5).jobs), create_policy(policy, {}), [EventLog(out)], SimulatedWorld()
        )
        world.run()
        return out.getvalue()

    assert log() == log() != ""


def test_tasks_of_a_server_share_its_cores_and_none_has_more_than_one() -> None:
    """Against stepping through time in small steps (seed 004 §2.2)."""
    demands = [(0.0, 10.0), (1.0, 4.0), (2.0, 6.0), (2.5, 1.0), (30.0, 2.0)]
    capacity, cores = 2.0, 2
    jobs = [job(str(i), at, work) for i, (at, work) in enumerate(demands)]
    out = io.StringIO()
    physics = SharedServers({NodeId("n0"): Server(capacity, cores)})
    Simulation(nodes(1, 8), Recorded(jobs), create_policy("fifo", {}), [EventLog(out)], SimulatedWorld(), physics).run()
    ends = {
        line["job"]: line["t"] for line in map(json.loads, out.getvalue().splitlines()) if line["event"] == "finish"
    }
    assert ends == pytest.approx(stepped(demands, capacity, cores), abs=0.02)


def stepped(demands: list[tuple[float, float]], capacity: float, cores: int, step: float = 0.001) -> dict[str, float]:
    left = dict(enumerate(work for _, work in demands))
    ends: dict[str, float] = {}
    now = 0.0
    while left:
        running = [i for i in left if demands[i][0] <= now]
        for i in running:
            left[i] -= step * capacity / max(cores, len(running))
            if left[i] <= 0:
                ends[str(i)] = now + step
                del left[i]
        now += step
    return ends
