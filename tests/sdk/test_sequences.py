"""Any sequence of saves, crashes, failures, bit rot and resumes, against a model of what must still be there."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from ebbtide import checkpoints
from ebbtide.environment import Environment
from ebbtide.jobs import Job
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

KEEP = 2
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Saves(RuleBasedStateMachine):
    """`written` are the checkpoints that were published and not damaged since, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir=MEMORY))
        self.job_dir = self.root / "7"
        self.attempt, self.step = 0, 0
        self.written: list[Path] = []
        self.start()

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def start(self) -> None:
        """The next attempt, as an agent starts it; it goes on from what the model says."""
        self.attempt += 1
        own = self.job_dir / f"attempt-{self.attempt}"
        newest = checkpoints.newest_valid(self.job_dir, before_attempt=self.attempt)
        own.mkdir(parents=True)
        resume_dir = str(newest.path if newest else "")
        given = {"EBB_JOB_ID": "7", "EBB_ATTEMPT": str(self.attempt), "EBB_CHECKPOINT_DIR": str(own)}
        self.job = Job(Environment.read(given | {"EBB_RESUME_DIR": resume_dir}))
        state = self.job.load_checkpoint()
        assert (state.path if state else None) == (self.written[-1] if self.written else None)
        self.step = state.step if state else 0
        if state:
            assert (state.path / "part" / "state").read_text() == f"{state.attempt} {state.step} " * 20

    def write(self, directory: Path) -> None:
        (directory / "part").mkdir()
        (directory / "part" / "state").write_text(f"{self.attempt} {self.step} " * 20)

    @rule(steps=st.integers(0, 3))
    def save(self, steps: int) -> None:
        self.step += steps
        self.job.checkpoint(self.write, self.step)
        steps = [path for path in (self.job_dir / f"attempt-{self.attempt}").iterdir() if path not in self.written]
        assert [path.name.partition(".")[0] for path in steps] == [f"step-{self.step:012d}"]
        self.written += steps

    @rule(half=st.booleans())
    def save_on_a_full_disk(self, half: bool) -> None:
        self.step += 1

        def full(directory: Path) -> None:
            if half:
                self.write(directory)
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(OSError, match="No space"):
            self.job.checkpoint(full, self.step)

    @rule()
    def crash_in_a_save(self) -> None:
        """Leaves a draft whose process is dead, and starts the next attempt."""
        draft = self.job_dir / f"attempt-{self.attempt}" / f".step-{self.step + 1:012d}-{2**22 + 1}-00c0ffee"
        draft.mkdir(exist_ok=True)
        (draft / "half").write_text("half")
        self.start()

    @rule()
    def resume(self) -> None:
        self.start()

    @precondition(lambda self: self.written)
    @rule(which=st.integers(0, 9), file=st.integers(0, 1), offset=st.integers(0, 2**16), mask=st.integers(1, 255))
    def flip_a_byte(self, which: int, file: int, offset: int, mask: int) -> None:
        """In any checkpoint that is still whole; the next attempt starts, because a running one does not look again."""
        checkpoint = self.written[which % len(self.written)]
        before = checkpoints.verify(checkpoint)
        path = sorted(path for path in checkpoint.rglob("*") if path.is_file())[file]
        data = bytearray(path.read_bytes())
        data[offset % len(data)] ^= mask
        path.write_bytes(data)
        if before not in checkpoints._valid([checkpoint]):  # a flip in a blank changes nothing
            self.written.remove(checkpoint)
        self.start()

    @invariant()
    def the_newest_two_that_are_whole_are_there(self) -> None:
        found = [checkpoint.path for checkpoint in checkpoints._valid(checkpoints._candidates(self.job_dir))]
        assert found[:KEEP] == self.written[-KEEP:][::-1]
        self.written = [path for path in self.written if path in found]


@pytest.fixture(autouse=True)
def no_disk_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


TestSaves = Saves.TestCase
TestSaves.settings = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True)
