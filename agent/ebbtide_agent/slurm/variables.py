"""Builds the variables that Slurm sets for a batch script and that are known only on the node. Pure."""

from collections.abc import Mapping
from pathlib import Path

from ebbtide_agent import slurm
from ebbtide_agent.contract.intent import AttemptOnNode


def slurm_environment(
    attempt: AttemptOnNode, cpus: float, gpus: int, user_env: Mapping[str, str], python: str
) -> dict[str, str]:
    """Return the variables of a `#SBATCH` script beside those that the client set; `python` runs the stand-ins."""
    array, _, index = attempt.job_id.partition(".")
    node = Path(attempt.node_dir).name
    nodes = attempt.node_names or (node,)
    number = job_number(attempt.job_id)
    return {
        "PATH": f"{slurm.BIN}:{user_env.get('PATH', '/usr/local/bin:/usr/bin:/bin')}",
        "EBB_PYTHON": python,
        **({"EBB_SLURM_STEPS": str(steps_dir(attempt.job_dir, attempt.attempt))} if attempt.num_nodes > 1 else {}),
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        **({"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": index} if index else {}),
        **({"SLURM_RESTART_COUNT": str(attempt.attempt - 1)} if attempt.attempt > 1 else {}),
        **_tasks(user_env, attempt.num_nodes),
        "SLURM_NNODES": str(attempt.num_nodes),
        "SLURM_JOB_NUM_NODES": str(attempt.num_nodes),
        "SLURM_NODELIST": ",".join(nodes),
        "SLURM_JOB_NODELIST": ",".join(nodes),
        "SLURM_NODEID": str(attempt.node_rank),
        "SLURMD_NODENAME": node,
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_CPUS_ON_NODE": str(max(1, int(cpus))),
        "SLURM_GPUS_ON_NODE": str(gpus),
        "SLURM_JOB_GPUS": ",".join(str(index) for index in range(gpus)),
        "SLURM_CLUSTER_NAME": "ebbtide",
        "SLURM_EXPORT_ENV": "ALL",
    }


def _tasks(user_env: Mapping[str, str], nodes: int) -> dict[str, str]:
    """Return how many tasks `srun` starts: as many as the script says, or on each node so many as it says, or one."""
    in_all, on_each = (_count(user_env.get(name, "")) for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"))
    tasks = in_all or nodes * (on_each or 1)
    least, more = divmod(tasks, nodes)
    shares = {least + 1: more, least: nodes - more}
    words = [f"{share}(x{count})" if count > 1 else f"{share}" for share, count in shares.items() if share and count]
    return {
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_TASKS_PER_NODE": ",".join(words),
    }


def _count(text: str) -> int:
    """Return the count that a variable of the user's gives; 0 if it gives none."""
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def job_number(job_id: str) -> str:
    """Return the job id as a number, because scripts calculate with it: task 3 of array 17 is 17000003."""
    array, _, index = job_id.partition(".")
    return f"{array}{int(index):06d}" if index.isdecimal() else array


def steps_dir(job_dir: Path, attempt: int) -> Path:
    """Return the folder of an attempt's `srun` steps, in the job's checkpoint directory, which all nodes share."""
    return job_dir / f"steps-{attempt}"
