"""The secret of a loan is in its file until it is used, and nowhere else at any time."""

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ebbtide_protos.invitation import decode

from tests.e2e.cluster import wait_for
from tests.slurm.borrower import Borrower
from tests.slurm.rig import GPUS, NODES

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]


@contextmanager
def processes_seen() -> Iterator[set[bytes]]:
    """Command lines, each with its environment, of all processes that there are meanwhile."""
    seen, done = set[bytes](), threading.Event()

    def look() -> None:
        known = set[tuple[str, bytes]]()
        while not done.wait(0.02):
            for folder in filter(str.isdecimal, os.listdir("/proc")):
                with contextlib.suppress(OSError):
                    command = Path("/proc", folder, "cmdline").read_bytes()
                    if (folder, command) not in known:
                        seen.add(command + b"\0" + Path("/proc", folder, "environ").read_bytes())
                        known.add((folder, command))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        done.set()
        looking.join()


def files_with(words: list[bytes], *folders: Path) -> set[Path]:
    """The files in which one of the words is."""
    found = set()
    for top in folders:
        for folder, _, names in os.walk(top):
            for path in (Path(folder, name) for name in names):
                with contextlib.suppress(FileNotFoundError):
                    if path.is_file() and any(word in path.read_bytes() for word in words):
                        found.add(path)
    return found


def test_the_secret_of_a_loan_is_in_no_script_environment_process_log_or_journal(borrower: Borrower) -> None:
    occupied = [borrower.slurm.batch("sleep 600", "-w", node, f"--gres=gpu:{GPUS}") for node in NODES]
    wait_for("all GPUs are in use", lambda: {borrower.slurm.state(job) for job in occupied} == {"RUNNING"})
    folders = (borrower.folder, borrower.slurm.folder)
    with processes_seen() as seen:
        borrower.serve()
        job = borrower.submit()
        wait_for("a loan waits in Slurm", lambda: borrower.phases() == ["queued"], 60)
        [invitation] = (borrower.cluster.home / "supplies").rglob("*.invitation")
        assert invitation.stat().st_mode & 0o777 == 0o600
        words = [invitation.read_bytes(), decode(invitation.read_text()).secret.encode()]
        assert files_with(words, *folders) == {invitation}
        borrower.slurm.command("scancel", *occupied)
        borrower.cluster.wait_for_state(job, "RUNNING", seconds=90)
        [node] = borrower.cluster.show(job)["nodes"]
        assert files_with(words, *folders) == set()
        borrower.cluster.ebb("cancel", "--now", "--wait", job)
        wait_for(f"the loan is over: {borrower.said()}", lambda: borrower.phases() == ["ended"], 90)
        assert files_with(words, *folders) == set()
    said = borrower.cluster.ebb("events").out + borrower.cluster.ebb("supply", "logs", node).out + borrower.said()
    assert not any(word.decode() in said for word in words)
    pilots = [lines for lines in seen if b"\0pilot\0" in lines]
    assert any(str(invitation).encode() in lines for lines in pilots)
    assert not [lines for lines in seen if any(word in lines for word in words)]
