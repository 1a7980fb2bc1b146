"""Jobs that are put together from GPUs of several nodes where no single one has room."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.job.job import Job
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, GpuId, JobId, JobState, NodeId
from ebbtide_core.policies.registry import POLICIES
from ebbtide_core.views.explain import explain
from ebbtide_core.views.narrate import narrate
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.lab import DONE, Lab, registration, stopped
from tests.drawing import share_of


class Workshop(Lab):
    """Nodes of several sizes; those whose names begin alike share a checkpoint root."""

    def __init__(self, policy: str = "fitgpp", **gpus: int) -> None:
        options = {"resize_after_s": "5"} if policy == "fitgpp" else {}
        super().__init__(policy, "", **options)
        for name, count in gpus.items():
            self.tell(registration(name, count, checkpoint_root_id=name[0], address=name))

    def begin(self, job: Job) -> None:
        """Every node of the job's newest attempt reports that it runs."""
        attempt = job.attempts[-1]
        nodes = attempt.allocation.node_ids
        for node in nodes:
            part = node if len(nodes) > 1 else e.EVERY_NODE
            self.tell(e.AttemptStarted(job.id, attempt.number, 7, node=part, port=20000))
        assert attempt.started is not None

    def leave(self, job: Job, exit: object = None) -> None:
        """Every node of it reports that its part is over, and free."""
        attempt = job.attempts[-1]
        nodes = attempt.allocation.node_ids
        for node in nodes:
            part = node if len(nodes) > 1 else e.EVERY_NODE
            facts = exit or e.ExitFacts(exit_code=85, stop_requested=True, delivered=True, acknowledged=True)
            self.tell(e.AttemptExited(job.id, attempt.number, facts, freed=True, node=part))

    def combined(self, low: int, high: int, nodes: int = 3, **spec: object) -> Job:
        return self.submit(low, high, max_nodes=nodes, spread=True, **spec)


def room(job: Job) -> dict[str, int]:
    """How many GPUs of each node its newest attempt has, in the order of the ranks."""
    return {piece.node: len(piece.gpus) for piece in job.attempts[-1].allocation.nodes}


TABLE = {
    "two and one and one make four": ({"ra": 2, "rb": 1, "rc": 1}, (1, 4, 3), {"ra": 2, "rb": 1, "rc": 1}),
    "one node is preferred where it has room": ({"ra": 2, "rb": 4}, (1, 4, 3), {"rb": 4}),
    "as few nodes as possible": ({"ra": 1, "rb": 2, "rc": 2}, (4, 4, 3), {"rb": 2, "rc": 2}),
    "no more nodes than it may have": ({"ra": 2, "rb": 1, "rc": 1}, (1, 4, 2), {"ra": 2, "rb": 1}),
    "only nodes with one checkpoint root": ({"ra": 2, "rb": 1, "sc": 2}, (1, 4, 3), {"ra": 2, "rb": 1}),
    "the root with fewer nodes": ({"ra": 1, "rb": 1, "rc": 1, "sd": 2, "se": 1}, (3, 3, 3), {"sd": 2, "se": 1}),
}


@pytest.mark.parametrize("case", TABLE)
def test_free_gpus_are_put_together(case):
    gpus, wish, expected = TABLE[case]
    assert room(Workshop(**gpus).combined(*wish)) == expected


def test_without_the_wish_a_job_stays_on_one_node():
    assert room(Workshop(ra=2, rb=1, rc=1).submit(1, 4)) == {"ra": 2}


def test_a_rigid_job_is_put_together_too():
    lab = Workshop(ra=2, rb=2)
    lab.begin(lab.submit(1))
    assert sum(room(lab.combined(3, 3)).values()) == 3


def test_nothing_starts_before_all_of_it_fits():
    lab = Workshop(ra=2, rb=2)
    first = lab.running(2)
    job = lab.combined(3, 3)
    assert (job.state, job.attempts) == (JobState.PENDING, [])
    assert "3 GPUs on 3 nodes or fewer" in job.reason
    lab.end(first, DONE)
    assert sum(room(job).values()) == 3


def test_what_can_never_fit_is_refused_and_what_the_roots_forbid_is_explained():
    lab = Workshop(ra=2, sb=2)
    spec = JobSpec(command=("x",), workdir="/", gpus_min=5 * WHOLE, gpus_max=5 * WHOLE, max_nodes=3, spread=True)
    refusal = lab.cluster.refusal(e.JobSubmitted(JobId("9"), spec, "ann"))
    assert refusal is not None
    assert "5 is more than the 4 of the 3 largest nodes" in refusal.message
    job = lab.combined(4, 4)
    assert "share a checkpoint root do not have so many" in job.reason
    assert explain(lab.cluster.state, job, lab.now).needs == "4 GPUs on 3 nodes or fewer"


def test_it_grows_over_nodes_and_shrinks_to_one_as_one_attempt():
    lab = Workshop(ra=2, rb=1, rc=1)
    others = [lab.running(1, nodes=1) for _ in range(2)]
    job = lab.combined(1, 4)
    small = sum(room(job).values())
    lab.begin(job)
    for other in others:
        lab.end(other, DONE)
    lab.wait(60)
    assert job.state is JobState.SUSPENDING
    lab.leave(job)
    assert small == 2
    assert room(job) == {"ra": 2, "rb": 1, "rc": 1}
    lab.begin(job)
    lab.tell(e.ResizeRequested(job.id, 2 * WHOLE, 2 * WHOLE))
    lab.leave(job)
    assert room(job) == {"ra": 2}
    assert (job.suspending.resizes, len(job.attempts)) == (2, 3)


def test_it_leaves_the_node_that_another_job_needs():
    lab = Workshop(ra=2, rb=1, rc=1)
    job = lab.combined(2, 4)
    lab.begin(job)
    lab.wait(60)
    urgent = lab.submit(2, te=True)
    assert stopped(lab.last) == {job.id}
    lab.leave(job)
    assert room(urgent) == {"ra": 2}
    assert room(job) == {"rb": 1, "rc": 1}


def test_it_shrinks_once_for_a_gang_that_needs_all_nodes():
    lab = Workshop(ra=2, rb=2)
    job = lab.combined(1, 4, 2)
    lab.begin(job)
    lab.wait(60)
    gang = lab.submit(2, nodes=2, te=True)
    lab.leave(job)
    assert room(gang) == {"ra": 1, "rb": 1}
    assert sum(room(job).values()) == 2


def test_one_lost_node_ends_the_attempt_on_all():
    lab = Workshop(ra=2, rb=1, rc=1)
    job = lab.combined(1, 4)
    lab.begin(job)
    lab.tell(e.AttemptExited(job.id, 1, e.ExitFacts(exit_code=1), freed=True, node=NodeId("rc")))
    assert stopped(lab.last) == {job.id}


def test_its_story_says_how_far_it_may_be_spread():
    spec = JobSpec(command=("x",), workdir="/", gpus_max=4 * WHOLE, max_nodes=3, spread=True)
    assert narrate(e.JobSubmitted(JobId("1"), spec, "ann")).endswith("1 GPU to 4 GPUs on 3 nodes or fewer")


JOBS = st.tuples(st.integers(1, 6), st.integers(0, 4), st.integers(1, 4), st.booleans(), st.booleans())


@settings(max_examples=share_of(150), deadline=None)
@given(
    policy=st.sampled_from([*POLICIES]),
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    jobs=st.lists(JOBS, min_size=1, max_size=8),
    data=st.data(),
)
def test_it_is_never_overbooked_and_starts_whole_or_not_at_all(policy, sizes, jobs, data):
    lab = Workshop(policy, **{f"r{index}": size for index, size in enumerate(sizes)})
    for low, more, nodes, te, alone in jobs:
        spread = {"max_nodes": nodes, "spread": nodes > 1} if not alone else {}
        lab.submit(min(low, sum(sizes)), min(low, sum(sizes)) + more, te=te, **spread)
        check(lab)
        known = list(lab.cluster.state.unfinished.values())
        for job in (
            data.draw(st.lists(st.sampled_from(known), max_size=3, unique_by=lambda job: job.id)) if known else ()
        ):
            if job.live is not None and job.live.stop is not None:
                lab.leave(job)
            elif job.live is not None and job.live.started is None:
                lab.begin(job)
            elif job.live is not None and data.draw(st.booleans()):
                lab.leave(job, DONE)
            check(lab)
        lab.wait(30)
        check(lab)


def check(lab: Workshop) -> None:
    held: set[GpuId] = set()
    for job in lab.cluster.state.jobs.values():
        if job.holding is None:
            continue
        allocation = job.holding.allocation
        assert job.gpus_min <= allocation.share <= job.gpus_max
        assert len(set(allocation.node_ids)) == len(allocation.nodes) <= job.spec.max_nodes
        assert held.isdisjoint(allocation.gpu_ids)
        assert all(piece.gpus for piece in allocation.nodes)
        held.update(allocation.gpu_ids)
