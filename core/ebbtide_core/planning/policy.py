"""The interface of a scheduling policy."""

from enum import Enum
from typing import ClassVar, Protocol

from ebbtide_core.admission.queues import Queue, by_arrival
from ebbtide_core.job.job import Job
from ebbtide_core.planning.staying import NOBODY_STEPS_ASIDE, Stay
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


class JobImportance(Enum):
    """The ways in which a user can say how much a job matters."""

    PRIORITY = "priority"
    WEIGHT = "weight"


class Policy(Protocol):
    """A policy decides which jobs should run where. It is a frozen dataclass whose fields are its options.

    A policy keeps no state of its own. What it needs from pass to pass is derived from the jobs, in the queue and the
    ranking that the policy defines here and finds again in its snapshot.
    """

    rigid: ClassVar[bool] = False
    """Whether the policy gives an elastic job its greatest size or nothing."""
    goes_by: ClassVar[frozenset[JobImportance]] = frozenset()
    """The user's settings (priority, weight) that the policy takes into account."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """Plan the whole pool. The core calls this after every change, so it must be cheap when nothing is to change.

        The core calls it only while a job waits in the queue or for claimed room, or while a job with room promised to
        it may get another GPU count. At any other time the policy must have nothing to change.
        """
        ...

    def preempts(self) -> bool:
        """Return whether the policy ever preempts a job because another job is more urgent."""
        return True

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """Return why ``job``, which has room, is not preempted for ``waiting``; None if no rule forbids it."""
        return NOBODY_STEPS_ASIDE

    def queue(self) -> Queue:
        """Make an empty queue in the order in which this policy wants to see waiting jobs."""
        return Queue(by_arrival)

    def ranking(self, state: PoolState) -> Ranking | None:
        """Make an empty index of the pool's jobs for the policy's own use; None if it needs none."""
        return None
