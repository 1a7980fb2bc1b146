"""One pool's decisions are those of a cluster of its own: the same facts, to two pools and to two clusters."""

from dataclasses import replace
from random import Random

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.job.job import Job
from ebbtide_core.model.settings import PoolSettings, Settings
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, ExitFacts, JobClass, JobId, ProgressFacts
from ebbtide_core.policies.registry import POLICIES, create_policy
from ebbtide_core.views.digest import facts

from tests.core.lab import registration, stepped_aside

NODES = {"left": "ab", "right": "cd"}
SIZES = [(WHOLE // 4, WHOLE // 4), (WHOLE, WHOLE), (WHOLE, 3 * WHOLE), (2 * WHOLE, 2 * WHOLE), (0, 0)]
GPUS = 3
STEPS = 60
PAIRS = list(zip(POLICIES, [*POLICIES][1:] + [*POLICIES][:1], strict=True))


class Side:
    """A cluster of one pool only, which wakes at the very times that it asks for."""

    def __init__(self, policy: str) -> None:
        self.cluster = Cluster(create_policy(policy, {}))

    def due(self) -> float | None:
        """When it wants to look again."""
        asked = [self.cluster.state.pools["default"].recheck_at, self.cluster.state.next_time()]
        return min((time for time in asked if time is not None), default=None)


class Both:
    """Two pools in one cluster, and each of them as a cluster; whatever happens to one happens to its twin."""

    def __init__(self, left: str, right: str, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        policies = {"left": PoolSettings(policy=left), "right": PoolSettings(policy=right)}
        settings = Settings(pools={"default": PoolSettings(), **policies}, gpu_pool="left", cpu_pool="left")
        self.cluster = Cluster(create_policy("fitgpp", {}), settings=settings)
        self.sides = {"left": Side(left), "right": Side(right)}
        for pool, names in NODES.items():
            for name in names:
                self.tell(pool, registration(name, GPUS), registration(name, GPUS, pool=pool))

    def tell(self, pool: str, event: e.Event, here: e.Event | None = None) -> None:
        """Hand ``event`` to the pool's own cluster, and it, or what it is ``here``, to the one with both."""
        side = self.sides[pool].cluster
        assert (self.cluster.refusal(here or event) is None) == (side.refusal(event) is None)
        if side.refusal(event) is not None:
            return
        self.cluster.handle(here or event, self.now)
        self.cluster.handle(e.SchedulingDue(), self.now)
        side.handle(event, self.now)
        side.handle(e.SchedulingDue(), self.now)

    def wait(self) -> None:
        """Let time go by; each side looks again when it wants to."""
        until = self.now + self.random.choice([0.5, 7.0, 90.0, 700.0])
        while True:
            times = [(time, pool) for pool, side in self.sides.items() if (time := side.due()) is not None]
            if not times or min(times)[0] > until:
                break
            time, pool = min(times)
            self.now = max(self.now, time)
            self.sides[pool].cluster.handle(e.SchedulingDue(), self.now)
            self.cluster.handle(e.SchedulingDue(), self.now)
        self.now = until

    def step(self) -> None:
        """Something happens in one of the pools."""
        self.wait()
        pool = self.random.choice([*NODES])
        jobs = [job for job in self.cluster.state.unfinished.values() if job.pool == pool]
        if not jobs or self.random.random() < 0.3:
            self.submit(pool)
        else:
            for event in self.happens(self.random.choice(jobs)):
                self.tell(pool, event)

    def submit(self, pool: str) -> None:
        low, high = self.random.choice(SIZES)
        kind = self.random.choice([JobClass.BEST_EFFORT, JobClass.TRIAL_AND_ERROR])
        id = JobId(str(len(self.cluster.state.jobs) + 1))
        known = {"gpus_min": low, "gpus_max": high, "job_class": kind, "priority": self.random.randint(1, 3)}
        # Scripts are of one pool each: what is known of them is known everywhere.
        spec = JobSpec(command=(pool,), workdir="/", cpus=1.0, work_s=self.random.choice([None, 100.0]), **known)
        here = replace(spec, pool=pool)
        # Some policies draw lots by a job's number.
        self.sides[pool].cluster.state.submissions = self.cluster.state.submissions
        self.tell(pool, e.JobSubmitted(id, spec, "ann"), e.JobSubmitted(id, here, "ann"))

    def happens(self, job: Job) -> list[e.Event]:
        """What may happen to ``job`` next."""
        live, number = job.live, len(job.attempts)
        if live is None:
            wishes = [e.CancelRequested(job.id), e.HoldRequested(job.id), e.ReleaseRequested(job.id)]
            return [self.random.choice(wishes)]
        if live.started is None and live.stop is None:
            return [e.AttemptStarted(job.id, number, 100)]
        if live.stop is not None:
            return [e.AttemptExited(job.id, number, stepped_aside()), e.AttemptFreed(job.id, number)]
        if self.random.random() < 0.5:
            return [e.AttemptExited(job.id, number, ExitFacts(), freed=True)]
        step = (job.measured.progress.step if job.measured.progress is not None else 0) + 10
        return [e.ProgressReported(job.id, number, ProgressFacts(step, 1000))]

    def check(self) -> None:
        """Every job of each pool is as it is in the cluster of that pool, in all but its words."""
        for pool, side in self.sides.items():
            for id, twin in side.cluster.state.jobs.items():
                job = self.cluster.state.jobs[id]
                assert job.pool == pool
                assert set(job.attempts[-1].allocation.node_ids if job.attempts else ()) <= set(NODES[pool])
                assert facts(job) | {"spec": twin.spec} == facts(twin), id
            for id, node in side.cluster.state.nodes.items():
                here = self.cluster.state.nodes[id]
                assert (here.held, here.promised, here.attempts) == (node.held, node.promised, node.attempts)


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_two_pools_decide_as_two_clusters_do(left: str, right: str) -> None:
    both = Both(left, right, seed=7)
    for _ in range(STEPS):
        both.step()
        both.check()
    placed = [len(job.attempts) for job in both.cluster.state.jobs.values()]
    assert sum(placed) > 5
