"""Describe what a standby and a process of an attempt must have in common for one to become the other. Pure."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from ebbtide_agent.contract.environment import job_environment, rank_environment
from ebbtide_agent.contract.intent import Intent

# The variables that differ between attempts. Any other variable that differs may change what an import does.
PER_ATTEMPT = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "EBB_JOB_ID",
        "EBB_ATTEMPT",
        "EBB_ARRAY_INDEX",
        "EBB_CHECKPOINT_DIR",
        "EBB_RESUME_DIR",
        "EBB_OUTPUT_DIR",
        "EBB_SOCKET",
        "EBB_GRACE_S",
        "EBB_STOP_SIGNAL",
        "EBB_GPU_COUNT",
        "EBB_GPU_SHARE",
        "EBB_GPU_MEM_BYTES",
        "EBB_NODE_RANK",
        "EBB_NUM_NODES",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "WANDB_RUN_ID",
    }
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A command line, its working directory, and the environment that all attempts of the job have in common."""

    command: tuple[str, ...]
    workdir: str
    environment: tuple[tuple[str, str], ...]  # sorted

    @classmethod
    def of(cls, intent: Intent) -> Self | None:
        """Return what this attempt's processes need; None if they are not to be held ready, or run no Python script.

        What `--resume-args` will add is not known before the attempt. A process that runs as another account, or reads
        standard input, is started anew.
        """
        if intent.account is not None or intent.stdin:
            return None
        if not intent.warm or intent.resume_args or intent.script or intent.slurm or not _is_script(intent.command):
            return None
        whole = job_environment(intent, checkpoint_dir="", resume_dir="", socket="")
        if intent.ddp:
            whole |= rank_environment(intent, 0, 0)
        common = ((name, value) for name, value in whole.items() if name not in PER_ATTEMPT)
        return cls(intent.command, intent.workdir, tuple(sorted(common)))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError if the content is not a recipe."""
        environment = tuple((str(name), str(value)) for name, value in content["environment"])
        return cls(tuple(content["command"]), str(content["workdir"]), environment)


def _is_script(command: tuple[str, ...]) -> bool:
    """Return whether this is `python [-u] FILE.py …` or `… -m MODULE …`; other options may keep our module out."""
    program, *words = command or ("",)
    if not program.rpartition("/")[2].startswith("python"):
        return False
    match words[1:] if words[:1] == ["-u"] else words:
        case ["-m", module, *_]:
            return not module.startswith("-")
        case [script, *_]:
            return script.endswith(".py") and not script.startswith("-")
    return False
