"""Strict first in, first out: the head of the line blocks (the baseline of FitGpp, seed 000 §2.1)."""

from dataclasses import dataclass

from ebbtide_core.policies.draft import Draft
from ebbtide_core.policies.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.policies.policy import Policy
from ebbtide_core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Fifo(Policy):
    """Places jobs in the order in which they were submitted; nobody is preempted.

    ``resize_after_s``: an elastic attempt is resized only after it has run this long, in seconds.
    """

    resize_after_s: float = 60.0

    def plan(self, snapshot: Snapshot) -> Plan:
        """Admit from the head of the queue until one does not fit."""
        draft = Draft(snapshot)
        fit_ranges(draft)
        for job in snapshot.waiting():
            if not (draft.admit(job) or admit_by_shrinking(draft, job, self.resize_after_s)):
                draft.wait(job)
                break
        grow(draft, self.resize_after_s)
        return draft.plan()
