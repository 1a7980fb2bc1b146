"""A node on loan ends: what runs there leaves in time, and nothing starts that could not."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.commands import Stop
from ebbtide_core.events.codec import decode_event, encode
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import ExitFacts, JobState, Loan, NodeId, SuspendMode
from ebbtide_core.nodes.booking_placement import BookingRequest, ImpossibleError, choose
from ebbtide_core.nodes.draining import LEAVE_AT_ONCE, DrainOutcome, drain_forecasts
from ebbtide_core.resources.bookings import FREEING_S
from ebbtide_core.views.explain import explain
from ebbtide_core.views.states import state_of_node

from tests.core.lab import Lab, gpus_of, registration, stopped, wake_times

POLICIES = ("fifo", "fitgpp", "fair-share")


def lab_on_loan(policy: str = "fifo", until_s: float = 1000.0, nodes: str = "a") -> Lab:
    """A cluster whose nodes are on loan for so long, from its first second on."""
    made = Lab(policy, nodes="")
    for name in nodes:
        made.tell(registration(name, loan=Loan(1000.0 + until_s, "ann"), checkpoint_root_id="shared"))
    return made


def leave(made: Lab, seconds: float | None, node: str = "a") -> None:
    made.tell(e.LoanChanged(NodeId(node), seconds, "ann"))


def stops(made: Lab, job: Job) -> list[float]:
    """The grace periods of the stop orders that the job's node got with the last step."""
    return [command.grace_s for command in made.last if isinstance(command, Stop) and command.job == job.id]


def pass_at(made: Lab, time: float) -> None:
    made.now = time - 1.0
    made.tell(e.SchedulingDue())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_is_asked_to_leave_one_grace_period_before_its_node_ends(policy: str) -> None:
    made = lab_on_loan(policy)
    job = made.running(grace_s=100.0)
    due = 2000.0 - 100.0 - FREEING_S
    while (wake := made.wakes[-1][1]) < due:
        pass_at(made, wake)
        assert job.running
    assert wake == due
    pass_at(made, due)
    assert stops(made, job) == [100.0]
    assert job.reason == "node a ends"
    made.end(job)
    assert job.state is JobState.SUSPENDED


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_starts_only_where_it_can_compute_as_long_as_it_takes_to_leave(policy: str) -> None:
    made = lab_on_loan(policy)
    pass_at(made, 2000.0 - 2 * (100.0 + FREEING_S) - 2.0)
    early = made.submit(grace_s=100.0)
    late = made.submit(grace_s=100.0)
    hasty = made.submit(grace_s=10.0)
    assert (early.running, late.running, hasty.running) == (True, False, True)
    assert late.reason == (
        "waiting for 1 GPU: none of the connected nodes will do"
        " (a: it ends too soon: the job needs 4 min there to compute, save and leave)"
    )
    [view] = explain(made.cluster.state, late, made.now).nodes
    assert view.obstacle == "it ends too soon: the job needs 4 min there to compute, save and leave"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_cannot_be_suspended_starts_only_if_its_time_limit_ends_before(policy: str) -> None:
    made = lab_on_loan(policy)
    for_ever = made.submit(suspend=SuspendMode.NONE)
    too_long = made.submit(suspend=SuspendMode.NONE, time_limit_s=900.0, grace_s=100.0)
    short = made.submit(suspend=SuspendMode.NONE, time_limit_s=500.0, grace_s=100.0)
    swaps = made.submit(suspend=SuspendMode.SWAP)
    assert [job.running for job in (for_ever, too_long, short, swaps)] == [False, False, True, False]
    [view] = explain(made.cluster.state, for_ever, made.now).nodes
    assert view.obstacle == "it ends too soon: the job cannot be suspended, and has no time limit"
    made.tell(registration("b", checkpoint_root_id="shared"))
    assert {gpu[0] for job in (for_ever, too_long, swaps) for gpu in gpus_of(job)} == {"b"}


def test_a_short_job_may_start_though_it_could_not_be_suspended_in_time_any_more() -> None:
    made = lab_on_loan(until_s=150.0)
    assert made.submit(grace_s=100.0, time_limit_s=20.0).running
    assert not made.submit(grace_s=100.0, time_limit_s=60.0).running


def test_the_end_of_a_node_keeps_nobody_else_waiting() -> None:
    made = lab_on_loan(until_s=300.0)
    first = made.submit(4, grace_s=180.0)
    second = made.submit(1, grace_s=30.0)
    assert (first.running, second.running) == (False, True)


def test_the_next_job_starts_when_time_alone_rules_out_the_one_before_it() -> None:
    made = lab_on_loan(until_s=1000.0)
    running = made.running(1, grace_s=30.0)
    head = made.submit(4, grace_s=180.0)
    behind = made.submit(3, grace_s=30.0)
    assert (head.running, behind.running) == (False, False)
    rules_out = 2000.0 - 2 * (180.0 + FREEING_S)
    assert any(time == rules_out for _, time in made.wakes)
    pass_at(made, rules_out)
    assert (running.running, behind.running) == (True, True)


def test_a_late_notice_cuts_grace_periods_to_what_is_left() -> None:
    made = lab_on_loan(until_s=1e6)
    long, short = made.running(grace_s=300.0), made.running(grace_s=20.0)
    leave(made, 110.0)
    assert (stops(made, long), stops(made, short)) == ([100.0], [])
    pass_at(made, made.now + 110.0 - 20.0 - FREEING_S)
    assert stops(made, short) == [20.0]
    assert made.cluster.state.nodes[NodeId("a")].loan == Loan(made.now + 30.0, "ann")


def test_half_of_very_little_time_is_given_for_saving() -> None:
    made = lab_on_loan(until_s=1e6)
    job = made.running(grace_s=300.0)
    leave(made, 12.0)
    assert stops(made, job) == [6.0]
    made.tell(e.LoanChanged(NodeId("a"), 0.0))
    assert stops(made, job) == [0.0]


def test_those_that_need_the_longest_are_asked_first() -> None:
    made = lab_on_loan(until_s=1e6)
    jobs = [made.running(grace_s=grace_s) for grace_s in (40.0, 80.0, 60.0)]
    leave(made, 30.0)
    order = [command.job for command in made.last if isinstance(command, Stop)]
    assert order == [jobs[1].id, jobs[2].id, jobs[0].id]


def test_a_job_that_is_leaving_already_is_given_less_time_if_its_node_ends_sooner() -> None:
    made = lab_on_loan(until_s=1e6)
    job = made.running(grace_s=300.0)
    made.tell(e.SuspendRequested(job.id))
    leave(made, 60.0)
    assert stops(made, job) == [50.0]
    made.end(job)
    assert job.held_by is not None, "its user's word still holds"


def test_a_job_that_cannot_be_suspended_starts_again_elsewhere() -> None:
    made = lab_on_loan(until_s=1e6)
    job = made.running(suspend=SuspendMode.NONE, time_limit_s=1000.0, grace_s=30.0)
    leave(made, 110.0)
    pass_at(made, made.now + 110.0 - 30.0 - FREEING_S)
    assert stops(made, job) == [30.0]
    made.end(job, ExitFacts(signal=9, stop_requested=True, delivered=True, killed=True))
    assert job.state is JobState.SUSPENDED
    made.tell(registration("b", checkpoint_root_id="shared"))
    assert job.running


def test_a_job_in_host_memory_is_ended_before_its_node_is_gone() -> None:
    made = lab_on_loan(until_s=1e6)
    job = made.running(suspend=SuspendMode.SWAP, time_limit_s=1000.0)
    made.tell(e.SuspendRequested(job.id))
    made.tell(e.AttemptSwapped(job.id, 1, 1, 5 << 30, 0.5))
    assert job.off_gpu
    leave(made, 60.0)
    [order] = [command for command in made.last if isinstance(command, Stop)]
    assert (order.job, order.swaps, order.grace_s) == (job.id, None, 50.0)


def test_the_last_word_on_the_end_holds_until_the_agent_says_another_or_its_machine_was_booted_anew() -> None:
    made, node = lab_on_loan(until_s=1e4), NodeId("a")
    said = registration("a", loan=Loan(1000.0 + 1e4, "ann"), checkpoint_root_id="shared")
    leave(made, 110.0)
    announced = made.cluster.state.nodes[node].loan
    made.tell(e.NodeDisconnected(node))
    made.tell(said)
    assert made.cluster.state.nodes[node].loan == announced
    leave(made, None)
    assert made.cluster.state.nodes[node].loan == said.loan
    leave(made, 110.0)
    made.tell(registration("a", loan=said.loan, boot_id="boot-2"))
    assert made.cluster.state.nodes[node].loan == said.loan
    made.tell(registration("a", boot_id="boot-2"))
    assert made.cluster.state.nodes[node].loan is None


@pytest.mark.parametrize("nodes", ["abcd", "abcdefghijkl"])
def test_nodes_that_are_gone_as_announced_are_neither_down_nor_a_reason_for_doubt(nodes: str) -> None:
    made = lab_on_loan(until_s=200.0, nodes=nodes)
    job = made.running(grace_s=10.0, time_limit_s=5.0)
    known = made.cluster.state.nodes
    at = job.attempts[-1].allocation.node_ids[0]
    for name in known:
        made.tell(e.NodeDisconnected(name))
        made.tell(e.NodeLost(name, 20.0))
    assert not made.cluster.state.silent.doubted
    assert {state_of_node(node, made.now) for node in known.values()} == {"down"}, "their time was not over"
    assert {name for name, node in known.items() if not node.has_ended(2000.0)} == {at}, "a job may be left there"
    made.tell(e.NodeConfirmedDead(node=at))
    assert {state_of_node(node, 2000.0) for node in known.values()} == {"ended"}


def test_it_is_forecast_what_becomes_of_each_job_on_a_node_that_ends() -> None:
    made = lab_on_loan(until_s=1e6)
    saves, never = made.running(grace_s=100.0), made.running(suspend=SuspendMode.NONE, time_limit_s=1e5, grace_s=30.0)
    state, node = made.cluster.state, made.cluster.state.nodes[NodeId("a")]
    assert node.loan is not None

    def forecast() -> list[tuple[DrainOutcome, float | None]]:
        return [(found.outcome, found.at) for found in drain_forecasts(state, node, made.now)]

    until = node.loan.until
    never_then = (DrainOutcome.STARTS_OVER, until - 30.0 - FREEING_S)
    assert forecast() == [(DrainOutcome.WAITS, until - 100.0 - FREEING_S), never_then]
    made.tell(registration("b", checkpoint_root_id="shared"))
    assert forecast() == [(DrainOutcome.GOES_ON, until - 100.0 - FREEING_S), never_then]
    assert not saves.eligibility.excluded
    assert never.running


@pytest.mark.parametrize("drained_for_s", [5e4, 2e6])
def test_whichever_comes_first_is_forecast_of_a_node_that_is_drained_and_ends(drained_for_s: float) -> None:
    made = lab_on_loan(until_s=1e6)
    made.running(grace_s=100.0)
    made.running(suspend=SuspendMode.NONE, time_limit_s=1e5, grace_s=30.0)
    state, node, deadline = made.cluster.state, made.cluster.state.nodes[NodeId("a")], made.now + drained_for_s
    assert node.loan is not None
    made.tell(e.NodeDrained(node=NodeId("a"), deadline=deadline))
    saves, never = drain_forecasts(state, node, made.now)
    first = min(deadline, node.loan.until - FREEING_S)
    assert (saves.outcome, saves.at) == (DrainOutcome.WAITS, first - 100.0)
    assert (never.outcome, never.at) == (DrainOutcome.STARTS_OVER, node.loan.until - 30.0 - FREEING_S)
    made.tell(e.NodeDrained(node=NodeId("a"), deadline=deadline, force=True))
    _, never = drain_forecasts(state, node, made.now)
    ends = deadline < node.loan.until
    assert never.outcome is (DrainOutcome.ENDS if ends else DrainOutcome.STARTS_OVER)
    assert never.at == first - 30.0


def test_a_pass_that_is_late_by_a_moment_cuts_no_grace_period() -> None:
    made = lab_on_loan(until_s=1e6)
    job = made.running(grace_s=100.0)
    leave(made, 109.99)
    assert stops(made, job) == [100.0]


def test_another_word_of_its_agent_replaces_what_a_user_has_said_and_holds_when_it_is_back() -> None:
    made, node = lab_on_loan(until_s=1e4), NodeId("a")
    leave(made, 5000.0)
    notice = Loan(1e5, "ann")
    made.tell(e.LoanAnnounced(node, notice))
    assert made.cluster.state.nodes[node].loan == notice
    leave(made, 300.0)
    said = made.cluster.state.nodes[node].loan
    made.tell(e.LoanAnnounced(node, notice))
    made.tell(registration("a", loan=notice, checkpoint_root_id="shared"))
    assert made.cluster.state.nodes[node].loan == said, "its agent has said nothing new"


def test_a_node_that_stays_longer_takes_jobs_again() -> None:
    made = lab_on_loan(until_s=100.0)
    job = made.submit()
    assert not job.running
    leave(made, 5000.0)
    assert job.running


def test_jobs_on_several_nodes_leave_before_the_first_of_them_ends() -> None:
    made = lab_on_loan(until_s=1e6, nodes="ab")
    job = made.submit(8, nodes=2, grace_s=30.0)
    made.tell(e.AttemptStarted(job.id, 1, 7, node=NodeId("a"), port=20001))
    made.tell(e.AttemptStarted(job.id, 1, 7, node=NodeId("b")))
    leave(made, 100.0, node="b")
    pass_at(made, made.now + 100.0 - 30.0 - FREEING_S)
    assert job.id in stopped(made.last)


def test_a_job_leaves_in_time_a_node_that_was_announced_to_end_before_its_part_was_launched_there() -> None:
    made = lab_on_loan(until_s=1e6, nodes="ab")
    job = made.submit(8, nodes=2, grace_s=30.0)
    leave(made, 5.0, node="b")
    assert job.id in stopped(made.last)
    assert stops(made, job) == [3.0]


def test_of_very_many_some_are_asked_at_a_time() -> None:
    made = lab_on_loan(until_s=1e6)
    jobs = [made.running(0) for _ in range(LEAVE_AT_ONCE + 1)]
    counts, commands = [], made.cluster.handle(e.LoanChanged(NodeId("a"), 60.0), made.now)
    while any(time <= made.now for time in wake_times(commands)):
        commands = made.cluster.handle(e.SchedulingDue(), made.now)
        counts.append(len(stopped(commands)))
    assert [count for count in counts if count] == [LEAVE_AT_ONCE, 1]
    assert all(job.live is not None and job.live.stop is not None for job in jobs)


def test_no_gpu_is_reserved_for_longer_than_its_node_stays() -> None:
    made = lab_on_loan(until_s=1000.0)
    state = made.cluster.state
    assert choose(state, BookingRequest(user="ann", count=1, since=1500.0, until=2000.0), made.now)
    with pytest.raises(ImpossibleError):
        choose(state, BookingRequest(user="ann", count=1, since=1500.0, until=2001.0), made.now)


def test_an_end_comes_back_from_the_journal_and_an_old_journal_has_none() -> None:
    said = registration("a", loan=Loan(5.0, "ann"))
    body = encode(said)
    assert decode_event("NodeRegistered", body) == said
    del body["loan"]
    assert decode_event("NodeRegistered", body).loan is None
    changed = e.LoanChanged(NodeId("a"), None)
    assert decode_event("LoanChanged", encode(changed)) == changed


def test_a_job_that_saved_by_itself_because_no_master_was_heard_goes_on_elsewhere() -> None:
    made = lab_on_loan(until_s=1e6)
    job = made.running()
    made.end(job, ExitFacts(exit_code=0, stop_requested=True, delivered=True, caught=True, fenced=True))
    assert (job.end, len(job.attempts), job.running) == (None, 2, True), "exit code 0 does not say that it is done"
