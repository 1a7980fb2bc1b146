"""Gives a script its own job: the script resumes, reports progress, checkpoints and suspends through it."""

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
from ebbtide.version import CONTRACT, VERSION

REPORT_EVERY_S = 0.2
MOST_METRICS = 32


@dataclass(frozen=True, slots=True)
class State:
    """A checkpoint to resume from: the directory that `save` once filled, and the number of steps done then.

    `step` is 0 if the checkpoint records none, because a script wrote it without this module. `attempt` is the attempt
    that wrote it.
    """

    path: Path
    step: int
    attempt: int


@dataclass(frozen=True, slots=True)
class LinkingSave:
    """A save that links what lies in `folder` already, and so needs no room where that is on the same file system."""

    link: Save
    folder: Path

    def __call__(self, directory: Path) -> object:
        return self.link(directory)


class Job:
    """This script's side of the job contract.

    Outside Ebbtide `id` is None, and nothing is reported or suspended; checkpoints work if EBB_CHECKPOINT_DIR is set.
    Attempts are counted from 1, and `array_index` is None unless the job is a task of an array. `gpu_count` is the
    number of GPUs that the job sees on this node, `gpu_share` its share of each, above 0 and at most 1, and
    `gpu_mem_bytes` the memory that is booked for it on each, or None. `grace_s` is the grace period in seconds,
    infinite outside Ebbtide. The attempt runs on `num_nodes` nodes, and this is number `node_rank`, from 0. Each
    directory may be None: the attempt writes its checkpoints into `checkpoint_dir`, `resume_dir` is the newest
    checkpoint of earlier attempts, and `output_dir` is the same at every attempt.
    """

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
            self._tell_version(environment.contract)
            self._tell_time("job")

    def load_checkpoint(self) -> State | None:
        """Return the newest valid checkpoint, or None at a fresh start.

        Raises InvalidCheckpoint if the checkpoint to resume from is damaged, and OSError if it cannot be read: a fresh
        start would silently repeat what may be days of work.
        """
        found = self._find_checkpoint()
        if found is None:
            return None
        self._remember(found)
        self._step = found.step or 0
        self._tell_time("loaded")
        return State(found.path, self._step, found.attempt)

    def checkpoint(self, save: Save, step: int, *, all_ranks: bool = False) -> None:
        """Publish a checkpoint at `step`, the number of steps done, and return to training.

        `save` gets the path of an empty directory to fill. Under torch.distributed this call is collective: `save` runs
        on rank 0, or with `all_ranks` on each rank (on one file system). Without EBB_CHECKPOINT_DIR it does nothing.

        Raises what `save` raises, OSError on a full disk, and CheckpointFailed if another rank failed; older
        checkpoints stay untouched then. Raises ValueError for a step below one that this attempt has saved, because the
        highest step counts as its newest checkpoint: count steps over the whole run, not from each epoch.
        """
        if self.checkpoint_dir is None:
            return
        self._publish(save, int(step), all_ranks)
        if self._rank() == 0:
            self._retain()

    def report(
        self, *, step: int, total: int | None = None, loss: SupportsFloat | None = None, **metrics: SupportsFloat
    ) -> None:
        """Report that `step` of `total` steps are done, with the loss at that step.

        Call it as often as you like: at most five reports a second are sent, by rank 0, and always that of the last
        step. Further metrics, like `accuracy=0.9`, at most 32, may be given at some steps only: each holds until it is
        given again. The call never waits for the supervisor, and raises nothing if the report does not get through.
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
        """Return the newest value of each metric; None for one that is not finite, such as a loss that has diverged."""
        numbers = {name: _finite(value) for name, value in islice(self._metrics.items(), MOST_METRICS)}
        if loss is not None and finite is None:
            numbers["loss"] = None
        return {"metrics": numbers} if numbers else {}

    def should_suspend(self) -> bool:
        """Return whether the job has been asked to stop; if so, checkpoint and leave within the grace period.

        Under torch.distributed this call is collective, one small reduction, so that every rank gets the same answer at
        the same step; all ranks must call it equally often. Returns False in forked children and outside Ebbtide.
        """
        if self.id is None or os.getpid() != self._pid:
            return False
        group = distributed.current()
        if not self._asked:
            self._asked = True
            self._tell_asked()
            self._connection.answer()
        if self._connection.is_asked_to_leave():
            self._stop.received = True  # never set to False here: the signal may come at any moment
        asked = self._stop.received
        return asked if group is None else group.any(asked)

    def catch_signal_again(self) -> None:
        """Catch the stop signal again after a library has replaced the job's handler with its own."""
        if self.id is not None and os.getpid() == self._pid:
            self._stop.catch_again(self._stop_signal)

    def suspend(self, save: Save | None = None, step: int | None = None, *, all_ranks: bool = False) -> None:
        """Publish a checkpoint, acknowledge the request, and leave by SystemExit(85); outside Ebbtide do nothing.

        `save` and `all_ranks` are those of `checkpoint`; without `save` the script has saved by itself. `step` is by
        default the one last reported or saved. Under torch.distributed this call is collective, and all ranks leave. If
        saving fails, the error is raised as in `checkpoint`, nothing is acknowledged, and older checkpoints stay.
        """
        if self.id is None:
            return
        if step is None:
            step = self._step
            if save is not None:
                self._warn_of_unknown_step(step)
        step = int(step)
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

    def _warn_of_unknown_step(self, step: int) -> None:
        """Say in the job's output that a checkpoint counts as `step` because this attempt has reported none."""
        if not self._begun and (step == 0 or self._saved_step >= 0) and self._rank() == 0:
            sys.stderr.write(
                f"ebbtide: this checkpoint counts as step {step}, because the script has reported no step; state.step "
                "is that after a resume. Call job.report(step=...), or job.suspend(save, step).\n"
            )

    def _tell_version(self, spoken: int) -> None:
        """Send the versions of this SDK, and of the contract, to a supervisor that names the one that it speaks."""
        if spoken > 0:
            versions = {"version": VERSION, "contract": CONTRACT}
            channel.send(self._socket, {"kind": "sdk", "rank": self._env_rank, **versions}, timeout_s=0)

    def _tell_time(self, what: str, **facts: int) -> None:
        """Send the time at which rank 0 has reached `what` on its way to its first step."""
        if self._rank() == 0:
            report = {"kind": "time", "rank": 0, "what": what, "at": time.time(), **facts}
            channel.send(self._socket, report, timeout_s=0)

    def _tell_start(self) -> None:
        """Send what the next attempt's process may import early; without it that process starts as this one did."""
        with suppress(OSError, ValueError):
            if facts := start.facts():
                channel.send(self._socket, {"kind": "start", **facts}, timeout_s=0)

    def _tell_asked(self) -> None:
        """Tell the supervisor that this job would acknowledge a suspension, because it asks whether it should suspend.

        A job that is asked to stop during its last step ends with exit code 0 and no acknowledgement. Without this
        message it would look like the many scripts that trap the signal, save and exit with 0, and be started again.
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
        """Return the path of rank 0's draft on this node, which may have the shared directory in another place."""
        return draft if self.checkpoint_dir is None else self.checkpoint_dir / draft.name

    def _write(self, save: Save, step: int) -> Checkpoint:
        if self.checkpoint_dir is None:
            raise ValueError("EBB_CHECKPOINT_DIR is not set")
        if self._saved_step < 0:
            self._make_room(self.checkpoint_dir)

        def write(directory: Path) -> None:
            if not (isinstance(save, LinkingSave) and save.folder.stat().st_dev == directory.stat().st_dev):
                self._require_space(directory)
            save(directory)

        job_id = self.id or "local"
        return checkpoints.publish(self.checkpoint_dir, step, write, job_id=job_id, attempt=self.attempt)

    def _make_room(self, attempt_dir: Path) -> None:
        """Remove what killed saves left behind, which may be the reason that the disk is full."""
        try:
            checkpoints.remove_drafts(attempt_dir)
        except OSError as error:
            sys.stderr.write(f"ebbtide: unfinished checkpoints were not removed: {error}\n")

    def _require_space(self, directory: Path) -> None:
        """Raise OSError before a save fills a disk that others use too: it will be about as large as the last one."""
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
    """Return the number, or None if there is none or JSON cannot express it (NaN, infinity)."""
    if loss is None:
        return None
    value = float(loss.item() if hasattr(loss, "item") else loss)  # float() of a tensor in training warns
    return value if math.isfinite(value) else None


def _detached(value: SupportsFloat) -> SupportsFloat:
    """Return `value` without the graph that a tensor in training keeps alive; the number is read only to be sent."""
    return value.detach() if hasattr(value, "detach") else value


_job: Job | None = None


def job() -> Job:
    """Return this process's job, the same object at every call.

    The first call installs the handler of the stop signal, so make it in the main thread; elsewhere it only warns.
    Raises ValueError if one of the variables `EBB_*` is malformed. A forked child gets its parent's job, which never
    asks the child to suspend and sends no progress for it.
    """
    global _job
    if _job is None:
        _job = Job(Environment.read(os.environ))
    return _job
