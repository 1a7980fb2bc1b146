"""Arrays, dependencies and times to begin, as one types them and reads them."""

from datetime import datetime

import pytest
from ebbtide_cli.times import parse_time
from ebbtide_cli.values import parse_after, parse_array
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.client.scripted_master import make_job

NOON = datetime(2026, 11, 21, 12, 0).timestamp()


@pytest.fixture
def array():
    """An array of which one task failed."""
    counts = client_pb2.TaskCounts(
        indices="0-9", states={"RUNNING": 3, "PENDING": 2, "COMPLETED": 4, "FAILED": 1}, max_concurrent=3
    )
    return make_job("17", "RUNNING", tasks=counts, reason="3 running, 2 pending, 4 completed, 1 failed")


@pytest.mark.parametrize(
    ("text", "indices", "limit"),
    [
        ("0-3", (0, 1, 2, 3), 0),
        ("0-9%2", tuple(range(10)), 2),
        ("7-9,0,3,8", (0, 3, 7, 8, 9), 0),
        ("0-15:4", (0, 4, 8, 12), 0),
        ("5", (5,), 0),
    ],
)
def test_indices_are_read(text, indices, limit):
    assert parse_array(text) == (indices, limit)


@pytest.mark.parametrize("text", ["", "a", "0-", "3-1", "0-9%", "0-9%0", "1,,2", "-1", "0-999999", "1-5:0", "1;2"])
def test_what_is_no_list_of_indices_is_refused(text):
    with pytest.raises(ValueError, match=r"indices|begins above|limit of 10000 tasks"):
        parse_array(text)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("12", [("12", "any")]),
        ("ok:12", [("12", "ok")]),
        ("not-ok:12.3", [("12.3", "not-ok")]),
        ("afterok:12:13,afterany:14", [("12", "ok"), ("13", "ok"), ("14", "any")]),
        ("afternotok:@~1,@", [("@~1", "not-ok"), ("@", "any")]),
    ],
)
def test_jobs_to_wait_for_are_read(text, after):
    assert parse_after(text) == tuple(after)


@pytest.mark.parametrize("text", ["", "ok", "ok:", "after:12", "ok:x", "12?13", "12:13", "@1"])
def test_what_is_no_job_to_wait_for_is_refused(text):
    with pytest.raises(ValueError, match="is no job to wait for"):
        parse_after(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("+2h", datetime(2026, 11, 21, 14, 0)),
        ("18:00", datetime(2026, 11, 21, 18, 0)),
        ("9:30", datetime(2026, 11, 22, 9, 30)),
        ("12:00:00", datetime(2026, 11, 22, 12, 0)),
        ("2026-11-23T09:00", datetime(2026, 11, 23, 9, 0)),
        ("2026-11-23", datetime(2026, 11, 23, 0, 0)),
    ],
)
def test_times_to_begin_are_read_as_local_time(text, moment):
    assert parse_time(text, NOON) == moment.timestamp()


@pytest.mark.parametrize("text", ["", "soon", "+2", "25:00", "2026-13-01", "18", "2026-11-23T9"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match=r"is not a (time|duration)"):
        parse_time(text, NOON)


def test_an_array_is_submitted_with_its_tasks_and_its_limit(ebb, master):
    result = ebb("submit", "--array", "0,3-4%2", "--max-slots", "6", "--", "train")
    assert (result.code, result.out) == (0, "17\n")
    [request] = master.sent("Submit")
    assert [task.index for task in request.tasks] == [0, 3, 4]
    assert (request.max_concurrent, request.max_slots) == (2, 6)
    assert ebb("submit", "--array", "0-4", "--json", "--", "train").json["tasks"] == 5


def test_two_limits_for_one_array_are_refused(ebb, master):
    result = ebb("submit", "--array", "0-3%2", "--max-concurrent", "3", "--", "train")
    assert (result.code, result.complaint) == (2, "submit: --max-concurrent: the array has a limit already: %2")


def test_what_a_job_waits_for_is_submitted_with_it_and_the_time_is_said(ebb, master):
    result = ebb("submit", "--after", "ok:12,@", "--after", "12.3", "--begin", "2026-11-23T09:00", "--", "true")
    [request] = master.sent("Submit")
    kinds = [(one.job_id, job_pb2.AfterKind.Name(one.kind)) for one in request.spec.after]
    assert kinds == [("12", "AFTER_KIND_OK"), ("@", "AFTER_KIND_ANY"), ("12.3", "AFTER_KIND_ANY")]
    assert request.spec.begin_at == datetime(2026, 11, 23, 9).timestamp()
    assert result.complaint == "not before 2026-11-23 09:00:00"


def test_an_array_is_one_line_of_the_list(ebb, master, array):
    master.add(array, make_job("18"))
    lines = ebb("ls").out.splitlines()
    assert lines[1].startswith("17  train.py [0-9%3]  ada   RUNNING")
    assert lines[1].endswith("3 running 2 waiting 4 done 1 failed")
    ebb("ls", "--tasks")
    ebb("ls", "--json")
    assert [request.folded for request in master.sent("ListJobs")] == [True, False, False]


def test_an_array_is_shown_with_its_tasks(ebb, master, array):
    task = make_job("17.3", "FAILED", array="17", index=3, params={"lr": ".1"}, reason="failed with exit code 1")
    master.add(array, task)
    out = ebb("show", "17").out
    assert "Array 17" in out
    assert "failed with exit code 1" in out
    facts = ebb("show", "17", "--json").json
    assert facts["tasks"]["states"] == {"RUNNING": 3, "PENDING": 2, "COMPLETED": 4, "FAILED": 1}
    assert [(job["id"], job["array"], job["index"], job["params"]) for job in facts["jobs"] if job["array"]] == [
        ("17.3", "17", 3, {"lr": ".1"})
    ]
    assert "17, task 3" in ebb("show", "17.3").out


@pytest.mark.parametrize("verb", ["cancel", "hold", "release", "suspend", "resume", "set", "wait"])
def test_verbs_take_ranges_of_tasks(ebb, master, verb):
    master.add(make_job("17.2-5", "COMPLETED"))
    options = ("--max-concurrent", "4") if verb == "set" else ()
    assert ebb(verb, "17.2-5", *options).out.startswith("job 17.2-5 COMPLETED")


def test_limits_of_an_array_are_changed(ebb, master, array):
    master.add(array)
    ebb("set", "17", "--max-concurrent", "0", "--max-slots", "8")
    [request] = master.sent("Change")
    assert (request.max_concurrent, request.max_slots, request.HasField("priority")) == (0, 8, False)


def test_requeue_says_what_became_of_each(ebb, master):
    master.add(make_job("17", "SUSPENDING", reason="requeued by user"))
    assert ebb("requeue", "17").out == "job 17 SUSPENDING (requeued by user)\n"
    master.again = make_job("19", "PENDING", again_of="17")
    result = ebb("requeue", "--failed", "17")
    assert result.out == "job 17 submitted again: job 19\n"
    assert [request.failed for request in master.sent("Requeue")] == [False, True]
    assert ebb("requeue", "17", "--json").json[0]["again_of"] == "17"


def test_an_unknown_job_does_not_keep_another_from_being_requeued(ebb, master):
    master.add(make_job("18", "SUSPENDING"))
    result = ebb("requeue", "17", "18")
    assert (result.code, result.out, result.complaint) == (1, "job 18 SUSPENDING\n", "job 17 does not exist")
