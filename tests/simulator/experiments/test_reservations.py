"""Sets of jobs on the fly and by reservations, and what the report of the experiment has."""

import json
from pathlib import Path

import numpy as np
import pytest
from ebbtide_sim.experiments import ExperimentReport, reservations
from ebbtide_sim.reserving.distributions import parse_distribution
from ebbtide_sim.reserving.job_sets import (
    HISTORY,
    ON_THE_FLY,
    REGIMES,
    SAVE_S,
    JobSet,
    JobSetOutcome,
    Regime,
    RequestModel,
    draw_set,
    play,
    sequence,
)
from ebbtide_sim.workloads.nodes import SimNode

ONE_GPU = [SimNode(name="node", gpus=1)]
FOUR_GPUS = [SimNode(name="node", gpus=4)]
LAW = parse_distribution("uniform:500,1500")
KILLED = Regime("killed", "reservation", RequestModel.KILLED, HISTORY)
SAVED = Regime("checkpoint", "reservation", RequestModel.SAVED, HISTORY)


def jobs(*runs: float, gpus: tuple[int, ...] = (), earlier: tuple[float, ...] = (100.0,) * 5) -> JobSet:
    return JobSet(LAW, 1.0, runs, gpus or (1,) * len(runs), earlier)


def outcome(found: JobSetOutcome) -> tuple[float, float, float]:
    """Makespan, waste, starts."""
    return pytest.approx(found.makespan_s), pytest.approx(found.wasted_gpu_s), found.starts


class TestSets:
    def test_on_the_fly_a_job_runs_to_its_end_once(self) -> None:
        found = play(jobs(100, 300), ON_THE_FLY, ONE_GPU)
        assert outcome(found) == (400, 0, 1)
        assert found.mean_flow_s == pytest.approx((100 + 400) / 2)
        assert found.used_gpu_s == pytest.approx(400)

    def test_whoever_is_killed_starts_from_nothing_in_the_next_reservation_behind_the_others(self) -> None:
        found = play(jobs(150, 100), KILLED, ONE_GPU)  # reservations of 100, 200, 400
        assert outcome(found) == (100 + 100 + 150, 100, 1.5)
        assert found.mean_flow_s == pytest.approx((350 + 200) / 2)

    def test_whoever_checkpoints_pays_for_saving_and_going_on_and_loses_nothing_else(self) -> None:
        found = play(jobs(150, 100), SAVED, ONE_GPU)
        assert outcome(found) == (250 + 2 * SAVE_S, 2 * SAVE_S, 1.5)
        assert found.mean_flow_s == pytest.approx((250 + 2 * SAVE_S + 200 + SAVE_S) / 2)

    def test_under_fifo_a_job_keeps_its_place_and_goes_on_at_once(self) -> None:
        found = play(jobs(150, 100), Regime("checkpoint", "fifo", RequestModel.SAVED, HISTORY), ONE_GPU)
        assert found.mean_flow_s == pytest.approx((150 + 2 * SAVE_S + 250 + 2 * SAVE_S) / 2)

    def test_what_is_asked_for_lets_small_jobs_pass_a_large_one_that_has_to_wait(self) -> None:
        mixed = jobs(100, 100, 100, gpus=(2, 4, 2))
        assert play(mixed, ON_THE_FLY, FOUR_GPUS).makespan_s == pytest.approx(300)
        assert play(mixed, Regime("known", "reservation", RequestModel.KNOWN), FOUR_GPUS).makespan_s == pytest.approx(
            200
        )

    def test_nobody_is_killed_who_asks_for_the_longest_run_time_or_knows_it(self) -> None:
        drawn = draw_set(parse_distribution("weibull:1,0.5"), 30, (1, 2, 4), np.random.default_rng(1))
        for asks in (RequestModel.KNOWN, RequestModel.LONGEST):
            found = play(drawn, Regime("", "reservation", asks), FOUR_GPUS)
            assert (found.wasted_gpu_s, found.starts) == (0, 1)

    @pytest.mark.parametrize("regime", REGIMES, ids=lambda regime: f"{regime.name} {regime.policy} {regime.strategy}")
    def test_every_job_ends_and_what_is_used_is_work_or_waste(self, regime: Regime) -> None:
        drawn = draw_set(parse_distribution("exponential:1"), 30, (1, 2, 4), np.random.default_rng(2))
        found = play(drawn, regime, FOUR_GPUS)
        work = sum(run * size for run, size in zip(drawn.runs, drawn.gpus, strict=True))
        assert found.used_gpu_s - found.wasted_gpu_s == pytest.approx(work)
        assert found.makespan_s * 4 >= found.used_gpu_s * (1 - 1e-9)

    @pytest.mark.parametrize("strategy", [HISTORY, "equal-probability", "mean-doubling"])
    def test_reservations_grow_until_all_jobs_fit(self, strategy: str) -> None:
        drawn = draw_set(parse_distribution("exponential:1"), 100, (1,), np.random.default_rng(3))
        found = sequence(drawn, strategy)
        assert found == sorted(set(found))
        assert found[-1] >= max(drawn.runs)
        assert len(found) == 1 or found[-2] < max(drawn.runs)

    def test_run_times_have_the_mean_that_is_asked_for(self) -> None:
        drawn = draw_set(parse_distribution("gamma:2,2"), 5000, (1, 8), np.random.default_rng(4))
        assert np.mean(drawn.runs) == pytest.approx(3600, rel=0.05)
        assert set(drawn.gpus) == {1, 8}
        assert len(drawn.earlier) == 50


@pytest.fixture(scope="module")
def report() -> ExperimentReport:
    """The whole experiment on two laws, one repeat, in this process."""
    patch = pytest.MonkeyPatch()
    law = "uniform:10,20"
    patch.setattr(reservations, "PAPER", {law: reservations.PAPER[law]})
    patch.setattr(reservations, "FACTORS", (1.0, 2.0))
    patch.setattr(reservations, "SETS", ((law, (1,)), (law, (1, 2, 4, 8))))
    patch.setattr(reservations, "SET_JOBS", 40)
    patch.setattr(reservations, "run_all", lambda runs, jobs, progress: [run.call() for run in runs])
    try:
        return reservations.run(False, 0, 1, lambda text, part: None)
    finally:
        patch.undo()


def test_the_report_has_all_parts_of_the_document(report: ExperimentReport) -> None:
    facts = json.loads(json.dumps(report.to_json()))
    assert {row["strategy"] for row in facts["rows"]} == {row["strategy"] for row in facts["realistic"]}
    assert len(facts["realistic"]) == 4 * 7
    assert len(facts["checkpointed"]) == len(reservations.SAVES)
    assert len(facts["sets"]) == 2 * len(REGIMES)
    for row in facts["rows"]:
        assert row["break_even_discount"] == pytest.approx(1 - 1 / row["exact"])


def test_people_see_them_all_too(report: ExperimentReport) -> None:
    realistic, checkpoints, sets = report.tables.values()
    assert [(row["mean_factor"], row["deviation_factor"]) for row in realistic] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all("brute-force" in row for row in realistic)
    assert checkpoints[0]["save 0"] == pytest.approx(1, abs=1e-6)
    assert sets[0]["makespan_over"] == 1


def test_a_free_checkpoint_makes_a_job_cost_what_it_costs_one_who_knows(report: ExperimentReport) -> None:
    costs = [row["with_checkpoints"] for row in report.details["checkpointed"]]
    assert costs == sorted(costs)
    assert costs[-1] <= report.details["checkpointed"][0]["without"] * (1 + 1e-9)


def test_the_checks_on_sets_can_fail() -> None:
    measures = {"makespan_h": 1.0, "wasted_gpu_h": 1.0, "makespan_over": 1.0, "flow_over": 1.0, "distribution": "x"}
    rows = [
        {**measures, "regime": regime, "policy": "reservation", "gpus": gpus}
        for regime in ("killed", "checkpoint")
        for gpus in ("1", "1-8")
    ]
    assert [check.held for check in reservations._set_checks(rows)] == [False, False, False]


def test_the_figure_is_drawn(report: ExperimentReport, tmp_path: Path) -> None:
    report.draw(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
