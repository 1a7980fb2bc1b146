"""Register the job's processes with the fake driver, which cannot see by itself which process uses which GPU."""

import os
from pathlib import Path
from typing import Any

from ebbtide_protos.process import Identity

from ebbtide_agent.contract.intent import AllocatedGpu, Intent
from ebbtide_agent.gpu import fake_state
from ebbtide_agent.gpu.fake import FakeNvml
from ebbtide_agent.processes import process_tree
from ebbtide_agent.swap import fake

# GPU memory of a process that did not say how much it needs: about one CUDA context.
_NOMINAL_BYTES = 600 * 1024 * 1024


def register(intent: Intent, local_rank: int, process: Identity) -> None:
    """Make the process appear on its GPUs: on one GPU for each rank of a `ddp` job, else on all. Raises OSError."""
    gpus = intent.gpus[local_rank : local_rank + 1] if intent.ddp else intent.gpus
    if not gpus or not intent.fake_gpu_dir:
        return
    held = {gpu.uuid: _held_bytes(intent, gpu) for gpu in gpus}
    fake_state.register(Path(intent.fake_gpu_dir), process.pid, process.starttime, held)


def unregister(intent: Intent, pid: int) -> None:
    """Take the process off its GPUs; a dead process holds nothing even if this is never called."""
    if intent.gpus and intent.fake_gpu_dir:
        fake_state.unregister(Path(intent.fake_gpu_dir), pid)
        fake.forget(Path(intent.fake_gpu_dir), pid)


def allocate(intent: Intent, request: dict[str, Any]) -> dict[str, Any]:
    """Make a process below this one hold the memory that it requests, on one of the job's GPUs or on all; return the
    answer."""
    match request:
        case {"pid": int(pid), "bytes": int(mem_bytes), "gpu": int() | None as place} if mem_bytes >= 0:
            pass
        case _:
            return {"error": "not a request for memory"}
    if not intent.fake_gpu_dir or not intent.gpus:
        return {}
    if place is not None and not 0 <= place < len(intent.gpus):
        return {"error": f"gpu must be 0 to {len(intent.gpus) - 1}, got {place}"}
    process = Identity.of(pid)
    if process is None or not process_tree.is_below(pid, os.getpid()):
        return {"error": f"process {pid} is not of this job"}
    places = range(len(intent.gpus)) if place is None else [place]
    try:
        return _hold(
            Path(intent.fake_gpu_dir), process, {number: intent.gpus[number].uuid for number in places}, mem_bytes
        )
    except (OSError, ValueError) as error:
        return {"error": str(error)}


def _hold(state_dir: Path, process: Identity, gpus: dict[int, str], mem_bytes: int) -> dict[str, Any]:
    with fake_state.locked(state_dir):
        nvml = FakeNvml(state_dir)
        held = fake_state.held(state_dir, process.pid, process.starttime)
        for place, uuid in gpus.items():
            free, total = nvml.room(uuid)
            free += held.get(uuid) or 0
            if mem_bytes > free:
                return {"free": free, "total": total, "gpu": place}
        fake_state.register(state_dir, process.pid, process.starttime, held | dict.fromkeys(gpus.values(), mem_bytes))
    return {"held": True}


def _held_bytes(intent: Intent, gpu: AllocatedGpu) -> int:
    return min(intent.gpu_mem_bytes or _NOMINAL_BYTES, gpu.mem_bytes)
