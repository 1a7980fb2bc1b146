"""Which events are worth a word, and to whom."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.events.logs import LogMatch
from ebbtide_core.model.dependency import AfterKind, Dependency
from ebbtide_core.model.log_rules import LogAction
from ebbtide_core.model.notice_rules import Moment, NoticeRule, parse_rule, shown
from ebbtide_core.model.types import ExitFacts, NodeId, RefusalCause
from ebbtide_core.views.notices import moment_of

from tests.core.job.test_gang import FAILED, Gangs
from tests.core.lab import Lab, registration, stepped_aside
from tests.core.lifecycle.test_successive_halving import Sweep


def moments(lab, job):
    """What people hear of the job, with the end of each batch as what they may see of it."""
    said = []
    for time, event in lab.journal:
        if getattr(event, "job", None) == job.id and (found := moment_of(job, event, time)) is not None:
            said.append((found[0].value, found[1]))
    return said


def test_a_life_in_words():
    lab = Lab()
    job = lab.running()
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job)
    lab.tell(e.ResumeRequested(job.id))
    lab.start(job)
    lab.end(job, ExitFacts())
    assert moments(lab, job) == [
        ("started", "1 GPU of node a"),
        ("suspended", "suspended by user"),
        ("resumed", "1 GPU of node a"),
        ("completed", "completed"),
    ]


def test_a_failure_says_why_and_one_that_is_tried_again_says_nothing():
    lab = Lab()
    job = lab.running(retries=1)
    lab.end(job, ExitFacts(exit_code=1))
    lab.wait(10)
    lab.start(job)
    lab.end(job, ExitFacts(exit_code=2))
    assert [moment for moment, _ in moments(lab, job)] == ["started", "resumed", "failed"]
    assert moments(lab, job)[-1] == ("failed", "failed with exit code 2")


def test_one_that_is_cancelled_before_it_ran_is_cancelled():
    lab = Lab()
    job = lab.submit(hold=True)
    lab.tell(e.CancelRequested(job.id))
    assert moments(lab, job) == [("cancelled", "cancelled by user")]


def test_one_that_can_never_start_because_another_failed_is_cancelled():
    lab = Lab()
    first = lab.running()
    second = lab.submit(after=(Dependency(first.id, AfterKind.OK),))
    lab.end(first, FAILED)
    assert moments(lab, second) == [("cancelled", second.reason)]


def test_a_task_that_is_stopped_early_has_completed():
    lab = Sweep([4.0, 3.0])
    while lab.turn():
        pass
    [*before, (moment, why)] = moments(lab, lab.tasks[0])
    assert [said for said, _ in before] == ["started", "held", "suspended"]
    assert (moment, why.partition(":")[0]) == ("completed", "stopped early at 100 steps")


def test_one_whose_checkpoints_are_broken_is_held():
    lab = Lab()
    job = lab.submit()
    lab.tell(e.AttemptRefused(job.id, 1, RefusalCause.NO_CHECKPOINT, "no checkpoint verifies"))
    assert moments(lab, job) == [("held", "held: no checkpoint verifies")]


def test_one_on_two_nodes_of_which_one_finds_no_checkpoint_is_held_once_the_other_has_left():
    lab = Gangs()
    job = lab.submit(2, nodes=2)
    lab.starts_on(job, "a")
    lab.refuses(job, "b", RefusalCause.NO_CHECKPOINT)
    assert [moment for moment, _ in moments(lab, job)] == ["started"]
    lab.ends_on(job, "a", stepped_aside())
    assert [moment for moment, _ in moments(lab, job)] == ["started", "held"]


def test_one_that_is_tried_again_after_one_of_its_nodes_failed_was_not_suspended():
    lab = Gangs()
    job = lab.gang(retries=1)
    lab.ends_on(job, "b", FAILED)
    lab.ends_on(job, "a", stepped_aside())
    assert job.retries.failures == 1
    assert [moment for moment, _ in moments(lab, job)] == ["started"]


def test_a_preemption_says_for_whom():
    lab = Lab(gpus=1)
    victim = lab.running()
    urgent = lab.submit(te=True)
    lab.end(victim)
    lab.start(urgent)
    [_, (moment, why)] = moments(lab, victim)
    assert (moment, "preempted" in why) == ("suspended", True)


def test_lines_and_holds_are_moments():
    lab = Lab(gpus=1)
    job = lab.running()
    match = LogMatch("p", LogAction.EXCLUDE_GPU, "uncorrectable ECC error")
    lab.tell(e.LogMatched(job.id, 1, NodeId("a"), match))
    lab.end(job, ExitFacts(exit_code=1))
    assert [moment for moment, _ in moments(lab, job)] == ["started", "log", "held"]


def test_a_job_that_does_not_use_its_gpus_is_a_moment():
    lab = Lab()
    job = lab.running()
    lab.wait(3600)
    lab.tell(e.JobIdle(job.id, 1, lab.now - 1800))
    assert moments(lab, job)[1:] == [("idle", "attempt 1 does not use its GPUs")]


def test_a_job_on_two_nodes_starts_once():
    lab = Lab(nodes="")
    for name in "ab":
        lab.tell(registration(name, 1, checkpoint_root_id="shared"))
    job = lab.submit(2, nodes=2)
    for node in job.attempts[-1].allocation.node_ids:
        lab.tell(e.AttemptStarted(job.id, 1, 1000, node=node))
    assert [moment for moment, _ in moments(lab, job)] == ["started"]


def test_ended_is_every_end():
    rule = parse_rule("ended,log=team")
    assert [moment.value for moment in Moment if rule.wants(moment)] == [
        "completed", "failed", "cancelled", "ended", "log"
    ]  # fmt: skip


@pytest.mark.parametrize("target", ["mailto:ada@example.org", "https://hooks.example.org/a/b?c=d", "http://h", "team"])
def test_a_target_is_a_mail_address_a_hook_or_a_name(target):
    assert parse_rule(f"failed={target}") == NoticeRule((Moment.FAILED,), target)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("failed", "'failed' is not of the form EVENT[,EVENT]=TARGET"),
        ("broken=team", "'broken' is none of started, suspended"),
        ("failed=ftp://x/y", "'ftp' is neither mailto:ADDRESS nor https://HOST/PATH nor a name"),
        ("failed=https://user:secret@host/", "'https' is neither"),
        ("failed=mailto:a@b\nBcc: c@d", "'mailto:a@b\\nBcc: c@d' is neither"),
        ("failed=", "'' is neither"),
    ],
)
def test_what_is_no_rule_is_refused(text, complaint):
    with pytest.raises(ValueError, match=r"^'") as caught:
        parse_rule(text)
    assert str(caught.value).startswith(complaint)


def test_the_secret_part_of_a_hook_is_not_shown():
    assert shown("https://hooks.example.org/T0/B1/secret") == "https://hooks.example.org/…"
