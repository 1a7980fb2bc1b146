"""Two ranks over gloo, forked from one process so that torch is imported once; each writes what it saw as JSON.

Argument: a directory. The environment gives MASTER_ADDR, MASTER_PORT, and OTHER_MOUNT: where rank 1 has the directory
for checkpoints.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ebbtide
import ebbtide.torch as ebt
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

Facts = dict[str, Any]


def network() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def gradient_error(global_batch: int, limit: int | None) -> float:
    """How far the ranks' accumulated gradient is from that of the whole batch in one piece."""
    draw = torch.Generator().manual_seed(6)
    x = torch.randn(50, 6, generator=draw, dtype=torch.float64)
    y = torch.randn(50, 3, generator=draw, dtype=torch.float64)
    model = DistributedDataParallel(network())
    sampler = ebt.ResumableSampler(50, global_batch, seed=7)
    rows = sampler.take()
    for part in ebt.accumulate(global_batch, limit=limit, model=model):
        chosen = rows[part.rows]
        (mse_loss(model(x[chosen]), y[chosen]) * part.weight).backward()

    whole = ebt.ResumableSampler(50, global_batch, seed=7, world=ebt.World(0, 1, torch.device("cpu"))).take()
    alone = network()
    mse_loss(alone(x[whole]), y[whole]).backward()

    def gradients(module: nn.Module) -> list[Tensor]:
        return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]

    pairs = zip(gradients(model), gradients(alone), strict=True)
    return max((ours - theirs).abs().max().item() for ours, theirs in pairs)


def outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except (OSError, ebbtide.CheckpointFailed) as error:
        return f"{type(error).__name__}: {error}"
    return "saved"


def checkpoints(job: ebbtide.Job, rank: int) -> Facts:
    reached = set()

    def every_rank(directory: Path) -> None:
        reached.add(str(directory.parent))
        (directory / f"shard-{rank}").write_text(str(rank))

    def broken_on(broken: int) -> Callable[[Path], None]:
        def save(directory: Path) -> None:
            if rank == broken:
                raise OSError(28, "No space left on device")
            (directory / f"shard-{rank}").write_text("half")

        return save

    return {
        "all ranks": outcome(lambda: job.checkpoint(every_rank, 1, all_ranks=True)),
        "reached": sorted(reached),
        "rank 0 only": outcome(lambda: job.checkpoint(every_rank, 2)),
        "broken on 0": outcome(lambda: job.checkpoint(broken_on(0), 2)),
        "broken on 0 of all": outcome(lambda: job.checkpoint(broken_on(0), 2, all_ranks=True)),
        "broken on 1": outcome(lambda: job.checkpoint(broken_on(1), 2, all_ranks=True)),
    }


def train(job: ebbtide.Job, rank: int, directory: Path, facts: Facts) -> None:
    """Rank 1 alone gets the signal, in its step 3; both must stop at the same step."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters())
    training = ebt.Training(model, optimizer, ebt.ResumableSampler(50, 10))
    torch.manual_seed(100 + rank)
    torch.rand(rank + 1)
    for step in range(1, 1000):
        if training.sampler is not None:
            training.sampler.advance()
        if rank == 1 and step == 3:
            signal.raise_signal(signal.SIGTERM)
        if job.should_suspend():
            facts["stopped at"] = step
            facts["next number"] = _peek()
            (directory / f"rank-{rank}.json").write_text(json.dumps(facts))
            job.suspend(training.save, step, all_ranks=True)


def _peek() -> float:
    with torch.random.fork_rng():
        return torch.rand(()).item()


def rank_main(rank: int, directory: Path) -> None:
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = "2"
    if rank == 1:
        os.environ["EBB_CHECKPOINT_DIR"] = os.environ["OTHER_MOUNT"]
    job = ebbtide.job()
    world = ebt.init()
    facts: Facts = {"world": [world.rank, world.world_size, str(world.device)]}
    facts["gradient errors"] = [gradient_error(*sizes) for sizes in [(10, None), (7, None), (13, 2), (2, 1)]]
    facts |= checkpoints(job, rank)
    train(job, rank, directory, facts)


def main() -> None:
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            rank_main(rank, Path(sys.argv[1]))
            os._exit(0)
        children.append(child)
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])


if __name__ == "__main__":
    main()
