"""FitGpp's study, small: that it compares like with like, and reports what it found."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ebbtide_sim.experiments import fitgpp
from ebbtide_sim.metrics import Report


@pytest.fixture(scope="module")
def runs() -> dict[str, Report]:
    return fitgpp.compare(1500, 0, fitgpp.demand_of(((4, 4), (4, 6), 1.0)))


def test_all_policies_finish_the_same_jobs(runs: dict[str, Report]) -> None:
    assert set(runs) == {"fifo", "fitgpp", "lrtp", "rand"}
    assert {(report.jobs, report.finished) for report in runs.values()} == {(1500, 1500)}


def test_only_fifo_preempts_nobody_and_fitgpp_nobody_twice(runs: dict[str, Report]) -> None:
    assert runs["fifo"].preemptions == 0
    assert min(runs[name].preemptions for name in ("fitgpp", "lrtp", "rand")) > 0
    assert runs["fitgpp"].preemptions_per_job_max == 1


def test_trial_jobs_gain_most_of_what_fifo_made_them_wait(runs: dict[str, Report]) -> None:
    fifo, ours = (runs[name].slowdown["te"]["p95"] or 0 for name in ("fifo", "fitgpp"))
    assert ours < 0.1 * fifo


def test_every_point_of_the_sweep_is_different() -> None:
    assert len({fitgpp.demand_of(point) for point in fitgpp.SWEEP}) == len(fitgpp.SWEEP) == 24


def test_the_report_has_the_papers_figures_beside_ours_and_draws_its_figure(
    runs: dict[str, Report], tmp_path: Path
) -> None:
    reports = {"fifo": runs["fifo"], "fitgpp": runs["fitgpp"], "fitgpp (multi)": runs["fitgpp"], "lrtp": runs["lrtp"]}
    reports |= {policy.label: runs["rand"] for policy in fitgpp.RANDS}
    report = fitgpp._report(reports, fitgpp.SWEEP[:1], [runs], "small")
    rows = {row["policy"]: row for row in report.rows}
    assert rows["fitgpp"]["paper_te_p95_%"] == -96.6
    assert rows["fifo"]["te_p95_change_%"] == 0
    assert len(report.checks) == 5
    assert json.loads(json.dumps(report.to_json()))["sweep"][0]["te_gpus"] == fitgpp.SWEEP[0][0][0]
    report.draw(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_check_that_does_not_hold_says_so(runs: dict[str, Report]) -> None:
    worse = replace(runs["fitgpp"], slowdown=runs["fifo"].slowdown, preemptions=10**6)
    reports = {"fifo": runs["fifo"], "fitgpp": worse, "fitgpp (multi)": worse, "lrtp": runs["lrtp"]}
    reports |= {policy.label: runs["rand"] for policy in fitgpp.RANDS}
    checks = {check.name: check for check in fitgpp._report(reports, (), [], "small").checks}
    assert not checks["TE p95 slowdown is at least 90% below FIFO's"].held
    assert not checks["fewer preemptions than under LRTP and RAND"].held
