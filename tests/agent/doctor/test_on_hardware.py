"""Doctor and observer before real GPUs."""

import time

import pytest
from ebbtide_agent.doctor.examine import examine
from ebbtide_agent.doctor.finding import Level
from ebbtide_agent.doctor.probes import GROUPS
from ebbtide_agent.doctor.subject import Subject
from ebbtide_agent.gpu.nvml import open_nvml
from ebbtide_agent.observing.observation import look

from tests.agent.gpu.cuda_process import SUCCESS, CudaProcess

pytestmark = pytest.mark.gpu

MIB = 2**20


@pytest.fixture
def computing():
    """A process of this user that holds 256 MiB of the first GPU."""
    process = CudaProcess(open_nvml().gpus()[0].uuid)
    assert process.start_code == SUCCESS
    assert process.allocate(256 * MIB) == SUCCESS
    yield process
    process.end()


def test_real_gpus_are_found_and_each_has_a_line(tmp_path):
    probes = tuple(probe for probe in GROUPS["GPUs"] if probe.name == "GPUs")
    found = examine(Subject(home=tmp_path, node="here"), lambda name: None, {"GPUs": probes})
    checks = {finding.check for finding in found}
    assert {"driver", "GPUs", "MPS", "swap", "processes"} <= checks
    assert {f"GPU {gpu.index}" for gpu in open_nvml().gpus()} <= checks
    assert [finding.text for finding in found if finding.level is Level.PROBLEM] == []


def test_a_process_that_computes_is_seen_with_its_user_and_memory(computing):
    seen = look(open_nvml(), time.time())
    (found,) = [process for process in seen.processes if process.key[0] == computing.pid]
    assert found.shown
    assert found.user
    assert all(count is None or count >= 256 * MIB for count in found.gpus.values())
    assert seen.blind == frozenset()
