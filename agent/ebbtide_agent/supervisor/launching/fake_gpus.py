"""Register the job's processes with the fake driver, which cannot see by itself which process uses which GPU."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebbtide_machine.process import Identity

from ebbtide_agent.contract.intent import AllocatedGpu, NodeShare
from ebbtide_agent.gpu import fake_state
from ebbtide_agent.gpu.fake import FakeNvml
from ebbtide_agent.processes import process_tree
from ebbtide_agent.swap import fake

# GPU memory of a process that did not say how much it needs: about one CUDA context.
_NOMINAL_BYTES = 600 * 1024 * 1024


def register(share: NodeShare, gpus: Sequence[AllocatedGpu], process: Identity) -> None:
    """Make the process appear on these GPUs of the job. Raises OSError."""
    if not gpus or not share.fake_gpu_dir:
        return
    held = {gpu.uuid: _held_bytes(share, gpu) for gpu in gpus}
    fake_state.register(Path(share.fake_gpu_dir), process.pid, process.starttime, held)


def unregister(share: NodeShare, pid: int) -> None:
    """Take the process off its GPUs; a dead process holds nothing even if this is never called."""
    if share.gpus and share.fake_gpu_dir:
        fake_state.unregister(Path(share.fake_gpu_dir), pid)
        fake.forget(Path(share.fake_gpu_dir), pid)


def allocate(share: NodeShare, request: dict[str, Any]) -> dict[str, Any]:
    """Make a process below this one hold the memory that it requests, on one of the job's GPUs or on all; return the
    answer."""
    match request:
        case {"pid": int(pid), "bytes": int(mem_bytes), "gpu": int() | None as place} if mem_bytes >= 0:
            pass
        case _:
            return {"error": "not a request for memory"}
    if not share.fake_gpu_dir or not share.gpus:
        return {}
    if place is not None and not 0 <= place < len(share.gpus):
        return {"error": f"gpu must be 0 to {len(share.gpus) - 1}, got {place}"}
    process = Identity.of(pid)
    if process is None or not process_tree.is_below(pid, os.getpid()):
        return {"error": f"process {pid} is not of this job"}
    places = range(len(share.gpus)) if place is None else [place]
    try:
        return _hold(
            Path(share.fake_gpu_dir), process, {number: share.gpus[number].uuid for number in places}, mem_bytes
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


def _held_bytes(share: NodeShare, gpu: AllocatedGpu) -> int:
    return min(share.gpu_mem_bytes or _NOMINAL_BYTES, gpu.mem_bytes)
