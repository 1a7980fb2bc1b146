"""HYBRID's study, small: that it compares like with like, measures what the paper measures, and says what differs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ebbtide_core.model.types import JobClass
from ebbtide_sim.experiments import hybrid
from ebbtide_sim.experiments.hybrid import HybridCase, HybridResult, cluster, measure, simulate_case
from ebbtide_sim.metrics import Tally
from ebbtide_sim.workload import SimJob

pytestmark = pytest.mark.timeout(600)  # the runs that its tests share take a minute of computing

SMALL = 40


@pytest.fixture(scope="module")
def runs() -> dict[str, HybridResult]:
    todo = [case for case in hybrid.cases(SMALL, 0) if " " not in case.label or "resumable" in case.label]
    return {case.label: simulate_case(case) for case in todo}


def tally(kind: int, flow_s: float, preemptions: int = 0, **more: object) -> Tally:
    job = SimJob(id="1", submit_s=10.0, runtime_s=1.0, job_class=JobClass.BEST_EFFORT, priority=12 - kind)
    result = Tally(job, 1.0)
    result.ended, result.preemptions = 10.0 + flow_s, preemptions
    for name, value in more.items():
        setattr(result, name, value)
    return result


def test_the_whole_cluster_is_table_1_and_a_smaller_one_has_every_type() -> None:
    assert (len(cluster(1)), sum(node.gpus for node in cluster(1))) == (125, 3072)
    assert {node.name[0] for node in cluster(SMALL)} == set("abcde")
    assert len(cluster(SMALL)) < 10


def test_sticky_slots_are_200_of_3072_and_as_large_a_share_of_a_smaller_cluster() -> None:
    full = {case.label: case.sticky for case in hybrid.cases(1, 0)}
    assert full == {
        "pri": 0, "pri5": 0, "hybrid": 200, "pri (resumable)": 0, "pri5 (resumable)": 0, "hybrid (resumable)": 200,
        "hybrid 25": 25, "hybrid 50": 50, "hybrid 100": 100, "hybrid 400": 400, "hybrid 800": 800,
    }  # fmt: skip
    small = {case.label: case.sticky for case in hybrid.cases(5, 0)}
    slots = sum(node.gpus for node in cluster(5))
    assert small["hybrid"] == round(slots * 200 / 3072)


def test_the_calibrated_mix_is_of_all_classes_and_its_shares_are_all_tasks() -> None:
    assert [kind.priority_class for kind in hybrid.CALIBRATED.mix] == list(range(12))
    assert sum(kind.share for kind in hybrid.CALIBRATED.mix) == pytest.approx(1.0)
    assert hybrid.CALIBRATED.tasks == 68_000


def test_every_policy_gets_the_same_tasks_and_finishes_those_it_does_not_drop(runs: dict[str, HybridResult]) -> None:
    assert len({run.tasks for run in runs.values()}) == 1
    assert all(run.finished + run.drops == run.tasks for run in runs.values())
    assert {label for label, run in runs.items() if run.drops} <= {"pri5", "pri5 (resumable)"}


def test_a_limit_of_five_bounds_evictions(runs: dict[str, HybridResult]) -> None:
    assert runs["pri"].max_pe > 4
    assert runs["pri5"].max_pe <= 4


def test_only_hybrid_has_sticky_slots(runs: dict[str, HybridResult]) -> None:
    assert runs["pri"].sticky_share == runs["pri5"].sticky_share == 0
    assert runs["hybrid"].sticky_share > 200 / 3072


def test_sticky_slots_save_evictions_and_waste(runs: dict[str, HybridResult]) -> None:
    assert runs["hybrid"].ne < runs["pri"].ne
    assert runs["hybrid"].we_s < runs["pri"].we_s


def test_nothing_is_wasted_when_work_survives(runs: dict[str, HybridResult]) -> None:
    assert {run.we_s for label, run in runs.items() if "resumable" in label} == {0.0}
    assert runs["pri"].we_s > 0


def test_the_same_seed_gives_the_same_and_another_one_does_not(runs: dict[str, HybridResult]) -> None:
    case = HybridCase("pri", "pri", small=SMALL)
    assert simulate_case(case) == runs["pri"]
    assert simulate_case(replace(case, seed=1)) != runs["pri"]


def test_responses_are_from_first_arrival_by_class_and_by_eviction() -> None:
    result = measure(
        [
            tally(0, 100.0, 2, lost_work=5.0),
            tally(0, 300.0, 1, sticky=True),
            tally(0, 50.0),
            tally(9, 7.0, 1),
            tally(4, 1000.0, sticky=True),
        ]
    )
    assert (result.r0_ev, result.r0_nev, result.r9) == (200.0, 50.0, 7.0)
    assert (result.ne, result.max_pe, result.mean_pe, result.we_s) == (4, 2, pytest.approx(4 / 3), 5.0)
    assert result.sticky_of == {0: 1, 4: 1}
    assert (result.sticky_share, result.sticky_low) == (0.4, 1.0)


def test_a_dropped_task_counts_for_evictions_and_waste_but_not_for_the_most_evictions_of_one() -> None:
    dropped = tally(0, 0.0, 5, dropped=True, lost_work=9.0)
    dropped.ended = None
    result = measure([dropped, tally(0, 10.0, 4)])
    assert (result.tasks, result.finished, result.drops) == (2, 1, 1)
    assert (result.ne, result.max_pe, result.mean_pe, result.we_s) == (9, 4, 4.5, 9.0)


def test_the_report_has_the_papers_figures_beside_ours_and_draws_the_figure(
    runs: dict[str, HybridResult], tmp_path: Path
) -> None:
    report = hybrid._report(*table(runs))
    rows = {row["policy"]: row for row in report.rows}
    assert rows["pri"]["paper_ne_per_task"] == pytest.approx(0.125, abs=0.001)
    assert rows["hybrid"]["paper_we_per_task"] == pytest.approx(0.307, abs=0.001)
    assert rows["hybrid (resumable)"]["paper_max_pe"] is None
    assert json.loads(json.dumps(report.to_json()))["experiment"] == "hybrid"
    report.draw(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure.png").stat().st_size < 200_000


def test_sign_and_size_are_checked_one_by_one(runs: dict[str, HybridResult]) -> None:
    def held(ne: int) -> tuple[bool, bool]:
        results = runs | {"hybrid": replace(runs["hybrid"], ne=ne)}
        checks = {check.name: check.held for check in hybrid._report(*table(results)).checks}
        return checks["HYBRID: fewer evictions"], checks["HYBRID: fewer evictions, by as much as in the paper"]

    pri = runs["pri"].ne
    assert held(round(0.15 * pri)) == (True, True)
    assert held(round(0.7 * pri)) == (True, False)
    assert held(round(1.1 * pri)) == (False, False)


def table(runs: dict[str, HybridResult]) -> tuple[dict[str, HybridCase], dict[str, HybridResult]]:
    """All cases, those that were not run standing in as HYBRID's."""
    todo = {case.label: case for case in hybrid.cases(SMALL, 0)}
    return todo, {label: runs.get(label, runs["hybrid"]) for label in todo}
