"""A save whose file operations go wrong, one later each time; what each leaves is printed as a line of JSON.

crash_points.py KIND HOW…, with faults.c loaded before libc. It is a program of its own because it forks, for which a
process should have no threads.
"""

import ctypes
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ebbtide import checkpoints
from ebbtide.environment import Environment
from ebbtide.jobs import Job

HOWS = ("crash", "torn", "broken", "full")  # as faults.c counts them
TOO_LARGE = "too large"  # no file may have more bytes than a limit, which grows by so many
LIMIT_STEP = 997
FAULTS = ctypes.CDLL(None)

Found = list[tuple[int, int | None]]  # attempt and step


def plain(directory: Path) -> None:
    (directory / "part").mkdir()
    (directory / "part" / "weights").write_bytes(bytes(20_000))
    (directory / "state").write_text("state")


def torch_save() -> Callable[[Path], None]:
    """How ebbtide.torch saves; torch is imported once, and by no child."""
    import ebbtide.torch as ebt
    import torch

    model = torch.nn.Linear(100, 10)
    training = ebt.Training(model, torch.optim.Adam(model.parameters()))
    return training.save


def job_of(job_dir: Path, attempt: int) -> Job:
    """A script's job at the start of this attempt, which goes on from the newest checkpoint."""
    newest = checkpoints.newest_valid(job_dir, before_attempt=attempt)
    given = {
        "EBB_JOB_ID": "7",
        "EBB_ATTEMPT": str(attempt),
        "EBB_CHECKPOINT_DIR": str(job_dir / f"attempt-{attempt}"),
        "EBB_RESUME_DIR": str(newest.path if newest else ""),
    }
    job = Job(Environment.read(given))
    job.load_checkpoint()
    return job


def seal(job_dir: Path, attempt: int) -> None:
    """What a supervisor does for a script that wrote by itself."""
    checkpoints.seal(job_dir / f"attempt-{attempt}", job_id="7", attempt=attempt, complete=True)


def earlier(job_dir: Path) -> None:
    """Three checkpoints more than are kept: a sealed one and two published ones."""
    (job_dir / "attempt-1").mkdir()
    plain(job_dir / "attempt-1")
    seal(job_dir, 1)
    for step in (8, 9, 10):
        checkpoints.publish(job_dir / "attempt-2", step, plain, job_id="7", attempt=2)


def attempt_3(job_dir: Path, save: Callable[[Path], None] | None) -> tuple[Callable[[], None], Callable[[], None]]:
    """The save that goes wrong, and the next one, when there is nothing wrong any more."""
    if save is not None:
        job = job_of(job_dir, 3)
        return lambda: job.checkpoint(save, 20), lambda: job.checkpoint(save, 30)
    (job_dir / "attempt-3").mkdir()
    plain(job_dir / "attempt-3")
    return lambda: seal(job_dir, 3), lambda: seal(job_dir, 3)


def arm(number: int, how: str) -> None:
    """Let it go wrong from now on; with 0, no more."""
    if how == TOO_LARGE:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (number * LIMIT_STEP if number else most, most))
    else:
        FAULTS.faults_arm(ctypes.c_long(number), HOWS.index(how))


def in_a_child(first: Callable[[], None], again: Callable[[], None], number: int, how: str) -> str:
    """Whether the first save, whose `number`th file operation goes wrong, succeeded, failed or killed its process."""
    child = os.fork()
    if child == 0:
        arm(number, how)
        try:
            first()
        except (OSError, RuntimeError):  # torch raises the latter for a full disk
            arm(0, how)
            again()
            os._exit(1)
        os._exit(0 if FAULTS.faults_seen() >= number and how in HOWS else 2)
    return {0: "saved", 1: "failed", 2: "finished", -9: "killed"}[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


def valid(job_dir: Path) -> Found:
    """All checkpoints that verify, newest first."""
    found = list(checkpoints._valid(checkpoints._candidates(job_dir)))
    assert found[:1] == [checkpoints.newest_valid(job_dir)]
    return [(checkpoint.attempt, checkpoint.step) for checkpoint in found]


def drafts(job_dir: Path) -> int:
    return sum(path.name.startswith(".") for path in job_dir.glob("attempt-*/*"))


def go_wrong_everywhere(root: Path, save: Callable[[Path], None] | None, how: str) -> None:
    template = root / "template"
    template.mkdir()
    earlier(template)
    number, outcome = 0, ""
    while outcome != "finished":
        number += 1
        job_dir = root / str(number)
        shutil.copytree(template, job_dir)
        outcome = in_a_child(*attempt_3(job_dir, save), number, how)
        facts = {"how": how, "outcome": outcome, "valid": valid(job_dir), "drafts": drafts(job_dir)}
        if save is None:
            seal(job_dir, 3)
        job_of(job_dir, 4).checkpoint(plain, 40)
        print(json.dumps(facts | {"later": valid(job_dir), "drafts_later": drafts(job_dir)}))


def main() -> None:
    save = {"plain": lambda: plain, "torch": torch_save, "seal": lambda: None}[sys.argv[1]]()
    memory = Path("/dev/shm")
    for how in sys.argv[2:]:
        with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as root:
            go_wrong_everywhere(Path(root), save, how)


if __name__ == "__main__":
    main()
