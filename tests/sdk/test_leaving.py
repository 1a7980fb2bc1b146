"""How a suspended job's process ends: with everything that Python owes the script, and nothing after that."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def leave(tmp_path: Path, what: str, *arguments: str) -> tuple[int, list[str]]:
    """The exit code and the lines of a job whose output is a file, as it is under a supervisor."""
    variables = {"EBB_JOB_ID": "7", "EBB_ATTEMPT": "1", "EBB_CHECKPOINT_DIR": str(tmp_path / "7" / "attempt-1")}
    output = tmp_path / "output.log"
    with output.open("w") as stream:
        done = subprocess.run(
            [sys.executable, HERE / "leaving_job.py", what, *arguments], env=variables, stdout=stream, stderr=stream
        )
    return done.returncode, output.read_text().splitlines()


def test_a_suspended_job_is_not_taken_apart_and_its_output_is_whole(tmp_path: Path) -> None:
    assert leave(tmp_path, "at once") == (85, ["leaving", "finally"])


def test_threads_finalizers_and_exit_handlers_have_their_turn_in_pythons_order(tmp_path: Path) -> None:
    # A handler is called before all those that were registered before it.
    assert leave(tmp_path, "handlers") == (85, ["leaving", "finally", "thread", "finalizer", "handler"])


@pytest.mark.parametrize("what", ["file", "mpi"])
def test_what_only_an_ordinary_exit_would_finish_gets_one(tmp_path: Path, what: str) -> None:
    code, lines = leave(tmp_path, what, str(tmp_path / "metrics.csv"))
    assert (code, lines) == (85, ["leaving", "finally", "taken apart"])
    assert what == "mpi" or (tmp_path / "metrics.csv").read_text() == "buffered"


@pytest.mark.parametrize("what", ["closed by a handler", "nameless"])
def test_files_that_are_closed_or_have_no_name_hold_nobody_up(tmp_path: Path, what: str) -> None:
    assert leave(tmp_path, what, str(tmp_path / "log")) == (85, ["leaving", "finally"])
    assert what == "nameless" or (tmp_path / "log").read_text() == "buffered"


def test_the_lock_that_every_process_inherits_is_no_file_of_the_script(tmp_path: Path) -> None:
    variables = {"EBB_JOB_ID": "7", "EBB_ATTEMPT": "1", "EBB_CHECKPOINT_DIR": str(tmp_path / "7" / "attempt-1")}
    with (tmp_path / "7.lock").open("w") as lock:
        done = subprocess.run(
            [sys.executable, HERE / "leaving_job.py", "at once"],
            env=variables,
            stdout=subprocess.PIPE,
            pass_fds=(lock.fileno(),),
        )
    assert (done.returncode, done.stdout) == (85, b"leaving\nfinally\n")


def test_a_script_may_catch_it_and_end_with_a_code_of_its_own(tmp_path: Path) -> None:
    assert leave(tmp_path, "caught") == (3, ["leaving", "caught 85", "finally", "taken apart"])


def test_a_handler_that_registers_another_one_does_not_keep_the_job(tmp_path: Path) -> None:
    code, lines = leave(tmp_path, "late handler")
    assert (code, lines[:2]) == (85, ["leaving", "finally"])
