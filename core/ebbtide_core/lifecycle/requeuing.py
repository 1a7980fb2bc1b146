"""Jobs that go back to the queue, arrays that get other limits, and jobs that can never start."""

from collections.abc import Iterator

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import StopCause
from ebbtide_core.reconcile import stop
from ebbtide_core.state import ClusterState


def requeued(state: ClusterState, job: Job, event: e.JobRequeued, now: float) -> None:
    """Fold: the job, which is over, was submitted again."""
    job.again_as = event.again_as


def array_changed(state: ClusterState, event: e.ArrayChanged, now: float) -> None:
    """Fold: an array has other limits."""
    state.change_array(event.job, event.max_concurrent, event.max_slots, now)


def step_aside(state: ClusterState, event: e.RequeueRequested) -> Iterator[Event]:
    """Decide: who is to go back to the queue steps aside first."""
    if (job := state.jobs[event.job]).running:
        yield stop(job, StopCause.REQUEUED, "requeued by user")


def given_up(state: ClusterState) -> Iterator[Event]:
    """Decide: who can never start is cancelled, and then those who wait for that, until there are none."""
    doomed = state.gates.doomed
    while doomed:
        id = next(iter(doomed))
        yield e.DependencyFailed(id, doomed.pop(id))
