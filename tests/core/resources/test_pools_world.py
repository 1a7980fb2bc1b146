"""The world of `tests.core.test_world` with two pools, between which jobs are moved."""

import dataclasses

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.job.job import Job
from ebbtide_core.model.settings import DEFAULT_POOL, PoolSettings, Settings
from ebbtide_core.model.types import WHOLE, JobId
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.core import test_world
from tests.core.world import NODES
from tests.drawing import share_of

POOLS = {DEFAULT_POOL: NODES[:1], "other": NODES[1:]}


class WorldOfPools(test_world.WatchedWorld):
    """The first node is one pool, the rest is another; every second job goes to each, and may be moved."""

    def new_cluster(self) -> Cluster:
        pools = {DEFAULT_POOL: PoolSettings(), "other": PoolSettings(policy="priority")}
        return Cluster(self.policy, settings=Settings(pools=pools))

    def pool_for(self, job: JobId) -> str:
        return [*POOLS][int(job) % 2]

    def tell(self, event: e.Event) -> None:
        if isinstance(event, e.NodeRegistered):
            event = dataclasses.replace(event, pool=next(name for name, nodes in POOLS.items() if event.node in nodes))
        super().tell(event)

    def has_no_room_for(self, job: Job) -> bool:
        """Only the first node has three GPUs of one kind."""
        return job.pool != DEFAULT_POOL and job.gpus_min > 2 * WHOLE

    @rule(data=st.data(), pool=st.sampled_from([*POOLS]))
    def move(self, data: st.DataObject, pool: str) -> None:
        """A user wants one of the jobs in that pool."""
        if jobs := [*self.cluster.state.unfinished.values()]:
            job = data.draw(st.sampled_from(jobs))
            self.tell(e.JobMoved(job.id, pool, job.pool, "ann"))

    @invariant()
    def what_a_job_holds_is_of_its_pool(self) -> None:
        for job in self.cluster.state.jobs.values() if hasattr(self, "cluster") else ():
            rooms = [job.planned, job.attempts[-1].allocation if job.holding is not None else None]
            nodes = {node for room in rooms if room is not None for node in room.node_ids}
            assert nodes <= set(POOLS[job.pool]), (job.id, job.pool, nodes)

    @invariant()
    def nobody_is_anywhere_but_in_its_pool(self) -> None:
        pools = self.cluster.state.pools.values() if hasattr(self, "cluster") else ()
        for pool in pools:
            here = [*pool.queue, *pool.planned.values(), *pool.claims.values(), *pool.elastic.jobs.values()]
            assert {job.pool for job in [*here, *pool.came_back.jobs.values()]} <= {pool.name}


TestWorldOfPools = WorldOfPools.TestCase
TestWorldOfPools.settings = settings(
    max_examples=share_of(25),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
