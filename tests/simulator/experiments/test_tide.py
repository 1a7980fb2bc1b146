"""The experiment that holds tide against the papers: what is declared, how seeds are summed up, what the checks say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ebbtide_core.model.types import WHOLE
from ebbtide_sim.experiments import tide
from ebbtide_sim.experiments.equipartition import cases
from ebbtide_sim.experiments.tide import (
    FACTOR,
    RESTARTS_S,
    Ablation,
    Ground,
    Knowledge,
    Measures,
    TideCase,
    TideExtent,
    ablated,
    declared,
    report_of,
    simulate_case,
    spread_of,
)
from ebbtide_sim.workload import SimJob, Workload

SMALL = TideExtent(False, 7)


def results(**of_tide: float) -> dict[TideCase, Measures]:
    """Results of all cases, in which every measure is 1 except those that are given, which are of tide."""
    names = (
        *("flow_s", "stretch_max", "te_p50", "te_p95", "be_p50", "be_p95", "preemptions", "preempted_jobs", "resizes"),
        *("urgent_s", "class_0_s", "lost_work_s", "jain_slowdown", "jain_stretch"),
    )
    return {
        case: {name: of_tide.get(name, 1.0) if case.policy == "tide" else 1.0 for name in names}
        for case in SMALL.cases()
    }


def test_nobody_declares_a_run_time_but_for_half_of_the_jobs_a_wrong_one() -> None:
    jobs = [SimJob(id=str(id), submit_s=0.0, runtime_s=100.0, requested_s=100.0) for id in range(400)]
    case = TideCase(Ground.FITGPP, "tide")
    assert {job.requested_s for job in declared(Workload("x", jobs), case).jobs} == {None}
    wrong = declared(Workload("x", jobs), replace(case, knowledge=Knowledge.WRONG)).jobs
    says = [job.requested_s for job in wrong]
    assert {*says} == {None, 100.0 * FACTOR, 100.0 / FACTOR}
    assert 150 < says.count(None) < 250


def test_every_ground_has_its_rivals_and_every_restart_cost() -> None:
    todo = list(SMALL.cases())
    assert len(todo) == len(set(todo))
    assert {case.seed for case in todo if case.ground is Ground.FITGPP} == {7, 8, 9}
    whole = [case for case in todo if case.without is Ablation.NOTHING]
    bags = {(case.policy, case.restart_s) for case in whole if case.ground is Ground.BAGS}
    assert bags == {
        (policy, cost)
        for policy in ("malleable-equipartition", "malleable-proportional", "fair-share", "tide")
        for cost in RESTARTS_S
    }
    assert {(case.policy, case.resumable) for case in todo if case.ground is Ground.HYBRID} == {
        (policy, resumable) for policy in ("pri", "hybrid", "tide") for resumable in (True, False)
    }


def test_what_is_taken_from_tide_is_taken_from_its_tasks() -> None:
    task = SimJob(id="7", submit_s=0.0, runtime_s=100.0, user="ada", gpus_min=WHOLE // 4, gpus_max=4 * WHOLE)

    def seen(without: Ablation) -> tuple[str, float, float]:
        [job] = ablated(Workload("x", [task]), without).jobs
        return job.user, job.gpus_min / WHOLE, job.gpus_max / WHOLE

    assert seen(Ablation.NOTHING) == ("ada", 0.25, 4)
    assert seen(Ablation.USERS) == ("user of 7", 0.25, 4)
    assert seen(Ablation.RESIZING) == ("ada", 1, 1)
    assert seen(Ablation.SHARING) == ("ada", 1, 4)
    assert {case.without for case in SMALL.cases() if case.ground is Ground.BAGS} == {*Ablation}


def test_an_interval_holds_the_mean_of_the_seeds() -> None:
    assert spread_of([{"x": 4.0}]) == {"x": (4.0, 0.0)}
    assert spread_of([{"x": 4.0}, {"x": 4.0, "jain": 1.0}]) == {"x": (4.0, 0.0), "jain": (1.0, 0.0)}
    middle, half = spread_of([{"x": 1.0}, {"x": 2.0}, {"x": 3.0}])["x"]
    assert (middle, round(half, 3)) == (2.0, 2.484)  # t(0.975, 2) = 4.303, over the root of three


def test_a_claim_holds_only_by_its_margin() -> None:
    good = report_of(results(flow_s=0.79, be_p95=0.5, preempted_jobs=0.5), "x")
    assert [check.name for check in good.checks if not check.held] == []
    less = {"be_p95": 0.51, "preempted_jobs": 0.5, "jain_slowdown": 0.99}
    worse = report_of(results(flow_s=0.81, te_p95=1.06, preemptions=1.1, **less), "x")
    missed = [check.name for check in worse.checks if not check.held]
    assert missed == [
        "fitgpp: trial-and-error jobs are hardly slower (p95)",
        "fitgpp: best-effort jobs are half as slow (p95)",
        *(
            f"bags: {cost:g} s per restart: {claim}"
            for cost in RESTARTS_S
            for claim in ("flow times a fifth shorter", "users' slowdowns are as alike")
        ),
        "hybrid: resumable: fewer evictions",
        "hybrid: not resumable: fewer evictions",
    ]


def test_the_report_is_json_and_draws_every_claim(tmp_path: Path) -> None:
    report = report_of(results(), "x")
    assert json.loads(json.dumps(report.to_json()))["experiment"] == "tide"
    assert {row["seeds"] for row in report.rows} == {1, 3}
    report.draw(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("knowledge", Knowledge)
def test_a_case_is_simulated_on_the_papers_workload(monkeypatch: pytest.MonkeyPatch, knowledge: Knowledge) -> None:
    monkeypatch.setattr(TideExtent, "fitgpp_jobs", 96)
    found = simulate_case(TideCase(Ground.FITGPP, "tide", 1, knowledge=knowledge), SMALL)
    assert found["flow_s"] > 0
    assert found["te_p95"] >= 1
    assert found["be_p50"] >= 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_case_can_be_simulated_and_every_claim_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TideExtent, "fitgpp_jobs", 96)
    monkeypatch.setattr(tide, "SMALLER", 120)
    monkeypatch.setattr(cases, "FEW_BAGS_TASKS", 60)
    monkeypatch.setattr(cases, "SMALL_TASKS", dict.fromkeys(cases.SMALL_TASKS, 60))
    cases.tasks.cache_clear()
    found = report_of({case: simulate_case(case, SMALL) for case in SMALL.cases()}, "small")
    cases.tasks.cache_clear()
    assert len(found.checks) == 6 + 4 * len(RESTARTS_S) + 2 * 2 + 2 * 4
    assert all(len(check.detail) > 10 for check in found.checks)
