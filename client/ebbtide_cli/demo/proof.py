"""The claims of the demo, each checked against what really happened."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.demo.board import Jobs
from ebbtide_cli.demo.scenario import again

LOSS_TOLERANCE = 0.05
"""How far the final loss of the resized run may be from the uninterrupted one's, in nats per image.

Each step sums the same gradients in another order; Adam lets such differences grow, but not the loss.
"""


@dataclass(frozen=True, slots=True)
class DemoClaim:
    """A claim of the demo, and whether it holds; ``evidence`` has the figures."""

    text: str
    holds: bool
    evidence: str


def claims(jobs: Jobs, weights: dict[str, Path], losses: dict[str, float]) -> list[DemoClaim]:
    """Check all claims about a demo that ran to its end."""
    return [
        *_about_preemption(jobs["long"], jobs["urgent"]),
        *_about_resize(jobs["elastic"]),
        same_weights(weights["long"], weights[again("long")]),
        similar_loss(losses["elastic"], losses[again("elastic")]),
        _all_completed(list(jobs.values())),
    ]


def _about_preemption(long: client_pb2.Job, urgent: client_pb2.Job) -> Iterator[DemoClaim]:
    first = long.suspensions[0] if long.suspensions else client_pb2.Suspension()
    yield DemoClaim(
        "the long run was suspended for the urgent job, and for no other",
        long.preemptions == 1 and first.reason == f"preempted by job {urgent.job_id}",
        f"preempted {long.preemptions} time(s): {first.reason or 'no suspension'}",
    )
    yield DemoClaim(
        "it had written a checkpoint before it left",
        first.checkpointed == job_pb2.CHECKPOINTED_YES,
        f"asked, saved and gone in {first.exited - first.requested:.2f} s",
    )
    yield DemoClaim(
        "the urgent job started only when the GPU was free",
        first.HasField("gpu_free") and urgent.start_time >= first.gpu_free,
        f"{urgent.start_time - first.gpu_free:.2f} s later, {urgent.waiting_s:.2f} s after it was submitted",
    )
    resumed = [attempt.resumed_step for attempt in long.attempts if attempt.HasField("resumed_step")]
    yield DemoClaim(
        "the long run came back where it had left off, once",
        len(long.attempts) == 2 and len(resumed) == 1 and resumed[0] > 0,
        f"resumed from step {resumed[0] if resumed else '-'}",
    )


def _about_resize(elastic: client_pb2.Job) -> Iterator[DemoClaim]:
    if not elastic.suspensions:
        yield DemoClaim("the elastic run grew into the idle GPUs", False, "it was never resized")
        return
    counts = [sum(len(node.gpus) for node in attempt.allocation) for attempt in elastic.attempts]
    yield DemoClaim(
        "the elastic run grew into the idle GPUs",
        elastic.resizes == 1 and len(counts) == 2 and counts[1] > counts[0],
        f"{' then '.join(map(str, counts))} GPUs",
    )
    resumed, steps = elastic.attempts[-1].resumed_step, elastic.progress.total
    yield DemoClaim(
        "and went on from its checkpoint there",
        elastic.suspensions[-1].checkpointed == job_pb2.CHECKPOINTED_YES and 0 < resumed < steps,
        f"from step {resumed} of {steps}",
    )


def same_weights(interrupted: Path, uninterrupted: Path) -> DemoClaim:
    """Claim that every tensor of both runs has the same bytes."""
    import torch

    one, other = (torch.load(path, weights_only=True, map_location="cpu") for path in (interrupted, uninterrupted))
    different = [name for name in other if name not in one or not torch.equal(one[name], other[name])]
    numbers = sum(tensor.numel() for tensor in other.values())
    return DemoClaim(
        "the interrupted run's final weights equal the uninterrupted one's, bit for bit",
        not different and one.keys() == other.keys() and numbers > 0,
        f"{numbers} numbers in {len(other)} tensors" + (f"; different: {', '.join(different)}" if different else ""),
    )


def similar_loss(resized: float, uninterrupted: float) -> DemoClaim:
    """Claim that the final losses over all training images are about equal."""
    return DemoClaim(
        f"the resized run's final loss is the uninterrupted one's, within {LOSS_TOLERANCE:g}",
        abs(resized - uninterrupted) <= LOSS_TOLERANCE,
        f"{resized:.6f} and {uninterrupted:.6f}",
    )


def _all_completed(jobs: Sequence[client_pb2.Job]) -> DemoClaim:
    completed = [job for job in jobs if job.state == job_pb2.JOB_STATE_COMPLETED and job.exit_code == 0]
    return DemoClaim("every job completed", len(completed) == len(jobs), f"{len(completed)} of {len(jobs)}")
