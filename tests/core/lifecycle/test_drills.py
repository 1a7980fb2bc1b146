"""Drills: a job steps aside and comes back at once; what suspensions cost is measured, and what follows from that."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, RefusalKind
from ebbtide_core.commands import Launch, Resume, Stop
from ebbtide_core.estimates.work import Assumptions
from ebbtide_core.model.types import Checkpointed, ExitFacts, HeldBy, JobState, ProgressFacts, SuspendMode
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.digest import digest

from tests.core.lab import DONE, GIB, Lab, gpus_of, launched, registration, stepped_aside, stopped

SAVED = stepped_aside(checkpointed=Checkpointed.YES, checkpoint_s=1.0)
LOST = stepped_aside(exit_code=0, signal=15, acknowledged=False, checkpointed=Checkpointed.NO)
KILLED = stepped_aside(exit_code=0, signal=9, killed=True, acknowledged=False)


@pytest.fixture
def lab():
    return Lab(gpus=2)


def drill(lab, job, exit=SAVED, seconds=0.0):
    """Ask for a drill and see it through until the job has started again."""
    lab.tell(e.DrillRequested(job.id))
    lab.wait(seconds)
    lab.end(job, exit)
    lab.start(job)


def suspended(lab, job, exit=SAVED, seconds=0.0):
    lab.tell(e.SuspendRequested(job.id))
    lab.wait(seconds)
    lab.end(job, exit)
    lab.tell(e.ResumeRequested(job.id))
    lab.start(job)


def test_a_drilled_job_comes_back_by_itself_on_its_own_gpus_though_others_wait(lab):
    job = lab.running()
    other = lab.running()
    waiting = lab.submit(2)
    before = gpus_of(job)
    lab.tell(e.DrillRequested(job.id))
    assert (stopped(lab.last), job.state) == ({job.id}, JobState.SUSPENDING)
    lab.exit(job, SAVED)
    assert launched(lab.last) == set()
    lab.free(job)
    assert launched(lab.last) == {job.id}
    assert (gpus_of(job), job.attempts[-1].number) == (before, 2)
    assert (waiting.state, other.state) == (JobState.PENDING, JobState.RUNNING)
    assert (job.suspending.preemptions, job.suspending.resizes, job.held_by) == (0, 0, None)


def test_a_sticky_job_is_still_sticky_after_a_drill():
    lab = Lab("hybrid", gpus=2, sticky="1")
    job = lab.running()
    assert job.attempts[0].sticky
    drill(lab, job)
    assert job.attempts[1].sticky


def test_who_suspends_a_job_in_its_drill_has_the_last_word(lab):
    job = lab.running()
    lab.tell(e.DrillRequested(job.id))
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job, SAVED)
    assert (job.state, job.held_by) == (JobState.SUSPENDED, HeldBy.USER)


def test_who_cancels_a_job_in_its_drill_has_the_last_word(lab):
    job = lab.running()
    lab.tell(e.DrillRequested(job.id))
    lab.tell(e.CancelRequested(job.id))
    lab.end(job, SAVED)
    assert job.state is JobState.CANCELLED


def test_an_urgent_job_may_take_the_room_of_one_in_its_drill_and_it_comes_back_afterwards(lab):
    job = lab.running(2)
    lab.tell(e.DrillRequested(job.id))
    urgent = lab.submit(2, te=True)
    lab.end(job, SAVED)
    assert launched(lab.last) == {urgent.id}
    lab.start(urgent)
    lab.end(urgent, DONE)
    assert launched(lab.last) == {job.id}


def test_a_gang_is_drilled_on_all_of_its_nodes():
    lab = Lab(nodes="")
    for name in "ab":
        lab.tell(registration(name, 1, checkpoint_root_id="shared"))
    job = lab.submit(2, nodes=2)
    for node in job.attempts[-1].allocation.node_ids:
        lab.tell(e.AttemptStarted(job.id, 1, 1, node=node))
    lab.tell(e.DrillRequested(job.id))
    for node in ("a", "b"):
        lab.tell(e.AttemptExited(job.id, 1, SAVED, node=node, freed=True))
    assert (len(job.attempts), set(job.attempts[-1].allocation.node_ids)) == (2, {"a", "b"})


def test_a_swapped_job_goes_through_a_drill_as_the_same_attempt(lab):
    job = lab.running(suspend=SuspendMode.SWAP)
    lab.tell(e.DrillRequested(job.id))
    [stop] = [command for command in lab.last if isinstance(command, Stop)]
    assert stop.swaps == 0
    lab.tell(e.AttemptSwapped(job.id, 1, 1, 30 * GIB, 2.0))
    assert [command.job for command in lab.last if isinstance(command, Resume)] == [job.id]
    lab.tell(e.AttemptStarted(job.id, 1, 1001, None, 1))
    assert (job.state, len(job.attempts), job.suspending.proved) == (JobState.RUNNING, 1, True)
    assert (job.suspending.save_s, job.suspensions[0].restart_s) == (1.0, 1.0)


def held(lab, job):
    """The job, which runs on, but would not start again."""
    lab.tell(e.HoldRequested(job.id))
    return job


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda lab: lab.submit(hold=True), "is PENDING: only one that runs"),
        (lambda lab: lab.submit(), "is STARTING: only one that runs"),
        (lambda lab: lab.running(suspend=SuspendMode.NONE), "--suspend none"),
        (lambda lab: held(lab, lab.running()), "is held: release it first"),
    ],
)
def test_a_drill_is_refused_where_it_makes_no_sense(lab, prepare, words):
    refusal = lab.cluster.refusal(e.DrillRequested(prepare(lab).id))
    assert refusal is not None
    assert refusal.kind is RefusalKind.CONFLICT
    assert words in refusal.message


def test_the_first_step_after_a_suspension_is_a_fact_of_its_own_once(lab):
    job = lab.running()
    lab.progress(job, 7)
    lab.tell(e.DrillRequested(job.id))
    lab.tell(e.AttemptExited(job.id, 1, SAVED, ProgressFacts(8, 100), freed=True))
    lab.start(job)
    for step in (9, 10):
        lab.progress(job, step)
    worked = [event for _, event in lab.journal if isinstance(event, e.WorkResumed)]
    assert worked == [e.WorkResumed(job.id, 2, 9)]
    [suspension] = job.suspensions
    assert (suspension.left_step, suspension.working_step) == (8, 9)


def test_what_was_measured_survives_a_restart_of_the_master(lab):
    job = lab.running()
    lab.progress(job, 7)
    lab.tell(e.DrillRequested(job.id))
    lab.tell(e.AttemptExited(job.id, 1, SAVED, ProgressFacts(8, 100), freed=True))
    lab.start(job)
    lab.progress(job, 9)
    again = Cluster(create_policy("fitgpp", {}))
    for time, event in lab.journal:
        again.replay(event, time)
    copy = again.state.jobs[job.id]
    assert (copy.suspending.save_s, copy.suspending.restart_cost_s, copy.suspending.proved) == (
        job.suspending.save_s,
        job.suspending.restart_cost_s,
        True,
    )
    assert copy.suspensions == job.suspensions
    assert digest(again.state) != ""


class TestMeasuredCosts:
    def test_the_newest_measurement_counts_for_half(self, lab):
        job = lab.running()
        suspended(lab, job, seconds=9)  # and a second for each step of the lab
        assert job.suspending.save_s == 11
        suspended(lab, job, seconds=19)
        assert job.suspending.save_s == 16

    def test_a_restart_costs_the_save_and_what_it_takes_to_report_a_step_again(self, lab):
        job = lab.running()
        drill(lab, job)
        assert job.suspending.restart_cost_s == 1.0 + 1.0
        lab.wait(9)
        lab.progress(job, 5)
        assert job.suspending.restart_cost_s == 1.0 + 12.0

    @pytest.mark.parametrize(
        ("exit", "seconds", "expected"),
        [(LOST, 0, None), (ExitFacts(lost=True), 0, None), (KILLED, 8, 10.0), (KILLED, 60, 10.0), (SAVED, 3, 5.0)],
    )
    def test_what_saved_nothing_says_nothing_and_nobody_takes_longer_than_the_grace_period(
        self, lab, exit, seconds, expected
    ):
        job = lab.running(grace_s=10.0)
        suspended(lab, job, exit, seconds)
        assert job.suspending.save_s == expected

    def test_fitgpp_preempts_who_was_measured_to_be_quick_before_who_only_promises_to_be(self, lab):
        slow, quick = lab.running(grace_s=60.0), lab.running(grace_s=600.0)
        suspended(lab, quick)
        lab.submit(te=True)
        assert stopped(lab.last) == {quick.id}
        assert slow.state is JobState.RUNNING

    def test_the_grace_period_that_was_promised_stays(self, lab):
        job = lab.running(grace_s=600.0)
        suspended(lab, job)
        lab.tell(e.SuspendRequested(job.id))
        [stop] = [command for command in lab.last if isinstance(command, Stop)]
        assert stop.grace_s == 600.0


class TestWorthwhileGain:
    @pytest.mark.parametrize(
        ("work_s", "cost_s", "grows"),
        [
            (None, None, True),  # nothing measured
            (None, 1000.0, True),  # an hour at half the time saves 1800 s
            (None, 2000.0, False),
            (500.0, 200.0, True),  # 500 s become 250 s
            (500.0, 300.0, False),
            (0.0, 1.0, False),
        ],
    )
    def test_a_job_grows_only_if_that_saves_more_than_a_restart_costs(self, work_s, cost_s, grows):
        lab = Lab("fifo", gpus=2, resize_after_s="0")
        rigid = lab.running(1)
        elastic = lab.running(1, 2, name="elastic", work_s=None if work_s is None else work_s + 20_003)
        lab.wait(20_000)
        elastic.suspending.restart_cost_s = cost_s
        lab.end(rigid, DONE)
        assert (stopped(lab.last) == {elastic.id}) is grows

    def test_one_that_is_started_anyway_grows_at_no_further_cost(self):
        lab = Lab("fifo", gpus=2)
        job = lab.submit(1, 2, hold=True)
        job.suspending.restart_cost_s = 1e6
        lab.tell(e.ReleaseRequested(job.id))
        [launch] = [command for command in lab.last if isinstance(command, Launch)]
        assert len(launch.allocation.gpu_ids) == 2


class TestProof:
    @pytest.mark.parametrize(
        ("exit", "proved"),
        [
            (SAVED, True),
            (stepped_aside(), True),
            (stepped_aside(exit_code=0, acknowledged=False), False),
            (LOST, False),
            (KILLED, False),
        ],
    )
    def test_a_job_has_proved_that_it_can_suspend_once_it_has_saved(self, lab, exit, proved):
        job = lab.running()
        assert not job.suspending.proved
        suspended(lab, job, exit)
        assert job.suspending.proved is proved

    @pytest.mark.parametrize(("exit", "step", "proved"), [(SAVED, 1, False), (LOST, 9, True), (LOST, 7, False)])
    def test_where_it_goes_on_shows_more_than_what_it_saved(self, lab, exit, step, proved):
        job = lab.running()
        lab.progress(job, 8)
        drill(lab, job, exit)
        lab.progress(job, step)
        assert job.suspending.proved is proved

    @pytest.mark.parametrize(
        ("policy", "urgent"),
        [
            ("fitgpp", {"te": True}),
            ("lrtp", {"te": True}),
            ("priority", {"priority": 5}),
            ("pri", {"priority": 1}),
        ],
    )
    @pytest.mark.parametrize("proved", [0, 1])
    def test_of_equal_jobs_the_one_that_never_proved_it_is_preempted_last(self, policy, urgent, proved):
        options = {"preemption": "on"} if policy == "priority" else {}
        lab = Lab(policy, gpus=2, **options)
        jobs = [lab.running(), lab.running()]
        jobs[proved].suspending.proved = True
        for job in jobs:
            lab.cluster.state.refresh(job, lab.now)
        lab.submit(**urgent)
        assert stopped(lab.last) == {jobs[proved].id}

    def test_where_every_job_counts_as_proved_the_order_is_that_of_the_policy(self):
        cluster = Cluster(create_policy("fitgpp", {}), Assumptions(can_suspend=True))
        lab = Lab()
        lab.cluster = cluster
        lab.tell(registration("a", 2))
        first, second = lab.running(), lab.running()
        assert first.suspending.proved
        assert second.suspending.proved
        suspended(lab, second, stepped_aside(exit_code=0, acknowledged=False))
        lab.submit(2, te=True)
        assert stopped(lab.last) == {first.id, second.id}
