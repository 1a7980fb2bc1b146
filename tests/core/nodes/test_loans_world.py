"""The world, with nodes that end: whatever happens, no attempt runs on past the end of its node."""

import math

from ebbtide_core import events as e
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.model.types import Allocation, NodeId, SuspendMode
from ebbtide_core.resources.bookings import lead_s
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.core.test_world import WatchedWorld
from tests.core.world import NODES
from tests.drawing import share_of

ROUNDING_S = 1e-3


class LoanedWorld(WatchedWorld):
    """As its base. The world is woken whenever the core asks for it."""

    @rule(node=st.sampled_from(NODES), seconds=st.sampled_from([None, 5.0, 110.0, 700.0, 5000.0]))
    def announce(self, node: str, seconds: float | None) -> None:
        self.tell(e.LoanChanged(NodeId(node), seconds, "ann"))

    @rule(seconds=st.sampled_from([1.0, 30.0, 700.0]))
    def let_time_pass(self, seconds: float) -> None:
        """The core is woken at each time at which it asked to be."""
        end = self.now + seconds
        while (due := self.cluster.state.next_time()) is not None and due < end:
            self.now = max(self.now, due)
            self._perform(self.cluster.handle(e.SchedulingDue(), self.now))
        self.now = end
        self._perform(self.cluster.handle(e.SchedulingDue(), self.now))

    def train(self) -> None:
        """Hours pass in the base, and only then the core is woken."""
        super().train()
        self.let_time_pass(0.0)

    def _check_placement(self, job: Job, allocation: Allocation) -> None:
        super()._check_placement(job, allocation)
        if job.attempts[-1].swaps:
            return  # it comes back to where it lies, and is ended there in time
        for node in allocation.node_ids:
            stays = self.ends(node) == math.inf
            assert stays or self.now + self._needed_s(job) < self.ends(node) + ROUNDING_S, (job.id, node, self.now)

    def _needed_s(self, job: Job) -> float:
        limit = job.spec.time_limit_s
        until_limit = math.inf if limit is None else max(0.0, limit - job.running_s(self.now)) + lead_s(job)
        return min(2 * lead_s(job), until_limit) if job.spec.suspend is SuspendMode.CHECKPOINT else until_limit

    def ends(self, node: str) -> float:
        loan = self.cluster.state.nodes[NodeId(node)].loan
        return math.inf if loan is None else loan.until

    @invariant()
    def every_attempt_is_asked_to_leave_before_its_node_is_gone(self) -> None:
        for job in self.cluster.state.jobs.values() if hasattr(self, "cluster") else ():
            live = job.live
            end = math.inf if live is None else min((self.ends(node) for node in live.nodes), default=math.inf)
            if live is not None and end < math.inf:
                assert self._leaves_by(job, live, end), (job.id, self.now, end, live.stop)

    def _leaves_by(self, job: Job, live: Attempt, end: float) -> bool:
        """Whether it is still too early to ask, or it was asked to end by then, or was killed as it was too late."""
        if self.now < end - lead_s(job) + ROUNDING_S:
            return True
        stop = live.stop
        return stop is not None and (stop.grace_s == 0.0 or stop.requested + stop.grace_s <= end)

    def teardown(self) -> None:
        """With all nodes staying, all comes to its end as ever."""
        if not hasattr(self, "cluster"):
            return
        for node in NODES:
            self.announce(node, None)
        super().teardown()


TestLoanedWorld = LoanedWorld.TestCase
TestLoanedWorld.settings = settings(
    max_examples=share_of(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
