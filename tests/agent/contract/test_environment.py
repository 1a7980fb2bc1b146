"""The environment that the job contract promises, as tables."""

import os
from dataclasses import replace

import pytest
from ebbtide_agent.contract.environment import (
    SDK,
    gang_environment,
    job_environment,
    rank_environment,
    shutdown_timeout_s,
)
from ebbtide_agent.contract.intent import AllocatedGpu, Intent, StopSignalTarget
from ebbtide_agent.network import Network

PLAIN = Intent(
    job_id="17",
    attempt=2,
    cluster_id="c1",
    command=("true",),
    workdir="/",
    env={"PATH": "/bin", "HOME": "/home/ada"},
    gpus=(),
    gpu_mem_bytes=0,
    cpus=0.0,
    grace_s=180.0,
    signal="",
    signal_target=StopSignalTarget.AUTO,
    ddp=False,
    needs_checkpoint=False,
    node_rank=0,
    num_nodes=1,
    world_size=0,
    master_addr="",
    node_dir="/node",
    job_checkpoint_dir="/checkpoints/c1/17",
    fake_gpu_dir="",
)


def environment(**changes: object) -> dict[str, str]:
    intent = replace(PLAIN, **changes)
    return job_environment(intent, checkpoint_dir="/c/attempt-2", resume_dir="/c/attempt-1", socket="/s")


def test_the_sdk_comes_behind_what_the_user_has_on_the_path_unless_it_is_not_wanted():
    assert environment(env={"PYTHONPATH": "/src:/lib"})["PYTHONPATH"] == f"/src:/lib:{SDK}"
    assert environment(env={"PYTHONPATH": "/src"}, sdk=False)["PYTHONPATH"] == "/src"
    assert "PYTHONPATH" not in environment(sdk=False)
    assert os.listdir(SDK) == ["ebbtide"]


def gpus(count: int, numerator: int = 1, denominator: int = 1, mem_bytes: int = 10) -> tuple[AllocatedGpu, ...]:
    return tuple(AllocatedGpu(f"GPU-{i}", numerator, denominator, mem_bytes) for i in range(count))


def test_a_job_without_gpus_has_the_users_environment_and_the_contracts():
    assert environment() == {
        "PATH": "/bin",
        "HOME": "/home/ada",
        "PYTHONPATH": SDK,
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "",
        "EBB_JOB_ID": "17",
        "EBB_ATTEMPT": "2",
        "EBB_ARRAY_INDEX": "",
        "EBB_CHECKPOINT_DIR": "/c/attempt-2",
        "EBB_RESUME_DIR": "/c/attempt-1",
        "EBB_OUTPUT_DIR": "/checkpoints/c1/17/output",
        "EBB_SOCKET": "/s",
        "EBB_CONTRACT": "1",
        "EBB_GRACE_S": "180",
        "EBB_STOP_SIGNAL": "SIGTERM",
        "EBB_GPU_COUNT": "0",
        "EBB_GPU_SHARE": "0",
        "EBB_GPU_MEM_BYTES": "0",
        "EBB_NODE_RANK": "0",
        "EBB_NUM_NODES": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "175",
        "WANDB_RUN_ID": "c1-17",
        "WANDB_RESUME": "allow",
    }


def test_all_attempts_are_one_run_for_wandb_unless_the_user_says_otherwise():
    first, second = (environment(attempt=number) for number in (1, 2))
    assert (first["WANDB_RUN_ID"], first["WANDB_RESUME"]) == (second["WANDB_RUN_ID"], second["WANDB_RESUME"])
    assert environment(job_id="18")["WANDB_RUN_ID"] != first["WANDB_RUN_ID"]
    given = environment(env={"WANDB_RUN_ID": "mine", "WANDB_RESUME": "must"})
    assert (given["WANDB_RUN_ID"], given["WANDB_RESUME"]) == ("mine", "must")


@pytest.mark.parametrize(
    ("changes", "variables"),
    [
        ({"gpus": gpus(2)}, {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1", "EBB_GPU_COUNT": "2", "EBB_GPU_SHARE": "1"}),
        ({"gpus": gpus(1, 1, 4)}, {"CUDA_VISIBLE_DEVICES": "GPU-0", "EBB_GPU_COUNT": "1", "EBB_GPU_SHARE": "1/4"}),
        ({"gpus": gpus(2, mem_bytes=7)}, {"EBB_GPU_MEM_BYTES": "7"}),
        ({"gpus": (*gpus(1, mem_bytes=7), *gpus(1, mem_bytes=5))}, {"EBB_GPU_MEM_BYTES": "5"}),
        ({"job_id": "17.3"}, {"EBB_JOB_ID": "17.3", "EBB_ARRAY_INDEX": "3"}),
        ({"grace_s": 1234567.0}, {"EBB_GRACE_S": "1234567"}),
        ({"grace_s": 0.5}, {"EBB_GRACE_S": "0.5"}),
        ({"signal": "SIGUSR1"}, {"EBB_STOP_SIGNAL": "SIGUSR1"}),
        ({"node_rank": 1, "num_nodes": 2}, {"EBB_NODE_RANK": "1", "EBB_NUM_NODES": "2"}),
        ({"env": {"EBB_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "all"}}, {"EBB_JOB_ID": "17", "CUDA_VISIBLE_DEVICES": ""}),
        ({"env": {"PYTHONUNBUFFERED": ""}}, {"PYTHONUNBUFFERED": "1"}),
    ],
)
def test_the_contracts_variables_follow_from_the_attempt_and_win(changes, variables):
    given = environment(**changes)
    assert {name: given[name] for name in variables} == variables


@pytest.mark.parametrize(
    ("changes", "variables"),
    [
        ({"gpus": gpus(4)}, {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}),
        ({"gpus": gpus(2), "node_rank": 1, "num_nodes": 2, "world_size": 4}, {"RANK": "3", "WORLD_SIZE": "4"}),
        ({"gpus": gpus(2)}, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "20001"}),
        ({"gpus": gpus(2), "master_addr": "10.0.0.7"}, {"MASTER_ADDR": "10.0.0.7"}),
    ],
)
def test_a_rank_knows_its_place(changes, variables):
    given = rank_environment(replace(PLAIN, ddp=True, **changes), local_rank=1, port=20001)
    assert {name: given[name] for name in variables} == variables


@pytest.mark.parametrize(
    ("changes", "threads"),
    [
        ({"cpus": 9.0}, "9"),
        ({"cpus": 2.5}, "2"),
        ({"cpus": 0.5}, "1"),
        ({"gpus": gpus(1, 1, 4), "cpus": 4.0}, "4"),
        ({"gpus": gpus(2), "cpus": 9.0}, "4"),
        ({"gpus": gpus(2), "cpus": 9.0, "ddp": True}, "4"),
        ({"gpus": gpus(2), "cpus": 1.0, "ddp": True}, "1"),
        ({"gpus": gpus(2), "ddp": True}, "1"),
        ({"gpus": gpus(2), "cpus": 9.0, "env": {"OMP_NUM_THREADS": "16"}}, "16"),
        ({"gpus": gpus(2), "cpus": 9.0, "ddp": True, "env": {"OMP_NUM_THREADS": "16"}}, "16"),
        ({"gpus": gpus(2)}, None),
    ],
)
def test_a_process_computes_with_its_part_of_the_cpus_that_the_job_asked_for(changes, threads):
    assert environment(**changes).get("OMP_NUM_THREADS") == threads


def test_every_process_of_a_job_on_several_nodes_knows_where_the_first_one_is():
    intent = replace(PLAIN, num_nodes=2, master_addr="10.0.0.7")
    assert gang_environment(intent, 20001) == {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "20001"}


def test_an_interface_is_named_to_the_libraries_unless_the_user_named_another():
    intent = replace(PLAIN, num_nodes=2, network=Network("eth1"), env={"NCCL_SOCKET_IFNAME": "ib0"})
    given = gang_environment(intent, 20001)
    assert (given["GLOO_SOCKET_IFNAME"], given["NCCL_SOCKET_IFNAME"]) == ("eth1", "ib0")


def test_ranks_without_gpus_are_one():
    assert rank_environment(replace(PLAIN, ddp=True), local_rank=0, port=1)["WORLD_SIZE"] == "1"


@pytest.mark.parametrize(("grace_s", "timeout_s"), [(180, 175), (60, 55), (30, 25), (12, 9), (3, 2), (1, 1), (0, 1)])
def test_torchrun_gives_up_a_little_before_the_grace_period_ends(grace_s, timeout_s):
    assert shutdown_timeout_s(grace_s) == timeout_s


def test_an_intent_survives_its_way_through_json():
    intent = replace(PLAIN, gpus=gpus(2, 1, 4), command=("a", "b"), resume_args=("--resume",))
    assert Intent.from_json(intent.to_json()) == intent
