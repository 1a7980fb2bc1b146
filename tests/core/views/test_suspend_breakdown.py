"""What the time between two steps of a suspended job was spent on."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.commands import Stop
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import Checkpointed, StartFacts
from ebbtide_core.views.suspend_breakdown import PARTS, parts_of

from tests.core.lab import Lab, stepped_aside

SAVED = stepped_aside(checkpointed=Checkpointed.YES, checkpoint_s=0.25)
STARTED = StartFacts(warm=True, import_s=0.5, load_s=0.125, step_s=2.0)


def suspended(lab: Lab) -> Job:
    job = lab.running(1)
    lab.tell(e.SuspendRequested(job.id))
    lab.exit(job, SAVED)
    lab.free(job)
    return job


def test_every_part_is_known_once_it_has_made_a_step():
    lab = Lab()
    job = suspended(lab)
    lab.wait(7.0)
    lab.tell(e.ResumeRequested(job.id))
    lab.start(job)
    lab.tell(e.FirstStepMade(job.id, 2, STARTED))
    parts = parts_of(job, job.suspensions[0])
    assert tuple(parts) == PARTS
    assert parts == {
        "save": 0.25,
        "exit": 0.75,
        "free": 1.0,
        "queue": 9.0,
        "start": 1.0,
        "import": 0.5,
        "load": 0.125,
        "first_step": 2.0,
    }


def test_while_it_waits_only_the_parts_of_its_end_are_known():
    job = suspended(Lab())
    assert parts_of(job, job.suspensions[0]) == {"save": 0.25, "exit": 0.75, "free": 1.0}


def test_without_a_checkpoint_nothing_is_said_of_loading_one():
    lab = Lab()
    job = suspended(lab)
    lab.tell(e.ResumeRequested(job.id))
    lab.start(job)
    lab.tell(e.FirstStepMade(job.id, 2, StartFacts(warm=False, import_s=3.0, load_s=None, step_s=1.0)))
    assert "load" not in parts_of(job, job.suspensions[0])


def test_a_first_step_is_heard_of_once_and_of_the_newest_attempt_only():
    lab = Lab()
    job = lab.running(1)
    lab.tell(e.FirstStepMade(job.id, 1, STARTED))
    before = len(lab.journal)
    lab.tell(e.FirstStepMade(job.id, 1, StartFacts(False, 9.0, None, 9.0)))
    lab.tell(e.FirstStepMade(job.id, 2, STARTED))
    assert (job.attempts[0].start, len(lab.journal)) == (STARTED, before)


@pytest.mark.parametrize(("request_to_stop", "goes_on"), [(e.SuspendRequested, True), (e.CancelRequested, False)])
def test_who_stops_a_job_that_goes_on_later_says_so(request_to_stop, goes_on):
    lab = Lab()
    job = lab.running(1)
    [stop] = [command for command in lab.tell(request_to_stop(job.id)) if isinstance(command, Stop)]
    assert stop.goes_on == goes_on
