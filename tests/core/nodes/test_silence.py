"""Silent nodes: nothing starts elsewhere without a proof; persons, leases, and doubts about the master itself."""

from dataclasses import replace

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import RefusalKind
from ebbtide_core.commands import Command, Forget, Launch, Record, Stop
from ebbtide_core.events.fencing import StrayKind
from ebbtide_core.job.job import Job
from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError, validate
from ebbtide_core.model.types import AttemptRef, ExitFacts, JobState, Loan, NodeId
from ebbtide_core.nodes.strays import AttemptReport, after_report
from ebbtide_core.views.digest import digest

from tests.core.lab import DONE, Lab, gpus_of, launched, registration, stopped

A, B = NodeId("a"), NodeId("b")
SHARED = {"checkpoint_root_id": "shared"}


@pytest.fixture
def lab() -> Lab:
    """Two nodes with one GPU each that see the same checkpoints."""
    lab = Lab(nodes="")
    for name in "ab":
        lab.tell(registration(name, 1, **SHARED))
    return lab


def running_on(lab: Lab, node: str, **spec: object) -> Job:
    """A job that runs on ``node``, which the others are then too full for."""
    job = lab.submit(1, **spec)
    assert job.attempts[-1].allocation.node_ids == (node,)
    leased = job.spec.failover_after_s is not None
    lab.tell(e.AttemptStarted(job.id, 1, 1001, leased=leased))
    return job


def lose(lab: Lab, *names: str, acknowledged: float = 0.0) -> None:
    for name in names:
        lab.tell(e.NodeDisconnected(NodeId(name)))
    for name in names:
        lab.tell(e.NodeLost(NodeId(name), 20.0, acknowledged))


def dead(node: NodeId) -> e.NodeConfirmedDead:
    return e.NodeConfirmedDead(node=node, user="ann")


class TestConfirmedDead:
    def test_its_jobs_go_on_elsewhere_at_once_and_their_story_says_why(self, lab: Lab) -> None:
        job = running_on(lab, "a")
        lose(lab, "a")
        assert job.state is JobState.UNREACHABLE
        assert launched(lab.tell(dead(A))) == {job.id}
        assert gpus_of(job) == {"b0"}
        assert job.attempts[0].end.outcome == "interrupted: node a was confirmed dead by ann"
        assert job.spec.retries == job.retries.failures == 0

    def test_a_connected_node_is_not_dead(self, lab: Lab) -> None:
        refusal = lab.cluster.refusal(dead(A))
        assert refusal is not None
        assert (refusal.kind, refusal.message) == (RefusalKind.CONFLICT, "node a is connected: it is not dead")

    def test_a_node_that_nobody_knows_is_refused(self, lab: Lab) -> None:
        refusal = lab.cluster.refusal(dead(NodeId("z")))
        assert refusal is not None
        assert refusal.kind is RefusalKind.UNKNOWN

    def test_a_cancelled_job_there_is_cancelled_by_it(self, lab: Lab) -> None:
        job = running_on(lab, "a")
        lose(lab, "a")
        lab.tell(e.CancelRequested(job.id))
        lab.tell(dead(A))
        assert job.state is JobState.CANCELLED

    def test_what_comes_back_from_there_is_ended_and_its_gpu_is_given_to_nobody_before(self, lab: Lab) -> None:
        job = running_on(lab, "a")
        lose(lab, "a")
        lab.tell(dead(A))
        lab.start(job)
        back = registration("a", 1, known=(AttemptRef(job.id, 1),), **SHARED)
        found = stray(job, 1, StrayKind.OVER)
        commands = together(lab, back, found)
        assert Stop((A,), job.id, 1, 0.0) in commands
        other = lab.submit(1)
        assert gpus_of(other) == set()
        assert (job.state, gpus_of(job)) == (JobState.RUNNING, {"b0"})
        commands = lab.tell(e.StrayGone(node=A, job=job.id, attempt=1, asked=True))
        assert Forget((A,), job.id, 1) in commands
        assert gpus_of(other) == {"a0"}

    def test_late_reports_of_the_attempt_that_was_given_up_change_nothing(self, lab: Lab) -> None:
        job = running_on(lab, "a")
        lose(lab, "a")
        lab.tell(dead(A))
        lab.start(job)
        lab.tell(registration("a", 1, known=(AttemptRef(job.id, 1),), **SHARED))
        lab.tell(e.AttemptExited(job.id, 1, DONE))
        assert (job.state, len(job.attempts)) == (JobState.RUNNING, 2)

    def test_it_is_in_use_again_when_it_comes_back_empty(self, lab: Lab) -> None:
        lose(lab, "a")
        lab.tell(dead(A))
        lab.tell(registration("a", 1, boot_id="boot-2", **SHARED))
        jobs = [lab.submit(1), lab.submit(1)]
        assert {gpu for job in jobs for gpu in gpus_of(job)} == {"a0", "b0"}


class TestAGangOfWhichOneNodeDies:
    """Its part on a node is launched only once the first node runs."""

    @pytest.fixture
    def lab(self) -> Lab:
        lab = Lab(nodes="")
        for name in "abc":
            lab.tell(registration(name, 1, **SHARED))
        return lab

    def test_who_had_not_got_its_part_yet_is_dead_and_all_go_on_without_it(self, lab: Lab) -> None:
        job = lab.submit(2, nodes=2)
        lose(lab, "b")
        assert stopped(lab.tell(dead(B))) == {job.id}
        lab.tell(e.AttemptStarted(job.id, 1, 100, node=A, port=20017))
        assert not launched(lab.last)
        lab.tell(e.AttemptExited(job.id, 1, ExitFacts(signal=15, stop_requested=True), freed=True, node=A))
        assert job.attempts[0].end.outcome == "interrupted: node b was confirmed dead by ann"
        assert (gpus_of(job), job.retries.failures) == ({"a0", "c0"}, 0)
        again = Lab(nodes="").cluster
        for time, event in lab.journal:
            again.replay(event, time)
        assert digest(again.state) == digest(lab.cluster.state)

    def test_one_that_was_asked_to_leave_before_needs_no_part_of_it_to_end(self, lab: Lab) -> None:
        job = lab.submit(2, nodes=2)
        lose(lab, "b")
        lab.tell(e.SuspendRequested(job.id))
        lab.tell(dead(B))
        lab.tell(e.AttemptExited(job.id, 1, ExitFacts(signal=15, stop_requested=True), freed=True, node=A))
        assert (job.holding, job.held_by is not None) == (None, True)

    def test_who_waits_for_a_node_that_was_dead_before_its_part_was_launched_is_freed_by_another_word(
        self, lab: Lab
    ) -> None:
        """A journal of before has jobs that wait so."""
        job = lab.submit(2, nodes=2)
        lose(lab, "b")
        lab.cluster.replay(dead(B), lab.now)
        lab.tell(e.AttemptStarted(job.id, 1, 100, node=A, port=20017))
        assert stopped(lab.tell(dead(B))) == {job.id}
        lab.tell(e.AttemptExited(job.id, 1, ExitFacts(signal=15, stop_requested=True), freed=True, node=A))
        assert gpus_of(job) == {"a0", "c0"}


class TestLease:
    T = 600.0

    def test_a_job_with_a_lease_goes_on_elsewhere_once_it_is_over_for_certain(self, lab: Lab) -> None:
        job = running_on(lab, "a", failover_after_s=self.T)
        heard = lab.now
        lose(lab, "a", acknowledged=heard)
        ends = heard + self.T * (1 + limits.LEASE_DRIFT) + limits.LEASE_MARGIN_S
        assert any(abs(time - ends) < 1e-6 for _, time in lab.wakes)
        assert launched(lab.wait(ends - lab.now - 2.0)) == set()
        assert launched(lab.wait(1.0)) == {job.id}
        assert "its lease ended: node a was silent for" in job.attempts[0].end.outcome

    def test_without_one_it_waits_for_ever(self, lab: Lab) -> None:
        job = running_on(lab, "a")
        lose(lab, "a")
        assert launched(lab.wait(1e7)) == set()
        assert job.state is JobState.UNREACHABLE

    def test_a_lease_that_its_node_never_confirmed_is_none(self, lab: Lab) -> None:
        job = lab.submit(1, failover_after_s=self.T)
        lab.tell(e.AttemptStarted(job.id, 1, 1001))
        lose(lab, "a")
        assert launched(lab.wait(1e7)) == set()

    def test_a_node_that_is_back_in_time_keeps_its_attempt(self, lab: Lab) -> None:
        job = running_on(lab, "a", failover_after_s=self.T)
        lose(lab, "a")
        lab.wait(300.0)
        lab.tell(registration("a", 1, known=lab.known(job), **SHARED))
        lab.wait(1e6)
        assert (job.state, len(job.attempts)) == (JobState.RUNNING, 1)

    def test_a_restarted_master_counts_from_its_own_time(self, lab: Lab) -> None:
        job = running_on(lab, "a", failover_after_s=self.T)
        lose(lab, "a", acknowledged=lab.now)
        lab.wait(600.0)
        lab.tell(e.MasterStarted(2))
        lab.tell(registration("b", 1, **SHARED))
        assert launched(lab.wait(100.0)) == set()
        lab.tell(e.NodeLost(A, 30.0))
        assert launched(lab.wait(600.0)) == set()
        assert launched(lab.wait(60.0)) == {job.id}

    def test_an_attempt_that_ended_itself_goes_on_from_its_checkpoint(self, lab: Lab) -> None:
        job = running_on(lab, "a", failover_after_s=self.T)
        exit = ExitFacts(signal=15, stop_requested=True, delivered=True, caught=True, fenced=True, acknowledged=True)
        lab.exit(job, exit)
        assert "its lease ended, the master was not heard for 600 s" in job.attempts[0].end.outcome
        assert job.state is JobState.SUSPENDED

    def test_it_has_to_be_longer_than_the_grace_period_and_a_margin(self, lab: Lab) -> None:
        spec = running_on(lab, "a").spec
        words = "^--failover-after: 200s is not between 210s, the grace period and 30s more"
        with pytest.raises(SpecError, match=words):
            validate(replace(spec, failover_after_s=200.0))


class TestDoubt:
    @pytest.fixture
    def lab(self) -> Lab:
        lab = Lab(nodes="")
        for name in "abcde":
            lab.tell(registration(name, 1, **SHARED))
        return lab

    def test_where_most_nodes_fall_silent_together_the_master_doubts_itself(self, lab: Lab) -> None:
        job = running_on(lab, "a", failover_after_s=600.0)
        lose(lab, "a", "b", "c")
        assert lab.cluster.state.silent.doubted == {"a", "b", "c"}
        assert launched(lab.wait(1e5)) == set()
        assert job.state is JobState.UNREACHABLE

    def test_it_goes_by_what_it_sees_again_once_half_of_them_are_back(self, lab: Lab) -> None:
        job = running_on(lab, "a", failover_after_s=600.0)
        lose(lab, "a", "b", "c")
        lab.wait(1e5)
        lab.tell(registration("b", 1, **SHARED))
        assert lab.cluster.state.silent.doubted
        assert launched(lab.tell(registration("c", 1, **SHARED))) == {job.id}
        assert not lab.cluster.state.silent.doubted

    def test_or_once_somebody_says_so(self, lab: Lab) -> None:
        job = running_on(lab, "a", failover_after_s=600.0)
        lose(lab, "a", "b", "c")
        lab.wait(1e5)
        assert launched(lab.tell(e.SilenceBelieved("ann"))) == {job.id}
        refusal = lab.cluster.refusal(e.SilenceBelieved("ann"))
        assert refusal is not None
        assert refusal.kind is RefusalKind.CONFLICT

    def test_less_than_half_of_them_are_believed(self, lab: Lab) -> None:
        lose(lab, "a", "b")
        assert not lab.cluster.state.silent.doubted

    def test_those_that_fell_silent_one_after_the_other_over_hours_are_believed(self, lab: Lab) -> None:
        for name in "abcd":
            lose(lab, name)
            lab.wait(3600.0)
        assert not lab.cluster.state.silent.doubted

    def test_those_that_were_lost_before_the_master_started_did_not_fall_silent_with_those_that_are_since(
        self, lab: Lab
    ) -> None:
        for name in "ab":
            lose(lab, name)
            lab.wait(3600.0)
        lab.tell(e.MasterStarted(2))
        for name in "de":
            lab.tell(registration(name, 1, **SHARED))
        lab.wait(30.0)
        lab.tell(e.NodeLost(NodeId("c"), 30.0))
        assert not lab.cluster.state.silent.doubted

    def test_lent_nodes_that_do_not_come_back_to_a_new_master_fell_silent_together(self) -> None:
        lab, loan = Lab(nodes=""), Loan(1e9, "hpc")
        for name in "abcde":
            lab.tell(registration(name, 1, loan=loan, **SHARED))
        for name in "abc":
            running_on(lab, name)
        lab.wait(3600.0)
        lab.tell(e.MasterStarted(2))
        for name in "de":
            lab.tell(registration(name, 1, loan=loan, **SHARED))
        lab.wait(30.0)
        for name in "abc":
            lab.tell(e.NodeLost(NodeId(name), 30.0))
        assert lab.cluster.state.silent.doubted == {"a", "b", "c"}

    def test_of_two_nodes_there_is_no_majority(self) -> None:
        lab = Lab(nodes="ab")
        lose(lab, "a", "b")
        assert not lab.cluster.state.silent.doubted

    def test_a_person_who_confirms_that_a_node_is_dead_is_believed_all_the_same(self, lab: Lab) -> None:
        job = running_on(lab, "a")
        lose(lab, "a", "b", "c")
        assert launched(lab.tell(dead(A))) == {job.id}


class TestStrays:
    def test_an_attempt_that_the_journal_does_not_know_is_left_alone_with_its_gpu(self, lab: Lab) -> None:
        found = e.StrayFound(node=A, job="77", attempt=2, kind=StrayKind.UNKNOWN, gpus=("a0",))
        commands = together(lab, registration("a", 1, known=(AttemptRef("77", 2),), **SHARED), found)
        assert not stopped(commands)
        jobs = [lab.submit(1), lab.submit(1)]
        assert [gpus_of(job) for job in jobs] == [{"b0"}, set()]

    def test_no_new_job_gets_the_number_of_one_that_is_not_in_the_journal(self, lab: Lab) -> None:
        lab.tell(e.StrayFound(node=A, job="77.3", attempt=2, kind=StrayKind.UNKNOWN))
        state = lab.cluster.state
        assert state.gates.next_id(state.submissions) == "78"

    def test_a_job_with_a_newer_attempt_than_the_journal_knows_is_held_and_counts_on_from_there(self, lab: Lab) -> None:
        job = running_on(lab, "a")
        lab.tell(e.SuspendRequested(job.id))
        lab.end(job)
        lab.tell(stray(job, 5, StrayKind.UNKNOWN))
        assert job.reason == "held: attempt 5 of it runs on node a, and this journal does not know it"
        assert gpus_of(job) == set()
        refusal = lab.cluster.refusal(e.ReleaseRequested(job.id))
        assert refusal is not None
        assert refusal.message == "attempt 5 of job 1 is on node a, set aside: 'ebb node end-stray a 1.5'"
        lab.tell(e.StrayEndRequested(node=A, job=job.id, attempt=5, grace_s=9.0))
        assert Stop((A,), job.id, 5, 9.0) in lab.last
        lab.tell(e.StrayGone(node=A, job=job.id, attempt=5, asked=True))
        lab.tell(e.ReleaseRequested(job.id))
        assert [command.attempt for command in lab.last if isinstance(command, Launch)] == [6]

    def test_an_attempt_that_a_newer_one_has_overtaken_is_over(self, lab: Lab) -> None:
        job = running_on(lab, "a")
        lose(lab, "a")
        lab.tell(e.MasterStarted(2))
        heard = AttemptReport(node=B, job=job.id, attempt=3, gpus=("b0",))
        together(lab, registration("b", 1, known=(AttemptRef(job.id, 3),), **SHARED))
        together(lab, *after_report(lab.cluster.state, heard))
        assert job.attempts[0].freed is not None
        assert (len(job.attempts), job.held_by is not None) == (3, True)

    def test_nothing_starts_after_a_restore_before_every_node_was_heard_or_is_dead(self, lab: Lab) -> None:
        lab.tell(e.JournalRestored(1.0, 0))
        lab.tell(e.MasterStarted(2))
        job = lab.submit(1)
        lab.tell(registration("b", 1, **SHARED))
        lab.wait(1e6)
        assert job.state is JobState.PENDING
        assert launched(lab.tell(dead(A))) == {job.id}

    def test_a_gpu_that_a_stray_left_dirty_is_set_aside(self, lab: Lab) -> None:
        lab.tell(stray_of("77", 1))
        lab.tell(e.StrayGone(node=A, job="77", attempt=1, dirty_gpus=("a0",), dirty_reasons=("it is full",)))
        assert lab.cluster.state.nodes[A].quarantine == {"a0": "job 77 ended, but it is full"}

    def test_replaying_the_journal_gives_the_same_cluster(self, lab: Lab) -> None:
        job = running_on(lab, "a", failover_after_s=600.0)
        lose(lab, "a")
        lab.tell(dead(A))
        lab.tell(registration("a", 1, known=(AttemptRef(job.id, 1),), **SHARED))
        lab.tell(stray(job, 1, StrayKind.OVER))
        lab.tell(stray_of("77", 1))
        again = Lab(nodes="").cluster
        for time, event in lab.journal:
            again.replay(event, time)
        assert digest(again.state) == digest(lab.cluster.state)
        assert again.state.nodes[A].strays == lab.cluster.state.nodes[A].strays


def stray(job: Job, attempt: int, kind: StrayKind) -> e.StrayFound:
    return e.StrayFound(node=A, job=job.id, attempt=attempt, kind=kind, gpus=("a0",))


def stray_of(job: str, attempt: int) -> e.StrayFound:
    return e.StrayFound(node=A, job=job, attempt=attempt, kind=StrayKind.UNKNOWN, gpus=("a0",))


def together(lab: Lab, *events: e.Event) -> list[Command]:
    """Hand in facts of one batch: no pass in between."""
    lab.now += 1.0
    commands: list[Command] = []
    for event in (*events, e.SchedulingDue()):
        handled = lab.cluster.handle(event, lab.now)
        commands += handled
        lab.journal += [(lab.now, command.event) for command in handled if isinstance(command, Record)]
    return commands
