"""What a policy is."""

from enum import Enum
from typing import ClassVar, Protocol

from ebbtide_core.admission.queues import Queue, by_arrival
from ebbtide_core.job.job import Job
from ebbtide_core.policies.staying import NOBODY_STEPS_ASIDE, Stay
from ebbtide_core.resources.pools import PoolState, Ranking
from ebbtide_core.snapshot import Plan, Snapshot


class JobImportance(Enum):
    """What a user says of how much a job matters."""

    PRIORITY = "priority"
    WEIGHT = "weight"


class Policy(Protocol):
    """Says what should run where. A frozen dataclass whose fields are its options.

    A policy keeps no state of its own: what it needs from pass to pass is derived from the jobs, in the queue and the
    ranking that it defines here and finds again in its snapshot.
    """

    rigid: ClassVar[bool] = False
    """Whether it gives elastic jobs their greatest size or nothing."""
    goes_by: ClassVar[frozenset[JobImportance]] = frozenset()
    """What it goes by of what a user says of a job."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide on the whole snapshot; called after every change, so it must be cheap when nothing follows.

        It is called only while a job waits in the queue or for claimed room, or one with room promised to it may get
        another GPU count: at any other time there must be nothing that the policy wants to change.
        """
        ...

    def preempts(self) -> bool:
        """Whether one job is ever asked to step aside because another one is more urgent."""
        return True

    def stays(self, job: Job, waiting: Job, now: float) -> Stay | None:
        """Why ``job``, which has room, is not asked to step aside for ``waiting``; None if no rule forbids it."""
        return NOBODY_STEPS_ASIDE

    def queue(self) -> Queue:
        """A new, empty queue in the order in which this policy wants to see waiting jobs."""
        return Queue(by_arrival)

    def ranking(self, state: PoolState) -> Ranking | None:
        """A new, empty index for its own use, if it needs one."""
        return None
