"""Jobs that ended long ago are forgotten, and nothing else changes: whatever happened, and whatever happens then."""

from collections.abc import Iterable

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events.codec import encode
from ebbtide_core.lifecycle.forgetting import JournalLine, forgettable, rewritten
from ebbtide_core.model.dependency import AfterKind, Dependency
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import JobId
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.state import ClusterState
from ebbtide_core.views.digest import digest
from hypothesis.stateful import rule

from tests.core.lab import DONE, Lab, registration
from tests.core.test_world import WatchedWorld, histories

FORGOTTEN: list[int] = []
Journal = list[tuple[float, e.Event]]


def folded(journal: Iterable[tuple[float, e.Event]], cluster: Cluster) -> ClusterState:
    for now, event in journal:
        cluster.replay(event, now)
    return cluster.state


def compacted(journal: Journal, state: ClusterState, before: float) -> tuple[Journal, set[JobId]]:
    lines = [JournalLine(number, *line) for number, line in enumerate(journal)]
    gone = forgettable(lines, state, before)
    changes = dict(rewritten(lambda: lines, gone, state.jobs))
    left = [(now, changes.get(number, event)) for number, (now, event) in enumerate(journal)]
    return [(now, event) for now, event in left if event is not None], gone


def summary(state: ClusterState) -> list[object]:
    """What must not change."""
    curves = {script: curve.points for script, curve in state.rates.curves.items()}
    known = {
        script: {at: list(jobs.items()) for at, jobs in known.items()} for script, known in state.rates._known.items()
    }
    facts = [digest(state), state.submissions, state.gates.next_id(state.submissions), state.history.runs, state.peaks]
    nodes = {id: (node.quarantine, node.gpus, node.drain, encode(node.facts)) for id, node in state.nodes.items()}
    queues = {name: [job.id for job in pool.queue] for name, pool in state.pools.items()}
    return [*facts, curves, known, nodes, queues, sorted(state.unfinished), state.displaced, state.problems]


class ForgettingWorld(WatchedWorld):
    """The world, in which it is looked now and then, and in the end, what a compacted journal would amount to."""

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "cluster"):
            self.forget_whoever_is_over()

    @rule()
    def forget_whoever_is_over(self) -> None:
        state = folded(self.journal, self.new_cluster())
        left, gone = compacted(self.journal, state, self.now + 1.0)
        shorter = folded(left, self.new_cluster())
        FORGOTTEN.append(len(gone))
        assert not gone & shorter.jobs.keys()
        for job in gone:
            del state.jobs[job]
        assert summary(shorter) == summary(state)
        assert all(getattr(event, "job", "") not in gone for _, event in left)


TestForgettingWorld = ForgettingWorld.TestCase
TestForgettingWorld.settings = histories(20)


def test_the_world_has_forgotten_some() -> None:
    """It comes after the world's own test."""
    assert sum(FORGOTTEN) > 0


def lab_with(count: int) -> Lab:
    """That many jobs have completed, one after the other, and one runs."""
    lab = Lab()
    for _ in range(count):
        lab.end(lab.running(name="train"), DONE)
    lab.running(name="train")
    return lab


def test_of_a_job_that_is_forgotten_there_is_left_what_is_known_of_its_script() -> None:
    lab = lab_with(3)
    left, gone = compacted(lab.journal, lab.cluster.state, lab.now)
    assert gone == {"1", "2", "3"}
    state = folded(left, Lab().cluster)
    assert [*state.jobs] == ["4"]
    assert len(state.history.runs) == 1
    assert [len(runs) for runs in state.history.runs.values()] == [3]
    assert state.gates.next_id(state.submissions) == "5"
    assert len(left) < len(lab.journal) * 0.6


def test_who_ended_lately_or_is_spoken_of_is_not_forgotten() -> None:
    lab = lab_with(2)
    ended = [job.end and job.end.at for job in lab.cluster.state.jobs.values()]
    assert compacted(lab.journal, lab.cluster.state, ended[1])[1] == {"1"}
    lab.submit(after=(Dependency(JobId("1"), AfterKind.ANY),))
    assert compacted(lab.journal, lab.cluster.state, lab.now)[1] == {"2"}


def test_events_of_before_and_after_can_follow() -> None:
    """The same facts lead both to the same."""
    lab = lab_with(4)
    left, gone = compacted(lab.journal, lab.cluster.state, lab.now)
    whole, shorter = Cluster(create_policy("fitgpp", {})), Cluster(create_policy("fitgpp", {}))
    folded(lab.journal, whole)
    folded(left, shorter)
    later = [
        e.MasterStarted(2),
        registration("a"),
        e.JobSubmitted(JobId("6"), JobSpec(command=("train",), workdir="/"), "ann"),
        e.SchedulingDue(),
        e.CancelRequested(JobId("5")),
        e.SchedulingDue(),
    ]
    for number, event in enumerate(later):
        now = lab.now + 10.0 * (number + 1)
        assert whole.handle(event, now) == shorter.handle(event, now)
    for job in gone:
        del whole.state.jobs[job]
    assert summary(whole.state) == summary(shorter.state)
