"""Why a job waits, and when there is room for it."""

import pytest
from ebbtide_core.explain import Explanation, explain
from ebbtide_core.job import Job
from ebbtide_core.work import Source

from tests.core.lab import DONE, Lab, registration


def explained(lab: Lab, job: Job) -> Explanation:
    return explain(lab.cluster.state, job, lab.now)


@pytest.fixture
def lab() -> Lab:
    return Lab("fifo", gpus=4)


def test_a_job_behind_others_is_told_how_many(lab: Lab) -> None:
    lab.running(4)
    lab.submit(1)
    lab.submit(1)
    assert explained(lab, lab.submit(2)).ahead == 2


def test_there_is_room_once_those_have_ended_whose_time_limits_come_first(lab: Lab) -> None:
    long = lab.running(2, time_limit_s=1000.0)
    short = lab.running(2, time_limit_s=100.0)
    waiting = explained(lab, lab.submit(2))
    assert waiting.room_at == pytest.approx(short.attempts[0].started + 100)
    assert waiting.basis == f"once job {short.id} and those that end before it have ended"
    assert explained(lab, lab.submit(3)).room_at == pytest.approx(long.attempts[0].started + 1000)


def test_nothing_is_promised_if_nothing_tells_when_the_others_end(lab: Lab) -> None:
    lab.running(4)
    waiting = explained(lab, lab.submit(1))
    assert waiting.room_at is None
    assert waiting.basis == "not known: nothing tells when 1 of the 1 jobs that run will end"


def test_progress_tells_how_long_another_job_still_runs(lab: Lab) -> None:
    running = lab.running(4)
    started = running.attempts[0].started
    lab.wait(98.0)
    lab.progress(running, 50)  # of 100, after 100 seconds
    room_at = explained(lab, lab.submit(1)).room_at
    assert room_at == pytest.approx(started + 200, abs=5)


def test_earlier_runs_of_the_same_script_tell_how_long_a_job_is(lab: Lab) -> None:
    first = lab.running(1, name="train")
    lab.wait(59.0)
    lab.end(first, DONE)
    waiting = explained(lab, lab.submit(1, name="train", hold=True))
    assert waiting.remaining_from is Source.EARLIER_RUNS
    assert waiting.remaining_s == pytest.approx(60, abs=5)


def test_each_node_says_what_is_in_the_way() -> None:
    lab = Lab("fifo", nodes="", gpus=2)
    lab.tell(registration("a", 2, cpus=4.0))
    lab.tell(registration("b", 1))
    lab.running(2)
    views = {view.node: view for view in explained(lab, lab.submit(2, cpus=8.0)).nodes}
    assert (views["a"].idle, views["a"].gpus, views["a"].obstacle) == (0, 2, "too few CPUs left")
    assert (views["b"].idle, views["b"].gpus, views["b"].obstacle) == (1, 1, "too few GPUs left")


def test_a_running_job_waits_for_nothing(lab: Lab) -> None:
    running = explained(lab, lab.running(1))
    assert (running.ahead, running.nodes, running.room_at) == (None, (), None)
    assert running.needs == "1 GPU"


def test_the_end_of_a_reservation_makes_room_if_nothing_else_tells(lab: Lab) -> None:
    running = lab.running(4, time_auto=True)
    reserved_s = running.attempts[0].reserved_s
    assert explained(lab, lab.submit(1)).room_at == pytest.approx(running.attempts[0].started + reserved_s)


def test_what_the_head_is_promised_under_backfill_is_what_is_explained() -> None:
    lab = Lab("fifo", gpus=4, backfill="easy")
    running = lab.running(3, time_limit_s=1000.0, grace_s=0.0)
    head = lab.submit(4)
    lab.running(1, time_limit_s=100.0, grace_s=0.0)
    assert f"at the latest when the time of job {running.id} is up" in head.reason
    assert explained(lab, head).room_at == pytest.approx(running.attempts[0].started + 1000)
