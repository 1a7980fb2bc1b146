"""Parses the environment that Ebbtide gives to every process of a job into one typed value."""

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from ebbtide import checkpoints


@dataclass(frozen=True, slots=True)
class Environment:
    """The allocation and directories of this attempt; outside Ebbtide `id` is None, and there is one node, no GPU."""

    id: str | None = None
    attempt: int = 0
    array_index: int | None = None
    gpu_count: int = 0
    gpu_share: float = 1.0
    gpu_mem_bytes: int | None = None
    grace_s: float = math.inf
    node_rank: int = 0
    num_nodes: int = 1
    rank: int = 0
    checkpoint_dir: Path | None = None
    resume_dir: Path | None = None
    output_dir: Path | None = None
    socket: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    contract: int = 0  # the version of the job contract that the supervisor speaks; 0 if it names none

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> "Environment":
        """Parse the EBB_ variables; raises ValueError that names one which is malformed, or cannot be obeyed here.

        If EBB_CHECKPOINT_DIR alone is set, by hand, checkpoints work without a cluster: that directory is then the job
        directory, with a single attempt below it.
        """
        job_id = variables.get("EBB_JOB_ID") or None
        directory = _path(variables, "EBB_CHECKPOINT_DIR")
        if directory is not None and not checkpoints.possible():
            raise ValueError("EBB_CHECKPOINT_DIR must not be set on this system: checkpoints need Linux or macOS")
        if job_id is None:
            return cls(
                attempt=1 if directory else 0,
                rank=rank_of(variables),
                checkpoint_dir=directory / "attempt-1" if directory else None,
                resume_dir=_path(variables, "EBB_RESUME_DIR"),
                output_dir=_path(variables, "EBB_OUTPUT_DIR"),
            )
        return cls(
            id=job_id,
            attempt=_integer(variables, "EBB_ATTEMPT", 1),
            array_index=_integer(variables, "EBB_ARRAY_INDEX", 0) if variables.get("EBB_ARRAY_INDEX") else None,
            gpu_count=_integer(variables, "EBB_GPU_COUNT", 0),
            gpu_share=_fraction(variables, "EBB_GPU_SHARE", 1.0),
            gpu_mem_bytes=_integer(variables, "EBB_GPU_MEM_BYTES", 0) or None,
            grace_s=_number(variables, "EBB_GRACE_S", 180.0),
            node_rank=_integer(variables, "EBB_NODE_RANK", 0),
            num_nodes=_integer(variables, "EBB_NUM_NODES", 1),
            rank=rank_of(variables),
            checkpoint_dir=directory,
            resume_dir=_path(variables, "EBB_RESUME_DIR"),
            output_dir=_path(variables, "EBB_OUTPUT_DIR"),
            socket=variables.get("EBB_SOCKET") or None,
            stop_signal=_signal(variables, "EBB_STOP_SIGNAL"),
            contract=_integer(variables, "EBB_CONTRACT", 0),
        )


def rank_of(variables: Mapping[str, str]) -> int:
    """Return this process's rank: RANK, as a launcher sets it, else the number of its node. Raises ValueError."""
    return _integer(variables, "RANK", _integer(variables, "EBB_NODE_RANK", 0))


def _path(variables: Mapping[str, str], name: str) -> Path | None:
    value = variables.get(name)
    return Path(value) if value else None


def _integer(variables: Mapping[str, str], name: str, default: int) -> int:
    value = variables.get(name) or str(default)
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None


def _number(variables: Mapping[str, str], name: str, default: float) -> float:
    value = variables.get(name) or str(default)
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {value!r}") from None


def _fraction(variables: Mapping[str, str], name: str, default: float) -> float:
    value = variables.get(name) or str(default)
    try:
        return float(Fraction(value))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{name} must be a number or a fraction, got {value!r}") from None


def _signal(variables: Mapping[str, str], name: str) -> signal.Signals:
    value = variables.get(name) or "SIGTERM"
    try:
        return signal.Signals[value]
    except KeyError:
        raise ValueError(f"{name} must name a signal, got {value!r}") from None
