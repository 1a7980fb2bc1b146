"""A job that proves how it was treated: whatever it does it writes down, with its time, into a file of its own.

Usage: computing.py FOLDER STEPS STEP_S SAVE_EVERY HOW FAILS

HOW is ``sdk`` (checkpoints, reports and leaves through the SDK) or ``plain`` (traps SIGTERM, and knows nothing of it).
It fails FAILS times, half-way. While it computes it holds a lock for itself, and one for each quarter of a GPU that it
has: whoever finds one taken says so, and that is the end of the test. With more GPUs a step is shorter.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

SLOTS = 4
"""Of each GPU; a whole one has all."""


class Witness:
    """The file of one job, to which each attempt of it appends; a line is one write."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{os.environ['EBB_JOB_ID']}.jsonl"
        self.attempt = int(os.environ["EBB_ATTEMPT"])
        self.gpus = [gpu for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if gpu]
        self.file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.locks: list[int] = []

    def say(self, what: str, **more: object) -> None:
        line = {"at": time.time(), "what": what, "attempt": self.attempt, **more}
        os.write(self.file, (json.dumps(line) + "\n").encode())

    def begin(self, step: int) -> None:
        share = os.environ["EBB_GPU_SHARE"] if self.gpus else "0"
        self.say("begin", step=step, gpus=self.gpus, share=share, pid=os.getpid())
        self.take(self.path.with_suffix(".lock"))
        for gpu in self.gpus:
            slots = [self.path.parent / f"{gpu}.{slot}.lock" for slot in range(SLOTS)]
            if share == "1":
                for slot in slots:
                    self.take(slot)
            elif not any(self.lock(slot) for slot in slots):
                self.overlap(gpu)

    def take(self, path: Path) -> None:
        if not self.lock(path):
            self.overlap(path.name)

    def lock(self, path: Path) -> bool:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self.locks.append(descriptor)
        return True

    def overlap(self, what: str) -> None:
        self.say("overlap", found=what)
        sys.exit(111)

    def times(self, what: str) -> int:
        lines = self.path.read_text().splitlines()
        return sum(json.loads(line)["what"] == what for line in lines)


class Sdk:
    """Checkpoints as the SDK does."""

    def __init__(self) -> None:
        import ebbtide  # the other kind does without

        self.job = ebbtide.job()
        state = self.job.load_checkpoint()
        self.first = int((state.path / "n").read_text()) if state else 0

    def asked(self) -> bool:
        return self.job.should_suspend()

    def report(self, step: int, steps: int) -> None:
        self.job.report(step=step, total=steps)

    def save(self, step: int) -> None:
        self.job.checkpoint(lambda folder: (folder / "n").write_text(str(step)), step)

    def leave(self) -> None:
        self.job.suspend()


class Plain:
    """Checkpoints by itself."""

    def __init__(self) -> None:
        signal.signal(signal.SIGTERM, self.on_signal)
        self.stop = False
        resume = os.environ["EBB_RESUME_DIR"]
        self.first = int(Path(resume, "n").read_text()) if resume else 0
        self.folder = Path(os.environ["EBB_CHECKPOINT_DIR"])

    def on_signal(self, *_: object) -> None:
        self.stop = True

    def asked(self) -> bool:
        return self.stop

    def report(self, step: int, steps: int) -> None:
        pass

    def save(self, step: int) -> None:
        draft = self.folder / ".n"
        draft.write_text(str(step))
        draft.replace(self.folder / "n")

    def leave(self) -> None:
        sys.exit(85)


def main() -> None:
    steps, every, how, fails = int(sys.argv[2]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6])
    witness = Witness(Path(sys.argv[1]))
    job = Sdk() if how == "sdk" else Plain()
    witness.begin(job.first)
    pause = float(sys.argv[3]) / max(1, len(witness.gpus))
    for step in range(job.first, steps):
        if job.asked():
            job.save(step)
            witness.say("saved", step=step)
            witness.say("leaves", step=step)
            job.leave()
        if step == steps // 2 and witness.times("fails") < fails:
            witness.say("fails", step=step)
            sys.exit(3)
        time.sleep(pause)
        witness.say("step", step=step)
        job.report(step + 1, steps)
        if (step + 1) % every == 0:
            job.save(step + 1)
            witness.say("saved", step=step + 1)
    witness.say("done", step=steps)


if __name__ == "__main__":
    main()
