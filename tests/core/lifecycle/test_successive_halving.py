"""Successive halving over the tasks of an array, in the cluster: pauses, promotions, and early ends."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events.codec import decode_event, encode
from ebbtide_core.events.fencing import StrayKind
from ebbtide_core.model.settings import PoolSettings, Settings
from ebbtide_core.model.spec import JobSpec, SpecError, validate
from ebbtide_core.model.spec.halving import Asha, Mode
from ebbtide_core.model.types import ExitFacts, HeldBy, JobId, JobState, NodeId, ProgressFacts, SuspendMode, Task
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.narrate import narrate

from tests.core.lab import DONE, Lab, launched, registration, stopped

ASHA = Asha(min_steps=100, max_steps=1600, eta=4)


class Sweep(Lab):
    """An array of tasks whose loss is given; they do what they are asked to, and complete at 1600 steps."""

    def __init__(self, losses, policy="fifo", gpus=2, asha=ASHA, at_once=0, pool="", **options):
        super().__init__(policy, gpus=gpus, **options)
        if pool:
            self.cluster = Cluster(
                create_policy(policy, {}), settings=Settings(pools={"default": PoolSettings(), pool: PoolSettings()})
            )
            for name, where in (("a", pool), ("b", "default")):
                self.tell(registration(name, gpus, pool=where))
        self.losses = losses
        self.tasks = []
        spec = JobSpec(command=("x",), workdir="/", asha=asha, pool=pool)
        for index in range(len(losses)):
            id = JobId(f"1.{index}")
            task = Task(JobId("1"), index, len(losses), max_concurrent=at_once)
            self.cluster.handle(e.JobSubmitted(id, spec, "ann", task=task), self.now)
            self.journal.append((self.now, e.JobSubmitted(id, spec, "ann", task=task)))
            self.tasks.append(self.cluster.state.jobs[id])
        self.wait(0)
        self.settle()

    def report(self, index, step, **progress):
        job = self.tasks[index]
        progress = progress or {"loss": self.losses[index]}
        if progress == {"loss": None}:
            progress = {"diverged": ("loss",)}
        return self.tell(e.ProgressReported(job.id, len(job.attempts), ProgressFacts(step, 1600, **progress)))

    def turn(self):
        """Whoever runs comes to its next rung, or its end; False if nobody runs."""
        running = [job for job in self.tasks if job.state is JobState.RUNNING]
        for job in running:
            if job.state is not JobState.RUNNING:
                continue
            halving = self.cluster.state.halvings["1"]
            steps = halving.next_rung(job.id)
            self.report(self.tasks.index(job), steps or 1600)
            if steps is None:
                self.end(job, DONE)
            self.settle()
        return bool(running)

    @property
    def steps(self):
        return [job.measured.progress.step if job.measured.progress else 0 for job in self.tasks]


@pytest.mark.parametrize(
    ("policy", "options"), [("fifo", {}), ("priority", {}), ("fair-share", {}), ("fitgpp", {}), ("hybrid", {})]
)
def test_eight_tasks_on_two_gpus_leave_one_that_runs_to_its_end(policy, options) -> None:
    lab = Sweep([8.0, 7.0, 3.0, 6.0, 5.0, 1.0, 2.0, 4.0], policy, **options)
    while lab.turn():
        pass
    assert {job.state for job in lab.tasks} == {JobState.COMPLETED}
    assert lab.steps[5] == 1600
    assert sorted(lab.steps)[:5] == [100] * 5
    assert sum(lab.steps) < 8 * 1600 / 3
    assert {job.exit_code for job in lab.tasks} == {0}
    assert lab.cluster.state.halvings == {}
    assert lab.tasks[5].measured.rungs == {100: 1.0, 400: 1.0}


def test_who_comes_to_a_rung_saves_steps_aside_and_says_where_it_stands() -> None:
    lab = Sweep([2.0, 1.0, 3.0, 4.0])
    assert stopped(lab.report(0, 99)) == set()
    assert stopped(lab.report(0, 103)) == {"1.0"}
    lab.settle()
    first = lab.tasks[0]
    assert (first.state, first.held_by) == (JobState.SUSPENDED, HeldBy.SYSTEM)
    assert first.reason == "paused at 100 steps: loss 2 is number 1 of 1 so far, and 0 of them go on"
    assert lab.tasks[2].state is JobState.RUNNING  # the next has its GPU
    assert first.suspending.preemptions == 0


def test_who_is_among_the_best_when_it_comes_goes_on_without_a_pause() -> None:
    lab = Sweep([4.0, 3.0, 2.0, 1.0, 5.0, 6.0, 7.0, 8.0], gpus=4)
    for index in range(3):
        lab.report(index, 100)
    assert stopped(lab.report(3, 100)) == set()
    assert lab.tasks[3].state is JobState.RUNNING
    assert "goes on from 100 steps: loss 1 is number 1 of 4" in [narrate(event) for _, event in lab.tasks[3].story]


def test_who_waits_goes_on_from_its_checkpoint_before_any_new_task_starts() -> None:
    lab = Sweep([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], gpus=1)
    for index in range(3):
        lab.report(index, 100)
        lab.settle()
    lab.report(3, 100)
    lab.end(lab.tasks[3])
    assert launched(lab.last) == {"1.0"}
    assert len(lab.tasks[0].attempts) == 2


def test_who_waits_does_not_go_on_while_an_attempt_of_it_that_nobody_knew_may_run() -> None:
    lab = Sweep([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], gpus=1)
    for index in range(3):
        lab.report(index, 100)
        lab.settle()
    attempt = {"node": NodeId("a"), "job": JobId("1.0"), "attempt": 2}
    lab.tell(e.StrayFound(**attempt, kind=StrayKind.UNKNOWN))
    lab.report(3, 100)
    lab.end(lab.tasks[3])
    assert launched(lab.last) == {"1.4"}
    assert lab.tasks[0].held_by is HeldBy.SYSTEM
    lab.tell(e.StrayGone(**attempt, asked=True))
    assert lab.tasks[0].held_by is None
    lab.end(lab.tasks[4])
    assert launched(lab.last) == {"1.0"}


def test_who_is_paused_does_not_count_as_one_of_the_tasks_at_a_time() -> None:
    lab = Sweep([3.0, 2.0, 1.0, 4.0, 5.0], gpus=4, at_once=1)
    assert [job.running for job in lab.tasks] == [True, False, False, False, False]
    lab.report(0, 100)
    assert not lab.tasks[1].running  # its GPU is not free yet
    lab.settle()
    assert [job.running for job in lab.tasks] == [False, True, False, False, False]
    while lab.turn():
        pass
    assert {job.state for job in lab.tasks} == {JobState.COMPLETED}
    assert lab.steps[2] == 1600


def test_tasks_of_one_of_several_pools_are_compared_in_the_same_way() -> None:
    lab = Sweep([2.0, 1.0, 3.0, 4.0], pool="small")
    while lab.turn():
        pass
    assert {job.state for job in lab.tasks} == {JobState.COMPLETED}
    assert lab.steps == [100, 1600, 100, 100]
    assert {attempt.allocation.node_ids for job in lab.tasks for attempt in job.attempts} == {("a",)}


def test_who_can_never_be_among_the_best_has_ended_early() -> None:
    lab = Sweep([1.0, 2.0, 3.0, 4.0], gpus=4)
    for index in range(2):
        lab.report(index, 100)
        lab.settle()
    second = lab.tasks[1]
    assert (second.state, second.exit_code, second.held_by) == (JobState.COMPLETED, 0, None)
    assert second.reason == "stopped early at 100 steps: loss 2 is number 2 of 2"
    assert lab.tasks[0].state is JobState.SUSPENDED


def test_a_loss_that_has_diverged_is_the_worst() -> None:
    lab = Sweep([None, 9.0, 8.0, 7.0], gpus=4)
    while lab.turn():
        pass
    assert lab.steps == [100, 100, 100, 1600]
    assert lab.tasks[0].reason == "stopped early at 100 steps: loss no number is number 2 of 2"


def test_another_metric_may_decide_and_counts_once_it_is_reported() -> None:
    lab = Sweep([0.0] * 4, gpus=4, asha=Asha(min_steps=100, max_steps=1600, metric="accuracy", mode=Mode.MAX))
    assert stopped(lab.report(0, 150, loss=1.0)) == set()
    assert stopped(lab.report(0, 200, metrics={"accuracy": 0.5})) == {"1.0"}
    for index, accuracy in ((1, 0.75), (2, 0.25), (3, 0.125)):
        lab.report(index, 100, metrics={"accuracy": accuracy})
        lab.settle()
    assert lab.tasks[1].state is JobState.RUNNING


def test_the_best_goes_on_when_the_last_that_could_have_come_fails_or_is_cancelled() -> None:
    for how in ("fails", "is cancelled"):
        lab = Sweep([1.0, 2.0, 3.0], gpus=3)
        for index in range(2):
            lab.report(index, 100)
        lab.settle()
        assert [job.state for job in lab.tasks[:2]] == [JobState.SUSPENDED, JobState.COMPLETED]
        if how == "fails":
            lab.end(lab.tasks[2], ExitFacts(exit_code=1))
        else:
            lab.tell(e.CancelRequested(lab.tasks[2].id))
            lab.end(lab.tasks[2])
        lab.settle()
        assert lab.tasks[0].state is JobState.RUNNING, how


def test_who_is_cancelled_while_it_waits_keeps_no_place_from_the_others() -> None:
    lab = Sweep([1.0, 2.0, 3.0, 4.0], gpus=4)
    lab.report(0, 100)
    lab.settle()
    lab.tell(e.CancelRequested(lab.tasks[0].id))
    while lab.turn():
        pass
    assert [job.state for job in lab.tasks] == [JobState.CANCELLED, *[JobState.COMPLETED] * 3]
    assert lab.steps == [100, 1600, 100, 100]


def test_a_user_may_release_who_is_paused_and_it_still_counts() -> None:
    lab = Sweep([1.0, 2.0, 3.0, 4.0, 5.0], gpus=1)
    lab.report(0, 100)
    lab.settle()
    lab.tell(e.ReleaseRequested(lab.tasks[0].id))
    assert lab.tasks[0].held_by is None
    while lab.turn():
        pass
    assert {job.state for job in lab.tasks} == {JobState.COMPLETED}
    assert lab.steps[0] == 1600


def test_a_running_task_that_its_user_holds_is_judged_at_the_rungs_that_it_reaches() -> None:
    lab = Sweep([2.0, 1.0, 3.0, 4.0], gpus=4)
    first = lab.tasks[0]
    lab.tell(e.HoldRequested(first.id))
    assert stopped(lab.report(0, 100)) == {"1.0"}
    lab.settle()
    assert (first.state, first.held_by) == (JobState.SUSPENDED, HeldBy.USER)
    for index in (1, 2, 3):
        lab.report(index, 100)
        lab.settle()
    lab.tell(e.ReleaseRequested(first.id))
    lab.settle()
    lab.report(0, 400, loss=0.5)
    assert first.measured.rungs == {100: 2.0, 400: 0.5}


def test_a_held_task_that_is_among_the_best_runs_on_and_stays_held() -> None:
    lab = Sweep([4.0, 3.0, 2.0, 1.0, 5.0, 6.0, 7.0, 8.0], gpus=4)
    for index in range(3):
        lab.report(index, 100)
    lab.tell(e.HoldRequested(lab.tasks[3].id))
    assert stopped(lab.report(3, 100)) == set()
    assert (lab.tasks[3].state, lab.tasks[3].held_by) == (JobState.RUNNING, HeldBy.USER)
    assert lab.tasks[3].measured.rungs == {100: 1.0}


def test_a_restart_in_the_middle_changes_nothing() -> None:
    """The journal alone says who waits, who goes on, and who is given up."""
    lab = Sweep([8.0, 7.0, 3.0, 6.0, 5.0, 1.0, 2.0, 4.0])
    for _ in range(3):
        lab.turn()
    again = Cluster(create_policy("fifo", {}))
    for time, event in lab.journal:
        again.replay(decode_event(type(event).__name__, encode(event)), time)
    one, other = lab.cluster.state, again.state
    assert other.halvings["1"].tasks == one.halvings["1"].tasks
    assert other.halvings["1"].promotable() == one.halvings["1"].promotable()
    for id, job in one.jobs.items():
        assert (other.jobs[id].state, other.jobs[id].held_by) == (job.state, job.held_by)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"asha": Asha(min_steps=100, max_steps=1600, eta=1)}, "--asha: eta: 1 is not between 2 and 100"),
        ({"asha": ASHA, "suspend": SuspendMode.NONE}, "--asha: pauses tasks, which need --suspend checkpoint"),
        ({"asha": Asha(min_steps=1, max_steps=2, metric="m" * 65)}, "--asha metric: 65 bytes are over the limit"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message) -> None:
    with pytest.raises(SpecError, match=message):
        validate(JobSpec(command=("x",), workdir="/", **changes))


def test_a_job_that_is_no_task_cannot_be_compared() -> None:
    event = e.JobSubmitted(JobId("1"), JobSpec(command=("x",), workdir="/", asha=ASHA), "ann")
    refusal = Lab().cluster.refusal(event)
    assert refusal is not None
    assert refusal.message == "--asha: compares the tasks of an array: submit one with --array or --param"
