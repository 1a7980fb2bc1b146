"""Jobs whose supervisor is the test."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ebbtide.environment import Environment
from ebbtide.jobs import Job

from tests.sdk.listening import Listener

MakeJob = Callable[..., Job]


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    with Listener(tmp_path / "job.sock") as listener:
        yield listener


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[MakeJob]:
    """Jobs in this process; afterwards the signal's handler is what it was."""
    before = signal.getsignal(signal.SIGTERM)

    def make(attempt: int = 1, **variables: str) -> Job:
        given = {
            "EBB_JOB_ID": "7",
            "EBB_ATTEMPT": str(attempt),
            "EBB_CHECKPOINT_DIR": str(tmp_path / "7" / f"attempt-{attempt}"),
            "EBB_RESUME_DIR": "",
            "EBB_SOCKET": str(tmp_path / "job.sock"),
        }
        return Job(Environment.read(given | variables))

    yield make
    signal.signal(signal.SIGTERM, before)
