"""GPU memory of fake GPUs, which nothing but a word to the supervisor can take."""

import os

from ebbtide.channel import ask

_GIB = 1 << 30


class OutOfMemory(RuntimeError):
    """A fake GPU has not as much memory free; the message reads as PyTorch's."""


def fake_allocate(mem_bytes: int, gpu: int | None = None) -> bool:
    """Have this process hold so many bytes of each fake GPU that it computes on, instead of what it held before.

    For tests and rehearsals: when this returns True, NVML shows the memory. `gpu` names one of the job's GPUs on this
    node by its place; without it a process with a LOCAL_RANK has that one, and any other has all of them. Outside
    Ebbtide and on real GPUs nothing happens, and the answer is False. Raises OutOfMemory, and ValueError for a GPU that
    is none.
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
