"""Lets all attempts of a job write TensorBoard logs together, without a step that appears twice.

An attempt that was killed has logged steps that the next attempt repeats from the last checkpoint. TensorBoard drops
the steps at or above a writer's `purge_step` in the same directory.

from ebbtide.integrations.tensorboard import summary_writer

writer = summary_writer()
writer.add_scalar("loss", loss, step)
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebbtide.environment import rank_of
from ebbtide.jobs import job


def log_dir() -> Path:
    """Return the job's directory for TensorBoard, the same at every attempt; `runs` outside Ebbtide."""
    output_dir = job().output_dir
    return Path("runs") if output_dir is None else output_dir / "tensorboard"


def purge_step(first: int = 1) -> int | None:
    """Return the step that this attempt logs next, as `purge_step` of a SummaryWriter; None outside Ebbtide.

    `first` is the number under which the run's first step is logged: 1 if it counts the steps done, as in a Hugging
    Face Trainer, 0 in Lightning. Raises InvalidCheckpoint if the checkpoint is damaged.
    """
    own = job()
    if own.output_dir is None:
        return None
    state = own.load_checkpoint()
    return first + (state.step if state else 0)


class _Silent:
    """Accepts every call that a SummaryWriter accepts, and does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **options: None


def summary_writer(first: int = 1, **options: Any) -> Any:
    """Return a SummaryWriter on `log_dir()`, or `options["log_dir"]`, that continues at `purge_step(first)`.

    On any rank but 0 it writes nothing, because a second writer's purge would drop what the first one has just written.
    Raises InvalidCheckpoint if the checkpoint is damaged.
    """
    if rank_of(os.environ) > 0:
        return _Silent()
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(**{"log_dir": str(log_dir()), "purge_step": purge_step(first), **options})
