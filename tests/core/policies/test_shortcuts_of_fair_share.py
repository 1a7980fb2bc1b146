"""What `fair-share` leaves out changes no plan: every pass is planned once more with each group looked at alone."""

from collections import Counter
from functools import cached_property
from unittest.mock import patch

import pytest
from ebbtide_core import events as e
from ebbtide_core.admission.queues import demand_of
from ebbtide_core.job.job import Job
from ebbtide_core.model.constraints import NO_NEEDS, Needs
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, JobId, NodeId, SuspendMode
from ebbtide_core.planning.fair_share.claims import ShareClaim
from ebbtide_core.planning.fair_share.granting import Granting, could_run_now
from ebbtide_core.planning.fair_share.groups import LOOK_AHEAD, WAITS, Groups, Kind, ShareGroup, share_of, stand_of
from ebbtide_core.planning.policy import Policy
from ebbtide_core.planning.preemption import nodes_of
from ebbtide_core.policies import fair_share
from ebbtide_core.snapshot import Plan, Snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import drawing
from tests.core.lab import DONE, Lab
from tests.core.planning.test_shortcuts import change_node, node, settle


class PlainGranting(Granting):
    """Grants where each group has a claim of its own."""

    def _claims(self) -> dict[Kind | str, ShareClaim]:
        self.no_demand.clear()
        self.stuck.clear()
        for group in self.groups.groups.values():
            self.no_demand[group.key] = sum(job.gpus_max for _, job in group.jobs if not self.is_here(job))
        found = {group.key: self._claim(group) for group in self.groups.groups.values()}
        return {key: claim for key, claim in found.items() if claim is not None}

    def is_here(self, job: Job) -> bool:
        here = all(node in self.draft.snapshot.nodes for node in nodes_of(job))
        return here and (job.queued is None or could_run_now(job, self.draft.snapshot.books))


class PlainPass(fair_share._Pass):
    """A pass in which each job with room is asked whether it may stay."""

    @cached_property
    def _with_room(self) -> list[Job]:
        entries = [entry for group in self.groups.groups.values() for entry in group.jobs if entry[0][0] != WAITS]
        return [job for _, job in sorted(entries, reverse=True)]

    @cached_property
    def resumed(self) -> list[Job]:
        return self._with_room

    @cached_property
    def without_grant(self) -> list[Job]:
        return [job for job in self._with_room if job.id not in self.granting.grants]


def check_index(groups: Groups, jobs: list[Job]) -> None:
    """The index has each active job in its place, and the groups of one kind together."""
    expected: dict[str, list[tuple[object, Job]]] = {}
    for job in jobs:
        if (stand := stand_of(job)) is not None:
            expected.setdefault(groups.key(job), []).append((stand, job))
    assert {key: group.jobs for key, group in groups.groups.items()} == {
        key: sorted(entries) for key, entries in expected.items()
    }
    for group in groups.groups.values():
        demand = Counter[float]()
        for _, job in group.jobs:
            demand[job.weight] += job.gpus_max
        assert group.demand == demand
        assert (group.kind is None) == (groups.others.get(group.key) is group)
    kinds: dict[object, list[tuple[int, ShareGroup]]] = {}
    for group in groups.groups.values():
        where, first = group.jobs[0][0][0], group.jobs[0][1]
        if where == WAITS or len(group.jobs) == 1:
            sizes = first.gpus_min, first.gpus_max, share_of(first)
            behind = tuple((job.gpus_min, job.preemptible) for _, job in group.jobs[1 : 1 + LOOK_AHEAD])
            alone = where == WAITS and len(group.jobs) == 1 and first.queued is not None
            needs = demand_of(first) if alone and first.eligibility.constrained else ()
            alike = where, sizes, first.preemptible, behind, needs, tuple(sorted(group.demand.items()))
            kinds.setdefault(alike, []).append((group.number, group))
    assert sorted(map(sorted, kinds.values())) == sorted(groups.kinds.values())


class Twice:
    """Plans every pass twice."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def plan(self, snapshot: Snapshot) -> Plan:
        check_index(snapshot.ranking, list(snapshot._pool.jobs.values()))
        plan = self.policy.plan(snapshot)
        with patch.object(fair_share, "_Pass", PlainPass), patch.object(fair_share, "Granting", PlainGranting):
            plain = self.policy.plan(snapshot)
        assert plan == plain
        assert list(plan.placements) == list(plain.placements)
        assert list(plan.evictions) == list(plain.evictions)
        return plan


Step = tuple[str, int, int, int]
KINDS = ["submit"] * 7 + ["settle"] * 4 + ["end"] * 3
KINDS += ["submit together", "exit", "free", "wait", "wait", "hold", "release", "resize", "drain", "lose", "back"]
SIZES = (WHOLE // 4, WHOLE, WHOLE, 2 * WHOLE, 3 * WHOLE, WHOLE, WHOLE // 2, 2 * WHOLE)
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=8, max_size=60
)
WEIGHTS = st.sampled_from([(1.0,), (1.0, 2.0), (1.0, 1.0, 3.0, 0.5)])


class Histories:
    """A lab in which passes of `fair-share` are planned twice, and what happened there."""

    def __init__(self, gpus: int, weights: tuple[float, ...], elastic: bool, options: dict[str, str]) -> None:
        self.lab = Lab("fair-share", "", **options)
        self.lab.cluster.policies[DEFAULT_POOL] = Twice(self.lab.cluster.policy)  # type: ignore[assignment]
        self.gpus, self.weights, self.elastic = gpus, weights, elastic
        self.jobs: list[Job] = []
        for name in "ab":
            self.lab.tell(node(name, gpus))

    def submit(self, first: int, second: int, third: int, hold: bool = False) -> None:
        low = high = SIZES[first % len(SIZES)]
        if self.elastic and second % 3 == 0:
            high = max(low, 2 * WHOLE)
        spec = JobSpec(
            command=("x",),
            workdir="/",
            gpus_min=low,
            gpus_max=high,
            group=("", "", "", "x", "y")[third % 5],
            weight=self.weights[second % len(self.weights)],
            suspend=SuspendMode.NONE if third == 9 else SuspendMode.CHECKPOINT,
            max_nodes=2 if second == 9 else 1,
            needs=Needs(on=("b",)) if second == 8 else NO_NEEDS,
        )
        id = JobId(str(len(self.jobs) + 1))
        self.lab.tell(e.JobSubmitted(id, spec, ("ann", "bob", "eve")[third % 3], hold))
        self.jobs.append(self.lab.cluster.state.jobs[id])

    def submit_together(self, count: int, first: int, second: int) -> None:
        """Submit that many jobs of one size, before the next pass."""
        for number in range(count):
            self.submit(first, second, number % 5, hold=True)
        for job in self.jobs[len(self.jobs) - count :]:
            self.lab.cluster.handle(e.ReleaseRequested(job.id), self.lab.now)
        self.lab.wait(0)

    def ask(self, what: str, job: Job, first: int, second: int) -> None:
        """A user asks something of an unfinished job."""
        size = SIZES[first % len(SIZES)]
        match what:
            case "hold":
                self.lab.tell(e.HoldRequested(job.id))
            case "release":
                self.lab.tell(e.ReleaseRequested(job.id))
            case "resize":
                self.lab.tell(e.ResizeRequested(job.id, size, size + second % 2 * WHOLE))

    def take(self, step: Step) -> None:
        what, first, second, third = step
        lab, live = self.lab, [job for job in self.jobs if job.live is not None]
        match what:
            case "submit":
                self.submit(first, second, third)
            case "submit together":
                self.submit_together(first, second, third)
            case "end" if live:
                lab.end(live[first % len(live)], DONE)
            case "exit" if live:
                lab.exit(live[first % len(live)])
            case "free":
                for job in [job for job in self.jobs if job.live is None and job.holding is not None]:
                    lab.free(job)
            case "settle":
                settle(lab, live)
            case "wait":
                lab.wait(60.0 * first)
            case "hold" | "release" | "resize" if unfinished := [job for job in self.jobs if job.end is None]:
                self.ask(what, unfinished[first % len(unfinished)], second, third)
            case "drain" | "lose" | "back":
                change_node(lab, what, node("ab"[first % 2], self.gpus), live)


@settings(max_examples=drawing.share_of(300), deadline=None)
@given(
    gpus=st.integers(1, 6),
    weights=WEIGHTS,
    elastic=st.booleans(),
    options=st.sampled_from([{}, {"per": "user"}, {"min_run_s": "0"}, {"per": "user", "half_life_s": "600"}]),
    steps=STEPS,
)
def test_after_any_history_a_pass_plans_what_it_would_if_each_group_were_looked_at_alone(
    gpus: int, weights: tuple[float, ...], elastic: bool, options: dict[str, str], steps: list[Step]
) -> None:
    histories = Histories(gpus, weights, elastic, {"resize_after_s": "30", **options})
    for step in steps:
        histories.take(step)


def test_users_who_ask_for_as_much_are_not_alike_if_only_one_has_a_smaller_job_behind_the_first() -> None:
    histories = Histories(1, (1.0,), False, {"per": "user"})
    ann, bob = 0, 1
    sizes = [SIZES.index(gpus * WHOLE) for gpus in (3, 2, 1)]
    for user, size in [(ann, sizes[0]), (ann, sizes[0]), *[(bob, size) for size in sizes]]:
        histories.take(("submit", size, 0, user))
    assert [job.spec.gpus_min // WHOLE for job in histories.jobs if job.planned is not None] == [1]


@pytest.mark.replaces
def test_the_cost_of_a_pass_does_not_grow_with_the_jobs_that_no_node_in_service_could_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, claim = [0], Granting._claim

    def counted(granting: Granting, group: ShareGroup) -> ShareClaim | None:
        asked[0] += 1
        return claim(granting, group)

    monkeypatch.setattr(Granting, "_claim", counted)
    lab = Lab("fair-share", "ab", 4, min_run_s="0")
    lab.tell(e.NodeDrained(node=NodeId("b")))
    for number in range(300):
        spec = JobSpec(command=("x",), workdir="/", gpus_min=WHOLE, gpus_max=WHOLE, needs=Needs(on=("b",)))
        lab.cluster.handle(e.JobSubmitted(JobId(f"b{number}"), spec, "ann", False), lab.now)
    asked[0] = 0
    here = lab.submit(1)
    assert here.planned is not None
    assert 0 < asked[0] < 10
