"""`ebb drill`, and what `ebb submit`, `show` and `ls` say of jobs that never went through one."""

import re
import signal
from pathlib import Path

import grpc
import pytest
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.client.runs import UNHURRIED, run_on_terminal, start_ebb, without_styles
from tests.client.scripted_master import make_job

ASKED = {"requested": 1000.0, "reason": "drill"}
LEFT = ASKED | {"exited": 1002.0, "checkpointed": job_pb2.CHECKPOINTED_YES, "checkpoint_s": 1.5, "left_step": 121}
BACK = LEFT | {"gpu_free": 1002.5, "placed": 1003.0, "resumed": 1004.0}
WORKS = BACK | {"working": 1010.0, "working_step": 122}
UNKNOWN = {"checkpointed": job_pb2.CHECKPOINTED_UNKNOWN}
TABLE = [
    # what the suspension came to, how the job is then, the verdict and why
    (WORKS, {}, "trustworthy", "it went on at step 122; it had left off at step 121"),
    (WORKS | UNKNOWN, {}, "trustworthy", "it went on at step 122"),
    (WORKS | {"working_step": 100}, {}, "not trustworthy", "21 steps were lost"),
    (WORKS | {"working_step": 0}, {}, "not trustworthy", "it began from the beginning"),
    (BACK, {"state": "FAILED", "reason": "failed with exit code 1"}, "not trustworthy", "failed with exit code 1"),
    (LEFT, {"state": "SUSPENDED", "held_by": "user", "reason": "suspended by user"}, "not trustworthy", "by itself"),
    (LEFT, {"state": "COMPLETED", "reason": "completed"}, "unknown", "it did not come back: completed"),
    (LEFT, {"state": "CANCELLED", "reason": "cancelled"}, "not trustworthy", "it did not come back: cancelled"),
]


def drilled(suspension, state="RUNNING", attempt=2, **fields):
    attempts = [client_pb2.AttemptSummary(attempt=1, outcome="checkpointed and stepped aside")]
    if attempt == 2:
        attempts.append(client_pb2.AttemptSummary(attempt=2, resumed_step=121))
    suspensions = [client_pb2.Suspension(**suspension)] if suspension else []
    return make_job(state=state, attempt=attempt, attempts=attempts, suspensions=suspensions, **fields)


def script(master, *later, step=120):
    """The job as it was when it was asked, then as it becomes."""
    progress = {} if step is None else {"progress": job_pb2.Progress(step=step, total=1000)}
    master.add(drilled(ASKED, "SUSPENDING", attempt=1, **progress))
    master.changes["17"] = list(later)


@pytest.mark.parametrize(("suspension", "job", "verdict", "because"), TABLE)
def test_the_verdict_follows_from_where_the_job_went_on(ebb, master, suspension, job, verdict, because):
    script(master, drilled(LEFT, "SUSPENDED"), drilled(suspension, **job))
    result = ebb("drill", "--json", "17")
    assert (result.json["verdict"], result.code) == (verdict, 0 if verdict == "trustworthy" else 1)
    assert because in result.json["because"]


@pytest.mark.parametrize(
    ("before", "after", "repeated"), [(20.0, 19.0, 19.0), (20.0, 0.5, None), (0.4, 0.4, None), (None, 19.0, None)]
)
def test_a_drill_finds_a_script_that_does_again_what_it_had_done(ebb, master, before, after, repeated):
    job = drilled(WORKS)
    for attempt, earlier_cpu_s in zip(job.attempts, (before, after), strict=True):
        if earlier_cpu_s is not None:
            attempt.earlier_cpu_s = earlier_cpu_s
    script(master, job)
    assert ebb("drill", "--json", "17").json["repeated_cpu_s"] == repeated
    script(master, job)
    assert ("done again" in ebb("drill", "17").out) is (repeated is not None)


def test_a_drill_says_how_long_each_part_took_and_where_the_job_went_on(ebb, master):
    script(master, drilled(WORKS))
    found = ebb("drill", "--json", "17").json
    assert found["parts_s"] == {
        "save": 1.5, "exit": 2.0, "free": 0.5, "queue": 0.5, "start": 1.0, "first_progress": 6.0, "total": 10.0,
    }  # fmt: skip
    assert found["steps"] == {"before": 121, "checkpoint": 121, "after": 122}
    assert found["checkpointed"] == "yes"
    script(master, drilled(WORKS))
    shown = ebb("drill", "17")
    assert (shown.code, shown.err) == (0, "")
    assert "at work again after  6s" in shown.out
    assert shown.out.endswith("Job 17: trustworthy: it went on at step 122; it had left off at step 121.\n")


@pytest.mark.parametrize(("saved", "word"), [(job_pb2.CHECKPOINTED_YES, "it saved"), (0, "nothing shows")])
def test_of_a_job_without_steps_the_log_around_the_break_is_all_there_is(ebb, master, saved, word):
    silent = {key: value for key, value in BACK.items() if key != "left_step"} | {"checkpointed": saved}
    script(master, drilled(silent), step=None)
    master.logs = [(1, b"epoch 1\nepoch 2\n"), (2, b"hello\nepoch 1\n")]
    result = ebb("drill", "--json", "17")
    assert (result.code, result.json["verdict"]) == (1, "unknown")
    assert result.json["because"].startswith(word)
    assert result.json["log"] == {"before": "epoch 1\nepoch 2", "after": "hello\nepoch 1"}


@pytest.mark.parametrize(
    ("saved", "unknown", "to_do"),
    [
        (job_pb2.CHECKPOINTED_YES, "whether the script continued from what it saved", ["ebbtide.job()", "its log"]),
        (0, "whether the script saved by itself", ["ebbtide.job()", "a handler that writes into EBB_CHECKPOINT_DIR"]),
    ],
)
def test_an_unknown_verdict_says_in_a_line_what_is_unknown_and_what_to_do(ebb, master, saved, unknown, to_do):
    silent = {key: value for key, value in BACK.items() if key != "left_step"} | {"checkpointed": saved}
    script(master, drilled(silent), step=None)
    master.logs = [(1, b"epoch 1\n"), (2, b"hello\n")]
    *_, verdict, advice = ebb("drill", "17").out.splitlines()
    assert verdict.startswith("Job 17: unknown: ")
    assert advice.startswith(f"It is unknown {unknown}, because ")
    assert all(words in advice for words in to_do)
    named = re.findall(r"'ebb docs ([\w-]+)'", advice)
    pages = {path.stem for path in (Path(__file__).parents[2] / "docs").rglob("*.md")}
    assert named
    assert pages >= set(named)


def test_where_nothing_of_that_kind_is_unknown_no_advice_is_given(ebb, master):
    script(master, drilled(WORKS))
    assert ebb("drill", "--json", "17").json["advice"] == ""


def test_a_swapped_job_that_came_back_as_the_same_processes_is_trusted(ebb, master):
    note = "30.0 GiB moved to host memory in 9.0 s"
    swapped = {"requested": 1000.0, "exited": 1009.0, "gpu_free": 1009.0, "placed": 1009.0, "resumed": 1015.0}
    script(master, drilled(swapped | {"note": note}, attempt=1), step=None)
    found = ebb("drill", "--json", "17").json
    assert (found["verdict"], found["because"]) == ("trustworthy", "its processes went on where they were")
    assert note in found["why"]


def test_a_job_that_is_not_back_in_time_is_named_with_its_state(ebb, master, monkeypatch):
    waiting = drilled(LEFT, "SUSPENDED", reason="waiting for 1 GPU")
    script(master, waiting, waiting)

    def end_in_time(context):
        if len(master.changes["17"]) == 1:  # the first was sent
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "")

    monkeypatch.setattr(master, "_cut", end_in_time)
    result = ebb("drill", "--json", "17")
    assert result.code == 1
    assert result.json["because"] == "it is not back in time: SUSPENDED (waiting for 1 GPU)"
    script(master)
    in_vain = ebb("drill", "--timeout", "0.1s", "--json", "17")
    assert in_vain.json["because"].startswith("it is not back in time: ")


def test_a_refusal_is_passed_on_in_the_words_of_the_master(ebb, master):
    master.refusals["Drill"] = (
        grpc.StatusCode.FAILED_PRECONDITION,
        "job 17 is PENDING: only one that runs can be drilled",
    )
    result = ebb("drill", "17")
    assert (result.code, result.complaint) == (1, "job 17 is PENDING: only one that runs can be drilled")


def test_ctrl_c_leaves_a_job_that_comes_back_by_itself(ebb, master):
    script(master)
    with start_ebb("drill", "17", times=UNHURRIED) as process:
        assert master.watched.wait(30)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=30)
    assert (process.returncode, complaint) == (130, "ebb: drill left; job 17 comes back by itself\n")


def test_the_help_has_an_example(ebb):
    assert "ebb drill 17" in ebb("drill", "--help").out


def test_a_person_who_submits_is_told_what_best_effort_means_and_a_script_is_not(ebb, master):
    assert ebb("submit", "--", "true").err == ""
    told = without_styles(run_on_terminal("submit", "--", "true", streams=("stderr",)).out)
    assert "best-effort: it may be suspended for other jobs" in told
    assert "ebb drill 17" in told
    assert len(told.strip().splitlines()) == 1
    for options in (["--te"], ["--suspend", "none"]):
        assert run_on_terminal("submit", *options, "--", "true", streams=("stderr",)).out == ""


def test_who_submits_an_array_is_told_to_drill_one_task_of_it(ebb, master):
    told = run_on_terminal("submit", "--array", "3-4", "--", "true", streams=("stderr",)).out
    assert "ebb drill 17.3, once it runs" in without_styles(told)


@pytest.mark.parametrize(("proved", "words"), [(True, "yes: it can suspend"), (False, "no: 'ebb drill 17' tests")])
def test_whether_a_job_has_proved_that_it_can_suspend_is_shown(ebb, master, proved, words):
    master.add(make_job(state="RUNNING", proved=proved, save_s=2.0, restart_cost_s=30.0))
    assert words in ebb("show", "17").out
    assert "2s to step aside, 30s until it is back" in ebb("show", "17").out
    shown = ebb("show", "--json", "17").json
    assert (shown["proved"], shown["save_s"], shown["restart_cost_s"]) == (proved, 2.0, 30.0)
    assert [job["proved"] for job in ebb("ls", "--json").json] == [proved]
