"""Agreement between the ranks of a job, through torch.distributed where the script has initialised it.

torch is looked up among the loaded modules and never imported: a script without it does not pay for it.
"""

import atexit
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebbtide.checkpoints import Checkpoint

Save = Callable[[Path], object]

_MESSAGE_BYTES = 8192  # a path of the greatest length, or an error cut to fit
_PROBLEM_LENGTH = 1000
_SETTLE_S = 5.0
_REST_S = 0.005


class CheckpointFailed(Exception):
    """Another rank could not save; the message names the rank and its error. Older checkpoints stay untouched."""


_group: "ProcessGroup | None" = None


def current() -> "ProcessGroup | None":
    """The process group of this script, None if it has none or is its only member."""
    global _group
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    if _group is None or _group.world is not dist.group.WORLD:
        _group = ProcessGroup(dist, sys.modules["torch"])
    return _group


class ProcessGroup:
    """The default process group; every method is collective and blocks until all ranks have called it."""

    def __init__(self, dist: Any, torch: Any) -> None:
        self.world = dist.group.WORLD
        self.rank: int = dist.get_rank()
        self._size: int = dist.get_world_size()
        self._dist = dist
        self._torch = torch
        device = f"cuda:{torch.cuda.current_device()}" if dist.get_backend() == "nccl" else "cpu"
        with torch.inference_mode(False):
            self._votes = torch.zeros(1, dtype=torch.int32, device=device)
            self._text = torch.zeros(_MESSAGE_BYTES, dtype=torch.uint8, device=device)
        self._idle_references = self._references()
        atexit.register(self._settle)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank: the same answer on all of them, by one reduction of one number."""
        self._votes.fill_(int(flag))
        self._dist.all_reduce(self._votes, op=self._dist.ReduceOp.MAX)
        return bool(self._votes.item())

    def wait(self) -> None:
        """Return once every rank is here."""
        self.any(False)

    def lead(self, publish: Callable[[Save], Checkpoint], save: Save, all_ranks: bool) -> Checkpoint:
        """Rank 0's part of a checkpoint: publish what `save` writes here and, on request, on every rank.

        Whatever fails here is raised here and told to the others; whatever fails there is raised here.
        """

        def write(directory: Path) -> None:
            self._tell("write", str(directory))
            self._save_together(save, directory)

        try:
            checkpoint = publish(write if all_ranks else save)
        except BaseException as error:
            self._tell("failed", f"rank 0: {error!r}"[:_PROBLEM_LENGTH])
            raise
        self._tell("done", "")
        return checkpoint

    def follow(self, save: Save) -> None:
        """Every other rank's part: save when rank 0 says so, return or raise when it is done."""
        own: Exception | None = None
        while True:
            match self._tell("", ""):
                case "write", directory:
                    try:
                        self._save_together(save, Path(directory))
                    except Exception as error:  # noqa: BLE001  raised below, once rank 0 has withdrawn its draft
                        own = error
                case "failed", problem:
                    raise own or CheckpointFailed(problem)
                case _:
                    return

    def _references(self) -> int:
        return sys.getrefcount(self._votes) + sys.getrefcount(self._text)

    def _settle(self) -> None:
        """Let gloo's threads finish before the interpreter shuts down.

        They let go of an operation's tensors some time after its result is there, and need the interpreter for it;
        one that is shutting down kills the process for that (SIGABRT, "terminate called without an active
        exception"), which a script that leaves right after a suspend would meet once in five times, and one that
        ends right after its training, as under the Trainer, now and then.
        """
        deadline = time.monotonic() + _SETTLE_S
        while self._references() > self._idle_references and time.monotonic() < deadline:
            time.sleep(0.001)
        # What the script's own operations still hold is nobody's to know, but who lets go of it runs.
        before: dict[str, str] | None = None
        now = _switches()
        while now != before and time.monotonic() < deadline:
            time.sleep(_REST_S)
            before, now = now, _switches()

    def _save_together(self, save: Save, directory: Path) -> None:
        """Save on every rank; raises this rank's own error, else that of the first rank that has one."""
        own: Exception | None = None
        try:
            save(directory)
        except Exception as error:  # noqa: BLE001  raised below, once every rank knows
            own = error
        if not self.any(own is not None):
            return
        problem = "" if own is None else repr(own)[:_PROBLEM_LENGTH]
        problems = [self._tell(f"rank {rank}", problem, source=rank) for rank in range(self._size)]
        raise own or CheckpointFailed(next(f"{rank}: {text}" for rank, text in problems if text))

    def _tell(self, kind: str, text: str, source: int = 0) -> tuple[str, str]:
        """Give every rank the message of rank `source`; what the others pass is ignored."""
        if self.rank == source:
            data = f"{kind}\0{text}".encode("utf-8", "surrogateescape")[: _MESSAGE_BYTES - 1]
            self._text.zero_()
            self._text[: len(data)] = self._torch.tensor(list(data), dtype=self._torch.uint8)
        self._dist.broadcast(self._text, src=source)
        told, _, content = bytes(self._text.tolist()).decode("utf-8", "surrogateescape").rstrip("\0").partition("\0")
        return told, content


def _switches() -> dict[str, str]:
    """How often each of this process's other threads has been on a CPU: where that stands still, all of them wait."""
    found = {}
    for thread in Path("/proc/self/task").glob("[0-9]*"):
        if int(thread.name) != threading.get_native_id():
            try:
                found[thread.name] = (thread / "schedstat").read_text().split()[2]
            except (OSError, IndexError):  # it has ended, or the kernel does not tell
                continue
    return found
