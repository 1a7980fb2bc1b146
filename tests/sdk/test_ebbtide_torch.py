"""Training that changes its number of ranks: which samples it sees, what it adds up, and what it saves."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy
import pytest
from ebbtide import checkpoints
from hypothesis import given
from hypothesis import strategies as st

from tests.late import ebbtide_torch as ebt
from tests.late import torch
from tests.late import torch_nn as nn
from tests.ports import free_port
from tests.sdk.listening import Listener

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def _pytorch_is_loaded() -> None:
    """Hypothesis would take its import for a slow example."""
    torch.device("cpu")
    ebt.World(0, 1, torch.device("cpu"))


def world(rank: int, size: int) -> ebt.World:
    return ebt.World(rank, size, torch.device("cpu"))


def take_step(length: int, batch: int, state: dict[str, int], size: int) -> tuple[list[int], dict[str, int]]:
    """One step of `size` fresh ranks that resume from the state: what all of them took, and the state after it."""
    taken: list[int] = []
    after = []
    for rank in range(size):
        sampler = ebt.ResumableSampler(length, batch, seed=3, world=world(rank, size))
        sampler.load_state_dict(state)
        taken += sampler.take().tolist()
        after.append(sampler.state_dict())
    assert all(other == after[0] for other in after)
    return taken, after[0]


@given(
    length=st.integers(1, 40),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    surplus=st.integers(0, 20),
)
def test_whatever_the_world_sizes_every_epoch_has_every_sample_once(
    length: int, sizes: list[int], surplus: int
) -> None:
    batch = max(sizes) + surplus
    state = {"position": 0, "length": length, "seed": 3}
    stream: list[int] = []
    for size in sizes:
        taken, state = take_step(length, batch, state, size)
        assert len(taken) == batch
        stream += taken
    whole_epochs = len(stream) // length
    for epoch in range(whole_epochs):
        assert sorted(stream[epoch * length : (epoch + 1) * length]) == list(range(length))
    rest = stream[whole_epochs * length :]
    assert len(set(rest)) == len(rest)


@given(size=st.integers(1, 6), batch=st.integers(6, 50), limit=st.none() | st.integers(1, 10))
def test_micro_batches_cover_each_share_and_their_weights_make_the_mean(
    size: int, batch: int, limit: int | None
) -> None:
    rows, weight = 0, 0.0
    for rank in range(size):
        share = len(ebt.ResumableSampler(100, batch, world=world(rank, size)).take())
        parts = list(ebt.accumulate(batch, limit=limit, world=world(rank, size)))
        assert [row for part in parts for row in range(part.rows.start, part.rows.stop)] == list(range(share))
        assert all(part.rows.stop - part.rows.start <= (limit or share) for part in parts)
        assert [part.weight for part in parts] == [
            pytest.approx((part.rows.stop - part.rows.start) * size / batch) for part in parts
        ]
        rows += share
        weight += sum(part.weight for part in parts)
    assert rows == batch
    assert weight == pytest.approx(size)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = ebt.ResumableSampler(100, 100, seed=seed)
        sampler.load_state_dict({"position": 100 * epoch, "length": 100, "seed": seed})
        assert sampler.epoch == epoch
        return sampler.take().tolist()

    orders = [order(seed, epoch) for seed in (0, 1, 2**40) for epoch in (0, 1)]
    assert len({tuple(numbers) for numbers in orders}) == len(orders)
    assert orders[0] == order(0, 0)


def test_a_loader_that_fetches_ahead_uses_nothing_up() -> None:
    sampler = ebt.ResumableSampler(10, 4, seed=1)
    ahead = list(islice(sampler, 3))
    assert sampler.position == 0
    taken = [sampler.take().tolist() for _ in range(3)]
    assert ahead == taken
    assert sampler.position == 12
    dataset = torch.arange(10) * 10
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(dataset), batch_sampler=sampler)
    (values,) = next(iter(loader))
    assert values.tolist() == [10 * index for index in sampler.take().tolist()]


def test_a_sampler_refuses_the_state_of_another_stream() -> None:
    state = ebt.ResumableSampler(10, 4, seed=1).state_dict()
    with pytest.raises(ValueError, match="seed 1, this one 2"):
        ebt.ResumableSampler(10, 4, seed=2).load_state_dict(state)
    with pytest.raises(ValueError, match="length 10, this one 11"):
        ebt.ResumableSampler(11, 4, seed=1).load_state_dict(state)


def test_a_batch_must_reach_for_all_ranks() -> None:
    with pytest.raises(ValueError, match="leaves some of 3 ranks without"):
        ebt.ResumableSampler(10, 2, world=world(0, 3))
    with pytest.raises(ValueError, match="leaves some of 3 ranks without"):
        list(ebt.accumulate(2, world=world(0, 3)))
    with pytest.raises(ValueError, match="length must be at least 1"):
        ebt.ResumableSampler(0, 2)
    with pytest.raises(ValueError, match="limit must be at least 1"):
        list(ebt.accumulate(2, limit=0))


def small_training(seed: int) -> ebt.Training:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    return ebt.Training(model, optimizer, ebt.ResumableSampler(30, 7, seed=1), scheduler)


def train(training: ebt.Training, steps: int) -> list[float]:
    """Steps that use every source of chance; returns the losses."""
    assert training.sampler is not None
    assert training.scheduler is not None
    data = torch.linspace(-1, 1, 30).unsqueeze(1).repeat(1, 4)
    losses = []
    for _ in range(steps):
        x = data[training.sampler.take()] + random.random() + numpy.random.random()
        training.optimizer.zero_grad()
        loss = training.model(x).square().mean()
        loss.backward()
        training.optimizer.step()
        training.scheduler.step()
        losses.append(loss.item())
    return losses


def test_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    training = small_training(seed=1)
    random.seed(2)
    numpy.random.seed(3)
    train(training, 5)
    training.save(tmp_path)
    expected = train(training, 5)
    other = small_training(seed=9)
    random.seed(8)
    numpy.random.seed(7)
    other.load(tmp_path)
    assert train(other, 5) == expected
    for ours, theirs in zip(other.model.parameters(), training.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_whatever_else_has_a_state_is_saved_and_loaded_too(tmp_path: Path) -> None:
    def training(factor: float) -> tuple[ebt.Training, nn.Module]:
        plain = small_training(seed=1)
        scaler = torch.amp.GradScaler("cpu", init_scale=factor)
        averaged = torch.optim.swa_utils.AveragedModel(plain.model)
        averaged.update_parameters(plain.model)
        others = {"scaler": scaler, "averaged": averaged}
        return ebt.Training(plain.model, plain.optimizer, plain.sampler, plain.scheduler, others), averaged

    saved, averaged = training(4.0)
    train(ebt.Training(saved.model, saved.optimizer, saved.sampler, saved.scheduler), 2)
    averaged.update_parameters(saved.model)
    saved.save(tmp_path)
    loaded, again = training(2.0)
    loaded.load(tmp_path)
    assert loaded.others["scaler"].get_scale() == 4.0
    for ours, theirs in zip(again.parameters(), averaged.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(KeyError, match="ema"):
        ebt.Training(loaded.model, loaded.optimizer, others={"ema": again}).load(tmp_path)
    with pytest.raises(ValueError, match="must not be named model"):
        ebt.Training(loaded.model, loaded.optimizer, others={"model": again})


def test_a_loader_with_a_generator_of_its_own_disturbs_no_dropout(tmp_path: Path) -> None:
    """A loader draws a seed for its workers when it is iterated: a script that was resumed would draw once more."""
    data = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 30).unsqueeze(1).repeat(1, 4))

    def steps(training: ebt.Training, count: int) -> list[float]:
        assert training.sampler is not None
        own = torch.Generator()
        loader = torch.utils.data.DataLoader(data, batch_sampler=training.sampler, generator=own)
        losses = []
        for (x,) in islice(loader, count):
            training.optimizer.zero_grad()
            loss = training.model(x).square().mean()
            loss.backward()
            training.optimizer.step()
            training.sampler.advance()
            losses.append(loss.item())
        return losses

    in_peace = steps(small_training(seed=1), 6)
    first = small_training(seed=1)
    before = steps(first, 3)
    first.save(tmp_path)
    second = small_training(seed=2)
    second.load(tmp_path)
    assert before + steps(second, 3) == in_peace


def test_another_world_size_seeds_its_generators_from_the_saved_ones(tmp_path: Path) -> None:
    training = small_training(seed=1)
    train(training, 5)
    training.save(tmp_path)
    path = tmp_path / "training.pt"
    state = torch.load(path, weights_only=True)
    torch.save(state | {"world_size": 4}, path)
    expected = train(training, 1)

    def resumed(seed: int) -> list[float]:
        other = small_training(seed)
        other.load(tmp_path)
        assert other.sampler is not None
        assert other.sampler.position == 35
        return train(other, 3)

    assert resumed(5) == resumed(6)
    assert resumed(5)[0] != expected[0], "rank 0 of 1 must not repeat what rank 0 of 4 would draw"


def test_wrappers_leave_no_trace_in_what_is_saved(tmp_path: Path) -> None:
    class Compiled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self._orig_mod = inner

    plain = small_training(seed=1)
    wrapped = ebt.Training(Compiled(plain.model), plain.optimizer)
    wrapped.save(tmp_path)
    state = torch.load(tmp_path / "training.pt", weights_only=True)
    assert list(state["model"]) == list(plain.model.state_dict())


def test_what_could_not_be_loaded_again_fails_at_the_save(tmp_path: Path) -> None:
    class Opaque(nn.Module):
        def get_extra_state(self) -> object:
            return Path("anything")

    model = Opaque()
    model.weight = nn.Parameter(torch.zeros(1))
    training = ebt.Training(model, torch.optim.SGD(model.parameters()))
    with pytest.raises(ValueError, match=r"training\.pt holds objects that cannot be loaded again"):
        training.save(tmp_path)


def test_two_ranks_agree_add_up_save_and_leave_together(tmp_path: Path) -> None:
    attempt_dir, other_mount = tmp_path / "7" / "attempt-1", tmp_path / "mounted" / "attempt-1"
    other_mount.parent.symlink_to(attempt_dir.parent)
    variables = {
        "OTHER_MOUNT": str(other_mount),
        "EBB_JOB_ID": "7",
        "EBB_ATTEMPT": "1",
        "EBB_CHECKPOINT_DIR": str(attempt_dir),
        "EBB_SOCKET": str(tmp_path / "job.sock"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "PATH": os.environ["PATH"],
    }
    with Listener(tmp_path / "job.sock") as listener:
        program = [sys.executable, HERE / "two_ranks.py", tmp_path]
        done = subprocess.run(program, env=variables, capture_output=True, text=True, timeout=280)
        messages = listener.arrived()
    assert done.stdout == "[85, 85]\n", done.stderr
    facts = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]

    assert [fact["world"] for fact in facts] == [[0, 2, "cpu"], [1, 2, "cpu"]]
    assert max(error for fact in facts for error in fact["gradient errors"]) < 1e-12

    full = "OSError: [Errno 28] No space left on device"
    told = "CheckpointFailed: rank {}: OSError(28, 'No space left on device')"
    assert [fact["all ranks"] for fact in facts] == ["saved", "saved"]
    assert [fact["reached"] for fact in facts] == [[str(attempt_dir)], [str(other_mount)]]
    assert [fact["rank 0 only"] for fact in facts] == ["saved", "saved"]
    assert [fact["broken on 0"] for fact in facts] == [full, told.format(0)]
    assert [fact["broken on 0 of all"] for fact in facts] == [full, told.format(0)]
    assert [fact["broken on 1"] for fact in facts] == [told.format(1), full]

    (step,) = {fact["stopped at"] for fact in facts}
    assert step == 3
    assert sorted(message["rank"] for message in messages if message["kind"] == "acknowledge") == [0, 1]
    assert [message["step"] for message in messages if message["kind"] == "checkpoint"] == [1, 2, 3]

    assert sorted(os.listdir(attempt_dir)) == ["step-000000000002", "step-000000000003"]
    assert sorted(os.listdir(attempt_dir / "step-000000000002")) == ["MANIFEST.json", "shard-0"]
    last = checkpoints.verify(attempt_dir / "step-000000000003").path
    for rank in range(2):
        state = torch.load(last / f"random-{rank}.pt", weights_only=True)
        generator = torch.Generator()
        generator.set_state(state["torch"])
        assert torch.rand((), generator=generator).item() == facts[rank]["next number"]
