"""What is known of the real traces holds for what is read from them."""

from collections import Counter
from statistics import mean, median

import pytest
from ebbtide_core.model.types import WHOLE
from ebbtide_sim.workloads import swf
from ebbtide_sim.workloads.loading import load_workload
from ebbtide_sim.workloads.nodes import read_cluster

pytestmark = pytest.mark.traces


def test_hpc2n_has_the_tasks_of_seed_001(traces):
    workload = load_workload(str(traces / "HPC2N-2002-2.2-cln.swf.gz"))
    sizes = [job.gpus_max // WHOLE for job in workload.jobs]
    runs = [job.runtime_s for job in workload.jobs]
    assert (len(workload.jobs), workload.skipped) == (202_871, {})
    assert (max(sizes), median(sizes), round(mean(sizes), 2)) == (200, 2, 6.36)
    assert (sum(size > 120 for size in sizes), sum(size > 60 for size in sizes)) == (212, 1894)
    assert (round(mean(runs)), median(runs), max(runs), min(runs)) == (17_024, 2873, 508_620, 1)
    assert sum(run * size for run, size in zip(runs, sizes, strict=True)) == pytest.approx(1.5772e10, rel=1e-4)


def test_hpc2n_by_start_lacks_the_job_that_has_none(traces):
    workload = load_workload(str(traces / "HPC2N-2002-2.2-cln.swf.gz"), arrival="start")
    assert (len(workload.jobs), workload.skipped) == (202_870, {swf.NO_WAIT: 1})


def test_philly_has_its_jobs(traces):
    jobs = load_workload(str(traces / "pollux_philly.csv")).jobs
    assert (len(jobs), len({job.user for job in jobs})) == (82_247, 15)
    assert median(job.runtime_s for job in jobs) == 1144
    assert sum(job.gpus_max == WHOLE for job in jobs) == 76_627
    assert max(job.gpus_max for job in jobs) == 128 * WHOLE


def test_openb_has_its_pods(traces):
    workload = load_workload(str(traces / "openb_pod_list_default.csv"))
    assert workload.skipped == {"never scheduled": 897}
    assert len(workload.jobs) == 8152 - 897


@pytest.mark.parametrize(("name", "count"), [("gpu", 1213), ("all", 1523)])
def test_openb_has_its_nodes(traces, name, count):
    nodes = read_cluster(traces / f"openb_node_list_{name}_node.csv")
    assert len(nodes) == count
    assert Counter(node.gpus for node in nodes if node.gpus) == {1: 24, 2: 518, 4: 54, 8: 617}


def test_every_pollux_workload_has_160_jobs_within_8_hours(traces):
    paths = sorted((traces / "pollux_workloads").iterdir())
    assert len(paths) == 16
    for path in paths:
        jobs = load_workload(str(path)).jobs
        assert len(jobs) == 160
        assert jobs[-1].submit_s <= 8 * 3600
