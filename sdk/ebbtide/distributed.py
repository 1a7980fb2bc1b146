"""Lets the ranks of a job agree, through torch.distributed if the script has initialised it.

torch is looked up among the loaded modules and never imported, so that a script without it does not pay for it.
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

_MESSAGE_BYTES = 8192  # holds the longest path, or an error that is cut to fit
_PROBLEM_LENGTH = 1000
_SETTLE_S = 5.0
_REST_S = 0.005


class CheckpointFailed(Exception):
    """Another rank could not save; the message names the rank and its error. Older checkpoints stay untouched."""


_group: "ProcessGroup | None" = None


def current() -> "ProcessGroup | None":
    """Return this script's process group; None if it has none or is its only member."""
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
        """Return, alike on every rank, whether the flag is set on any rank, by one reduction of one number."""
        self._votes.fill_(int(flag))
        self._dist.all_reduce(self._votes, op=self._dist.ReduceOp.MAX)
        return bool(self._votes.item())

    def wait(self) -> None:
        """Return once every rank has called this method."""
        self.any(False)

    def lead(self, publish: Callable[[Save], Checkpoint], save: Save, all_ranks: bool) -> Checkpoint:
        """Publish, as rank 0, what `save` writes on this rank and, with `all_ranks`, on every rank.

        An error on rank 0 is raised here and told to the other ranks. An error on another rank is raised here as
        CheckpointFailed.
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
        """Save, as another rank, when rank 0 says so, and return or raise when rank 0 has published or failed."""
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
        """Let gloo's threads finish before the interpreter shuts down, for at most `_SETTLE_S` seconds.

        These threads release an operation's tensors some time after its result is there, and need the interpreter for
        it. An interpreter that is shutting down kills the process for that (SIGABRT, "terminate called without an
        active exception"). Without this wait that happens to one in five scripts that leave right after a suspend, and
        now and then to one that ends right after its training, as under the Trainer.
        """
        deadline = time.monotonic() + _SETTLE_S
        while self._references() > self._idle_references and time.monotonic() < deadline:
            time.sleep(0.001)
        # Tensors of the script's own operations are not known here. A thread that releases one runs, so wait until
        # none runs any more.
        before: dict[str, str] | None = None
        now = _switches()
        while now != before and time.monotonic() < deadline:
            time.sleep(_REST_S)
            before, now = now, _switches()

    def _save_together(self, save: Save, directory: Path) -> None:
        """Save on every rank; raises this rank's own error, else CheckpointFailed with the first failed rank's."""
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
        """Return the message of rank `source` on every rank; what the other ranks pass is ignored."""
        if self.rank == source:
            data = f"{kind}\0{text}".encode("utf-8", "surrogateescape")[: _MESSAGE_BYTES - 1]
            self._text.zero_()
            self._text[: len(data)] = self._torch.tensor(list(data), dtype=self._torch.uint8)
        self._dist.broadcast(self._text, src=source)
        kind, _, content = bytes(self._text.tolist()).decode("utf-8", "surrogateescape").rstrip("\0").partition("\0")
        return kind, content


def _switches() -> dict[str, str]:
    """Return how often each other thread of this process has run on a CPU; if no count grows, all of them wait."""
    found = {}
    for thread in Path("/proc/self/task").glob("[0-9]*"):
        if int(thread.name) != threading.get_native_id():
            try:
                found[thread.name] = (thread / "schedstat").read_text().split()[2]
            except (OSError, IndexError):  # the thread has ended, or the kernel keeps no count
                continue
    return found
