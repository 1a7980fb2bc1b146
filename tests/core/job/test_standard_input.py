"""Jobs that read standard input: it is read once, so they have no second attempt."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.job.outcome import Ending, read_exit
from ebbtide_core.model.spec import JobSpec, SpecError, validate
from ebbtide_core.model.types import (
    WHOLE,
    ExitFacts,
    JobKind,
    JobState,
    LaunchMode,
    RefusalCause,
    StopCause,
    SuspendMode,
)

from tests.core.lab import Lab

ONCE = "it is not run again: its standard input cannot be read twice"


def spec(**fields: object) -> JobSpec:
    defaults = {"command": ("cat",), "workdir": "/", "stdin": True, "suspend": SuspendMode.NONE}
    return JobSpec(**(defaults | fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"suspend": SuspendMode.CHECKPOINT}, "--suspend: checkpoint means another attempt, and standard input"),
        ({"suspend": SuspendMode.SWAP}, "--suspend: swap means another attempt, and standard input"),
        ({"retries": 2}, "--retries: 2 means another attempt, and standard input"),
        ({"failover_after_s": 600.0}, "--failover-after: 600s means another attempt, and standard input"),
        ({"nodes": 2, "gpus_min": 2 * WHOLE, "gpus_max": 2 * WHOLE}, "--nodes: 2 cannot share standard input"),
        ({"max_nodes": 3, "spread": True}, "--nodes: 3 cannot share standard input"),
        ({"launch": LaunchMode.DDP}, "--launch ddp: has processes that cannot share standard input"),
        ({"kind": JobKind.SHELL}, "stdin: a shell is not given standard input"),
    ],
)
def test_what_would_need_the_input_twice_is_refused_with_both_options(fields: dict[str, object], words: str) -> None:
    fields = {"gpus_min": WHOLE, "gpus_max": WHOLE} | fields
    validate(spec())
    with pytest.raises(SpecError, match=words):
        validate(spec(**fields))


@pytest.mark.parametrize(
    ("exit", "cause", "reason"),
    [
        (ExitFacts(exit_code=75), None, f"asked to be run again (exit code 75); {ONCE}"),
        (ExitFacts(lost=True), None, f"interrupted: its exit status was not recorded; {ONCE}"),
        (
            ExitFacts(exit_code=85, stop_requested=True, delivered=True, caught=True),
            StopCause.QUIESCED,
            f"stepped aside (exit code 85); {ONCE}",
        ),
        (ExitFacts(signal=9, lost_gpu="a0"), None, f"interrupted: its GPU was lost (signal SIGKILL); {ONCE}"),
    ],
)
def test_what_would_be_run_again_has_failed(exit: ExitFacts, cause: StopCause | None, reason: str) -> None:
    outcome = read_exit(exit, spec(), cause)
    assert (outcome.ending, outcome.reason) == (Ending.EXPELLED, reason)
    assert read_exit(exit, spec(stdin=False), cause).ending is not Ending.EXPELLED


def test_an_attempt_that_ended_has_no_follower() -> None:
    lab = Lab()
    job = lab.running(stdin=True, suspend=SuspendMode.NONE)
    lab.end(job, ExitFacts(lost=True))
    lab.wait(1000)
    assert (job.state, len(job.attempts)) == (JobState.FAILED, 1)


@pytest.mark.parametrize("facts", [{}, {"stop_requested": True, "delivered": True}])
def test_how_the_command_ends_by_itself_or_for_its_user_is_read_as_ever(facts: dict[str, bool]) -> None:
    cause = StopCause.CANCELLED if facts else None
    for exit in (ExitFacts(exit_code=0, **facts), ExitFacts(exit_code=3, **facts), ExitFacts(signal=15, **facts)):
        ours, others = read_exit(exit, spec(), cause), read_exit(exit, spec(stdin=False), cause)
        assert (ours.ending, ours.reason) == (others.ending, others.reason)


def test_a_lost_input_is_a_failure_in_words_and_no_fault_of_the_node() -> None:
    lost = "its standard input was lost after 5 bytes, before its end: none was sent for 90 s"
    lab = Lab(nodes="ab")
    for _ in range(6):
        job = lab.running(stdin=True, suspend=SuspendMode.NONE)
        lab.end(job, ExitFacts(signal=9, input_failure=lost))
        assert (job.state, job.reason) == (JobState.FAILED, f"failed: {lost}")
    assert not lab.cluster.state.failing


def test_who_ran_out_of_gpu_memory_is_not_given_a_gpu_of_its_own() -> None:
    lab = Lab()
    job = lab.running(0.5, stdin=True, suspend=SuspendMode.NONE)
    lab.end(job, ExitFacts(exit_code=1, out_of_memory=True))
    assert (job.state, len(job.attempts)) == (JobState.FAILED, 1)
    assert "run again" not in job.reason


def test_a_node_that_cannot_give_it_input_is_left_out_and_another_starts_it() -> None:
    lab = Lab(nodes="ab")
    job = lab.submit(stdin=True, suspend=SuspendMode.NONE)
    [first] = job.attempts[-1].allocation.node_ids
    lab.tell(e.AttemptRefused(job.id, 1, RefusalCause.NO_STDIN, "its agent is older"))
    [second] = job.attempts[-1].allocation.node_ids
    assert (job.state, len(job.attempts), first != second) == (JobState.STARTING, 2, True)
    assert job.eligibility.excluded == {first}
