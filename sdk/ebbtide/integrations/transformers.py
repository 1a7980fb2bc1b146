"""Lets a Hugging Face Trainer suspend at the end of a step and continue with the next one.

from ebbtide.integrations.transformers import SuspendCallback, resume_path

trainer = Trainer(model=model, args=args, train_dataset=dataset, callbacks=[SuspendCallback()])
trainer.train(resume_from_checkpoint=resume_path())
"""

import os
import shutil
import stat
from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy

from ebbtide import distributed
from ebbtide.jobs import LinkingSave, job

LARGE_BYTES: Final = 1 << 20
"""From this size on, in bytes, a file is linked, not copied: only the Trainer writes such files, and as new ones."""


def resume_path() -> str | None:
    """Return what `Trainer.train(resume_from_checkpoint=)` takes: the newest valid checkpoint, None at a fresh start.

    Raises InvalidCheckpoint if the checkpoint is damaged.
    """
    state = job().load_checkpoint()
    return None if state is None else str(state.path)


class SuspendCallback(TrainerCallback):
    """Saves, publishes and leaves when the job is asked to stop; also publishes every other save of the Trainer.

    Raises ValueError for TrainingArguments with which nothing could be resumed. Outside Ebbtide it does nothing.
    """

    def __init__(self) -> None:
        self._job = job()
        self._loss: float | None = None
        self._leaving = False
        self._extra = False  # the save is this callback's: the Trainer's own schedule has none at this step
        self._published = -1  # the step of the newest save that was published

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if args.save_only_model:
            raise ValueError("save_only_model: a checkpoint without optimizer and random state cannot be resumed")
        if getattr(args, "enable_jit_checkpoint", False):
            raise ValueError("enable_jit_checkpoint: takes the stop signal away from this callback, which does as much")

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if args.should_save:
            _part(Path(str(args.output_dir)), state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> None:
        self._loss = (logs or {}).get("loss", self._loss)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._job.report(step=state.global_step, total=state.max_steps, loss=self._loss)
        asked = self._job.should_suspend()
        # Leaving here would lose what is due at the end of an epoch, and after the last step nothing is left to resume.
        if asked and not float(state.epoch or 0).is_integer() and state.global_step < state.max_steps:
            self._leave(args, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if not self._job.should_suspend() or state.global_step >= state.max_steps:
            return
        again = self._published == state.global_step
        if again and not (control.should_log or control.should_evaluate or control.should_save):
            self._job.suspend(step=state.global_step)
        self._leave(args, control)
        if again:  # the Trainer's schedule had a save at this step, into which it is about to write once more
            self._extra = False
            if args.should_save:
                _part(Path(str(args.output_dir)), state.global_step)
            group = distributed.current()
            if group is not None:
                group.wait()  # no rank writes before that

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        folder = Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        group = distributed.current()
        if group is not None:
            group.wait()  # every rank has written its random state
        extra = self._extra and state.best_global_step != state.global_step
        self._job.checkpoint(LinkingSave(lambda draft: _take(folder, draft, extra), folder), state.global_step)
        self._published = state.global_step
        if self._leaving:
            if extra and args.should_save:
                shutil.rmtree(folder, ignore_errors=True)
            self._job.suspend(step=state.global_step)

    def _leave(self, args: TrainingArguments, control: TrainerControl) -> None:
        self._leaving, self._extra = True, not control.should_save
        control.should_save = control.should_training_stop = True
        if args.save_strategy == SaveStrategy.BEST:  # would take the save back after an evaluation that is no better
            args.save_strategy = SaveStrategy.STEPS


def _take(folder: Path, draft: Path, extra: bool) -> None:
    """Link what the Trainer saved; unless the save is `extra`, copy small files, which others may write to again."""
    shutil.copytree(folder, draft, copy_function=_link if extra else _link_if_large, dirs_exist_ok=True)


def _link_if_large(source: str, target: str) -> None:
    (_link if os.stat(source).st_size >= LARGE_BYTES else shutil.copy2)(source, target)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _part(output: Path, step: int) -> None:
    """Give the Trainer copies of its own of the files that it may write again: those of this step and of later ones.

    It writes them in place, and published checkpoints, which are linked to the same files, must not change with that.
    """
    for folder in output.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        number = folder.name.rpartition("-")[2]
        if not number.isdecimal() or int(number) < step:
            continue
        for path in folder.rglob("*"):
            facts = path.lstat()
            if stat.S_ISREG(facts.st_mode) and facts.st_nlink > 1:
                _replace_with_copy(path)


def _replace_with_copy(path: Path) -> None:
    draft = path.with_name(f".{path.name}.own")
    try:
        shutil.copy2(path, draft)
        os.replace(draft, path)
    except BaseException:  # e.g. the disk is full
        draft.unlink(missing_ok=True)
        raise
