"""Allocates memory on fake GPUs, which takes a request to the supervisor."""

import os

from ebbtide.channel import ask

_GIB = 1 << 30


class OutOfMemory(RuntimeError):
    """A fake GPU has too little free memory; the message reads like PyTorch's."""


def fake_allocate(mem_bytes: int, gpu: int | None = None) -> bool:
    """Have this process hold `mem_bytes` bytes of each fake GPU that it computes on, instead of what it held before.

    It is meant for tests and rehearsals: once it returns True, NVML shows the memory. `gpu` is the place of one of the
    job's GPUs on this node, from 0; without it a process with a LOCAL_RANK uses that GPU, and any other process all of
    them. Outside Ebbtide and on real GPUs it does nothing and returns False. Raises OutOfMemory if a GPU has too little
    free memory, and ValueError for a negative size or a GPU that the job does not have.
    """
    if mem_bytes < 0:
        raise ValueError(f"mem_bytes must be at least 0, got {mem_bytes}")
    local_rank = os.environ.get("LOCAL_RANK", "")
    place = int(local_rank) if gpu is None and local_rank.isdecimal() else gpu
    request = {"kind": "fake_allocate", "pid": os.getpid(), "bytes": int(mem_bytes), "gpu": place}
    answer = ask(os.environ.get("EBB_SOCKET") or None, request)
    match answer:
        case {"held": True}:
            return True
        case {"free": int(free), "total": int(total), "gpu": int(full)}:
            raise OutOfMemory(
                f"CUDA out of memory. Tried to allocate {mem_bytes / _GIB:.2f} GiB. GPU {full} has a total capacity of "
                f"{total / _GIB:.2f} GiB of which {free / _GIB:.2f} GiB is free. It is a fake GPU."
            )
        case {"error": str(error)}:
            raise ValueError(error)
    return False
