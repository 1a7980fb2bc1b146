"""Lets a Lightning Trainer (`lightning.pytorch` or `pytorch_lightning`) suspend between two batches and continue there.

from ebbtide.integrations.lightning import ResumableLoader, SuspendCallback, resume_path

trainer = Trainer(callbacks=[SuspendCallback()])
trainer.fit(model, ResumableLoader(dataset, batch_size=32, shuffle=True), ckpt_path=resume_path())
"""

import importlib
import math
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from ebbtide import regular
from ebbtide.jobs import job
from ebbtide.torch import load_random_state, save_random_state

FILE = "lightning.ckpt"

Batch = TypeVar("Batch")


def _library() -> Any:
    """Return the Lightning module that the script has imported, under either of its two names; else import it."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in names:
        if name in sys.modules:
            return sys.modules[name]
    try:
        return importlib.import_module(names[0])
    except ModuleNotFoundError:
        return importlib.import_module(names[1])


_Callback: Any = _library().Callback


def resume_path() -> str | None:
    """Return what `Trainer.fit(ckpt_path=)` takes: the newest valid checkpoint's file, or None at a fresh start.

    Raises InvalidCheckpoint if the checkpoint is damaged.
    """
    state = job().load_checkpoint()
    return None if state is None else str(state.path / FILE)


class SuspendCallback(_Callback):  # type: ignore[misc]  # the class is known only at run time
    """Saves, publishes and leaves when the job is asked to stop, and also publishes every `every` optimizer steps.

    With `every` 0 it publishes only when it leaves. It saves after an optimizer step, so that no accumulated gradient
    is lost. If validation or the end of the epoch is due then, which a resumed Lightning would leave out, it lets that
    happen, and saves after the next step; if something is due after that one, too, as where an epoch has one step, it
    waits no longer. It takes the stop signal back from Lightning, whose handler would end the process without a
    checkpoint. Outside Ebbtide it does nothing.
    """

    def __init__(self, every: int = 0) -> None:
        self._job = job()
        self._every = every
        self._total: int | None = None
        self._step = -1
        self._leaving = False
        self._waited = False  # the job was asked at the step before, and something else may have been due then
        self._put_off = False  # a checkpoint was due at the step before, and something else, too

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._job.catch_signal_again()
        total = trainer.estimated_stepping_batches
        self._total = int(total) if 0 < total < math.inf else None
        self._step = trainer.global_step
        state = self._job.load_checkpoint()
        if state is not None and regular.is_there(state.path / FILE) and trainer.ckpt_path == str(state.path / FILE):
            load_random_state(state.path, _world_size(state.path))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._leaving:  # not before now, so that Lightning has logged the step before
            self._job.suspend(step=self._step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        asked = self._job.should_suspend()
        if trainer.global_step == self._step:
            return  # a gradient that is half accumulated cannot be saved
        self._step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._job.report(step=self._step, total=self._total, loss=loss)
        more_is_due = _more_is_due(trainer, batch_idx)
        self._leaving = asked and (self._waited or not more_is_due)
        self._waited = asked
        is_due = self._every > 0 and self._step % self._every == 0
        saves = self._leaving or self._put_off or (is_due and not more_is_due)
        self._put_off = is_due and not saves
        if saves:
            self._job.checkpoint(lambda draft: _save(trainer, draft), self._step, all_ranks=True)


def _save(trainer: Any, draft: Path) -> None:
    """Write Lightning's checkpoint and the random state, which Lightning does not keep. Called on every rank."""
    try:
        trainer.save_checkpoint(draft / FILE, weights_only=False)
    except Exception:
        trainer.strategy.barrier("Trainer.save_checkpoint")  # the ranks on which it has not failed wait there
        raise
    save_random_state(draft)


def _world_size(checkpoint: Path) -> int:
    return len(list(checkpoint.glob("random-*.pt")))


def _more_is_due(trainer: Any, batch_idx: int) -> bool:
    """Return whether the end of the epoch or a validation comes next, which a resumed Lightning would leave out."""
    every = trainer.val_check_batch
    validates = trainer.enable_validation and every is not None and 1 < every < math.inf
    return bool(trainer.is_last_batch or (validates and (batch_idx + 1) % every == 0))


class ResumableLoader(DataLoader[Batch]):
    """A DataLoader that continues with the batch after the last one that was used, in the same order.

    Lightning saves and loads its state by itself. Batches that were used are read once more and dropped. The data must
    have a length, because Lightning fetches other data ahead.
    """

    _start: torch.Tensor | None = None  # the random state in which the epoch began
    _taken = 0
    _resuming = False

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # without the methods of DataLoader's own iterator
        # Nothing here runs before the first batch is asked for, when the callback has restored the random state.
        if not self._resuming or self._start is None:
            self._start, self._taken = torch.get_rng_state(), 0
            batches: Iterator[Batch] = super().__iter__()
        else:
            self._resuming = False
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(self._start)
                batches = super().__iter__()
                for _ in islice(batches, self._taken):
                    pass
        for batch in batches:
            self._taken += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return how far the epoch is and its random state; nothing if the epoch is over or has not begun."""
        if self._start is None or self._taken >= len(self):
            return {}
        return {"start": self._start, "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state` at the next iteration."""
        if state:
            self._start, self._taken, self._resuming = state["start"], state["taken"], True
