"""Builds the environment of a job's processes from the user's and the job contract's variables. Pure."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Final

from ebbtide import checkpoints
from ebbtide.version import CONTRACT

from ebbtide_agent.contract.intent import Intent

# torchrun needs this long between giving up on its workers and its own end.
_TORCHRUN_MARGIN_S = 5.0
SDK: Final = str(Path(checkpoints.__file__).with_name("offered"))
"""The folder where `import ebbtide` finds the agent's SDK, unless one is installed."""


def job_environment(intent: Intent, *, checkpoint_dir: str, resume_dir: str, socket: str) -> dict[str, str]:
    """Return the environment of every process of the attempt.

    Ours wins over the user's, except for W&B's variables and the number of threads.
    """
    return {
        "WANDB_RUN_ID": f"{intent.cluster_id}-{intent.job_id}",  # another cluster may have the same job number
        "WANDB_RESUME": "allow",
        **_threads(intent),
        **intent.env,
        **({} if intent.account is None else intent.account.environment),
        **intent.sharing_env,
        **(_with_sdk(intent.env) if intent.sdk else {}),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in intent.gpus),
        "EBB_JOB_ID": intent.job_id,
        "EBB_ATTEMPT": str(intent.attempt),
        "EBB_ARRAY_INDEX": intent.job_id.partition(".")[2],
        "EBB_CHECKPOINT_DIR": checkpoint_dir,
        "EBB_RESUME_DIR": resume_dir,
        "EBB_OUTPUT_DIR": str(intent.output_dir),
        "EBB_SOCKET": socket,
        "EBB_CONTRACT": str(CONTRACT),
        "EBB_GRACE_S": f"{intent.grace_s:.15g}",
        "EBB_STOP_SIGNAL": intent.signal or "SIGTERM",
        "EBB_GPU_COUNT": str(len(intent.gpus)),
        "EBB_GPU_SHARE": str(min((Fraction(gpu.numerator, gpu.denominator) for gpu in intent.gpus), default=0)),
        "EBB_GPU_MEM_BYTES": str(min((gpu.mem_bytes for gpu in intent.gpus), default=0)),
        "EBB_NODE_RANK": str(intent.node_rank),
        "EBB_NUM_NODES": str(intent.num_nodes),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(shutdown_timeout_s(intent.grace_s)),
    }


def _threads(intent: Intent) -> dict[str, str]:
    """Return the number of threads to compute with, for OpenMP: without it each process starts one for each core.

    Each process has its part of the job's CPUs, where one process for each GPU is assumed. A job that requested no CPUs
    has no limit to divide; the ranks of a `ddp` job have one thread each then, as torchrun's have.
    """
    if not (intent.cpus or intent.ddp):
        return {}
    return {"OMP_NUM_THREADS": str(max(1, int(intent.cpus) // max(1, len(intent.gpus))))}


def _with_sdk(env: Mapping[str, str]) -> dict[str, str]:
    """Return PYTHONPATH with the SDK's folder after the user's entries."""
    own = env.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{own}:{SDK}" if own else SDK}


def gang_environment(intent: Intent, port: int) -> dict[str, str]:
    """Return the variables of a job that may have several nodes: the first node's address, port, and the interface."""
    interface = intent.network.interface
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface else ()
    return {
        **{name: intent.env.get(name, interface) for name in names},
        "MASTER_ADDR": intent.master_addr or "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def rank_environment(intent: Intent, local_rank: int, port: int) -> dict[str, str]:
    """Return one rank's variables in a `ddp` job, for torch.distributed's rendezvous."""
    node = str(intent.node_rank)
    return {
        **({"GROUP_RANK": node, "NODE_RANK": node} if intent.num_nodes > 1 else {}),
        "MASTER_ADDR": intent.master_addr or "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(intent.first_rank + local_rank),
        "WORLD_SIZE": str(intent.world_size or intent.processes),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(intent.processes),
    }


def shutdown_timeout_s(grace_s: float) -> int:
    """Return how long torchrun may wait for its workers: under the grace period, in whole seconds as torch wants."""
    return max(1, int(grace_s - min(_TORCHRUN_MARGIN_S, grace_s / 4)))
