"""Lets a loop over batches under Hugging Face Accelerate suspend between two batches and continue there.

from ebbtide.integrations.accelerate import steps

accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, batch in steps(accelerator, loader, total=1000):
    with accelerator.accumulate(model):
        ...
    ebbtide.job().report(step=step, total=1000, loss=loss)
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from ebbtide.jobs import job


def steps(accelerator: Accelerator, loader: Any, total: int, *, every: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield each step's number, from 1 to `total`, with its batch of the prepared `loader`, epoch after epoch.

    Loads the newest valid checkpoint into all that `accelerator` has prepared or registered, and begins after it. Every
    batch is then the one that an undisturbed run has at that step, if the loader's order is seeded as above. If the job
    is asked to stop, saves, publishes and leaves after the loop's body, at a step where no accumulated gradient is
    lost. Also publishes every `every` steps, unless that is 0. Raises InvalidCheckpoint for a damaged checkpoint.

    The run continues bit for bit if the samples draw no random numbers in this process (a loader's workers may).
    """
    own = job()
    state = own.load_checkpoint()
    if state is not None:
        accelerator.load_state(str(state.path))

    def save(draft: Path) -> None:
        accelerator.save_state(str(draft))

    for step, batch in _batches(accelerator, loader, state.step if state else 0, total):
        yield step, batch
        asked = own.should_suspend()
        if step == total or not accelerator.sync_gradients:
            continue
        if asked:
            own.suspend(save, step, all_ranks=True)
        if every and step % every == 0:
            own.checkpoint(save, step, all_ranks=True)


def _batches(accelerator: Accelerator, loader: Any, done: int, total: int) -> Iterator[tuple[int, Any]]:
    """Yield number and batch of each step after the first `done` ones."""
    while done < total:
        epoch, used = divmod(done, len(loader))
        loader.set_epoch(epoch)
        for batch in _rest(accelerator.skip_first_batches(loader, used)) if used else loader:
            done += 1
            yield done, batch
            if done == total:
                return


def _rest(loader: Any) -> Iterator[Any]:
    """Return the batches of an epoch that has begun; drawing its seed again must not change what the model draws."""
    batches = iter(loader)
    with torch.random.fork_rng(devices=[]):
        first = next(batches)
    return chain([first], batches)
