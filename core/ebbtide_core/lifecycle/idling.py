"""Reports jobs that do not use their GPUs, and suspends them if the administrator wants that.

A GPU is not used while NVML shows less utilisation than `BUSY`. Where NVML shows no utilisation, no job counts as idle.
A job is idle once it has used none of its GPUs, and reported no step, for as long as `IdleSettings` say.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from ebbtide_core.events import JobHeld
from ebbtide_core.events.base import Event
from ebbtide_core.events.idle import JobBusy, JobIdle
from ebbtide_core.job import edited_scripts
from ebbtide_core.job.facets import IdleTime
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.model.settings import IdleAction, IdleSettings
from ebbtide_core.model.types import GpuId, HeldBy, JobClass, StopCause
from ebbtide_core.planning.draft import count_text
from ebbtide_core.reconcile import stop
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState

BUSY: Final = 0.02
"""The utilisation, from 0 to 1, from which on a GPU counts as used."""
READ_S: Final = 30.0
"""Seconds after which a node that is back has surely said whether its GPUs are used."""


def facts(
    job: Job, quiet_since: Mapping[GpuId, float], node_gpus: frozenset[GpuId], settings: IdleSettings, now: float
) -> Iterator[Event]:
    """Yield the event that ``job`` is idle, or busy again, if that is news.

    ``quiet_since`` are the GPUs that are not used, with the Unix time since which; ``node_gpus`` are the GPUs that were
    just measured.
    """
    attempt = job.live
    if attempt is None or attempt.started is None or attempt.stop is not None or not attempt.allocation.share:
        return
    gpus = attempt.allocation.gpu_ids
    progress_at = job.measured.progress_at
    if attempt.idle is not None:
        if progress_at > attempt.idle.since or any(gpu in node_gpus and gpu not in quiet_since for gpu in gpus):
            yield JobBusy(job.id, attempt.number)
    elif not job.spec.idle_ok and all(gpu in quiet_since for gpu in gpus):
        since = max(attempt.started, progress_at, *(quiet_since[gpu] for gpu in gpus))
        if now - since >= settings.after_s:
            yield JobIdle(job.id, attempt.number, since, now + settings.warning_s if _may_go(job, settings) else None)


def _may_go(job: Job, settings: IdleSettings) -> bool:
    """Return whether an idle job may be suspended: only best-effort jobs that may be preempted at any time are."""
    wanted = settings.action is IdleAction.SUSPEND
    return wanted and job.preemptible and job.spec.job_class is JobClass.BEST_EFFORT


def suspend_at(state: ClusterState, job: Job) -> float | None:
    """Return the Unix time at which the running ``job`` is suspended, unless it works before; None if it is not.

    If a node of it was away since the warning, the time of the warning begins anew once the node is back: meanwhile the
    job may have worked.
    """
    attempt, warning_s = job.attempts[-1], state.settings.idle.warning_s
    if attempt.idle is None or attempt.idle.suspend_at is None:
        return None
    nodes = [state.nodes[id] for id in attempt.allocation.node_ids]
    if not all(node.connected for node in nodes):  # a pass looks again when they register
        return None
    back = max([node.last_seen for node in nodes])
    warned = attempt.idle.suspend_at - warning_s
    return attempt.idle.suspend_at if warned >= back else back + max(warning_s, READ_S)


def suspend(job: Job, now: float) -> Iterator[Event]:
    """Yield the decisions to suspend ``job``, which is due, until a user resumes it."""
    attempt = job.attempts[-1]
    assert attempt.idle is not None
    minutes = (now - attempt.idle.since) / 60
    what = f"idle on {count_text(attempt.allocation.share)} for {minutes:.0f} min"
    reason = f"{what}; 'ebb resume {job.id}' when it is to go on"
    yield JobHeld(job.id, HeldBy.SYSTEM, reason)
    yield stop(job, StopCause.IDLE, reason)


# --- the rules ---


def _noted(state: ClusterState, job: Job, event: JobIdle, now: float) -> None:
    attempt = job.attempts[-1]
    attempt.idle = IdleTime(event.since, event.suspend_at, now)
    job.reason = f"running, but idle on {count_text(attempt.allocation.share)}"
    if event.suspend_at is not None:
        state.set_deadline(job, event.suspend_at)


def _cleared(state: ClusterState, job: Job, event: JobBusy, now: float) -> None:
    attempt = job.attempts[-1]
    attempt.idle = None
    job.reason = edited_scripts.running(attempt.edited)


def _may_be_noted(state: ClusterState, event: JobIdle) -> bool:
    attempt = _newest(state, event)
    return attempt is not None and attempt.idle is None and attempt.started is not None and attempt.stop is None


def _may_be_cleared(state: ClusterState, event: JobBusy) -> bool:
    attempt = _newest(state, event)
    return attempt is not None and attempt.idle is not None and attempt.stop is None


def _newest(state: ClusterState, event: JobIdle | JobBusy) -> Attempt | None:
    newest = state.newest(event.job, event.attempt)
    return newest if newest is not None and newest.end is None else None


def _say_idle(event: JobIdle) -> str:
    warning = "" if event.suspend_at is None else "; it is suspended unless it soon does"
    return f"attempt {event.attempt} does not use its GPUs{warning}"


RULES: Final = (
    Rule(JobIdle, news=_may_be_noted, apply=about_job(_noted), say=_say_idle),
    Rule(
        JobBusy,
        news=_may_be_cleared,
        apply=about_job(_cleared),
        say=lambda event: f"attempt {event.attempt} uses its GPUs again",
    ),
)
