"""The verbs that change jobs, `ebb wait` and `ebb logs`."""

import os
import pwd
import signal

import grpc
import pytest
from ebbtide_cli.masters import connection
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.client.runs import UNHURRIED, start_ebb
from tests.client.scripted_master import make_job, share

VERBS = ["suspend", "resume", "cancel", "hold", "release"]
EXITED = client_pb2.Suspension(requested=1.0, exited=2.0)
FREED = client_pb2.Suspension(requested=1.0, exited=2.0, gpu_free=3.0)


@pytest.mark.parametrize("verb", VERBS)
def test_a_wish_for_several_jobs_reaches_each_and_reports_each(ebb, master, verb):
    master.add(make_job("17", "SUSPENDING", reason="asked by user"), make_job("18", "RUNNING"))
    result = ebb(verb, "17", "18", "17")
    assert (result.code, result.out) == (0, "job 17 SUSPENDING (asked by user)\njob 18 RUNNING\n")
    assert [request.job_id for request in master.sent(verb.capitalize())] == ["17", "18"]
    assert [job["id"] for job in ebb(verb, "17", "--json").json] == ["17"]


@pytest.mark.parametrize("verb", VERBS)
def test_one_unknown_job_does_not_keep_the_others_from_their_wish(ebb, master, verb):
    master.add(make_job("18"))
    result = ebb(verb, "17", "18")
    assert (result.code, result.out, result.complaint) == (1, "job 18 PENDING\n", "job 17 does not exist")


@pytest.mark.parametrize("verb", [*VERBS, "resize", "set", "wait"])
def test_a_verb_needs_an_id(ebb, master, verb):
    result = ebb(verb)
    assert result.code == 2
    assert result.complaint.startswith(f"{verb}: Missing argument")


def test_a_reason_cannot_write_to_the_terminal(ebb, master):
    master.add(make_job(state="FAILED", reason="command 'a\x1b[2J\nb': not found"))
    assert ebb("wait", "17").out == "job 17 FAILED (command 'a[2J b': not found)\n"
    assert "\x1b" not in ebb("cancel", "17").out


def test_resize_sends_the_range(ebb, master):
    master.add(make_job(state="RUNNING"))
    assert ebb("resize", "17", "--gpus", "1/2-4").code == 0
    (request,) = master.sent("Resize")
    assert (request.gpus_min, request.gpus_max) == (share(1, 2), share(4))
    assert ebb("resize", "17").code == 2
    assert ebb("resize", "17", "--gpus", "0").code == 2
    refused = ebb("resize", "17", "--gpus", "99999999999")
    words = "resize: Invalid value for '--gpus': '99999999999' is more than the limit of 4096"
    assert (refused.code, refused.complaint, len(master.sent("Resize"))) == (2, words, 1)


def test_a_resize_says_that_it_fixes_a_range_and_how_to_undo_it(ebb, master):
    master.add(make_job("17", "RUNNING"), make_job("18", "RUNNING"))
    master.jobs["18"].spec.gpus_max.CopyFrom(share(1))
    result = ebb("resize", "17", "18", "--gpus", "2")
    assert (result.code, result.out) == (0, "job 17 RUNNING\njob 18 RUNNING\n")
    assert result.complaint == "job 17 had 1-4 GPUs and now has 2 until it is changed again: --gpus 1-4 undoes it"
    assert ebb("resize", "17", "--gpus", "2-3").err == ""


def test_set_sends_what_is_named_and_nothing_else(ebb, master):
    master.add(make_job("17", "RUNNING"), make_job("18"))
    result = ebb("set", "17", "18", "--priority", "5")
    assert (result.code, result.out) == (0, "job 17 RUNNING\njob 18 PENDING\n")
    assert [job["id"] for job in ebb("set", "17", "--weight", "0.5", "--json").json] == ["17"]
    first, second, third = master.sent("Change")
    assert [(request.job_id, request.priority) for request in (first, second)] == [("17", 5), ("18", 5)]
    assert not first.HasField("weight")
    assert not third.HasField("priority")
    assert (third.weight, third.user) == (0.5, pwd.getpwuid(os.getuid()).pw_name)


def test_set_says_what_has_no_effect_and_grants_it(ebb, master):
    why = "job 17: its priority has no effect while it runs: it is not preemptible"
    master.add(make_job("17", "RUNNING", effect=why), make_job("18"))
    result = ebb("set", "17", "18", "--priority", "5")
    assert (result.code, result.out, result.complaint) == (0, "job 17 RUNNING\njob 18 PENDING\n", why)
    assert [job["effect"] for job in ebb("set", "17", "18", "--priority", "5", "--json").json] == [why, None]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([], "--priority, --weight, --pool, --max-concurrent or --max-slots"),
        (["--priority", "0"], "1<=x<=99"),
        (["--priority", "soon"], "--priority"),
        (["--weight", "0"], "0.001<=x<=1000"),
        (["--weight", "1e9"], "0.001<=x<=1000"),
    ],
)
def test_set_refuses_what_no_job_may_have(ebb, master, options, named):
    master.add(make_job())
    result = ebb("set", "17", *options)
    assert (result.code, result.out, master.sent("Change")) == (2, "", [])
    assert named in result.complaint


def test_set_of_a_job_that_is_unknown_or_finished_is_exit_1(ebb, master):
    assert ebb("set", "17", "--priority", "5").code == 1
    master.refusals["Change"] = (grpc.StatusCode.FAILED_PRECONDITION, "job 17 is COMPLETED already")
    result = ebb("set", "17", "--priority", "5")
    assert (result.code, result.complaint) == (1, "job 17 is COMPLETED already")


def test_cancel_now_skips_the_grace_period(ebb, master):
    master.add(make_job(state="RUNNING"))
    ebb("cancel", "17")
    ebb("cancel", "--now", "17")
    assert [request.now for request in master.sent("Cancel")] == [False, True]


def test_suspend_with_wait_returns_when_the_gpus_are_free(ebb, master):
    exiting = make_job(state="SUSPENDED", held_by="user", suspensions=[EXITED])
    free = make_job(state="SUSPENDED", held_by="user", reason="suspended by user", suspensions=[FREED])
    master.add(make_job(state="SUSPENDING", held_by="user"))
    master.changes["17"] = [exiting, free]
    result = ebb("suspend", "--wait", "17")
    assert (result.code, result.out) == (0, "job 17 SUSPENDED (suspended by user)\n")
    assert master.changes["17"] == []


def suspended(checkpointed, lost="", hint="", id="17"):
    """A job that has left, and what it lost by that."""
    left = client_pb2.Suspension(requested=1.0, exited=2.0, gpu_free=3.0, lost=lost, hint=hint)
    left.checkpointed = checkpointed
    return make_job(id, state="SUSPENDED", held_by="user", reason="ended with exit code 1", suspensions=[left])


LOST = "steps 110-340 will be repeated"


@pytest.mark.parametrize(
    ("job", "code", "words"),
    [
        (suspended(job_pb2.CHECKPOINTED_YES), 0, "saved"),
        (suspended(job_pb2.CHECKPOINTED_YES, LOST), 0, f"saved: {LOST}"),
        (suspended(job_pb2.CHECKPOINTED_NO, LOST, "see its log"), 4, f"not saved: {LOST} (see its log)"),
        (suspended(job_pb2.CHECKPOINTED_UNKNOWN, "", "why"), 0, "it is unknown whether it saved (why)"),
    ],
)  # fmt: skip
def test_suspend_with_wait_tells_what_was_lost_and_ends_with_4_if_anything_was_for_certain(
    ebb, master, job, code, words
):
    """A job that fails when it is asked, as on a full disk, was told like one that saved, with exit code 0."""
    master.add(job)
    result = ebb("suspend", "--wait", "17")
    assert (result.code, result.out) == (code, f"job 17 SUSPENDED (ended with exit code 1); {words}\n")
    assert ebb("suspend", "--wait", "--json", "17").code == code
    assert ebb("suspend", "17").code == 0


def test_one_job_that_lost_work_among_several_is_enough(ebb, master):
    master.add(suspended(job_pb2.CHECKPOINTED_NO, LOST), suspended(job_pb2.CHECKPOINTED_YES, id="18"))
    assert ebb("suspend", "--wait", "17", "18").code == 4


def test_a_job_that_had_not_started_lost_nothing(ebb, master):
    master.add(make_job(state="PENDING", held_by="user", reason="held by user"))
    result = ebb("suspend", "--wait", "17")
    assert (result.code, result.out) == (0, "job 17 PENDING (held by user)\n")


def test_a_job_that_completes_instead_of_suspending_is_exit_1(ebb, master):
    master.add(make_job(state="SUSPENDING"))
    master.changes["17"] = [make_job(state="COMPLETED", reason="completed")]
    result = ebb("suspend", "--wait", "17")
    assert (result.code, result.complaint) == (1, "job 17 COMPLETED (completed) before it took effect")


def test_resume_with_wait_returns_when_it_runs(ebb, master):
    master.add(make_job(state="SUSPENDED"))
    master.changes["17"] = [make_job(state="STARTING"), make_job(state="RUNNING"), make_job(state="COMPLETED")]
    assert ebb("resume", "--wait", "17").out == "job 17 RUNNING\n"


def test_resize_with_wait_returns_when_it_runs_at_its_new_size(ebb, master):
    master.add(make_job(state="RUNNING"))
    bigger = make_job(state="RUNNING")
    bigger.gpus_allocated.CopyFrom(share(4))
    master.changes["17"] = [make_job(state="SUSPENDING"), make_job(state="SUSPENDED"), bigger]
    assert ebb("resize", "--gpus", "4", "--wait", "17").code == 0
    assert master.changes["17"] == []


def test_resizing_a_waiting_job_takes_effect_at_once(ebb, master):
    master.add(make_job(state="PENDING"))
    assert ebb("resize", "--gpus", "4", "--wait", "17").code == 0


def test_cancel_with_wait_returns_when_all_have_ended(ebb, master):
    master.add(make_job("17", "STOPPING"), make_job("18", "STOPPING"))
    master.changes["17"] = [make_job("17", "CANCELLED")]
    master.changes["18"] = [make_job("18", "CANCELLED")]
    assert ebb("cancel", "--wait", "17", "18").out == "job 17 CANCELLED\njob 18 CANCELLED\n"


# --- each task of an array ---


def task(index, state, **fields):
    """A task of array 17."""
    return make_job(f"17.{index}", state, array="17", index=index, **fields)


def add_array(master, *tasks, state="RUNNING"):
    """Let the master have array 17 with these tasks; all it says of them together is a state."""
    master.add(make_job("17", state, tasks=client_pb2.TaskCounts(indices=f"0-{len(tasks) - 1}")), *tasks)


def test_suspend_with_wait_returns_when_each_task_of_an_array_has_left(ebb, master):
    held = task(1, "PENDING", held_by="user")
    add_array(master, task(0, "SUSPENDING", held_by="user"), held, task(2, "COMPLETED"), state="SUSPENDED")
    exited = task(0, "SUSPENDED", held_by="user", suspensions=[EXITED])
    left = task(0, "SUSPENDED", held_by="user", suspensions=[FREED])
    master.changes["17.0"] = [exited, left]
    result = ebb("suspend", "--wait", "17")
    assert (result.code, result.out, result.err) == (0, "job 17 SUSPENDED\n", "")
    assert master.changes["17.0"] == []


def test_suspend_with_wait_tells_which_tasks_of_an_array_lost_work(ebb, master):
    lost = client_pb2.Suspension(requested=1.0, exited=2.0, gpu_free=3.0, lost="steps 110-340 will be repeated")
    lost.checkpointed = job_pb2.CHECKPOINTED_NO
    tasks = [task(index, "SUSPENDED", held_by="user", suspensions=[one]) for index, one in enumerate((FREED, lost))]
    add_array(master, *tasks, state="SUSPENDED")
    result = ebb("suspend", "--wait", "--json", "17")
    assert (result.code, [job["id"] for job in result.json]) == (4, ["17"])
    assert result.complaint == "job 17.1 SUSPENDED; not saved: steps 110-340 will be repeated"


def test_hold_with_wait_returns_for_an_array(ebb, master):
    add_array(master, task(0, "RUNNING", held_by="user"), task(1, "PENDING", held_by="user"))
    assert ebb("hold", "--wait", "17").code == 0


def test_resize_with_wait_returns_when_each_task_of_an_array_has_its_new_size(ebb, master):
    add_array(master, task(0, "RUNNING"), task(1, "PENDING"))
    bigger = task(0, "RUNNING")
    bigger.gpus_allocated.CopyFrom(share(4))
    master.changes["17.0"] = [task(0, "SUSPENDED"), bigger]
    assert ebb("resize", "--gpus", "4", "--wait", "17").code == 0
    assert master.changes["17.0"] == []


def test_cancel_with_wait_does_not_count_a_task_that_had_failed_before(ebb, master):
    add_array(master, task(0, "FAILED"), task(1, "STOPPING"), state="FAILED")
    master.changes["17.1"] = [task(1, "CANCELLED")]
    result = ebb("cancel", "--wait", "17")
    assert (result.code, result.out, result.err) == (0, "job 17 FAILED\n", "")


def test_a_task_that_completes_before_it_is_cancelled_is_named(ebb, master):
    add_array(master, task(0, "STOPPING"), task(1, "STOPPING"))
    master.changes["17.0"], master.changes["17.1"] = [task(0, "CANCELLED")], [task(1, "COMPLETED")]
    result = ebb("cancel", "--wait", "17")
    assert (result.code, result.complaint) == (1, "job 17.1 COMPLETED before it took effect")


# --- waiting for the end ---


def test_wait_is_0_only_if_all_completed(ebb, master):
    master.add(make_job("17", "RUNNING"), make_job("18", "COMPLETED"))
    master.changes["17"] = [make_job("17", "COMPLETED")]
    result = ebb("wait", "17", "18")
    assert (result.code, sorted(result.out.splitlines())) == (0, ["job 17 COMPLETED", "job 18 COMPLETED"])
    master.add(make_job("19", "FAILED"))
    assert ebb("wait", "17", "19").code == 1
    assert [job["state"] for job in ebb("wait", "19", "17", "19", "--json").json] == ["FAILED", "COMPLETED"]


@pytest.mark.parametrize(
    ("state", "exit_code", "expected"),
    [("FAILED", 7, 7), ("FAILED", -9, 137), ("FAILED", None, 1), ("CANCELLED", 143, 143), ("CANCELLED", None, 1)],
)
def test_wait_returns_the_code_of_the_first_job_that_did_not_complete(ebb, master, state, exit_code, expected):
    master.add(make_job("17", "COMPLETED"), make_job("18", state, exit_code=exit_code), make_job("19", "FAILED"))
    assert ebb("wait", "17", "18", "19").code == expected


def test_wait_for_any_returns_with_the_first_to_finish(ebb, master):
    master.add(make_job("17", "RUNNING"), make_job("18", "FAILED", exit_code=3))
    result = ebb("wait", "--any", "17", "18")
    assert (result.code, result.out) == (3, "job 18 FAILED\n")


def test_wait_gives_up_in_time(ebb, master):
    master.add(make_job("17", "RUNNING"), make_job("18", "COMPLETED"))
    result = ebb("wait", "--timeout", "3s", "17", "18")
    assert (result.code, result.out) == (124, "job 18 COMPLETED\n")
    assert result.complaint == "after 3s still waiting for jobs 17, 18"
    assert ebb("wait", "--timeout", "1h", "18").code == 0


def test_wait_outlives_a_restart_of_the_master(ebb, master):
    master.add(make_job(state="RUNNING"))
    master.changes["17"] = [make_job(state="SUSPENDED"), make_job(state="COMPLETED")]
    master.dying = 2
    assert ebb("wait", "17").code == 0
    assert len(master.sent("WatchJobs")) == 3


def test_interrupting_wait_detaches(master, home):
    master.add(make_job("17", "RUNNING"), make_job("18", "RUNNING"))
    with start_ebb("wait", "17", "18", times=UNHURRIED) as process:
        assert master.watched.wait(30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err == "ebb: detached; jobs 17, 18 not changed ('ebb cancel' would end it)\n"


def test_logs_are_the_bytes_of_the_job(master, home):
    master.add(make_job(state="RUNNING"))
    written = b"\x1b[31mred\x1b[0m\xff\r\n no newline"
    master.logs = [(1, written)]
    with start_ebb("logs", "17", text=False) as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, written, b"")


def test_a_line_on_stderr_stands_between_two_attempts(ebb, master):
    master.add(make_job(state="RUNNING"))
    master.logs = [(1, b"step 1\n"), (1, b"step 2\n"), (2, b"step 3\n")]
    result = ebb("logs", "17")
    assert (result.code, result.out, result.err) == (0, "step 1\nstep 2\nstep 3\n", "--- attempt 2 ---\n")
    only = ebb("logs", "--attempt", "2", "17")
    assert (only.out, only.err) == ("step 3\n", "")


def test_logs_repeat_nothing_when_the_master_was_restarted(ebb, master):
    master.add(make_job(state="RUNNING"))
    master.logs = [(1, b"step 1\n"), (1, b"step 2\n"), (2, b"step 3\n")]
    master.dying = 3
    assert ebb("logs", "17").out == "step 1\nstep 2\nstep 3\n"
    assert len(master.sent("ReadLogs")) == 4


def test_of_a_log_whose_node_is_away_the_node_is_named_and_not_the_master(ebb, master):
    master.add(make_job(state="RUNNING"))
    master.unread = {"17": "node ws2 is not connected"}
    for verb, code in ((["logs", "17"], 1), (["exec", "17", "--", "true"], 125), (["cp", "17:a", "."], 1)):
        result = ebb(*verb)
        assert (result.code, result.complaint) == (code, "node ws2 is not connected"), verb


def test_what_can_be_read_of_a_log_is_printed_before_the_node_that_has_the_rest_is_named(ebb, master, monkeypatch):
    """The stream was opened again without end, because its first part came each time."""
    monkeypatch.setattr(connection, "RECONNECT_S", 0.0)
    for follow in ([], ["-f"]):
        master.add(make_job(state="FAILED", end_time=9.0))
        master.logs, master.unread_after = [(1, b"step 1\n")], {"17": "node ws2 is not connected"}
        result = ebb("logs", *follow, "17")
        assert (result.code, result.out, result.complaint) == (1, "step 1\n", "node ws2 is not connected")


def test_the_logs_of_an_array_are_printed_but_for_those_whose_node_is_away(ebb, master):
    add_array(master, *(task(index, "RUNNING") for index in range(3)))
    master.logs, master.unread = [(1, b"line\n")], {"17.1": "node ws2 is not connected"}
    result = ebb("logs", "17")
    assert (result.code, result.out) == (1, "17.0: line\n17.2: line\n")
    assert result.complaint == "17.1: node ws2 is not connected"


def test_a_stream_that_was_open_for_long_is_opened_again_though_it_had_brought_nothing(ebb, master, monkeypatch):
    master.events = [client_pb2.Event(sequence=1, time=1.0, text="submitted")]
    monkeypatch.setattr(connection, "SETTLED_S", 3600.0)
    master.mute = 1
    assert ebb("events").code == 3  # so short that it may never have reached a master
    monkeypatch.setattr(connection, "SETTLED_S", 0.0)
    master.mute = 2
    result = ebb("events")
    assert (result.code, len(result.out.splitlines())) == (0, 1)


def test_interrupting_logs_detaches(master, home):
    master.add(make_job(state="RUNNING"))
    master.logs = [(1, b"step 1\n")]
    with start_ebb("logs", "-f", "17", times=UNHURRIED) as process:
        assert process.stdout.readline() == "step 1\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.startswith("ebb: detached; job 17")


def test_a_wish_that_comes_too_late_is_exit_1(ebb, master):
    master.refusals["Suspend"] = (grpc.StatusCode.FAILED_PRECONDITION, "job 17 is COMPLETED already")
    result = ebb("suspend", "17")
    assert (result.code, result.complaint) == (1, "job 17 is COMPLETED already")


def test_interrupting_events_leaves_no_word(master, home):
    master.events = [client_pb2.Event(sequence=1, time=1.0, text="submitted")]
    with start_ebb("events", "--follow") as process:
        assert process.stdout.readline().endswith("submitted\n")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130
