"""The job as its own script sees it: resume, report progress, checkpoint, suspend."""

import errno
import math
import os
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import SupportsFloat

from ebbtide import channel, checkpoints, distributed, start
from ebbtide.checkpoints import Checkpoint
from ebbtide.distributed import Save
from ebbtide.environment import Environment
from ebbtide.leaving import Leave
from ebbtide.stop import StopRequest

REPORT_EVERY_S = 0.2
MOST_METRICS = 32


@dataclass(frozen=True, slots=True)
class State:
    """Where to go on from: the directory that `save` once filled, and how many steps were done then.

    `step` is 0 if whoever wrote the checkpoint recorded none, as a script does that writes without this module.
    """

    path: Path
    step: int
    attempt: int


class Job:
    """This script's side of the job contract; outside Ebbtide (`id` is None) nothing in it acts."""

    def __init__(self, environment: Environment) -> None:
        self.id = environment.id
        self.attempt = environment.attempt
        self.array_index = environment.array_index
        self.gpu_count = environment.gpu_count
        self.gpu_share = environment.gpu_share
        self.gpu_mem_bytes = environment.gpu_mem_bytes
        self.grace_s = environment.grace_s
        self.node_rank = environment.node_rank
        self.num_nodes = environment.num_nodes
        self.checkpoint_dir = environment.checkpoint_dir
        self.resume_dir = environment.resume_dir
        self.output_dir = environment.output_dir
        self._socket = environment.socket
        self._env_rank = environment.rank
        self._pid = os.getpid()
        self._stop = StopRequest()
        self._connection = channel.Connection(None if self.id is None else environment.socket)
        self._stop_signal = environment.stop_signal
        self._asked = False
        self._begun = False
        self._step = 0
        self._next_report_at = -math.inf
        self._metrics: dict[str, SupportsFloat] = {}
        self._saved_step = -1
        self._last: Checkpoint | None = None
        self._trusted: set[Path] = set()
        if self.id is not None:
            self._stop.listen(environment.stop_signal)
            self._tell_time("job")

    def load_checkpoint(self) -> State | None:
        """The newest valid checkpoint, None at a fresh start; raises InvalidCheckpoint if it is damaged.

        Damage is an error here, not a fresh start, because nobody wants days of work restarted in silence.
        """
        found = self._find_checkpoint()
        if found is None:
            return None
        self._remember(found)
        self._step = found.step or 0
        self._tell_time("loaded")
        return State(found.path, self._step, found.attempt)

    def checkpoint(self, save: Save, step: int, *, all_ranks: bool = False) -> None:
        """Publish a checkpoint at `step` and go on training; raises what `save` raises, or OSError on a full disk.

        `save` gets an empty directory to fill. Under torch.distributed this is collective: `save` runs on rank 0,
        or with `all_ranks` on each rank (on one file system), and a failure anywhere is raised everywhere. The
        highest step counts as an attempt's newest checkpoint, so going below one that is saved is a ValueError:
        count steps over the whole run, not from each epoch.
        """
        if self.checkpoint_dir is None:
            return
        self._publish(save, int(step), all_ranks)
        if self._rank() == 0:
            self._retain()

    def report(
        self, *, step: int, total: int | None = None, loss: SupportsFloat | None = None, **metrics: SupportsFloat
    ) -> None:
        """Tell how many of `total` steps are done; call it as often as you like, five times a second are sent.

        Further numbers, like `accuracy=0.9`, may be given at some steps only: each holds until it is given again.
        """
        if self.id is None or os.getpid() != self._pid:
            return
        self._step = int(step)
        if metrics:
            self._metrics.update((name, _detached(value)) for name, value in metrics.items())
        if not self._begun:
            self._begun = True
            self._tell_time("stepped", step=int(step))
            self._tell_start()
        now = time.monotonic()
        if now < self._next_report_at and step != total:
            return
        self._next_report_at = now + REPORT_EVERY_S
        if self._rank() == 0:
            progress = {"step": int(step), "total": total and int(total), "loss": _finite(loss)}
            numbers = self._numbers(loss, progress["loss"])
            channel.send(self._socket, {"kind": "progress", "rank": 0, **progress, **numbers}, timeout_s=0)

    def _numbers(self, loss: SupportsFloat | None, finite: float | None) -> dict[str, object]:
        """The newest value of each metric, None for what is no number any more, as a loss that has diverged."""
        told = {name: _finite(value) for name, value in islice(self._metrics.items(), MOST_METRICS)}
        if loss is not None and finite is None:
            told["loss"] = None
        return {"metrics": told} if told else {}

    def should_suspend(self) -> bool:
        """Whether the job has been asked to stop: checkpoint then and leave, within the grace period.

        Under torch.distributed this is collective, one small reduction, so that every rank gets the same answer at
        the same step; all ranks must call it equally often. False in forked children and outside Ebbtide.
        """
        if self.id is None or os.getpid() != self._pid:
            return False
        group = distributed.current()
        if not self._asked:
            self._asked = True
            self._tell_asked()
            self._connection.answer()
        if self._connection.is_asked_to_leave():
            self._stop.received = True  # nobody sets it to False: the signal may come at any moment
        asked = self._stop.received
        return asked if group is None else group.any(asked)

    def catch_signal_again(self) -> None:
        """Take the stop signal back from a library that has put its own handler in the place of the job's."""
        if self.id is not None and os.getpid() == self._pid:
            self._stop.catch_again(self._stop_signal)

    def suspend(self, save: Save | None = None, step: int | None = None, *, all_ranks: bool = False) -> None:
        """Publish a checkpoint, acknowledge, and leave by SystemExit(85) with all ranks; outside Ebbtide: nothing.

        `step` is the one last reported or saved unless given. Without `save` the script has saved by itself. If saving
        fails, that error is raised instead, nothing is acknowledged and the older checkpoints are untouched.
        """
        if self.id is None:
            return
        step = self._step if step is None else int(step)
        if save is not None:
            self._publish(save, step, all_ranks)
        rank = self._rank()
        channel.send(self._socket, {"kind": "acknowledge", "rank": rank, "step": step})
        if rank == 0:
            self._retain()
        group = distributed.current()
        if group is not None:
            group.wait()
        raise Leave(self.id)

    def _tell_time(self, what: str, **facts: int) -> None:
        """Tell that this rank has just come so far on its way to its first step."""
        if self._rank() == 0:
            told = {"kind": "time", "rank": 0, "what": what, "at": time.time(), **facts}
            channel.send(self._socket, told, timeout_s=0)

    def _tell_start(self) -> None:
        """Tell what the next attempt's process may import early; without it that starts as this one did."""
        with suppress(OSError, ValueError):
            if facts := start.facts():
                channel.send(self._socket, {"kind": "start", **facts}, timeout_s=0)

    def _tell_asked(self) -> None:
        """Tell that this job would acknowledge a suspension, because it asks whether it should.

        Asked to stop during its last step, it ends with exit code 0 and no acknowledgement. Without this it would look
        like the many scripts that trap the signal, save and exit with 0, and be started once more.
        """
        channel.send(self._socket, {"kind": "asked", "rank": self._env_rank})

    def _find_checkpoint(self) -> Checkpoint | None:
        if self.checkpoint_dir is not None:
            # A script that a wrapper starts twice within one attempt finds what its first run published.
            own = checkpoints.newest_valid_in(self.checkpoint_dir)
            if own is not None:
                return own
        if self.resume_dir is None:
            return None
        # Inside Ebbtide the node has just compared the digests; every rank doing it again would delay the resume.
        return checkpoints.verify(self.resume_dir) if self.id is None else checkpoints.inspect(self.resume_dir)

    def _publish(self, save: Save, step: int, all_ranks: bool) -> None:
        if step < self._saved_step:
            raise ValueError(f"step {step} is below step {self._saved_step}, which this attempt has already saved")
        group = distributed.current()
        if group is not None and group.rank != 0:
            group.follow(lambda draft: save(self._here(draft)))
        elif group is not None:
            self._announce(group.lead(lambda write: self._write(write, step), save, all_ranks))
        elif self._env_rank == 0:
            self._announce(self._write(save, step))
        self._step = self._saved_step = step

    def _here(self, draft: Path) -> Path:
        """Rank 0's draft as this rank reaches it: another node may have the shared directory in another place."""
        return draft if self.checkpoint_dir is None else self.checkpoint_dir / draft.name

    def _write(self, save: Save, step: int) -> Checkpoint:
        if self.checkpoint_dir is None:
            raise ValueError("EBB_CHECKPOINT_DIR is not set")
        if self._saved_step < 0:
            self._make_room(self.checkpoint_dir)

        def write(directory: Path) -> None:
            self._require_space(directory)
            save(directory)

        job_id = self.id or "local"
        return checkpoints.publish(self.checkpoint_dir, step, write, job_id=job_id, attempt=self.attempt)

    def _make_room(self, attempt_dir: Path) -> None:
        """Remove what a killed save left behind, which may be all that the disk has no room for."""
        try:
            checkpoints.remove_drafts(attempt_dir)
        except OSError as error:
            sys.stderr.write(f"ebbtide: unfinished checkpoints were not removed: {error}\n")

    def _require_space(self, directory: Path) -> None:
        """Fail before filling a disk that others use, too: the next checkpoint will be about as large as the last."""
        expected = self._last.bytes if self._last else 0
        free = shutil.disk_usage(directory).free
        if free < expected:
            raise OSError(errno.ENOSPC, f"checkpoint needs about {expected} bytes, {free} are free", str(directory))

    def _announce(self, checkpoint: Checkpoint) -> None:
        self._remember(checkpoint)
        facts = {"step": checkpoint.step, "bytes": checkpoint.bytes, "path": str(checkpoint.path), "verified": True}
        channel.send(self._socket, {"kind": "checkpoint", "rank": 0, **facts})

    def _remember(self, checkpoint: Checkpoint) -> None:
        self._last = checkpoint
        self._trusted.add(checkpoint.path)

    def _retain(self) -> None:
        if self.checkpoint_dir is None:
            return
        try:
            checkpoints.retain(self.checkpoint_dir.parent, trusted=self._trusted)
        except OSError as error:  # the new checkpoint is safe; old ones that stay are no reason to stop training
            sys.stderr.write(f"ebbtide: old checkpoints were not removed: {error}\n")

    def _rank(self) -> int:
        group = distributed.current()
        return self._env_rank if group is None else group.rank


def _finite(loss: SupportsFloat | None) -> float | None:
    """The number, None where there is none or JSON has none for it (NaN, infinity)."""
    if loss is None:
        return None
    value = float(loss.item() if hasattr(loss, "item") else loss)  # float() of a tensor in training warns
    return value if math.isfinite(value) else None


def _detached(value: SupportsFloat) -> SupportsFloat:
    """`value`, without what a tensor in training keeps alive; its number is asked for only when it is sent."""
    return value.detach() if hasattr(value, "detach") else value


_job: Job | None = None


def job() -> Job:
    """This process's job, the same at every call; the first call, in the main thread, starts to catch the stop signal.

    A forked child gets its parent's job, which never asks it to suspend and sends no progress for it.
    """
    global _job
    if _job is None:
        _job = Job(Environment.read(os.environ))
    return _job
