"""What an SDK says to a supervisor that is older or newer than itself, and what it understands of it."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ebbtide
import pytest
from ebbtide.environment import Environment
from ebbtide.version import CONTRACT, VERSION

from tests.sdk.listening import Listener

MakeJob = Callable[..., ebbtide.Job]
KNOWN_TO_OLD_SUPERVISORS = {"progress", "checkpoint", "acknowledge", "asked", "time", "start"}


@contextmanager
def asking(folder: Path) -> Iterator[socket.socket]:
    """The supervisor's socket for requests to leave."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        listener.bind(f"/proc/self/fd/{directory}/stop.sock")
        os.close(directory)
        listener.listen()
        yield listener


def kinds(listener: Listener) -> set[str]:
    return {message["kind"] for message in listener.all_arrived()}


def use(job: ebbtide.Job) -> None:
    """Everything that a job has to say, but for its end."""
    job.report(step=1, total=2)
    job.should_suspend()
    job.checkpoint(lambda folder: (folder / "state").write_text("x"), 1)


def test_a_supervisor_that_names_its_version_is_told_that_of_the_sdk(make_job: MakeJob, listener: Listener) -> None:
    make_job(EBB_CONTRACT=str(CONTRACT))
    assert listener.wait_for("sdk") == {"kind": "sdk", "rank": 0, "version": VERSION, "contract": CONTRACT}


def test_one_that_names_none_hears_nothing_that_it_does_not_know(make_job: MakeJob, listener: Listener) -> None:
    use(make_job())
    heard = kinds(listener)
    assert {"progress", "checkpoint", "asked"} <= heard <= KNOWN_TO_OLD_SUPERVISORS


def test_a_newer_one_hears_what_this_sdk_has_to_say(make_job: MakeJob, listener: Listener) -> None:
    use(make_job(EBB_CONTRACT=str(CONTRACT + 7)))
    assert kinds(listener) == {*KNOWN_TO_OLD_SUPERVISORS - {"acknowledge"}, "sdk"}


@pytest.mark.parametrize(
    "unknown", [b'{"do": "dance", "grace_s": 5}', b"leave", b'["leave"]', b"\xff", b'"' + 8000 * b"x"]
)
def test_a_request_of_a_newer_one_is_passed_over_and_the_next_is_not(
    make_job: MakeJob, tmp_path: Path, unknown: bytes
) -> None:
    with asking(tmp_path) as listener:
        job = make_job(EBB_CONTRACT=str(CONTRACT + 1))
        supervisor, _ = listener.accept()
        with supervisor:
            supervisor.send(unknown)
            assert job.should_suspend() is False
            supervisor.send(unknown)
            supervisor.send(b'{"do": "leave", "grace_s": 5, "why": "a field that is new"}')
            assert job.should_suspend() is True


def test_a_supervisor_that_goes_away_asks_nobody_to_leave(make_job: MakeJob, tmp_path: Path) -> None:
    with asking(tmp_path) as listener:
        job = make_job(EBB_CONTRACT=str(CONTRACT))
        supervisor, _ = listener.accept()
        supervisor.close()
        assert job.should_suspend() is False
        assert job.should_suspend() is False


def test_a_version_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="EBB_CONTRACT must be an integer, got 'two'"):
        Environment.read({"EBB_JOB_ID": "7", "EBB_CONTRACT": "two"})
