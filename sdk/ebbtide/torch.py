"""Lets PyTorch training stop after any step and continue with another number of GPUs.

import ebbtide.torch as ebt

world = ebt.init()
sampler = ebt.ResumableSampler(len(x), global_batch=256, seed=0)
training = ebt.Training(DDP(model), optimizer, sampler)
if state := job.load_checkpoint():
    training.load(state.path)
for step in range(state.step if state else 0, total):
    rows = sampler.take()
    optimizer.zero_grad()
    for part in ebt.accumulate(256, limit=64, model=training.model):
        chosen = rows[part.rows]
        (cross_entropy(training.model(x[chosen]), y[chosen]) * part.weight).backward()
    optimizer.step()
    if job.should_suspend():
        job.suspend(training.save, step + 1, all_ranks=True)
"""

import hashlib
import os
import pickle
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from ebbtide import regular


@dataclass(frozen=True, slots=True)
class World:
    """This process's rank, from 0, among the processes that train together, their number, and its own device."""

    rank: int
    world_size: int
    device: torch.device


def init() -> World:
    """Join the job's process group, over NCCL with GPUs and gloo without, and return this process's place in it.

    The current CUDA device becomes GPU LOCAL_RANK. The group is the one that torchrun or `ebb submit --launch ddp`
    describes in the environment. Without them, or with WORLD_SIZE 1, it has one member, so that a script may wrap its
    model in DistributedDataParallel wherever it runs. A group that is already initialised is used as it is.
    """
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        _join("nccl" if cuda else "gloo")
    return World(dist.get_rank(), dist.get_world_size(), device)


def _join(backend: str) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        return
    if sys.platform == "linux" and os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):
        # gloo would use the address that the host's name resolves to, which it cannot reach on many workstations.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(backend)


def _current_world() -> World:
    """Return this process's place in the default process group; rank 0 of 1 if there is none."""
    cuda = torch.cuda.is_initialized()
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    if not dist.is_available() or not dist.is_initialized():
        return World(0, 1, device)
    return World(dist.get_rank(), dist.get_world_size(), device)


class ResumableSampler:
    """Deals one endless, seeded stream of sample indices to the ranks, one global batch at a time.

    The stream consists of one permutation of all samples per epoch, determined by seed and epoch alone. `position` is
    the number of samples of the stream that all ranks together have used, so that any world size can continue there
    without skipping or repeating a sample. All batches have the same size, and may run across the end of an epoch.
    """

    def __init__(self, length: int, global_batch: int, *, seed: int = 0, world: World | None = None) -> None:
        """Deal `length` samples in batches of `global_batch` over all ranks of `world`, by default the current one.

        Raises ValueError if `length` is below 1 or `global_batch` below the number of ranks.
        """
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        world = world or _current_world()
        self.position = 0
        self._length = length
        self._global_batch = global_batch
        self._seed = seed
        self._share = _share(global_batch, world)
        self._permutation: tuple[int, torch.Tensor] | None = None

    @property
    def epoch(self) -> int:
        """Return how many times every sample has been used."""
        return self.position // self._length

    def take(self) -> torch.Tensor:
        """Return this rank's indices of the next global batch, and count the batch as used.

        The indices are a one-dimensional int64 tensor, as long as this rank's share of the batch.
        """
        indices = self._rows(self.position)
        self.advance()
        return indices

    def advance(self) -> None:
        """Count one global batch as used."""
        self.position += self._global_batch

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's indices of each global batch from `position` on, without end.

        Pass the sampler as DataLoader(batch_sampler=). Iterating counts nothing as used, because loaders fetch ahead of
        training: call `advance` after each step.
        """
        for position in count(self.position, self._global_batch):
            yield self._rows(position).tolist()

    def state_dict(self) -> dict[str, int]:
        """Return the position, length and seed of the stream, which are the same on every rank."""
        return {"position": self.position, "length": self._length, "seed": self._seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at the position in `state`; raises ValueError if `state` has another seed or number of samples."""
        for name, mine in (("length", self._length), ("seed", self._seed)):
            if state[name] != mine:
                raise ValueError(f"the checkpoint's sampler has {name} {state[name]}, this one {mine}")
        self.position = state["position"]

    def _rows(self, position: int) -> torch.Tensor:
        start, stop = position + self._share.start, position + self._share.stop
        pieces = []
        while start < stop:
            epoch, offset = divmod(start, self._length)
            pieces.append(self._order(epoch)[offset : offset + stop - start])
            start += len(pieces[-1])
        return torch.cat(pieces)

    def _order(self, epoch: int) -> torch.Tensor:
        if self._permutation is None or self._permutation[0] != epoch:
            # Not the global generator: what dropout draws must not depend on when an epoch's order is made.
            generator = torch.Generator().manual_seed(_mix(self._seed, epoch))
            self._permutation = (epoch, torch.randperm(self._length, generator=generator))
        return self._permutation[1]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The rows of one micro-batch within this rank's share, and the weight of their mean loss in the gradient."""

    rows: slice
    weight: float


def accumulate(
    global_batch: int, *, limit: int | None = None, model: nn.Module | None = None, world: World | None = None
) -> Iterator[MicroBatch]:
    """Cut this rank's share of a global batch into micro-batches of at most `limit` rows, by default into one.

    Backpropagate the *mean* loss over the rows of each micro-batch times its `weight`. If gradients are averaged over
    the ranks, as DistributedDataParallel does, the result is the gradient of the mean loss over the global batch, for
    any number of ranks and also for uneven shares. A DistributedDataParallel `model` exchanges gradients only with the
    last micro-batch. Raises ValueError if `limit` is below 1 or `global_batch` below the number of ranks.
    """
    world = world or _current_world()
    share = _share(global_batch, world)
    size = share.stop - share.start
    step = size if limit is None else limit
    if step < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    quiet = getattr(model, "no_sync", nullcontext)
    for start in range(0, size, step):
        stop = min(start + step, size)
        with quiet() if stop < size else nullcontext():
            yield MicroBatch(slice(start, stop), (stop - start) * world.world_size / global_batch)


def _share(global_batch: int, world: World) -> range:
    """Return the rows of a global batch that this rank gets; the first ranks get one more if shares cannot be equal."""
    if global_batch < world.world_size:
        raise ValueError(f"a global batch of {global_batch} leaves some of {world.world_size} ranks without a sample")
    size, extra = divmod(global_batch, world.world_size)
    start = world.rank * size + min(world.rank, extra)
    return range(start, start + size + (world.rank < extra))


@dataclass(frozen=True, slots=True)
class Training:
    """All state that decides how training continues, saved and loaded as one.

    At the same world size and on the same machine, training continues bit for bit if the random generators of every
    rank were saved (`all_ranks=True`). With three ranks or more, gradients may be summed in another order, since
    DistributedDataParallel lays out its buckets anew after its first step (not with `find_unused_parameters`). At
    another world size the generators are seeded anew from the saved ones.

    Models must be replicated: a sharded one (FSDP) needs torch.distributed.checkpoint. `others` holds, each by a name
    of its own, further objects with `state_dict` and `load_state_dict`, such as a GradScaler or averaged weights.
    Raises ValueError for a name in `others` that is taken.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    sampler: ResumableSampler | None = None
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if taken := self.others.keys() & {"model", "optimizer", "sampler", "scheduler", "world_size"}:
            raise ValueError(f"others must not be named {', '.join(sorted(taken))}")

    def save(self, directory: Path) -> None:
        """Write the state into `directory`: rank 0 writes all of it, any other rank its random generators.

        Raises ValueError if the state holds more than tensors and plain containers, which `load` would refuse.
        """
        world = _current_world()
        save_random_state(directory)
        if world.rank == 0:
            state = {name: part.state_dict() for name, part in self._parts()}
            _write(directory / "training.pt", {"world_size": world.world_size, **state})

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote, at any world size.

        Raises OSError if a file cannot be read, KeyError for a part that was not saved, and ValueError for a sampler of
        another seed or number of samples.
        """
        state = torch.load(directory / "training.pt", weights_only=True, map_location="cpu")
        for name, part in self._parts():
            part.load_state_dict(state[name])
        load_random_state(directory, state["world_size"])

    def _parts(self) -> list[tuple[str, Any]]:
        parts = {"model": _bare(self.model), "optimizer": self.optimizer}
        parts |= {"sampler": self.sampler, "scheduler": self.scheduler, **self.others}
        return [(name, part) for name, part in parts.items() if part is not None]


def _bare(model: nn.Module) -> nn.Module:
    """Return the model without its wrappers (DistributedDataParallel, torch.compile), which prefix parameter names."""
    name = "module" if isinstance(model, nn.parallel.DistributedDataParallel) else "_orig_mod"
    inner = getattr(model, name, None)
    return _bare(inner) if isinstance(inner, nn.Module) else model


def save_random_state(directory: Path) -> None:
    """Write this rank's random generators (Python, NumPy, PyTorch and this rank's GPU) into `directory`."""
    world = _current_world()
    _write(directory / f"random-{world.rank}.pt", _random_state(world))


def load_random_state(directory: Path, world_size: int) -> None:
    """Restore this rank's random generators from `directory`, which `world_size` ranks saved.

    If the world size has changed, or this rank saved none, seed the generators anew from those of rank 0.
    """
    world = _current_world()
    own = directory / f"random-{world.rank}.pt"
    if world_size == world.world_size and regular.is_there(own):
        _restore_random_state(torch.load(own, weights_only=True), world)
    else:
        _seed_anew(torch.load(directory / "random-0.pt", weights_only=True), world)


def _write(path: Path, state: dict[str, Any]) -> None:
    torch.save(state, path)
    try:
        # Fail at the first save rather than at a resume. A mapped load reads the structure and none of the data.
        torch.load(path, weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path.name} holds objects that cannot be loaded again: {error}") from error


def _random_state(world: World) -> dict[str, Any]:
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, list(words), gauss]}
    if world.device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(world.device)
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = [name, keys.tolist(), *rest]
    return state


def _restore_random_state(state: dict[str, Any], world: World) -> None:
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    if "cuda" in state and world.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], world.device)
    if "numpy" in state:
        import numpy

        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))


def _seed_anew(state: dict[str, Any], world: World) -> None:
    """Seed every generator from rank 0's saved one, differently on each rank, and alike at every resume from it."""
    origin = hashlib.sha256(bytes(state["torch"].tolist())).hexdigest()
    seed = _mix(origin, world.world_size, world.rank)
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def _mix(*values: object) -> int:
    """Return 32 bits that depend on all values; torch's CPU generator uses no more of a seed."""
    return int.from_bytes(hashlib.sha256(repr(values).encode()).digest()[:4], "big")
