"""What is drawn follows what it is said to be drawn from."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from ebbtide_core.model.types import WHOLE, JobClass
from ebbtide_sim.workload import WorkloadError
from ebbtide_sim.workloads.bags import BagMix, bags
from ebbtide_sim.workloads.draws import heavy_tailed, truncated_normal
from ebbtide_sim.workloads.fitgpp import FitGppDemand, Normal, fitgpp_jobs
from ebbtide_sim.workloads.hybrid import MIX, HybridMix, hybrid, hybrid_servers
from ebbtide_sim.workloads.loading import load_workload

from tests.late import scipy_stats as stats

TE, BE = JobClass.TRIAL_AND_ERROR, JobClass.BEST_EFFORT
GIB = 2**30


@pytest.mark.parametrize("name", ["fitgpp", "hybrid", "bags"])
def test_the_same_seed_draws_the_same_jobs_and_another_seed_others(name):
    first, again, other = (load_workload(name, seed, jobs=500) for seed in (1, 1, 2))
    assert first == again
    assert first.jobs != other.jobs
    assert len(first.jobs) == len({job.id for job in first.jobs}) == 500


@pytest.mark.parametrize(
    ("mean", "std", "low", "high"),
    [(5, 5, 0, 30), (0, 1, 4, 6), (0, 1, -6, -4), (0, 1, 8, 9), (3, 0.1, 0, 9), (2, 2, 2, 2.5)],
)
def test_truncated_normals_are_cut_not_clipped(mean, std, low, high):
    draws = truncated_normal(np.random.default_rng(0), mean, std, low, high, 20_000)
    exact = stats.truncnorm((low - mean) / std, (high - mean) / std, loc=mean, scale=std)
    assert low <= draws.min() <= draws.max() <= high
    assert draws.mean() == pytest.approx(exact.mean(), abs=4 * exact.std() / 20_000**0.5)
    assert stats.kstest(draws, exact.cdf).pvalue > 1e-4


def test_a_normal_without_deviation_is_its_mean_within_the_bounds():
    rng = np.random.default_rng(0)
    assert truncated_normal(rng, 5, 0, 0, 3, 2).tolist() == [3, 3]
    assert truncated_normal(rng, 2, 0, 0, 3, 2).tolist() == [2, 2]


@pytest.mark.parametrize(("std", "low", "high"), [(-1, 0, 1), (1, 2, 1), (float("nan"), 0, 1), (1, 0, float("inf"))])
def test_what_is_no_truncated_normal_is_refused(std, low, high):
    with pytest.raises(WorkloadError, match=r"^truncated normal: .* is none$"):
        truncated_normal(np.random.default_rng(0), 0, std, low, high, 3)


@pytest.mark.parametrize(("sigma", "cut"), [(0.3, 50), (1.5, 30), (2.0, 5)])
def test_heavy_tailed_draws_have_mean_1_in_spite_of_the_cut(sigma, cut):
    draws = heavy_tailed(np.random.default_rng(0), sigma, cut, 400_000)
    assert draws.mean() == pytest.approx(1.0, abs=4 * draws.std() / 400_000**0.5)


# --- FitGpp ---


@pytest.fixture(scope="module")
def fitgpp():
    jobs = fitgpp_jobs(40_000, seed=0)
    return {job_class: [job for job in jobs if job.job_class is job_class] for job_class in (TE, BE)}


def expected(normal):
    low, high = (normal.low - normal.mean) / normal.std, (normal.high - normal.mean) / normal.std
    return stats.truncnorm(low, high, loc=normal.mean, scale=normal.std)


@pytest.mark.parametrize(
    ("job_class", "field", "column"),
    [
        (TE, "te_run_s", lambda job: job.runtime_s),
        (BE, "be_run_s", lambda job: job.runtime_s),
        (BE, "grace_s", lambda job: job.grace_s),
        (TE, "te_mem_gib", lambda job: job.mem_bytes / GIB),
        (BE, "be_mem_gib", lambda job: job.mem_bytes / GIB),
    ],
)
def test_times_and_memory_follow_their_truncated_normals(fitgpp, job_class, field, column):
    exact = expected(getattr(FitGppDemand(), field))
    values = [column(job) for job in fitgpp[job_class]]
    assert stats.kstest(values, exact.cdf).pvalue > 1e-4
    assert np.mean(values) == pytest.approx(exact.mean(), abs=4 * exact.std() / len(values) ** 0.5)


def test_times_end_where_the_paper_says(fitgpp):
    assert max(job.runtime_s for job in fitgpp[TE]) <= 30 * 60
    assert max(job.runtime_s for job in fitgpp[BE]) <= 24 * 3600
    assert max(job.grace_s for job in fitgpp[BE]) <= 20 * 60


def test_three_in_ten_jobs_are_te(fitgpp):
    assert len(fitgpp[TE]) == pytest.approx(12_000, abs=4 * (40_000 * 0.21) ** 0.5)


@pytest.mark.parametrize("job_class", [TE, BE])
def test_demands_are_whole_fit_a_node_and_mostly_want_a_gpu(fitgpp, job_class):
    jobs = fitgpp[job_class]
    assert all(job.cpus.is_integer() and 1 <= job.cpus <= 32 for job in jobs)
    assert {job.gpus_max % WHOLE for job in jobs} == {0}
    assert all(0 <= job.gpus_min == job.gpus_max <= 8 * WHOLE for job in jobs)
    assert all(GIB <= job.mem_bytes <= 256 * GIB for job in jobs)
    assert sum(job.gpus_max > 0 for job in jobs) > 0.8 * len(jobs)


def test_demands_can_be_swept():
    demand = replace(FitGppDemand(), te_share=1.0, te_gpus=Normal(8, 0, 0, 8), te_run_s=Normal(60, 0, 1, 60))
    jobs = fitgpp_jobs(10, 0, demand)
    assert {(job.job_class, job.gpus_max // WHOLE, job.runtime_s, job.submit_s) for job in jobs} == {(TE, 8, 60.0, 0.0)}


def test_an_impossible_share_is_refused():
    with pytest.raises(WorkloadError, match="fitgpp: 10 jobs with a share of 2 of TE jobs cannot be drawn"):
        fitgpp_jobs(10, 0, FitGppDemand(te_share=2.0))


# --- HYBRID ---


@pytest.fixture(scope="module")
def mixed():
    return hybrid(seed=0)


def test_the_servers_are_those_of_table_1():
    servers = hybrid_servers()
    assert (len(servers), sum(server.gpus for server in servers)) == (125, 3072)
    assert Counter((server.gpus, server.speed) for server in servers) == {(24, 0.5): 117, (24, 1.0): 5, (48, 1.0): 3}
    assert len({server.speed / server.cores for server in servers}) == 1  # a core is a core
    assert all(server.cores < server.gpus for server in servers)


def test_hybrid_has_68000_tasks_in_15_hours_from_12_classes(mixed):
    assert len(mixed.jobs) == 68_000
    assert mixed.jobs[-1].submit_s < 15 * 3600 + 3600
    assert {job.priority for job in mixed.jobs} == set(range(1, 13))
    assert all(job.gpus_min == job.gpus_max == WHOLE for job in mixed.jobs)


def test_class_shares_are_those_of_the_mix_and_class_0_is_the_majority(mixed):
    counts = Counter(12 - job.priority for job in mixed.jobs)
    for kind in MIX:
        expected_count = 68_000 * kind.share
        assert counts[kind.priority_class] == pytest.approx(expected_count, abs=5 * expected_count**0.5)
    assert counts[0] > 34_000


def test_class_9_is_long_and_all_demand_adds_up_to_the_load(mixed):
    demands = {kind: [job.runtime_s for job in mixed.jobs if job.priority == 12 - kind] for kind in (0, 9)}
    assert np.mean(demands[9]) == pytest.approx(12 * np.mean(demands[0]), rel=0.2)
    capacity = sum(server.speed for server in hybrid_servers()) * 15 * 3600
    assert sum(job.runtime_s for job in mixed.jobs) / capacity == pytest.approx(0.95, rel=0.03)


def test_class_9_comes_in_bursts_and_class_0_does_not(mixed):
    def busiest_minute(kind, workload=mixed):
        """The tasks of the class in its busiest minute, over those of the average one."""
        times = [job.submit_s for job in workload.jobs if job.priority == 12 - kind]
        return max(Counter(int(time // 60) for time in times).values()) / (len(times) / 900)

    assert busiest_minute(9) > 10
    assert busiest_minute(0) < 2
    assert busiest_minute(9, hybrid(0, HybridMix(bursty=0.0))) < 10


def test_fewer_tasks_come_at_the_same_rate():
    jobs = load_workload("hybrid", 0, jobs=6_800).jobs
    assert jobs[-1].submit_s == pytest.approx(1.5 * 3600, rel=0.1)


def test_a_mix_that_is_none_is_refused():
    with pytest.raises(WorkloadError, match=r"^hybrid: no tasks can be drawn from HybridMix"):
        hybrid(0, HybridMix(bursty=1.5))


# --- bags ---


@pytest.fixture(scope="module")
def surveys():
    return bags(77_677, seed=0)


def test_bags_are_many_small_ones_and_a_few_large_ones(surveys):
    sizes = Counter(job.bag for job in surveys.jobs)
    assert sum(sizes.values()) == 77_677
    assert len(sizes) == pytest.approx(2317, rel=0.2)
    assert np.median(list(sizes.values())) < 5
    assert max(sizes.values()) == 1000


def test_a_bag_is_of_one_user_and_comes_at_once(surveys):
    facts = {}
    for job in surveys.jobs:
        facts.setdefault(job.bag, set()).add((job.user, job.submit_s, job.gpu_mem_bytes))
    assert {len(seen) for seen in facts.values()} == {1}
    assert len({job.user for job in surveys.jobs}) == 14


def test_bags_are_submitted_by_day_over_about_184_days(surveys):
    times = {job.bag: job.submit_s for job in surveys.jobs}.values()
    assert max(times) / 86_400 == pytest.approx(184, rel=0.2)
    hours = Counter(int(time % 86_400 // 3600) for time in times)
    day, night = sum(hours[hour] for hour in range(8, 20)), sum(hours[hour] for hour in (*range(8), *range(20, 24)))
    assert day == pytest.approx(night * (np.pi + 1.6) / (np.pi - 1.6), rel=0.15)


def test_runs_of_bags_last_at_least_300_s_and_are_alike_within_a_bag(surveys):
    runs = {}
    for job in surveys.jobs:
        runs.setdefault(job.bag, []).append(np.log(job.runtime_s - 300))
    assert min(job.runtime_s for job in surveys.jobs) >= 300
    large = [values for values in runs.values() if len(values) >= 50]
    assert np.mean([np.std(values) for values in large]) == pytest.approx(0.3, rel=0.05)
    assert np.std([np.mean(values) for values in large]) == pytest.approx(1.2, rel=0.15)


def test_the_work_of_bags_has_its_mean_over_bags(surveys):
    first = {job.bag: job.runtime_s for job in surveys.jobs}
    runs = np.array(list(first.values()))
    assert runs.mean() == pytest.approx(1230, abs=4 * runs.std() / runs.size**0.5)


def test_no_tasks_are_no_bags_and_a_mix_that_is_none_is_refused():
    assert bags(0, 0).jobs == []
    with pytest.raises(WorkloadError, match=r"^bags: 5 tasks cannot be drawn from BagMix"):
        bags(5, 0, BagMix(day_swing=2.0))
