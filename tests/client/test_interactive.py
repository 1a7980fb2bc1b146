"""Verbs for working by hand, against a scripted master: what is submitted, refused, and returned."""

import os
import select
import subprocess
import sys
from contextlib import contextmanager

import grpc
import pytest
from ebbtide_cli.channels.terminal import Escapes
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.client.runs import run_on_terminal, start_ebb
from tests.client.scripted_master import make_job


@pytest.fixture
def finished(master):
    """A master whose next job has run and failed with exit code 3."""
    master.logs = [(1, b"out\n")]
    attempts = [client_pb2.AttemptSummary(attempt=1)]
    master.add(
        make_job("17", "FAILED", exit_code=3, start_time=1.0, end_time=2.0, attempts=attempts, reason="exit code 3")
    )
    return master


def sent_spec(master) -> job_pb2.JobSpec:
    (request,) = master.sent("Submit")
    return request.spec


def test_a_command_is_trial_and_error_stays_where_it_is_and_returns_its_exit_code(ebb, finished):
    result = ebb("run", "--gpus", "2", "--", "python", "train.py")
    assert (result.code, result.out) == (3, "out\n")
    spec = sent_spec(finished)
    assert (spec.kind, spec.suspend) == (job_pb2.JOB_KIND_COMMAND, job_pb2.SUSPEND_MODE_NONE)
    assert spec.job_class == job_pb2.JOB_CLASS_TRIAL_AND_ERROR
    assert not spec.HasField("idle_limit_s")


@contextmanager
def given(tmp_path, kind, content=b"x\n"):
    """Something to read, in a pipe or a file."""
    if kind == "file":
        (tmp_path / "input").write_bytes(content)
        with (tmp_path / "input").open("rb") as file:
            yield file
        return
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    try:
        yield reading
    finally:
        os.close(reading)


def run_with(stdin, *options):
    with start_ebb("run", *options, "--", "cat", stdin=stdin) as process:
        return process.communicate(timeout=60), process.returncode


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_what_is_piped_or_redirected_in_is_the_jobs_standard_input(finished, tmp_path, kind):
    """It was dropped without a word once."""
    finished.jobs["17"].spec.stdin = True
    with given(tmp_path, kind) as stdin:
        (out, err), code = run_with(stdin)
    assert (code, out) == (3, "out\n"), err
    assert sent_spec(finished).stdin


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_an_input_at_its_end_is_none(finished, tmp_path, kind):
    with given(tmp_path, kind, b"") as stdin:
        (out, _), code = run_with(stdin, "--be")
    assert (code, out, sent_spec(finished).stdin) == (3, "out\n", False)


@pytest.mark.parametrize("redirection", ["</dev/null", "<&-", "0>/dev/zero"])
def test_what_cannot_be_read_from_is_no_input(finished, redirection):
    command = f"exec {sys.executable} -m ebbtide_cli.main run --be -- cat {redirection}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, sent_spec(finished).stdin) == (3, "out\n", False)


def test_a_terminal_is_no_input(finished):
    run_on_terminal("run", "--be", "--", "cat", streams=("stdin",))
    assert not sent_spec(finished).stdin


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--be", "run: --be: the job could be suspended, and standard input, which is piped or redirected here, "),
        ("--te", "run: --te: the job could be suspended, and standard input, "),
        ("--suspend checkpoint", "submit: --suspend: checkpoint means another attempt, and standard input, "),
        ("--retries 2", "submit: --retries: 2 means another attempt, and standard input, "),
        ("--failover-after 1h", "submit: --failover-after: 3600s means another attempt, and standard input, "),
        ("--nodes 2 --gpus 2", "submit: --nodes: 2 cannot share standard input: "),
        ("--launch ddp", "submit: --launch ddp: has processes that cannot share standard input: "),
    ],
)
def test_an_input_does_not_go_with_what_would_need_it_twice_and_both_are_named(finished, tmp_path, options, words):
    with given(tmp_path, "pipe") as stdin:
        (out, err), code = run_with(stdin, *options.split())
    assert (code, out, finished.sent("Submit")) == (2, "", [])
    assert err.startswith(f"ebb: {words}")
    assert "</dev/null to do without standard input\n" in err


def test_best_effort_that_is_never_suspended_may_have_an_input(finished, tmp_path):
    finished.jobs["17"].spec.stdin = True
    with given(tmp_path, "pipe") as stdin:
        assert run_with(stdin, "--be", "--suspend", "none")[1] == 3
    assert sent_spec(finished).stdin


def test_a_master_that_gives_no_input_is_not_left_with_a_job_that_read_nothing(finished, tmp_path):
    with given(tmp_path, "pipe") as stdin:
        (out, err), code = run_with(stdin)
    assert (code, out) == (125, "")
    assert "job 17 is cancelled: the master's version gives jobs no standard input: upgrade it" in err
    assert [request.job_id for request in finished.sent("Cancel")] == ["17"]


@pytest.mark.parametrize(
    ("options", "suspend", "job_class"),
    [
        (("--be",), job_pb2.SUSPEND_MODE_CHECKPOINT, job_pb2.JOB_CLASS_BEST_EFFORT),
        (("--te",), job_pb2.SUSPEND_MODE_CHECKPOINT, job_pb2.JOB_CLASS_TRIAL_AND_ERROR),
        (("--suspend", "checkpoint"), job_pb2.SUSPEND_MODE_CHECKPOINT, job_pb2.JOB_CLASS_TRIAL_AND_ERROR),
        (("--be", "--suspend", "none"), job_pb2.SUSPEND_MODE_NONE, job_pb2.JOB_CLASS_BEST_EFFORT),
    ],
)
def test_a_command_is_as_other_jobs_are_if_its_options_say_so(ebb, finished, options, suspend, job_class):
    ebb("run", *options, "--", "true")
    assert (sent_spec(finished).suspend, sent_spec(finished).job_class) == (suspend, job_class)


@pytest.fixture
def printing(master):
    """A master whose next job runs and has printed something."""
    master.logs = [(1, b"out\n")]
    master.add(make_job("17", "RUNNING", start_time=1.0, attempts=[client_pb2.AttemptSummary(attempt=1)]))
    return master


def run_into(stdout):
    """Run `ebb run`, which prints into ``stdout``: its exit code, and what it says."""
    with start_ebb("run", "--", "yes", stdout=stdout) as process:
        _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.fixture
def unread():
    """A pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_a_command_whose_reader_is_gone_is_cancelled_as_it_would_end_if_it_ran_here(printing, unread):
    """`ebb run … | head` left the job running without a word."""
    words = "ebb: job 17 is cancelled: its output cannot be written: Broken pipe\n"
    assert run_into(unread) == (141, words)
    assert [(request.job_id, request.now) for request in printing.sent("Cancel")] == [("17", False)]


def test_a_command_that_has_ended_before_its_reader_went_needs_no_word(finished, unread):
    finished.refusals["Cancel"] = (grpc.StatusCode.FAILED_PRECONDITION, "job 17 is FAILED already")
    assert run_into(unread) == (141, "")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "the token has expired"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "ada has 256 calls open already, which is the limit"),
    ],
)
def test_a_command_that_cannot_be_cancelled_is_said_to_go_on(printing, unread, code, why):
    printing.refusals["Cancel"] = (code, why)
    words = f"ebb: job 17 goes on, although its output cannot be written: Broken pipe: {why}\n"
    assert run_into(unread) == (141, words)


def test_a_full_disk_cancels_the_command_and_is_a_failure_of_ours(printing):
    with open("/dev/full", "w") as full:
        code, err = run_into(full)
    assert (code, err) == (125, "ebb: job 17 is cancelled: its output cannot be written: No space left on device\n")
    assert printing.sent("Cancel")


def test_a_command_is_cancelled_once_the_master_has_time_for_it(printing, unread):
    printing.busy_s, printing.busy_method = [0.01, 0.01], "Cancel"
    words = "ebb: job 17 is cancelled: its output cannot be written: Broken pipe\n"
    assert run_into(unread) == (141, words)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_is_full_and_does_not_block_is_waited_for(finished, monkeypatch, unbuffered):
    """Whatever shares the pipe may have made it so: `ebb run` cancelled the job."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    finished.logs = [(1, os.urandom(1 << 16)) for _ in range(4)]
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with start_ebb("run", "--", "make", stdout=writing) as process, open(reading, "rb") as reader:
        while process.poll() is None and select.select([], [writing], [], 0)[1]:
            pass  # until it is full
        os.close(writing)
        read = reader.read()
        _, err = process.communicate(timeout=60)
    assert (process.returncode, read == b"".join(data for _, data in finished.logs)) == (3, True), err
    assert not finished.sent("Cancel")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_full_disk_is_a_failure_of_ours_where_the_code_is_otherwise_that_of_the_job(finished, options):
    with open("/dev/full", "w") as full, start_ebb("submit", "--wait", *options, "--", "true", stdout=full) as process:
        _, err = process.communicate(timeout=60)
    words = "job 17 is queued, but that cannot be printed: No space left on device"
    assert (process.returncode, err) == (125, f"ebb: {words}\n")


@pytest.mark.parametrize("unheard", [1, 2, 3])
def test_a_master_that_goes_away_just_after_the_submit_is_waited_for(ebb, finished, unheard):
    """Before a stream has brought anything: the master was there a moment ago."""
    finished.mute_after_submit = unheard
    result = ebb("run", "--", "true")
    assert (result.code, result.out, finished.mute) == (3, "out\n", 0)


@pytest.mark.parametrize(
    "words",
    [
        *("run -- true", "submit --wait -- true", "shell", "shell --attach @", "shell --attach x", "shell --attach 17"),
        *("exec @ -- true", "exec x -- true", "exec 17 -- true"),
    ],
)
def test_a_failure_of_ours_is_125_where_the_code_is_otherwise_that_of_the_job(home, words):
    result = run_on_terminal(*words.split(), streams=("stdin", "stdout", "stderr"))
    assert (result.code, "no master in EBB_HOME" in result.out or "no job 'x'" in result.out) == (125, True)


def test_a_shell_that_ends_before_it_runs_is_a_failure_of_ours(finished):
    result = run_on_terminal("shell", streams=("stdin", "stdout", "stderr"))
    assert (result.code, "job 17 FAILED (exit code 3) before it ran" in result.out) == (125, True)


def test_what_has_no_meaning_for_one_job_is_no_option(ebb, master):
    assert ebb("notebook", "--array", "0-9").complaint == "--array: an array is for 'ebb submit'"
    assert (
        ebb("tensorboard", "--template", "x", "runs").complaint == "tensorboard: --template: is for jobs with a command"
    )
    assert ebb("shell").complaint == "shell: standard input and output are no terminal: 'ebb run' is for commands"
    assert ebb("exec", "--tty", "17").complaint == "exec: --tty: standard input and output are no terminal"
    assert ebb("tensorboard", "a,b").code == 2
    assert master.sent("Submit") == []


def test_a_notebook_that_ends_at_once_is_a_failure_and_had_a_token(ebb, finished):
    result = ebb("notebook", "--idle", "2h")
    assert result.code == 1
    spec = sent_spec(finished)
    assert (spec.kind, spec.idle_limit_s, spec.suspend) == (job_pb2.JOB_KIND_NOTEBOOK, 7200, job_pb2.SUSPEND_MODE_NONE)
    assert list(spec.command[:2]) == ["jupyter", "lab"]
    assert "--ServerApp.port={port}" in spec.command
    assert len(spec.env["JUPYTER_TOKEN"]) >= 32


def test_without_idle_the_master_decides_and_never_is_said(ebb, finished):
    ebb("notebook")
    ebb("notebook", "--idle", "never")
    by_default, never = (request.spec for request in finished.sent("Submit"))
    assert not by_default.HasField("idle_limit_s")
    assert (never.HasField("idle_limit_s"), never.idle_limit_s) == (True, 0.0)


def test_a_tensorboard_has_no_gpu_and_reads_what_jobs_wrote(ebb, finished):
    finished.add(make_job("5", "COMPLETED"))
    ebb("tensorboard", "4", "5:runs")
    spec = sent_spec(finished)
    assert (spec.kind, spec.gpus_max.numerator) == (job_pb2.JOB_KIND_TENSORBOARD, 0)
    assert spec.command[2] == "job 4:{output:4},job 5 runs:/home/ada/run/runs"


@pytest.mark.parametrize(
    ("directories", "shown"),
    [
        (["/a/runs"], "/a/runs"),
        (["/a/runs", "/a/../a/runs"], "/a/runs"),
        (["/a/runs", "/b/runs", "/c"], "a/runs:/a/runs,b/runs:/b/runs,c:/c"),
        (["/a/x/runs", "/b/x/runs", "/b/y/runs"], "a/x/runs:/a/x/runs,b/x/runs:/b/x/runs,y/runs:/b/y/runs"),
        (["/runs", "/a/runs"], "/runs:/runs,a/runs:/a/runs"),
        (
            ["/home/ada/run/runs", "5:runs", "/z/job 5 runs", "/z/runs"],
            "run/runs:/home/ada/run/runs,z/job 5 runs:/z/job 5 runs,runs:/z/runs",
        ),
    ],
)
def test_directories_of_one_name_are_shown_beside_each_other(ebb, finished, directories, shown):
    """TensorBoard has one run of a name, so that only the last of them was seen."""
    finished.add(make_job("5", "COMPLETED"))
    ebb("tensorboard", *directories)
    assert sent_spec(finished).command[2] == shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("17", "."), "cp: '17' is not ID:PATH, such as 17:model.pt"),
        (("17:a", "17:b", "nowhere"), "cp: nowhere: is not a directory, as several sources need"),
        (("17:a", "18:a", "."), "cp: two sources have the same name: copy them into different directories"),
        (("17:a", "no/such/place"), "cp: no/such: no such directory"),
        (("17:a", "17:b", "-"), "cp: -: takes one file"),
    ],
)
def test_a_copy_that_has_no_place_is_refused_before_anything_is_asked(ebb, master, arguments, words):
    result = ebb("cp", *arguments)
    assert (result.code, result.complaint) == (2, words)


def test_the_escape_is_seen_at_the_beginning_of_a_line_only():
    assert Escapes().take(b"~.") == (b"", True)
    assert Escapes().take(b"ls ~.\r") == (b"ls ~.\r", False)
    assert Escapes().take(b"ls\r~.more") == (b"ls\r", True)
    assert Escapes().take(b"~~.") == (b"~.", False)
    assert Escapes().take(b"~x~.") == (b"~x~.", False)
    escapes = Escapes()
    assert escapes.take(b"a\r~") == (b"a\r", False)
    assert escapes.take(b".") == (b"", True)
