"""Tells the fake driver which process computes on which of its GPUs, for it cannot see for itself."""

import json
import os
from contextlib import suppress
from pathlib import Path

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
    path = _path(intent, process.pid)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{process.pid}")
    draft.write_text(json.dumps({"pid": process.pid, "starttime": process.starttime, "gpus": held}))
    os.replace(draft, path)


def unregister(intent: Intent, pid: int) -> None:
    """Take the process off its GPUs; a dead one holds nothing even if this never happens."""
    if intent.gpus and intent.fake_gpu_dir:
        with suppress(OSError):
            _path(intent, pid).unlink()
        fake.forget(Path(intent.fake_gpu_dir), pid)


def _held_bytes(intent: Intent, gpu: Gpu) -> int:
    return min(intent.gpu_mem_bytes or _NOMINAL_BYTES, gpu.mem_bytes)


def _path(intent: Intent, pid: int) -> Path:
    return Path(intent.fake_gpu_dir, "processes", f"{pid}.json")
