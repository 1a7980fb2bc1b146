"""What is too long ago is left out, and jobs have other names: `--tail`, `--since`, `@`, `ebb ls --mine`."""

import time

import pytest
from ebbtide_cli.logs.prefixed import Prefixed
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.client.scripted_master import ScriptedMaster, make_job


def add_array(master: ScriptedMaster) -> None:
    counts = client_pb2.TaskCounts(indices="0-1", states={"RUNNING": 2})
    master.add(make_job("17", state="RUNNING", tasks=counts))
    master.add(*(make_job(f"17.{index}", state="RUNNING", array="17", index=index) for index in range(2)))


def published(sequence: int, step: int) -> client_pb2.Event:
    body = f'{{"checkpoint": {{"step": {step}, "bytes": 5, "path": "/x"}}}}'
    text = f"checkpoint of step {step} published (5 bytes)"
    return client_pb2.Event(
        sequence=sequence, time=1000.0 + sequence, kind="CheckpointPublished", job_id="17", text=text, json=body
    )


def test_the_end_of_a_log_is_asked_for(ebb, master):
    master.add(make_job(state="RUNNING"))
    master.logs = [(1, b"step 9\n")]
    before = time.time()
    assert ebb("logs", "--tail", "5", "--since", "10m", "17").out == "step 9\n"
    (request,) = master.sent("ReadLogs")
    assert request.tail == 5
    assert before - 600 <= request.since <= time.time() - 600


def test_the_end_of_a_log_is_not_asked_for_again_when_the_master_was_restarted(ebb, master):
    """What came meanwhile would be left out."""
    master.add(make_job(state="RUNNING"))
    master.logs = [(1, b"step 1\n"), (1, b"step 2\n"), (2, b"step 3\n")]
    master.dying = 3
    assert ebb("logs", "--tail", "5", "17").out == "step 1\nstep 2\nstep 3\n"
    assert [request.tail for request in master.sent("ReadLogs")] == [5, 0, 0, 0]


def test_what_all_tasks_of_an_array_printed_is_shown_each_line_with_its_task(ebb, master):
    add_array(master)
    master.logs = [(1, b"loss 1\nloss"), (1, b" 2\n"), (2, b"loss 3")]
    result = ebb("logs", "17")
    lines = ["loss 1", "loss 2", "loss 3"]
    assert result.out.splitlines() == [f"17.{task}: {line}" for task in range(2) for line in lines]
    assert result.err.splitlines() == ["17.0: --- attempt 2 ---", "17.1: --- attempt 2 ---"]
    assert ebb("logs", "17.1").out == "loss 1\nloss 2\nloss 3"


def test_a_prefix_stands_before_each_line_however_it_comes():
    lines = Prefixed("1: ")
    pieces = [lines.feed(piece) for piece in (b"a", b"b\n", b"", b"\nc\n\n", b"d")]
    assert b"".join([*pieces, lines.end()]) == b"1: ab\n1: \n1: c\n1: \n1: d\n"
    assert lines.end() == b""


@pytest.mark.parametrize("verb", ["show", "story", "explain", "logs", "suspend", "cancel", "wait", "hold", "release"])
def test_the_last_job_has_a_name_wherever_an_id_is_taken(ebb, master, verb):
    master.add(make_job("17", state="COMPLETED", end_time=5.0))
    master.latest = {"@~1": "17"}
    assert ebb(verb, "@~1").code == 0
    ids = {getattr(request, "job_id", "") for name, request in master.requests if name != "ShowJob"}
    assert "@~1" not in ids


def test_a_name_that_no_job_has_is_refused(ebb, master):
    master.add(make_job("17"))
    assert ebb("show", "@~9").complaint == "job @~9 does not exist"
    assert "your last one is @" in ebb("show", "@x").complaint
    assert master.sent("ShowJob")[0].job_id == "@~9"
    assert len(master.sent("ShowJob")) == 1


def test_a_listing_may_be_of_ones_own_of_a_user_of_a_state_and_of_the_last(ebb, master):
    master.add(make_job())
    assert ebb("ls", "--mine", "--limit", "3").code == 0
    assert ebb("ls", "--user", "ada", "--state", "FAILED", "--state", "running").code == 0
    first, second = master.sent("ListJobs")
    assert (first.mine, first.limit, first.all, list(first.states)) == (True, 3, False, [])
    assert (second.of_user, second.all) == ("ada", True)
    assert list(second.states) == [job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_RUNNING]
    assert "is none of pending, starting," in ebb("ls", "--state", "done").complaint
    assert ebb("ls", "--mine", "--user", "ada").code == 2


def test_events_of_before_are_not_asked_for(ebb, master):
    master.events = [published(1, 10), published(2, 20)]
    master.dying = 1
    assert len(ebb("events", "--tail", "2", "--since", "2026-01-01").out.splitlines()) == 2
    first, second = master.sent("WatchEvents")
    assert (first.tail, first.since > 0) == (2, True)
    assert (second.after_sequence, second.tail, second.since) == (1, 0, 0.0)


def test_a_story_tells_checkpoints_in_a_row_in_one_line(ebb, master):
    master.add(make_job(state="COMPLETED"))
    submitted = client_pb2.Event(sequence=1, time=1000.0, kind="JobSubmitted", job_id="17", text="submitted by ada")
    ended = client_pb2.Event(sequence=99, time=1099.0, kind="AttemptExited", job_id="17", text="exit 0")
    master.events = [submitted, *(published(number, 10 * number) for number in range(2, 9)), ended]
    lines = ebb("story", "17").out.splitlines()
    assert len(lines) == 3
    assert "7 checkpoints of steps 20 to 80 published until +8s" in lines[1]
    assert len(ebb("story", "--all", "17").out.splitlines()) == 9
    assert len(ebb("story", "--json", "17").json) == 9
    assert ebb("story", "--tail", "1", "17").out.splitlines() == lines[2:]
    assert ebb("story", "--since", "2026-01-01", "17").out.strip() == ""


def test_jobs_are_removed_and_those_that_cannot_be_are_named(ebb, master):
    add_array(master)
    master.add(make_job("18"))
    result = ebb("rm", "17", "99", "18")
    assert result.out.splitlines() == ["job 17 is removed, 2 tasks", "job 18 is removed"]
    assert (result.code, result.complaint) == (1, "job 99 does not exist")
    assert ebb("rm", "18", "--json").json == [{"id": "18", "jobs": ["18"]}]


def test_a_node_is_removed(ebb, master):
    assert ebb("node", "remove", "ws3").out == "Node ws3 is removed: it is one again if its agent comes back.\n"
    assert ebb("node", "remove", "ws3", "--json").json == {"node": "ws3", "removed": True}
    assert [request.node for request in master.sent("RemoveNode")] == ["ws3", "ws3"]
