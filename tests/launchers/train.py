"""What every launcher here starts: a training whose losses tell of each step that is missing, wrong or done twice.

train.py HOW FOLDER [--workers] [--ranks | --mpi | --fabric] [TURN]

HOW says who saves: `sdk`, `own` (a handler of the script's), `framework` (one of a library's, which keeps its
checkpoint itself) or `none` (nobody: there is a checkpoint every ten steps). In a turn other than the first it only
says that it was begun.
"""

import argparse
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from framework import Trainer, read, write


class State(NamedTuple):
    step: int
    loss: int

    def after(self, number: int) -> "State":
        return State(self.step + 1, (self.loss * 31 + number + 1) % 9973)


Agreed = Callable[[bool], bool]
Save = Callable[[], None]


class Data:
    """Numbers by their index, for a DataLoader."""

    def __getitem__(self, index: int) -> int:
        return index


def numbers(start: int, workers: bool) -> Iterator[int]:
    if not workers:
        return itertools.count(start)
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    turns = ([index] for index in itertools.count(start))
    return map(int, DataLoader(Data(), batch_sampler=turns, num_workers=2, persistent_workers=True))


class Ranks:
    """This process among those that train together."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._dist: Any = None
        self.rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", 0)))
        if not (options.ranks or options.mpi or options.fabric):
            return
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        if options.fabric:
            from lightning_fabric import Fabric

            fabric = Fabric(accelerator="cpu", devices=int(os.environ["EBB_GPU_COUNT"]), strategy="ddp")
            fabric.launch()
        elif options.mpi:
            place = f"file://{options.folder}/meeting-{os.environ['EBB_ATTEMPT']}"
            size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
            dist.init_process_group("gloo", init_method=place, rank=self.rank, world_size=size)
        else:
            dist.init_process_group("gloo")
        self._dist, self._torch = dist, torch
        self.rank = dist.get_rank()

    def mean(self, number: int) -> int:
        if self._dist is None:
            return number
        total = self._torch.tensor(number)
        self._dist.all_reduce(total)
        return int(total) // self._dist.get_world_size()

    def agreed(self, asked: bool) -> bool:
        """Whether any of them was asked."""
        if self._dist is None:
            return asked
        anybody = self._torch.tensor(int(asked))
        self._dist.all_reduce(anybody)
        return bool(anybody)


def by_sdk(folder: Path, ranks: Ranks) -> tuple[State, Callable[[State, Save], None]]:
    import ebbtide

    job = ebbtide.job()
    found = job.load_checkpoint()

    def after(state: State, use_data: Save) -> None:
        job.report(step=state.step, loss=state.loss)
        if job.should_suspend():
            use_data()
            job.suspend(lambda place: write(place / "state", state), step=state.step)

    return State(*read(found.path / "state")) if found else State(0, 0), after


def by_own_handler(folder: Path, ranks: Ranks) -> tuple[State, Callable[[State, Save], None]]:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: asked.append(signum))

    def after(state: State, use_data: Save) -> None:
        if ranks.agreed(bool(asked)):
            use_data()
            if ranks.rank == 0:
                write(Path(os.environ["EBB_CHECKPOINT_DIR"], "state"), state)
            ranks.agreed(True)  # nobody leaves before it is saved
            sys.exit(0)

    resume_dir = os.environ["EBB_RESUME_DIR"]
    return State(*read(Path(resume_dir, "state"))) if resume_dir else State(0, 0), after


def by_framework(folder: Path, ranks: Ranks) -> tuple[State, Callable[[State, Save], None]]:
    trainer = Trainer(folder / "framework.ckpt", ranks.rank, ranks.agreed)
    return State(*trainer.restored((0, 0))), trainer.after_step


def by_nobody(folder: Path, ranks: Ranks) -> tuple[State, Callable[[State, Save], None]]:
    file = folder / "every-ten"

    def after(state: State, use_data: Save) -> None:
        if state.step % 10 == 0 and ranks.rank == 0:
            write(file, state)

    return State(*read(file)) if file.exists() else State(0, 0), after


HOW = {"sdk": by_sdk, "own": by_own_handler, "framework": by_framework, "none": by_nobody}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=HOW)
    parser.add_argument("folder", type=Path)
    for flag in ("--workers", "--ranks", "--mpi", "--fabric"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("turn", nargs="?", default="first")
    options, _ = parser.parse_known_args()  # some launchers add what they think is wanted
    if options.turn != "first":
        (options.folder / "after").touch()
        return
    ranks = Ranks(options)
    state, after = HOW[options.how](options.folder, ranks)
    data = numbers(state.step, options.workers)
    with (options.folder / "losses").open("a") as losses:
        while True:
            state = state.after(ranks.mean(next(data)))
            time.sleep(0.01)
            if ranks.rank == 0:
                print(os.environ["EBB_ATTEMPT"], *state, file=losses, flush=True)
            after(state, lambda: next(data))


if __name__ == "__main__":
    main()
