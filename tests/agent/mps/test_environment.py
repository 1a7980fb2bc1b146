"""What the processes of a job on a share of a GPU are given."""

import dataclasses

import pytest
from ebbtide_agent.contract.intent import AllocatedGpu, Intent, StopSignalTarget
from ebbtide_agent.mps.control import MpsControl
from ebbtide_agent.mps.environment import allocator_environment, mps_environment, torch_version

GIB = 1 << 30
QUARTER = AllocatedGpu("GPU-1", 1, 4, 6 * GIB)


@pytest.fixture
def venv(place):
    """An environment with a PyTorch of some version; returns the environment's variables."""

    def make(version):
        (place / f"lib/python3.11/site-packages/torch-{version}.dist-info").mkdir(parents=True)
        (place / "bin").mkdir()
        (place / "bin/python").write_text("#!/bin/sh\n")
        (place / "bin/python").chmod(0o700)
        return {"PATH": f"{place}/bin:/usr/bin", "VIRTUAL_ENV": str(place)}

    return make


def intent(env, command=("python", "train.py")):
    return Intent(
        job_id="1", attempt=1, cluster_id="c", command=command, workdir="/", env=env, gpus=(QUARTER,),
        gpu_mem_bytes=0, cpus=0, grace_s=30.0, signal="", signal_target=StopSignalTarget.AUTO, ddp=False,
        needs_checkpoint=False, node_rank=0, num_nodes=1, world_size=1, master_addr="", node_dir="/n",
        job_checkpoint_dir="/c", fake_gpu_dir="",
    )  # fmt: skip


def allocated(intent):
    """What PyTorch's allocator is told for a job on a quarter of a GPU."""
    return allocator_environment(QUARTER, 24 * GIB, intent.env, 1, torch_version(intent.command, intent.env))


def test_a_client_has_its_part_of_the_gpus_memory_and_multiprocessors(place):
    control = MpsControl("x", "GPU-1", place / "mps" / "1")
    assert mps_environment(control, QUARTER, 1) == {
        "CUDA_MPS_PIPE_DIRECTORY": f"{place}/mps/1",
        "CUDA_MPS_LOG_DIRECTORY": f"{place}/mps/1.log",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=6144M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }


def test_the_processes_of_one_job_divide_its_part(place):
    found = mps_environment(MpsControl("x", "GPU-1", place), dataclasses.replace(QUARTER, denominator=3), 2)
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3072M"
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "17"


def test_pytorchs_allocator_keeps_to_the_jobs_memory_less_what_the_driver_takes(venv):
    env = venv("2.13.0+cu130")
    assert allocated(intent(env)) == {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.2292"}


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_it_is_added_to_what_the_user_has_set(venv, name):
    env = venv("2.13.0") | {name: "expandable_segments:True"}
    assert allocated(intent(env)) == {name: "expandable_segments:True,per_process_memory_fraction:0.2292"}


def test_what_the_user_says_of_it_stands(venv):
    env = venv("2.13.0") | {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.1"}
    assert allocated(intent(env)) == {}


def test_a_pytorch_that_would_fall_over_the_option_is_not_given_it(venv):
    assert allocated(intent(venv("2.8.0"))) == {}


def test_neither_is_one_whose_version_nobody_knows(place):
    assert allocated(intent({"PATH": str(place)}, ("bash", "train.sh"))) == {}


def test_the_pytorch_of_the_environment_that_is_active_counts_for_a_script(venv):
    assert torch_version(("bash", "train.sh"), venv("2.13.0")) == [2, 13]


def test_that_of_the_interpreter_counts_whatever_is_active(venv, place):
    env = venv("2.13.0") | {"VIRTUAL_ENV": "/elsewhere"}
    assert torch_version((f"{place}/bin/python", "train.py"), env) == [2, 13]
