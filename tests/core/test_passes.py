"""When a policy is asked, and that it is right not to ask it at any other time."""

from dataclasses import dataclass, field

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import JobId
from ebbtide_core.policies.policy import Policy
from ebbtide_core.policies.registry import POLICIES, create_policy
from ebbtide_core.reconcile import reconcile
from ebbtide_core.snapshot import Plan, Snapshot

from tests.core.lab import Lab, registration


@dataclass
class Counting(Policy):
    asked: list[float] = field(default_factory=list)

    def plan(self, snapshot: Snapshot) -> Plan:
        self.asked.append(snapshot.now)
        return Plan()


def test_a_policy_is_asked_only_while_somebody_waits() -> None:
    policy = Counting()
    cluster = Cluster(policy)
    job = JobId("1")
    for event in (registration("a"), e.JobSubmitted(job, JobSpec(command=("x",), workdir="/"), "ann")):
        cluster.handle(e.SchedulingDue(), 1.0)
        assert policy.asked == []
        cluster.handle(event, 1.0)
    cluster.handle(e.SchedulingDue(), 2.0)
    cluster.handle(e.HoldRequested(job), 3.0)
    cluster.handle(e.SchedulingDue(), 3.0)
    assert policy.asked == [2.0]


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_wants_anything_while_nobody_waits_and_no_size_may_change(name: str) -> None:
    lab = Lab(name, nodes="ab")
    jobs = [lab.running(gpus, te=te) for gpus in ("1/4", 1, 2) for te in (False, True)]
    lab.tell(e.HoldRequested(jobs[0].id))
    lab.end(jobs[1])
    state = lab.cluster.state.pools["default"]
    assert len(state.queue) + len(state.elastic) + len(state.claims) == 0
    for later in (0.0, 1e3, 1e6):
        assert list(reconcile(state, create_policy(name, {}).plan(Snapshot(state, lab.now + later)))) == []
