"""A job on several nodes: one attempt that starts, ends and is freed on all of them, or on none."""

from fractions import Fraction

import pytest
from ebbtide_core import events as e
from ebbtide_core.commands import Forget, Launch, Stop
from ebbtide_core.job.job import Job
from ebbtide_core.model.spec import JobSpec, SpecError, validate
from ebbtide_core.model.types import (
    WHOLE,
    AttemptRef,
    Checkpointed,
    CheckpointFacts,
    ExitFacts,
    GpuId,
    HeldBy,
    JobId,
    JobState,
    NodeId,
    RefusalCause,
    StopCause,
    parts,
)
from ebbtide_core.policies.registry import POLICIES
from ebbtide_core.views.explain import explain

from tests.core.lab import DONE, Lab, gpus_of, registration, stepped_aside

FAILED = ExitFacts(exit_code=1)
PORT = 20017


class Gangs(Lab):
    """Two nodes or more that share a checkpoint root, each with an address of its own."""

    def __init__(self, policy: str = "fitgpp", nodes: str = "ab", gpus: int = 2, **options: str) -> None:
        super().__init__(policy, "", **options)
        for name in nodes:
            self.join(name, gpus)

    def join(self, name: str, gpus: int = 2, *, known: tuple[AttemptRef, ...] = (), boot: str = "boot-1") -> None:
        root = "shared" if name.islower() else f"root-{name}"
        self.tell(
            registration(name, gpus, checkpoint_root_id=root, address=f"10.0.0.{name}", known=known, boot_id=boot)
        )

    def starts_on(self, job: Job, *names: str) -> None:
        for name in names:
            port = PORT if name == job.attempts[-1].allocation.node_ids[0] else 0
            self.tell(e.AttemptStarted(job.id, len(job.attempts), 100, node=NodeId(name), port=port))

    def exits_on(self, job: Job, name: str, exit: ExitFacts = DONE, *, freed: bool = False) -> None:
        self.tell(e.AttemptExited(job.id, len(job.attempts), exit, freed=freed, node=NodeId(name)))

    def frees_on(self, job: Job, name: str, *dirty: str) -> None:
        self.tell(e.AttemptFreed(job.id, len(job.attempts), tuple(map(GpuId, dirty)), NodeId(name)))

    def ends_on(self, job: Job, name: str, exit: ExitFacts = DONE) -> None:
        self.exits_on(job, name, exit)
        self.frees_on(job, name)

    def refuses(self, job: Job, name: str, cause: RefusalCause = RefusalCause.NODE) -> None:
        self.tell(e.AttemptRefused(job.id, len(job.attempts), cause, "no room", NodeId(name)))

    def gang(self, **spec: object) -> Job:
        """A job that runs on one GPU of a and one of b."""
        job = self.submit(2, nodes=2, **spec)
        self.starts_on(job, "a", "b")
        assert job.state is JobState.RUNNING
        return job

    def asked(self, kind: type) -> list[tuple[str, ...]]:
        """The nodes that the last step sent such an order to."""
        return [command.nodes for command in self.last if isinstance(command, kind)]


@pytest.fixture
def lab() -> Gangs:
    return Gangs()


# --- where it goes ---


def test_it_gets_the_same_number_of_gpus_of_each_node(lab: Gangs) -> None:
    assert gpus_of(lab.submit(4, nodes=2)) == {"a0", "a1", "b0", "b1"}


def test_it_is_spread_even_if_one_node_could_have_all_of_it(lab: Gangs) -> None:
    assert gpus_of(lab.submit(2, nodes=2)) == {"a0", "b0"}


def test_it_starts_on_all_of_its_nodes_or_on_none(lab: Gangs) -> None:
    lab.running(2)
    waiting = lab.submit(4, nodes=2)
    assert (waiting.state, waiting.reason) == (JobState.PENDING, "waiting for 4 GPUs on 2 nodes")


def test_its_nodes_share_a_checkpoint_root() -> None:
    lab = Gangs(nodes="aB")
    job = lab.submit(2, nodes=2)
    expected = "waiting for 2 GPUs on 2 nodes: no 2 of the connected nodes have them and share a checkpoint root"
    assert (job.state, job.reason) == (JobState.PENDING, expected)
    lab.join("c")
    assert gpus_of(job) == {"a0", "c0"}


def test_a_resume_is_pinned_to_the_nodes_that_have_its_checkpoints() -> None:
    lab = Gangs(nodes="ab", gpus=1)
    job = lab.gang()
    lab.tell(e.SuspendRequested(job.id))
    lab.ends_on(job, "a", stepped_aside())
    lab.ends_on(job, "b", stepped_aside())
    lab.running(1, suspend=job.spec.suspend)
    for name in "CD":
        lab.join(name)
    lab.tell(e.ResumeRequested(job.id))
    assert job.reason == "waiting for 2 GPUs on 2 nodes of node a, b, where its checkpoint is"
    views = {view.node: view.obstacle for view in explain(lab.cluster.state, job, lab.now).nodes}
    assert views == {"a": "too few GPUs left", "b": "", "C": "cannot read its checkpoint", "D": views["C"]}


@pytest.mark.parametrize(
    ("gpus", "to", "message"),
    [
        (3, None, "--gpus: 3 GPUs cannot be divided equally among 2 nodes"),
        ("1/2", None, "--gpus: 1/2 GPUs cannot be divided equally among 2 nodes"),
        (2, 4, "--gpus: a job on 2 nodes needs one number of GPUs, not a range; with --nodes 1-2 it may have one"),
    ],
)
def test_what_cannot_be_is_refused(gpus: float | str, to: float | None, message: str) -> None:
    low = parts(Fraction(gpus))
    spec = JobSpec(command=("x",), workdir="/", gpus_min=low, gpus_max=low if to is None else parts(to), nodes=2)
    with pytest.raises(SpecError, match=f"^{message}$"):
        validate(spec)


def test_what_no_nodes_have_is_refused(lab: Gangs) -> None:
    spec = JobSpec(command=("x",), workdir="/", gpus_min=6 * WHOLE, gpus_max=6 * WHOLE, nodes=2)
    refusal = lab.cluster.refusal(e.JobSubmitted(JobId("9"), spec, "ann"))
    assert refusal is not None
    assert refusal.message == "--nodes: 2 nodes with 3 GPUs each are more than the 0 there are"


def test_a_resize_keeps_its_nodes(lab: Gangs) -> None:
    job = lab.gang()
    refusal = lab.cluster.refusal(e.ResizeRequested(job.id, 3 * WHOLE, 3 * WHOLE))
    assert refusal is not None
    assert refusal.message == "--gpus: 3 GPUs cannot be divided equally among 2 nodes"
    lab.tell(e.ResizeRequested(job.id, 4 * WHOLE, 4 * WHOLE))
    lab.ends_on(job, "a", stepped_aside())
    lab.ends_on(job, "b", stepped_aside())
    assert gpus_of(job) == {"a0", "a1", "b0", "b1"}


@pytest.mark.parametrize("policy", ["fitgpp", "lrtp", "rand"])
def test_an_urgent_one_preempts_what_it_needs_on_each_node(policy: str) -> None:
    lab = Gangs(policy, gpus=1)
    victims = [lab.running(1), lab.running(1)]
    job = lab.submit(2, nodes=2, te=True)
    assert [victim.state for victim in victims] == [JobState.SUSPENDING] * 2
    for victim in victims:
        lab.end(victim)
    assert gpus_of(job) == {"a0", "b0"}


def test_an_urgent_one_preempts_only_as_many_as_it_needs() -> None:
    lab = Gangs(gpus=1, nodes="abc")
    victims = [lab.running(1) for _ in "abc"]
    lab.submit(2, nodes=2, te=True)
    assert sorted(victim.state.value for victim in victims) == ["RUNNING", "SUSPENDING", "SUSPENDING"]


def test_elastic_jobs_shrink_for_it_on_both_nodes() -> None:
    lab = Gangs(gpus=2, resize_after_s="0")
    elastic = [lab.running(1, 2), lab.running(1, 2)]
    job = lab.submit(2, nodes=2)
    lab.wait(100)
    for victim in elastic:
        lab.end(victim)
    assert len(gpus_of(job)) == 2


def test_only_those_shrink_for_it_that_have_to() -> None:
    lab = Gangs(nodes="", resize_after_s="0")
    lab.join("a", 6)
    crowd = [lab.running(1, 3), lab.running(1, 3)]
    lab.join("b", 2)
    crowd.append(lab.running(1, 2))
    assert [len(gpus_of(victim)) for victim in crowd] == [3, 3, 2]
    lab.wait(100)
    lab.submit(2, nodes=2)
    # Those with the most to give come first, but one of the two on node a is enough.
    assert sorted(victim.state.value for victim in crowd) == ["RUNNING", "SUSPENDING", "SUSPENDING"]
    assert crowd[2].state is JobState.SUSPENDING


def test_smaller_jobs_run_before_it_while_its_second_node_is_taken() -> None:
    lab = Gangs("fifo", gpus=1, backfill="easy")
    lab.running(1, time_limit_s=1000.0, grace_s=0.0)
    head = lab.submit(2, nodes=2)
    short, long = lab.submit(1, time_limit_s=100.0, grace_s=0.0), lab.submit(1, time_limit_s=5000.0)
    assert (head.state, short.state, long.state) == (JobState.PENDING, JobState.STARTING, JobState.PENDING)


def test_what_a_world_says_of_it_as_a_whole_is_true_of_all_its_nodes(lab: Gangs) -> None:
    job = lab.submit(2, nodes=2)
    lab.start(job)
    assert (job.state, lab.asked(Launch)) == (JobState.RUNNING, [])
    lab.tell(e.SuspendRequested(job.id))
    assert lab.asked(Stop) == [("a", "b")]
    lab.end(job)
    assert (job.state, job.holding) == (JobState.SUSPENDED, None)


# --- its start ---


def test_the_first_node_is_launched_alone_and_the_others_learn_where_to_meet(lab: Gangs) -> None:
    job = lab.submit(2, nodes=2)
    [launch] = [command for command in lab.last if isinstance(command, Launch)]
    assert (launch.nodes, launch.address, launch.port) == (("a",), "10.0.0.a", 0)
    lab.starts_on(job, "a")
    [launch] = [command for command in lab.last if isinstance(command, Launch)]
    assert (launch.nodes, launch.address, launch.port, job.state) == (("b",), "10.0.0.a", PORT, JobState.STARTING)
    lab.starts_on(job, "b")
    assert (job.state, lab.asked(Launch)) == (JobState.RUNNING, [])


def test_hearing_of_a_start_twice_changes_nothing(lab: Gangs) -> None:
    job = lab.gang()
    before = len(lab.journal)
    lab.starts_on(job, "a", "b", "a")
    assert (lab.asked(Launch), len(lab.journal)) == ([], before)


def test_a_node_that_was_away_when_it_should_start_is_told_when_it_is_back(lab: Gangs) -> None:
    job = lab.submit(2, nodes=2)
    lab.join("b")
    assert lab.asked(Launch) == []  # the first node has not chosen a port yet
    lab.starts_on(job, "a")
    lab.join("b")
    [launch] = [command for command in lab.last if isinstance(command, Launch)]
    assert (launch.nodes, launch.port) == (("b",), PORT)


def test_if_the_first_node_refuses_nothing_was_started(lab: Gangs) -> None:
    job = lab.submit(2, nodes=2)
    lab.refuses(job, "a")
    assert (job.state, job.holding, lab.asked(Stop)) == (JobState.PENDING, None, [])
    assert [*lab.cluster.state.nodes["b"].held.whole] == []


@pytest.mark.parametrize(
    ("cause", "state", "held"),
    [
        (RefusalCause.NODE, JobState.PENDING, None),
        (RefusalCause.BAD_JOB, JobState.FAILED, None),
        (RefusalCause.NO_CHECKPOINT, JobState.PENDING, HeldBy.SYSTEM),
    ],
)
def test_if_another_node_refuses_the_first_is_stopped(
    lab: Gangs, cause: RefusalCause, state: JobState, held: HeldBy | None
) -> None:
    job = lab.submit(2, nodes=2)
    lab.starts_on(job, "a")
    lab.refuses(job, "b", cause)
    assert (lab.asked(Stop), job.state) == ([("a",)], JobState.SUSPENDING)
    lab.exits_on(job, "a", ExitFacts(signal=15, stop_requested=True, delivered=True))
    assert (job.state, job.held_by, job.reason) == (state, held, "no room")
    assert job.holding is not None
    lab.frees_on(job, "a")
    assert job.attempts[0].freed == lab.now


def test_a_failure_on_the_first_node_counts_while_another_is_still_prepared(lab: Gangs) -> None:
    job = lab.submit(2, nodes=2)
    lab.starts_on(job, "a")
    lab.exits_on(job, "a", FAILED, freed=True)
    assert lab.asked(Stop) == [("b",)]
    lab.refuses(job, "b", RefusalCause.STOPPED)
    assert (job.state, job.exit_code, job.reason) == (JobState.FAILED, 1, "failed with exit code 1")


def test_one_that_steps_aside_while_another_node_is_still_prepared_has_stepped_aside(lab: Gangs) -> None:
    job = lab.submit(2, nodes=2)
    lab.starts_on(job, "a")
    lab.tell(e.SuspendRequested(job.id))
    lab.refuses(job, "b", RefusalCause.STOPPED)
    lab.ends_on(job, "a", stepped_aside())
    assert (job.state, job.reason) == (JobState.SUSPENDED, "checkpointed and stepped aside")


def test_one_of_which_no_part_ran_when_it_was_asked_to_leave_was_refused_by_nobody(lab: Gangs) -> None:
    job = lab.submit(2, nodes=2)
    lab.tell(e.SuspendRequested(job.id))
    lab.refuses(job, "a", RefusalCause.STOPPED)
    assert (job.state, job.reason, job.holding) == (JobState.PENDING, "suspended by user", None)


def test_one_that_is_cancelled_before_its_first_node_runs_never_reaches_the_others(lab: Gangs) -> None:
    job = lab.submit(2, nodes=2)
    lab.tell(e.CancelRequested(job.id))
    lab.starts_on(job, "a")
    assert lab.asked(Launch) == []
    lab.ends_on(job, "a", ExitFacts(signal=15, stop_requested=True, delivered=True))
    assert (job.state, job.holding) == (JobState.CANCELLED, None)


# --- its end ---


def test_it_is_over_when_all_nodes_are_and_free_when_all_are(lab: Gangs) -> None:
    job = lab.gang()
    lab.ends_on(job, "b")
    assert (job.state, lab.asked(Stop)) == (JobState.RUNNING, [])
    lab.exits_on(job, "a")
    assert job.state is JobState.COMPLETED
    assert (job.holding is not None, lab.asked(Forget)) == (True, [])
    lab.frees_on(job, "a")
    assert (job.holding, lab.asked(Forget)) == (None, [("a", "b")])


def test_a_failure_on_one_node_stops_the_others_within_seconds(lab: Gangs) -> None:
    job = lab.gang()
    lab.exits_on(job, "b", FAILED)
    [stop] = [command for command in lab.last if isinstance(command, Stop)]
    assert (stop.nodes, stop.grace_s, job.state) == (("a",), 5.0, JobState.SUSPENDING)
    assert job.reason == "node b: failed with exit code 1; the other nodes are stopped"
    lab.exits_on(job, "a", stepped_aside())
    assert (job.state, job.exit_code, job.suspensions) == (JobState.FAILED, 1, [])


def test_a_failure_is_charged_to_the_retries(lab: Gangs) -> None:
    job = lab.gang(retries=1)
    lab.ends_on(job, "b", FAILED)
    lab.ends_on(job, "a", stepped_aside())
    assert (job.retries.failures, job.retries.restarts) == (1, 1)
    assert job.attempts[0].end.outcome == "failed with exit code 1"
    lab.wait(10)
    assert (job.state, len(job.attempts)) == (JobState.STARTING, 2)


def test_a_node_that_was_restarted_interrupts_the_others_and_all_go_on_elsewhere() -> None:
    lab = Gangs(nodes="abc")
    job = lab.gang()
    lab.join("b", boot="boot-2")
    assert (lab.asked(Stop), job.state) == ([("a",)], JobState.SUSPENDING)
    lab.ends_on(job, "a", stepped_aside())
    assert (job.state, job.retries.failures, job.attempts[0].end.exit) == (JobState.STARTING, 0, ExitFacts(lost=True))
    assert len(set(job.attempts[1].allocation.node_ids)) == 2


def test_while_a_node_is_silent_nothing_is_started_elsewhere() -> None:
    lab = Gangs(nodes="abc")
    job = lab.gang()
    lab.tell(e.NodeDisconnected(NodeId("b")))
    lab.tell(e.NodeLost(NodeId("b"), 20.0))
    assert (job.state, len(job.attempts)) == (JobState.UNREACHABLE, 1)
    lab.exits_on(job, "a", FAILED, freed=True)
    assert (job.state, len(job.attempts), job.holding is not None) == (JobState.UNREACHABLE, 1, True)
    lab.join("b", known=lab.known(job))
    assert lab.asked(Stop) == [("b",)]  # it could not be told before
    lab.ends_on(job, "b", stepped_aside())
    assert job.state is JobState.FAILED


def test_a_silent_node_whose_part_has_ended_does_not_make_it_unreachable(lab: Gangs) -> None:
    job = lab.gang()
    lab.ends_on(job, "b")
    lab.tell(e.NodeDisconnected(NodeId("b")))
    lab.tell(e.NodeLost(NodeId("b"), 20.0))
    assert job.state is JobState.RUNNING


def test_what_a_rebooted_node_held_is_free(lab: Gangs) -> None:
    job = lab.gang()
    lab.exits_on(job, "b")
    lab.exits_on(job, "a", freed=True)
    assert job.holding is not None
    lab.join("b", boot="boot-2")
    assert (job.state, job.holding) == (JobState.COMPLETED, None)


def test_nodes_that_do_not_follow_the_first_one_are_stopped(lab: Gangs) -> None:
    job = lab.gang()
    lab.exits_on(job, "a")
    lab.wait(5)
    assert lab.asked(Stop) == []
    lab.wait(10)
    assert lab.asked(Stop) == [("b",)]
    lab.exits_on(job, "b", ExitFacts(signal=9, killed=True, stop_requested=True))
    assert (job.state, job.reason) == (JobState.COMPLETED, "completed")


def test_dirty_gpus_of_one_node_are_quarantined(lab: Gangs) -> None:
    job = lab.gang()
    lab.exits_on(job, "a", freed=True)
    lab.exits_on(job, "b")
    lab.frees_on(job, "b", "b0")
    nodes = lab.cluster.state.nodes
    assert (job.holding, [*nodes["a"].quarantine], [*nodes["b"].quarantine]) == (None, [], ["b0"])


# --- suspending it ---


def test_a_suspend_reaches_all_nodes_and_is_over_when_all_are_free(lab: Gangs) -> None:
    job = lab.gang()
    lab.tell(e.CheckpointPublished(job.id, 1, CheckpointFacts(7, 1, "/c/7", True)))
    lab.tell(e.SuspendRequested(job.id))
    assert lab.asked(Stop) == [("a", "b")]
    lab.ends_on(job, "b", stepped_aside())
    assert job.state is JobState.SUSPENDING
    lab.ends_on(job, "a", stepped_aside())
    [suspension] = job.suspensions
    assert (job.state, suspension.gpu_free) == (JobState.SUSPENDED, lab.now)
    lab.tell(e.ResumeRequested(job.id))
    lab.starts_on(job, "a", "b")
    assert (job.state, len(job.attempts), suspension.resumed) == (JobState.RUNNING, 2, lab.now)


def test_the_first_node_says_how_it_ended_and_the_others_add_their_evidence(lab: Gangs) -> None:
    job = lab.gang()
    lab.tell(e.SuspendRequested(job.id))
    lab.ends_on(job, "b", ExitFacts(signal=9, killed=True, stop_requested=True, checkpointed=Checkpointed.YES))
    # Its peer went away before its own request arrived: that is no failure of the job.
    lab.ends_on(job, "a", ExitFacts(exit_code=1, checkpointed=Checkpointed.NO))
    assert (job.state, job.retries.failures, job.suspensions[0].checkpointed) == (
        JobState.SUSPENDED,
        0,
        Checkpointed.YES,
    )


def test_a_failure_after_a_suspend_request_breaks_nothing_up(lab: Gangs) -> None:
    job = lab.gang()
    lab.tell(e.SuspendRequested(job.id))
    lab.ends_on(job, "b", FAILED)
    assert lab.asked(Stop) == []
    lab.ends_on(job, "a", stepped_aside())
    assert (job.state, job.retries.failures) == (JobState.SUSPENDED, 0)


def test_one_that_was_done_before_the_request_reached_it_is_completed(lab: Gangs) -> None:
    job = lab.gang()
    lab.tell(e.SuspendRequested(job.id))
    lab.ends_on(job, "a", DONE)
    lab.ends_on(job, "b", ExitFacts(signal=15, stop_requested=True, delivered=True))
    assert job.state is JobState.COMPLETED


def test_a_cancel_wins_over_a_failure_that_is_being_dealt_with(lab: Gangs) -> None:
    job = lab.gang(retries=3)
    lab.exits_on(job, "b", FAILED)
    lab.tell(e.CancelRequested(job.id))
    assert lab.asked(Stop) == [("a",)]
    lab.exits_on(job, "a", stepped_aside())
    assert (job.state, job.attempts[0].stop.cause) == (JobState.CANCELLED, StopCause.CANCELLED)


# --- whoever decides ---


@pytest.mark.parametrize("policy", [*POLICIES])
def test_every_policy_can_start_one_and_start_another_after_it(policy: str) -> None:
    lab = Gangs(policy, gpus=1)
    first, second = lab.submit(2, nodes=2), lab.submit(2, nodes=2)
    assert (gpus_of(first), gpus_of(second)) == ({"a0", "b0"}, set())
    lab.starts_on(first, "a", "b")
    for name in "ab":
        lab.ends_on(first, name)
    assert (first.state, gpus_of(second)) == (JobState.COMPLETED, {"a0", "b0"})


@pytest.mark.parametrize("policy", [*POLICIES])
def test_every_policy_can_start_one_without_gpus(policy: str) -> None:
    lab = Gangs(policy)
    job = lab.submit(0, nodes=2)
    assert job.attempts[0].allocation.node_ids == ("a", "b")
