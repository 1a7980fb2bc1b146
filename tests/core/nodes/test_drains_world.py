"""The world, with nodes that are taken out of service and put back, and nodes that jobs shall avoid."""

from ebbtide_core import events as e
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import Allocation, NodeId
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.core.test_world import WatchedWorld
from tests.core.world import NODES
from tests.drawing import share_of


class DrainedWorld(WatchedWorld):
    """As its base, and nothing ever starts where it must not."""

    @rule(
        node=st.sampled_from(NODES),
        seconds=st.sampled_from([None, 0.0, 20.0, 500.0]),
        force=st.booleans(),
    )
    def drain(self, node: str, seconds: float | None, force: bool) -> None:
        deadline = None if seconds is None else self.now + seconds
        self.tell(e.NodeDrained(node=NodeId(node), deadline=deadline, force=force and seconds is not None))

    @precondition(lambda self: self._swappable())
    @rule(data=st.data())
    def drain_where_one_lies_in_host_memory(self, data: st.DataObject) -> None:
        """Its user has it go on there."""
        process = self._some(data, self._swappable())
        self._tell_all(process.reports)
        self.tell(e.SuspendRequested(process.ref.job))
        if process.to_leave:
            self._move_out(process)
            self._tell_all(process.reports)
        self.drain(process.node, None, force=False)
        self.tell(e.ResumeRequested(process.ref.job))

    @rule(node=st.sampled_from(NODES))
    def put_back(self, node: str) -> None:
        self.tell(e.NodeResumed(NodeId(node)))

    @rule(data=st.data(), node=st.sampled_from(NODES))
    def keep_away(self, data: st.DataObject, node: str) -> None:
        if self.accepted:
            job = data.draw(st.sampled_from(sorted(self.accepted)))
            self.tell(e.NodeExcluded(job, NodeId(node), "ECC errors"))

    def _check_placement(self, job: Job, allocation: Allocation) -> None:
        super()._check_placement(job, allocation)
        for node in allocation.node_ids:
            drain = self.cluster.state.nodes[node].drain
            comes_back = job.attempts[-1].swaps > 0  # from the node's memory, until the deadline
            in_time = drain is None or drain.deadline is None or drain.deadline > self.now
            assert drain is None or (comes_back and in_time), "placed on a node that is out of service"

    def teardown(self) -> None:
        """With all nodes in service, and none forbidden to anybody, all comes to its end as ever."""
        if not hasattr(self, "cluster"):
            return
        for node in NODES:
            self.put_back(node)
        for job in list(self.cluster.state.unfinished.values()):
            if job.eligibility.excluded and job.held_by is None:
                self.tell(e.ReleaseRequested(job.id))
        super().teardown()


TestDrainedWorld = DrainedWorld.TestCase
TestDrainedWorld.settings = settings(
    max_examples=share_of(25),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
