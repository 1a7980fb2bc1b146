"""The study of moldable and malleable scheduling, small: like is compared with like, and what came out is reported."""

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ebbtide_core.model.types import WHOLE
from ebbtide_sim.experiments.equipartition import simulate_all, sizes_of
from ebbtide_sim.experiments.equipartition.cases import (
    CPUS,
    FCFS,
    GPU_MEM,
    HPC2N_FILE,
    HPC2N_SIZES,
    LIVE,
    MALLEABLE,
    MOLDABLE,
    PHILLY_FILE,
    POLICIES,
    TYPICAL_MEM,
    Arrival,
    EquipartitionCase,
    Extent,
    WorkloadPart,
    all_cases,
    extent,
    gpu_sizes,
    like_hpc2n,
    load,
    philly_tasks,
    run_case,
    tasks,
    unshared,
)
from ebbtide_sim.experiments.equipartition.checks import checks
from ebbtide_sim.experiments.equipartition.figure import draw
from ebbtide_sim.experiments.equipartition.report import Results, assumptions, details, rows
from ebbtide_sim.workload import SimJob, Workload, WorkloadError

pytestmark = pytest.mark.timeout(600)  # the runs that its tests share take a minute of computing

GPUS = (2, 4, 8, 16, 32)
SIZES = {WorkloadPart.HPC2N: HPC2N_SIZES, WorkloadPart.PHILLY: GPUS, WorkloadPart.BAGS: GPUS}
SMALL_SIZES = {WorkloadPart.LIKE_HPC2N: HPC2N_SIZES, WorkloadPart.FEW_BAGS: GPUS}


@pytest.fixture(scope="module")
def within(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Extent]:
    """Small traces in the formats of the real ones."""
    folder, rng = tmp_path_factory.mktemp("traces"), random.Random(7)
    swf = [
        f"{i} {400 * i} 60 {rng.randrange(1, 9000)} {rng.choice((1, 1, 2, 8, 60, 200))}"
        f" -1 -1 -1 -1 -1 1 {i % 5} 1 1 1 1 -1 -1"
        for i in range(1, 120)
    ]
    (folder / HPC2N_FILE).write_bytes(gzip.compress("".join(line + "\n" for line in swf).encode()))
    philly = ["timestamp,duration,num_gpus,gpu_time,cluster"] + [
        f"2017-10-0{1 + i // 50} {i // 4 % 24:02}:{i % 60:02}:00,{rng.randrange(100, 9000)},1,1,{'ab'[i % 5 == 0]}"
        for i in range(150)
    ]
    (folder / PHILLY_FILE).write_text("".join(line + "\n" for line in philly))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ebbtide_sim.experiments.equipartition.cases.PAPER_TASKS", 100)
        tasks.cache_clear()
        yield Extent(str(folder), seed=0)
        tasks.cache_clear()


@pytest.fixture(scope="module")
def results(within: Extent) -> Results:
    sizes = sizes_of(within)
    return Results(sizes, {case: run_case(case, within) for case in all_cases(sizes)})


# --- what is simulated ---


def test_the_full_size_needs_the_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EBB_TRACES", raising=False)
    with pytest.raises(
        WorkloadError, match=r"^EBB_TRACES: not set; --full needs the folder with HPC2N.* and pollux_phil"
    ):
        extent(full=True, seed=0)
    assert extent(full=False, seed=3) == Extent("", seed=3)


def test_the_default_size_needs_no_traces_and_says_what_only_the_full_one_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EBB_TRACES", "nowhere")
    small = extent(full=False, seed=0)
    sizes = sizes_of(small)
    assert list(sizes) == [WorkloadPart.LIKE_HPC2N, WorkloadPart.FEW_BAGS]
    assert any(line.startswith("only --full shows") for line in assumptions(Results(sizes, {}), small))


def test_the_stand_in_for_hpc2n_has_its_load_and_comes_in_bursts() -> None:
    jobs = like_hpc2n(400, seed=1).jobs
    assert load(jobs) == pytest.approx(0.6 * CPUS)
    assert sum(job.runtime_s for job in jobs) / len(jobs) == pytest.approx(17_000)
    assert {job.gpus_max // WHOLE for job in jobs} == {1, 2, 4, 8, 16, 32}
    assert 400 / 40 < len({job.submit_s for job in jobs}) < 400 / 10
    assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)


def test_of_philly_the_papers_kind_of_tasks_of_the_largest_cluster_are_taken() -> None:
    def job(id: str, user: str, gpus: int, runtime_s: float) -> SimJob:
        share = gpus * WHOLE
        return SimJob(id=id, submit_s=10.0 * int(id), runtime_s=runtime_s, user=user, gpus_min=share, gpus_max=share)

    jobs = [
        job("1", "a", 1, 900),
        job("2", "b", 1, 300),
        job("3", "b", 2, 900),
        job("4", "b", 1, 299),
        job("5", "b", 1, 400),
    ]
    taken = philly_tasks(Workload("philly", jobs)).jobs
    assert [(job.id, job.submit_s, job.gpu_mem_bytes) for job in taken] == [
        ("2", 0, TYPICAL_MEM),
        ("5", 30, TYPICAL_MEM),
    ]


def test_cluster_sizes_follow_from_the_load_as_the_papers_6_to_96() -> None:
    jobs = [SimJob(id=str(i), submit_s=100.0 * i, runtime_s=250.0) for i in range(41)]
    assert gpu_sizes(Workload("w", jobs)) == (3, 6, 12, 24, 48)


def test_who_needs_more_than_half_of_the_memory_shares_no_gpu() -> None:
    jobs = [
        SimJob(id=str(i), submit_s=0, runtime_s=1, gpus_min=WHOLE // 4, gpus_max=4 * WHOLE, gpu_mem_bytes=memory)
        for i, memory in enumerate((GPU_MEM // 2, GPU_MEM // 2 + 1))
    ]
    assert [job.gpus_min for job in unshared(Workload("w", jobs)).jobs] == [WHOLE // 4, WHOLE]


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        (SIZES, 4 * 6 + 2 + 4 * 6 + 2 * (5 * 6 + 3) + 2 * 5 * 2),
        (SMALL_SIZES, 4 * 6 + 6 + 5 * 6 + 3 + 2 * 5),
    ],
)
def test_every_case_is_different_and_every_change_has_something_to_compare_with(
    sizes: dict[WorkloadPart, tuple[int, ...]], count: int
) -> None:
    todo = all_cases(sizes)
    assert len(set(todo)) == len(todo) == count
    assert all(replace(case, policy=FCFS, restart_s=0.0) in todo for case in todo)


def test_all_policies_run_the_same_tasks_without_those_that_are_too_large(results: Results) -> None:
    for case, report in results.reports.items():
        assert report.finished == report.jobs == results.reports[replace(case, policy=FCFS, restart_s=0.0)].jobs
    by_size = {gpus: results.reports[EquipartitionCase(WorkloadPart.HPC2N, gpus, MOLDABLE)] for gpus in HPC2N_SIZES}
    assert by_size[120].skipped["more than 120 processors"] > 0
    assert by_size[120].jobs + by_size[120].skipped["more than 120 processors"] == by_size[240].jobs == 119


def test_by_start_times_nobody_waits_for_as_many_processors_as_there_were(results: Results) -> None:
    started, submitted = (
        results.reports[EquipartitionCase(WorkloadPart.HPC2N, CPUS, MOLDABLE, arrival)]
        for arrival in (Arrival.START, Arrival.SUBMIT)
    )
    assert started.flow_time_s == submitted.flow_time_s  # all of them once waited for a minute


def test_restarts_cost_the_unrestricted_policy_more_than_the_live_defaults(results: Results) -> None:
    gpus = results.sizes[WorkloadPart.PHILLY][2]
    free, costly, live = (
        results.reports[EquipartitionCase(WorkloadPart.PHILLY, gpus, policy, restart_s=cost)]
        for policy, cost in ((MALLEABLE, 0.0), (MALLEABLE, 300.0), (LIVE, 300.0))
    )
    assert free.flow_time_s["mean"] < live.flow_time_s["mean"] < costly.flow_time_s["mean"]


def test_cases_are_simulated_in_other_processes_and_every_end_is_told(within: Extent) -> None:
    todo = [EquipartitionCase(WorkloadPart.HPC2N, 120, policy) for policy in POLICIES[:2]]
    told = []
    reports = simulate_all(todo, within, 1, lambda words, done: told.append((words, done)))
    assert set(reports) == set(todo)
    assert {words for words, _ in told} == {
        "hpc2n, submit, 120 GPUs, rigid-fcfs",
        "hpc2n, submit, 120 GPUs, rigid-shortest",
    }
    assert [done for _, done in told] == [0.5, 1.0]


# --- what is reported ---


def test_rows_have_the_papers_figures_beside_ours(results: Results) -> None:
    table = {
        (row["workload"], row["arrival"], row["paper_gpus"], row["policy"], row["restart_s"]): row
        for row in rows(results)
    }
    saturated = table["bags", "submit", 6, "moldable-equipartition", 0]
    assert (saturated["paper_flow_%"], saturated["paper_max_stretch_%"]) == ("-96.7", None)
    assert table["philly", "submit", 12, "malleable-equipartition", 0]["paper_max_stretch_%"] == "-50.0…-62.5"
    assert table["philly", "submit", 12, "malleable-equipartition", 150]["paper_flow_%"] is None
    assert table["hpc2n", "submit", 240, "moldable-equipartition", 0]["paper_flow_%"] == "> 0"
    assert table["hpc2n", "offline", 480, "malleable-equipartition", 0]["paper_makespan_%"] == "≥ -2.7"
    assert table["hpc2n", "submit", 960, "rigid-fcfs", 0]["flow_%"] == 0
    assert saturated["job_flow_%"] is not None
    assert table["philly", "submit", 12, "rigid-fcfs", 0]["job_flow_%"] is None


def test_the_report_can_be_written_as_json_and_drawn(results: Results, within: Extent, tmp_path: Path) -> None:
    written = json.loads(json.dumps([rows(results), details(results), assumptions(results, within)]))
    assert len(written[0]) == len(written[1]["runs"]) == len(results.reports)
    assert any("left out: more than 120 processors" in line for line in written[2])
    draw(results, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_check_holds_or_not_by_what_came_out(results: Results) -> None:
    name = "philly: at 300 s per restart the live defaults do better than the paper's policy"
    gpus = results.sizes[WorkloadPart.PHILLY]

    def held(factor: float) -> bool:
        reports = dict(results.reports)
        for size in gpus:
            report = reports[EquipartitionCase(WorkloadPart.PHILLY, size, MOLDABLE)]
            flow = {"mean": (report.flow_time_s["mean"] or 0) * factor, "max": 1.0}
            reports[EquipartitionCase(WorkloadPart.PHILLY, size, LIVE, restart_s=300.0)] = replace(
                report, flow_time_s=flow
            )
        return next(check.held for check in checks(Results(results.sizes, reports)) if check.name == name)

    assert held(0.01)
    assert not held(1.1)


def test_every_workload_is_checked_and_every_check_says_what_came_out(results: Results) -> None:
    found = checks(results)
    assert {check.name.split(":")[0].split(",")[0] for check in found} == {"hpc2n", "philly", "bags"}
    assert all(check.detail for check in found)
    assert len({check.name for check in found}) == len(found)
