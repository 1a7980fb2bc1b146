"""PyTorch training that can stop anywhere and go on with another number of GPUs.

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


@dataclass(frozen=True, slots=True)
class World:
    """This process among those that train together, and the device that is its own."""

    rank: int
    world_size: int
    device: torch.device


def init() -> World:
    """Join the job's process group, over NCCL with GPUs and gloo without, and return this process's place in it.

    Reads what torchrun and `ebb submit --launch ddp` set. Without that, or alone, the group has one member, so that
    a script may wrap its model in DistributedDataParallel wherever it runs. A group that exists is used as it is.
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
        # gloo would ask what the host's name resolves to, which on many workstations is nothing it can reach.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(backend)


def _current_world() -> World:
    """This process's place in the default process group; rank 0 of 1 if there is none."""
    cuda = torch.cuda.is_initialized()
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    if not dist.is_available() or not dist.is_initialized():
        return World(0, 1, device)
    return World(dist.get_rank(), dist.get_world_size(), device)


class ResumableSampler:
    """Deals one endless, seeded stream of sample indices to the ranks, a global batch at a time.

    The stream is one permutation of all samples after the other, each determined by seed and epoch. `position`
    counts the samples of the stream that are used up, over all ranks, so that any world size can go on from there
    without skipping or repeating a sample. Batches run across the end of an epoch: all have the same size.
    """

    def __init__(self, length: int, global_batch: int, *, seed: int = 0, world: World | None = None) -> None:
        """Deal `length` samples in batches of `global_batch` over all ranks of `world`, by default the current one.

        Raises ValueError if there is no sample or a rank would get none.
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
        """How many times every sample has been used."""
        return self.position // self._length

    def take(self) -> torch.Tensor:
        """This rank's indices of the next global batch, which counts as used from now on."""
        indices = self._rows(self.position)
        self.advance()
        return indices

    def advance(self) -> None:
        """Count one global batch as used."""
        self.position += self._global_batch

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's share of every global batch from `position` on, without end, for DataLoader(batch_sampler=).

        Iterating uses nothing up, because loaders fetch ahead of training: call `advance` after each step.
        """
        for position in count(self.position, self._global_batch):
            yield self._rows(position).tolist()

    def state_dict(self) -> dict[str, int]:
        """Where the stream stands; the same on every rank."""
        return {"position": self.position, "length": self._length, "seed": self._seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there; raises ValueError if that was the stream of another seed or number of samples."""
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
    """Rows of this rank's share of the global batch, and the weight of their mean loss in the step's gradient."""

    rows: slice
    weight: float


def accumulate(
    global_batch: int, *, limit: int | None = None, model: nn.Module | None = None, world: World | None = None
) -> Iterator[MicroBatch]:
    """Cut this rank's share of a global batch into micro-batches of at most `limit` rows.

    With the *mean* loss over the rows times `weight`, and gradients averaged over the ranks as
    DistributedDataParallel does, the gradient is that of the mean over the global batch, whatever the number of
    ranks and also where their shares are uneven. A DistributedDataParallel `model` exchanges gradients only with
    the last micro-batch. Raises ValueError if a rank would get no row.
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
    """The part of a global batch that a rank gets: equal parts, the first ranks one more where they cannot be."""
    if global_batch < world.world_size:
        raise ValueError(f"a global batch of {global_batch} leaves some of {world.world_size} ranks without a sample")
    size, extra = divmod(global_batch, world.world_size)
    start = world.rank * size + min(world.rank, extra)
    return range(start, start + size + (world.rank < extra))


@dataclass(frozen=True, slots=True)
class Training:
    """Everything that decides how training goes on, to be saved and loaded as one.

    At the same world size and on the same machine, training goes on bit for bit where the random generators of
    every rank were saved (`all_ranks=True`); with three ranks or more but for the order in which gradients are summed,
    since DistributedDataParallel lays out its buckets anew after its first step (not with `find_unused_parameters`).
    At another world size the generators are seeded anew from the saved ones.
    Replicated models only: a sharded one (FSDP) needs torch.distributed.checkpoint. `others` is whatever else has
    `state_dict` and `load_state_dict`, by a name of its own: a GradScaler, averaged weights. Raises ValueError for a
    name that is taken.
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
        """Restore what `save` wrote at any world size; raises OSError, KeyError for a part that was not saved."""
        state = torch.load(directory / "training.pt", weights_only=True, map_location="cpu")
        for name, part in self._parts():
            part.load_state_dict(state[name])
        load_random_state(directory, state["world_size"])

    def _parts(self) -> list[tuple[str, Any]]:
        parts = {"model": _bare(self.model), "optimizer": self.optimizer}
        parts |= {"sampler": self.sampler, "scheduler": self.scheduler, **self.others}
        return [(name, part) for name, part in parts.items() if part is not None]


def _bare(model: nn.Module) -> nn.Module:
    """The model without the wrappers that would put their prefix before its parameters' names."""
    name = "module" if isinstance(model, nn.parallel.DistributedDataParallel) else "_orig_mod"
    inner = getattr(model, name, None)
    return _bare(inner) if isinstance(inner, nn.Module) else model


def save_random_state(directory: Path) -> None:
    """Write this rank's random generators (Python, NumPy, PyTorch and this rank's GPU) into `directory`."""
    world = _current_world()
    _write(directory / f"random-{world.rank}.pt", _random_state(world))


def load_random_state(directory: Path, world_size: int) -> None:
    """Restore this rank's generators as `world_size` ranks saved them, or seed them anew if there are more or fewer."""
    world = _current_world()
    own = directory / f"random-{world.rank}.pt"
    if world_size == world.world_size and own.exists():
        _restore_random_state(torch.load(own, weights_only=True), world)
    else:
        _seed_anew(torch.load(directory / "random-0.pt", weights_only=True), world)


def _write(path: Path, state: dict[str, Any]) -> None:
    torch.save(state, path)
    try:
        # Mapped, this reads the structure and none of the data: better to fail at the first save than at a resume.
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
    """Seed every generator from rank 0's saved one, differently on each rank: resumed twice, the same numbers come."""
    origin = hashlib.sha256(bytes(state["torch"].tolist())).hexdigest()
    seed = _mix(origin, world.world_size, world.rank)
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def _mix(*values: object) -> int:
    """32 bits that depend on all values; torch's CPU generator uses no more of a seed."""
    return int.from_bytes(hashlib.sha256(repr(values).encode()).digest()[:4], "big")
