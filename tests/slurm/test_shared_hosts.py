"""Two pilots on one host share no GPU, whether or not Slurm hides the GPUs of other jobs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.gpu.stub import library
from tests.agent.gpu.stub.state import State
from tests.slurm.lent import Loans
from tests.slurm.rig import FIRST, GPUS, Slurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]
IN_BOTH_MODES = pytest.mark.parametrize(
    "slurm", [{"constrains": False}, {"constrains": True}], ids=["all in sight", "others hidden"], indirect=True
)


@pytest.fixture
def driver(slurm: Slurm, tmp_path: Path) -> Iterator[State]:
    """NVML for the GPUs of one host: each call for one of them opens its device first, as the real one does."""
    state = State(tmp_path / "gpus")
    devices = [f"{slurm.folder}/dev/{FIRST}-gpu{minor}" for minor in range(GPUS)]
    state.describe(*({"uuid": f"GPU-{minor}", "minor": minor, "device": path} for minor, path in enumerate(devices)))
    yield state
    state.close()


@IN_BOTH_MODES
def test_pilots_on_one_host_have_the_gpus_that_slurm_gave_to_each(loans: Loans, driver: State, tmp_path: Path) -> None:
    found = library.compile_library(tmp_path).parent
    exports = f"ALL,LD_LIBRARY_PATH={found},EBB_STUB_NVML={driver.directory}"
    small = ("-w", FIRST, "-c", "1", "--mem", "500", "--export", exports)
    lent = {loans.lend(gpus=gpus, slurm=small, shows="auto"): gpus for gpus in (1, 2, 1)}
    nodes = {loans.node_of(loan): loan for loan in lent}
    offered = {
        nodes[node["name"]]: {gpu["uuid"] for gpu in node["gpus"]}
        for node in loans.cluster.facts("nodes")
        if node["name"] in nodes
    }
    assert offered == {loan: {f"GPU-{minor}" for minor in given(loans.slurm, loan)} for loan in lent}
    assert {loan: len(uuids) for loan, uuids in offered.items()} == lent
    assert sorted(uuid for uuids in offered.values() for uuid in uuids) == [f"GPU-{minor}" for minor in range(GPUS)]
    jobs = [loans.compute() for _ in range(GPUS)]
    for job in jobs:
        loans.wait_for_steps(job, 3)
    used = [gpu for job in jobs for line in loans.lines(job) if line["what"] == "begin" for gpu in line["gpus"]]
    assert sorted(used) == [f"GPU-{minor}" for minor in range(GPUS)]


def given(slurm: Slurm, loan: str) -> list[int]:
    """The numbers of the GPUs that a job of Slurm has."""
    [numbers] = re.findall(r"GRES=gpu:\S*\(IDX:([\d,-]+)\)", slurm.command("scontrol", "-d", "show", "job", loan))
    ends = [[int(number) for number in part.split("-")] for part in numbers.split(",")]
    return [number for part in ends for number in range(part[0], part[-1] + 1)]


@IN_BOTH_MODES
def test_fake_gpus_are_chosen_by_what_slurm_gave_too(loans: Loans) -> None:
    small = ("-w", FIRST, "-c", "1", "--mem", "500")
    lent = [loans.lend(gpus=gpus, slurm=small) for gpus in (1, 2, 1)]
    nodes = {loans.node_of(loan): loan for loan in lent}
    for node in loans.cluster.facts("nodes"):
        if node["name"] in nodes:
            indexes = [gpu["index"] for gpu in node["gpus"]]
            assert indexes == given(loans.slurm, nodes[node["name"]]), json.dumps(node["gpus"])
