"""Tells the fake driver which process computes on which of its GPUs, for it cannot see for itself."""

from pathlib import Path

from ebbtide_agent.gpu import fake_state
from ebbtide_agent.identity import Identity
from ebbtide_agent.supervisor.intent import Gpu, Intent
from ebbtide_agent.swap import fake

# What a process shows as used that did not say how much it needs: about a CUDA context.
_NOMINAL_BYTES = 600 * 1024 * 1024


def register(intent: Intent, local_rank: int, process: Identity) -> None:
    """Make the process appear on its GPUs: on one of them for each rank of a `ddp` job, else on all. Raises OSError."""
    gpus = intent.gpus[local_rank : local_rank + 1] if intent.ddp else intent.gpus
    if not gpus or not intent.fake_gpu_dir:
        return
    held = {gpu.uuid: _held_bytes(intent, gpu) for gpu in gpus}
    fake_state.register(Path(intent.fake_gpu_dir), process.pid, process.starttime, held)


def unregister(intent: Intent, pid: int) -> None:
    """Take the process off its GPUs; a dead one holds nothing even if this never happens."""
    if intent.gpus and intent.fake_gpu_dir:
        fake_state.unregister(Path(intent.fake_gpu_dir), pid)
        fake.forget(Path(intent.fake_gpu_dir), pid)


def _held_bytes(intent: Intent, gpu: Gpu) -> int:
    return min(intent.gpu_mem_bytes or _NOMINAL_BYTES, gpu.mem_bytes)
