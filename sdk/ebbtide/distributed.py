"""Agreement between the ranks of a job, through torch.distributed where the script has initialised it.

torch is looked up among the loaded modules and never imported: a script without it does not pay for it.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebbtide.checkpoints import Checkpoint

Save = Callable[[Path], object]


class CheckpointFailed(Exception):
    """Another rank could not save; the message names the rank and its error. Older checkpoints stay untouched."""


def current() -> "Group | None":
    """The process group of this script, None if it has none or is its only member."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return Group(dist, sys.modules["torch"])


class Group:
    """The default process group; every method is collective and blocks until all ranks have called it."""

    def __init__(self, dist: Any, torch: Any) -> None:
        self._dist = dist
        self._torch = torch
        self.rank: int = dist.get_rank()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank: the same answer on all of them, by one reduction of one number."""
        device = f"cuda:{self._torch.cuda.current_device()}" if self._dist.get_backend() == "nccl" else "cpu"
        votes = self._torch.tensor([int(flag)], dtype=self._torch.int32, device=device)
        self._dist.all_reduce(votes, op=self._dist.ReduceOp.MAX)
        return bool(votes.item())

    def wait(self) -> None:
        """Return once every rank is here."""
        self.any(False)

    def lead(self, publish: Callable[[Save], Checkpoint], save: Save, all_ranks: bool) -> Checkpoint:
        """Rank 0's part of a checkpoint: publish what `save` writes here and, on request, on every rank.

        Whatever fails here is raised here and told to the others; whatever fails there is raised here.
        """

        def write(directory: Path) -> None:
            self._share(("write", str(directory)))
            self._save_together(save, directory)

        try:
            checkpoint = publish(write if all_ranks else save)
        except BaseException as error:
            self._share(("done", f"rank 0: {error!r}"))
            raise
        self._share(("done", None))
        return checkpoint

    def follow(self, save: Save) -> None:
        """Every other rank's part: save when rank 0 says so, return or raise when it is done."""
        own: Exception | None = None
        while True:
            match self._share(None):
                case ("write", str(directory)):
                    try:
                        self._save_together(save, Path(directory))
                    except Exception as error:  # noqa: BLE001  raised below, once rank 0 has withdrawn its draft
                        own = error
                case ("done", problem):
                    if own is not None:
                        raise own
                    if problem is not None:
                        raise CheckpointFailed(problem)
                    return

    def _save_together(self, save: Save, directory: Path) -> None:
        own: Exception | None = None
        try:
            save(directory)
        except Exception as error:  # noqa: BLE001  raised below, once every rank knows
            own = error
        problems: list[str | None] = [None] * self._dist.get_world_size()
        self._dist.all_gather_object(problems, None if own is None else repr(own))
        if own is not None:
            raise own
        for rank, problem in enumerate(problems):
            if problem is not None:
                raise CheckpointFailed(f"rank {rank}: {problem}")

    def _share(self, message: tuple[str, str | None] | None) -> tuple[str, str | None]:
        """Give every rank the message of rank 0."""
        box: list[Any] = [message]
        self._dist.broadcast_object_list(box, src=0)
        shared: tuple[str, str | None] = box[0]
        return shared
