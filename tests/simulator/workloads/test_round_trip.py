"""What is written is read again."""

from pathlib import Path

import pytest
from ebbtide_core.model.types import WHOLE, JobClass
from ebbtide_sim.workload import SimJob, Workload
from ebbtide_sim.workloads.loading import load_workload
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.workloads.writing import write_csv

NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=20)
TIMES = st.floats(0, 1e12)
SHARES = st.sampled_from([WHOLE // n for n in range(1, 17)] + [n * WHOLE for n in range(1, 300)])


@st.composite
def workloads(draw):
    ids = draw(st.lists(NAMES.filter(bool), unique=True, max_size=8))
    times = sorted(draw(st.lists(TIMES, min_size=len(ids), max_size=len(ids))))
    return Workload("jobs.csv", [draw(jobs(id, time)) for id, time in zip(ids, times, strict=True)])


def jobs(id, submit_s):
    ranges = st.one_of(st.just((0, 0)), st.tuples(SHARES, SHARES).map(sorted).map(tuple))
    return st.builds(
        lambda range, **fields: SimJob(id=id, submit_s=submit_s, gpus_min=range[0], gpus_max=range[1], **fields),
        ranges, runtime_s=TIMES, job_class=st.sampled_from(JobClass), user=NAMES, bag=NAMES,
        gpu_mem_bytes=st.integers(0, 2**53), cpus=st.floats(0, 65536), mem_bytes=st.integers(0, 2**53),
        grace_s=st.floats(0, 86400), priority=st.integers(1, 99), weight=st.floats(0.001, 1000),
        preemptible=st.booleans(),
    )  # fmt: skip


@settings(deadline=None)
@given(workload=workloads())
def test_any_workload_can_be_written_and_read(tmp_path_factory, workload):
    path = tmp_path_factory.mktemp("round") / "jobs.csv"
    write_csv(workload, path)
    assert load_workload(str(path)) == workload


@pytest.mark.parametrize("name", ["fitgpp", "hybrid", "bags"])
def test_generated_workloads_too(tmp_path: Path, name):
    workload = load_workload(name, seed=3, jobs=200)
    write_csv(workload, tmp_path / "jobs.csv")
    assert load_workload(str(tmp_path / "jobs.csv")).jobs == workload.jobs
