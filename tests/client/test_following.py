"""`ebb logs -f` of an array: what its tasks print, as they print it."""

import signal
from collections.abc import Iterable
from contextlib import contextmanager

import pytest
from ebbtide_cli.logs.following import MOST_FOLLOWED
from ebbtide_cli.logs.prefixed import LONGEST, WholeLines
from ebbtide_cli.masters import connection
from ebbtide_protos.v1 import client_pb2

from tests.client.runs import UNHURRIED, start_ebb
from tests.client.scripted_master import ScriptedMaster, make_job
from tests.e2e.cluster import wait_for

FINISHED = ("COMPLETED", "FAILED", "CANCELLED")


def task(index: int, state: str) -> client_pb2.Job:
    times = {} if state == "PENDING" else {"start_time": 5.0}
    times |= {"end_time": 9.0} if state in FINISHED else {}
    return make_job(f"17.{index}", state, array="17", index=index, **times)


def array(*states: str) -> list[client_pb2.Job]:
    """Job 17 and its tasks, in these states."""
    tasks = [task(index, state) for index, state in enumerate(states)]
    together = next((state for state in states if state not in FINISHED), states[0])
    counts = client_pb2.TaskCounts(states={state: states.count(state) for state in states})
    return [*tasks, make_job("17", together, tasks=counts)]


@contextmanager
def following(*arguments: str):
    with start_ebb("logs", "-f", *arguments, "17", times=UNHURRIED) as process:
        yield process
        assert process.poll() is not None, "it goes on after its array"


def read_lines(process, count: int) -> list[str]:
    return [process.stdout.readline().removesuffix("\n") for _ in range(count)]


def finish(master: ScriptedMaster, process, count: int) -> tuple[list[str], str]:
    """Let all tasks end: what comes from then on, and all that was complained."""
    master.tell(*array(*["COMPLETED"] * count))
    out, err = process.communicate(timeout=30)
    return out.splitlines(), err


def lines_of(tasks: Iterable[int], line: str) -> list[str]:
    return [f"17.{index}: {line}" for index in tasks]


def test_the_lines_of_tasks_that_run_and_of_those_that_start_later_come_until_all_have_ended(master, home):
    master.tell(*array("COMPLETED", "RUNNING", "PENDING"))
    master.logs_of = {"17.0": [(1, b"zero\n")], "17.1": [(1, b"one\n")]}
    with following() as process:
        assert sorted(read_lines(process, 2)) == ["17.0: zero", "17.1: one"]
        master.print("17.2", b"two\n")
        master.tell(*array("COMPLETED", "RUNNING", "RUNNING"))
        assert read_lines(process, 1) == ["17.2: two"]
        master.print("17.1", b"one more\n")
        assert read_lines(process, 1) == ["17.1: one more"]
        assert finish(master, process, 3) == ([], "")
    assert process.returncode == 0


def test_a_line_stays_whole_while_other_tasks_print(master, home):
    master.tell(*array("RUNNING", "RUNNING"))
    master.print("17.0", b"begun, ")
    with following() as process:
        master.print("17.1", b"meanwhile\n")
        assert read_lines(process, 1) == ["17.1: meanwhile"]
        master.print("17.0", b"ended\nno newline")
        assert read_lines(process, 1) == ["17.0: begun, ended"]
        assert finish(master, process, 2) == (["17.0: no newline"], "")


def test_a_line_on_stderr_says_whose_new_attempt_begins(master, home):
    master.tell(*array("RUNNING", "RUNNING"))
    master.logs_of = {"17.0": [(1, b"first, cut"), (2, b"second\n")], "17.1": [(1, b"other\n")]}
    with following() as process:
        assert sorted(read_lines(process, 3)) == ["17.0: first, cut", "17.0: second", "17.1: other"]
        assert finish(master, process, 2) == ([], "17.0: --- attempt 2 ---\n")


def test_a_bounded_number_of_tasks_is_followed_at_a_time_and_nothing_is_left_out(master, home):
    count = MOST_FOLLOWED + 24
    master.tell(*array(*["RUNNING"] * count))
    master.logs = [(1, b"line\n")]
    with following() as process:
        assert sorted(read_lines(process, MOST_FOLLOWED)) == sorted(lines_of(range(MOST_FOLLOWED), "line"))
        assert master.watched.wait(30)
        out, err = finish(master, process, count)
    assert sorted(out) == sorted(lines_of(range(MOST_FOLLOWED, count), "line"))
    assert err == (
        "ebb: 40 tasks run, and 16 are followed at a time: others follow when one of those has ended or is suspended\n"
    )
    assert (process.returncode, master.most_followed) == (0, MOST_FOLLOWED)


def test_a_suspended_task_gives_its_place_to_one_that_runs_and_goes_on_later_where_it_was(master, home):
    running = ["RUNNING"] * MOST_FOLLOWED
    master.tell(*array(*running, "RUNNING"))
    master.logs = [(1, b"line\n")]
    with following() as process:
        assert sorted(read_lines(process, MOST_FOLLOWED)) == sorted(lines_of(range(MOST_FOLLOWED), "line"))
        assert master.watched.wait(30)
        master.tell(*array("SUSPENDED", *running))
        assert read_lines(process, 1) == [f"17.{MOST_FOLLOWED}: line"]
        master.logs_of["17.0"] = [(1, b"line\n"), (2, b"resumed\n")]
        out, err = finish(master, process, MOST_FOLLOWED + 1)
    assert out == ["17.0: resumed"]
    assert err.splitlines()[1:] == ["17.0: --- attempt 2 ---"]


@pytest.mark.parametrize("unheard", [0, 1])
def test_a_restart_of_the_master_is_bridged_and_nothing_is_printed_twice(master, home, unheard):
    master.tell(*array("RUNNING", "RUNNING"))
    master.logs_of = {"17.0": [(1, b"zero\n")], "17.1": [(1, b"one\n")]}
    with following("--tail", "5") as process:
        assert sorted(read_lines(process, 2)) == ["17.0: zero", "17.1: one"]
        master.dying, master.mute = 1, unheard
        master.print("17.1", b"last words\n")
        assert read_lines(process, 1) == ["17.1: last words"]
        master.print("17.0", b"after\n")
        assert read_lines(process, 1) == ["17.0: after"]
        wait_for("the array is watched", lambda: len(master.sent("WatchJobs")) == 1 + unheard)
        assert finish(master, process, 2) == ([], "")
    assert (process.returncode, master.dying, master.mute) == (0, 0, 0)


def test_following_goes_on_when_too_much_is_asked_at_a_time_and_nothing_is_printed_twice(master, home):
    master.tell(*array("RUNNING", "RUNNING"))
    master.logs_of = {"17.0": [(1, b"zero\n")], "17.1": [(1, b"one\n")]}
    with following() as process:
        assert sorted(read_lines(process, 2)) == ["17.0: zero", "17.1: one"]
        master.busy_method, master.busy_s = "ListJobs", [0.01]
        master.tell(*array("RUNNING", "RUNNING", "PENDING"))
        wait_for("the listing was refused", lambda: master.busy_s == [])
        master.print("17.1", b"last words\n")
        assert read_lines(process, 1) == ["17.1: last words"]
        assert finish(master, process, 2) == ([], "")
    assert process.returncode == 0


def test_a_log_that_cannot_be_read_is_named_and_the_others_are_followed(master, home):
    master.tell(*array("RUNNING", "RUNNING"))
    master.unread = {"17.0": "node ws1 is not connected"}
    master.logs = [(1, b"line\n")]
    with following() as process:
        assert read_lines(process, 1) == ["17.1: line"]
        assert finish(master, process, 2) == ([], "ebb: 17.0: node ws1 is not connected\n")
    assert process.returncode == 1


def test_a_log_of_which_the_rest_cannot_be_read_is_named_once_no_more_comes_of_it(ebb, master, monkeypatch):
    monkeypatch.setattr(connection, "RECONNECT_S", 0.0)
    master.add(*array("FAILED", "COMPLETED"))
    master.logs, master.unread_after = [(1, b"line\n")], {"17.0": "node ws1 is not connected"}
    result = ebb("logs", "-f", "17")
    assert (result.code, sorted(result.out.splitlines())) == (1, lines_of(range(2), "line"))
    assert result.complaint == "17.0: node ws1 is not connected"


def test_tasks_that_never_began_are_not_waited_for(ebb, master):
    never = make_job("17.1", "CANCELLED", array="17", index=1, end_time=9.0)
    master.add(*array("COMPLETED", "COMPLETED"), never)
    master.logs = [(1, b"line\n")]
    result = ebb("logs", "-f", "17")
    assert (result.code, result.out, result.err) == (0, "17.0: line\n", "")
    assert {request.job_id for request in master.sent("ReadLogs")} == {"17.0"}


def test_progress_bars_of_tasks_are_tidied_if_that_is_wanted(ebb, master):
    master.add(*array("COMPLETED", "COMPLETED"))
    master.logs = [(1, b" 10%\r 50%\r100%\n")]
    result = ebb("logs", "-f", "--tidy", "17")
    assert sorted(result.out.splitlines()) == lines_of(range(2), "100%")


def test_interrupting_it_detaches(master, home):
    master.tell(*array("RUNNING", "PENDING"))
    master.logs = [(1, b"line\n")]
    with following() as process:
        assert read_lines(process, 1) == ["17.0: line"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err == "ebb: detached; job 17 not changed ('ebb cancel' would end it)\n"


def test_who_reads_no_more_ends_it(master, home):
    master.tell(*array("RUNNING", "RUNNING"))
    master.logs = [(1, b"line\n")]
    with following() as process:
        read_lines(process, 2)
        process.stdout.close()
        master.print("17.1", b"line\n")
        master.print("17.1", b"nobody reads this\n")
        assert (process.wait(30), process.stderr.read()) == (141, "")


def test_a_line_is_given_back_whole_unless_it_is_too_long():
    whole = WholeLines()
    assert [whole.feed(piece) for piece in (b"a", b"b\nc", b"\n\nd")] == [b"", b"ab\n", b"c\n\n"]
    assert (whole.end(), whole.end()) == (b"d", b"")
    assert whole.feed(b"x" * LONGEST) == b""
    assert whole.feed(b"y") == b"x" * LONGEST + b"y\n"
    assert whole.end() == b""
