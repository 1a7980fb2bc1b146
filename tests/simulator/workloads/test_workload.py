"""Changes that are made to whole workloads, and speed-up curves."""

import pytest
from ebbtide_core.model.types import WHOLE
from ebbtide_sim.speedup import CURVES, DL_SUBLINEAR, LINEAR, curve
from ebbtide_sim.workload import SimJob, Workload, WorkloadError, elastic, offline
from ebbtide_sim.workloads.curve import load_speedup
from hypothesis import given, settings
from hypothesis import strategies as st


def workload(*jobs):
    return Workload("w", list(jobs))


def job(id="a", gpus=1, to=None, runtime_s=100.0, submit_s=0.0):
    low, high = int(gpus * WHOLE), int((gpus if to is None else to) * WHOLE)
    return SimJob(id=id, submit_s=submit_s, runtime_s=runtime_s, gpus_min=low, gpus_max=high)


def test_a_rigid_jobs_run_time_becomes_work_at_one_gpu():
    (after,) = elastic(workload(job(gpus=4)), WHOLE, 240 * WHOLE, LINEAR).jobs
    assert (after.gpus_min, after.gpus_max, after.runtime_s) == (WHOLE, 240 * WHOLE, 400.0)


def test_an_elastic_jobs_run_time_is_its_work_already():
    (after,) = elastic(workload(job(gpus=1, to=4)), WHOLE // 4, 8 * WHOLE, LINEAR).jobs
    assert (after.gpus_min, after.gpus_max, after.runtime_s) == (WHOLE // 4, 8 * WHOLE, 100.0)


def test_equal_bounds_make_a_job_rigid_with_the_run_time_of_that_count():
    (after,) = elastic(workload(job(gpus=1)), 4 * WHOLE, 4 * WHOLE, DL_SUBLINEAR).jobs
    assert after.runtime_s == pytest.approx(100 / 3.8)


@settings(deadline=None)
@given(gpus=st.integers(1, 32), runtime_s=st.floats(1, 1e6), name=st.sampled_from(sorted(CURVES)))
def test_a_job_made_elastic_still_takes_its_time_on_what_it_asked_for(gpus, runtime_s, name):
    speedup = CURVES[name]
    (after,) = elastic(workload(job(gpus=gpus, runtime_s=runtime_s)), WHOLE, 64 * WHOLE, speedup).jobs
    assert after.runtime_s / speedup(gpus * WHOLE) == pytest.approx(runtime_s)


def test_jobs_without_gpus_stay_as_they_are_and_are_noted():
    before = job(gpus=0)
    after = elastic(workload(before), WHOLE, 4 * WHOLE, LINEAR)
    assert after.jobs == [before]
    assert after.notes == ("1 jobs without GPUs stay as they are",)


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (4 * WHOLE, WHOLE, "4-1 is not a range of GPU counts"),
        (0, WHOLE, "an elastic job needs more than 0 GPUs at least"),
        (0, 0, "needs more than 0 GPUs at least"),
        (3, WHOLE, "neither a whole number of GPUs nor 1/n"),
        (WHOLE, 9999 * WHOLE, "9999 is more than the limit of 4096"),
    ],
)
def test_bounds_that_no_job_may_have_are_refused(low, high, message):
    with pytest.raises(WorkloadError, match=f"^--elastic: .*{message}"):
        elastic(workload(job()), low, high, LINEAR)


def test_offline_all_come_at_once_in_order():
    after = offline(workload(job("a", submit_s=1.0), job("b", submit_s=5.0)))
    assert [(each.id, each.submit_s) for each in after.jobs] == [("a", 0.0), ("b", 0.0)]


def test_a_curve_goes_straight_between_its_points_and_is_flat_after_the_last():
    speedup = curve([(WHOLE // 2, 0.8), (WHOLE, 1.0), (4 * WHOLE, 3.0)])
    speeds = [speedup(parts) for parts in (WHOLE // 4, WHOLE // 2, 3 * WHOLE // 4, WHOLE, 2 * WHOLE, 9 * WHOLE)]
    assert speeds == pytest.approx([0.4, 0.8, 0.9, 1.0, 1 + 2 / 3, 3.0])


def test_a_curve_is_read_from_a_file(file):
    speedup = load_speedup(str(file("speedup,gpus", "0.6,1/4", "1,1", "1.9,2")))
    assert speedup == curve([(WHOLE // 4, 0.6), (WHOLE, 1.0), (2 * WHOLE, 1.9)])
    assert load_speedup("linear") is LINEAR


@pytest.mark.parametrize("points", [[], [(WHOLE, 1.0), (WHOLE, 1.0)], [(WHOLE, 1.0), (2 * WHOLE, 0.9)], [(WHOLE, 2.0)]])
def test_what_is_no_curve_is_refused(points):
    with pytest.raises(ValueError, match="GPU"):
        curve(points)


@pytest.mark.parametrize("name", sorted(CURVES))
def test_every_built_in_curve_never_falls_and_n_jobs_on_a_gpu_are_no_slower_than_1_nth(name):
    """Seed 001, section II-B: sublinear, non-decreasing, and each of n tasks on one GPU at least as fast as 1/n."""
    speedup = CURVES[name]
    shares = [WHOLE // n for n in range(16, 0, -1)] + [n * WHOLE for n in range(2, 65)]
    speeds = [speedup(share) for share in shares]
    assert speeds == sorted(speeds)
    assert speedup(WHOLE) == 1
    for share, speed in zip(shares, speeds, strict=True):
        gpus = share / WHOLE
        assert speed >= gpus or share > WHOLE
        assert speed <= gpus or share < WHOLE
