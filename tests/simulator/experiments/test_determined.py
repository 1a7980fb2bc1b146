"""Determined's worked examples: that the policies do what they say, and that a report shows where they do not."""

import json
from pathlib import Path

import pytest
from ebbtide_core.model.types import WHOLE
from ebbtide_sim.experiments import ExperimentReport, determined
from ebbtide_sim.experiments.determined import SEVEN_STEPS, ExpectedSizes, PolicyScenario, play
from ebbtide_sim.workload import SimJob


@pytest.fixture(scope="module")
def report() -> ExperimentReport:
    return determined.run(False, 0, 1, lambda text, part: None)


def job(name: str, at: float, gpus: int, runs_s: float, priority: int = 42) -> SimJob:
    size = gpus * WHOLE
    return SimJob(id=name, submit_s=at, runtime_s=runs_s, bag=name, gpus_min=size, gpus_max=size, priority=priority)


def test_the_seven_steps_come_in_order_and_all_of_them() -> None:
    times = [step.time for step in SEVEN_STEPS.steps]
    assert times == sorted(times)
    assert {step.what[:2] for step in SEVEN_STEPS.steps} == {f"{number}." for number in range(1, 8)}


def test_every_example_comes_out_as_the_seed_says(report: ExperimentReport) -> None:
    assert [check for check in report.checks if not check.held] == []
    assert len(report.checks) == 9 + 5 + 3


def test_holdings_are_who_had_how_many_gpus_when() -> None:
    jobs = (job("a", 0, 8, 100, 2), job("b", 40, 4, 10, 1))
    holdings = play(PolicyScenario("two", "pri", (("min_run_s", "0"),), jobs, ()))
    assert [holdings.at(time) for time in (0, 39, 40, 49, 50, 109, 110)] == [
        {"a": 8}, {"a": 8}, {"b": 4}, {"b": 4}, {"a": 8}, {"a": 8}, {},
    ]  # fmt: skip
    assert holdings.first("b") == 40
    assert [holdings.unfinished("a", time) for time in (0, 45, 109, 110)] == [1, 1, 1, 0]
    assert holdings.lost_s == 0


def test_a_step_that_comes_out_otherwise_is_shown() -> None:
    jobs = (job("a", 0, 8, 100), job("b", 0, 8, 100))
    wrong = PolicyScenario("wrong", "fifo", (), jobs, (ExpectedSizes(0, "b is first", {"b": 8}),))
    played = [(scenario, play(scenario)) for scenario in (wrong, SEVEN_STEPS, determined.WITHOUT_PREEMPTION)]
    shown = determined._report(played)
    assert (shown.checks[0].held, shown.checks[0].detail) == (False, "a 8")
    assert (shown.rows[0]["gpus"], shown.rows[0]["expected_gpus"]) == ("a 8", "b 8")


def test_the_report_is_json_and_draws_who_held_the_gpus(report: ExperimentReport, tmp_path: Path) -> None:
    assert json.loads(json.dumps(report.to_json()))["experiment"] == "determined"
    report.draw(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
