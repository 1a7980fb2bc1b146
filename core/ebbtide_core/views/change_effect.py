"""What a change of a job's priority or weight does not do, so that whoever asked for it is told."""

from collections.abc import Mapping, Sequence

from ebbtide_core.events import JobChanged
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobId
from ebbtide_core.policies.policy import JobImportance, Policy
from ebbtide_core.policies.registry import name_of


def missing_effect(policy: Policy, job: Job, change: JobChanged) -> str:
    """Why ``change`` does nothing for ``job`` under ``policy`` as things are, in one line; empty if it may."""
    changed = {
        JobImportance.PRIORITY: change.priority != change.old_priority,
        JobImportance.WEIGHT: change.weight != change.old_weight,
    }
    ignored = [kind.value for kind, is_new in changed.items() if is_new and kind not in policy.goes_by]
    if ignored:
        what = " and ".join(ignored)
        return f"job {job.id}: its {what} will have no effect: policy {name_of(policy)} does not go by {what}"
    if changed[JobImportance.PRIORITY] and job.running and (why := _stays(policy, job)):
        return f"job {job.id}: its priority has no effect while it runs: {why}"
    return ""


def missing_effects(
    policies: Mapping[str, Policy], jobs: Mapping[JobId, Job], changes: Sequence[JobChanged]
) -> list[str]:
    """The same of several, under the policies of their pools: a line for each of those that do nothing."""
    asked = [(policies.get(jobs[change.job].pool), jobs[change.job], change) for change in changes]
    return [why for policy, job, change in asked if policy and (why := missing_effect(policy, job, change))]


def in_short(found: Sequence[str]) -> str:
    """These lines as one: the first, and how many more there are; or empty."""
    return f"{found[0]}; so for {len(found) - 1} more" if len(found) > 1 else "".join(found)


def _stays(policy: Policy, job: Job) -> str:
    """Why nobody more urgent takes the place of ``job``, which runs; empty if somebody may."""
    if not job.preemptible:
        return "it is not preemptible"
    if not policy.preempts():
        return f"policy {name_of(policy)} runs without preemption"
    return "it has a sticky slot, so that it is not preempted" if job.attempts[-1].sticky else ""
