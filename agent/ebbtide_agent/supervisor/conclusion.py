"""What is said of an attempt when no process of it is left."""

import os
import time
from contextlib import suppress
from pathlib import Path

from ebbtide import checkpoints

from ebbtide_agent import slurm
from ebbtide_agent.rights import rights_of
from ebbtide_agent.slurm.variables import steps_dir
from ebbtide_agent.supervisor import evidence, gpu_memory
from ebbtide_agent.supervisor.ending import LEADER
from ebbtide_agent.supervisor.evidence import Contents
from ebbtide_agent.supervisor.intent import Intent
from ebbtide_agent.supervisor.reports import Reports
from ebbtide_agent.supervisor.status import Checkpointed, Exit, Phase, PublishedCheckpoint, Status
from ebbtide_agent.supervisor.watch import Watch

# Exit codes of those who saved what they wanted to: see core's outcome.py, which reads all exits.
_LEAVING = frozenset({75, 85, 99, 143})


def conclude(intent: Intent, watch: Watch, reports: Reports, status: Status, output: Path) -> None:
    """Seal what the script wrote by itself, and complete the status. What it printed is in the file `output`."""
    ended_at, ended_monotonic = time.time(), time.monotonic()
    reports.drain()
    watch.note_checkpoint()
    watch.note_start()
    with rights_of(intent.account):
        sealed = _seal(intent, watch)
    status.phase = Phase.EXITED
    status.progress, status.checkpoint = reports.progress, reports.checkpoint
    if sealed is not None:
        status.checkpoint = PublishedCheckpoint(sealed.step, sealed.bytes, str(sealed.path), True)
    status.exit = _complete(watch, intent)
    if reports.requeue:
        status.exit.set_return_code(os.EX_TEMPFAIL)  # what a script says by itself that is to be run again
    if intent.slurm and intent.num_nodes > 1 and intent.node_rank == 0:
        with suppress(OSError), rights_of(intent.account):
            (steps_dir(intent) / slurm.END).touch()
    status.exit.ended_at = ended_at
    status.exit.asked, status.exit.acknowledged = reports.asked, reports.acknowledged
    status.exit.out_of_memory = bool(intent.gpus) and _failed(status.exit) and gpu_memory.ran_out(output)
    if status.exit.stop_requested:
        _judge_checkpoint(intent, watch, reports, status.exit, sealed, ended_monotonic)


def _failed(outcome: Exit) -> bool:
    """Whether it failed by itself."""
    succeeded = not outcome.signal and outcome.exit_code in (0, *_LEAVING)
    return not outcome.stop_requested and not succeeded


def _seal(intent: Intent, watch: Watch) -> checkpoints.Checkpoint | None:
    if intent.node_rank != 0:
        return None  # the directory is one for all nodes of the attempt, and it takes one to seal it
    if evidence.nothing_is_whole(intent.checkpoint_dir, watch.cut_short):
        return None
    complete = not watch.exit.killed and all(_left(watch, code) for code in watch.returncodes.values())
    cut_short = bool(watch.cut_short) or _failed_to_save(intent, watch)
    try:
        return checkpoints.seal(
            intent.checkpoint_dir,
            job_id=intent.job_id,
            attempt=intent.attempt,
            complete=complete and not cut_short,
            cut_short=cut_short,
        )
    except OSError:
        return None  # e.g. the disk is full: without its manifest nobody will resume from it


def _left(watch: Watch, returncode: int) -> bool:
    """Whether a launched process ended as it wanted to: many a handler ends with sending itself what it handled."""
    return returncode >= 0 or (watch.exit.caught and returncode == -watch.signum)


def _failed_to_save(intent: Intent, watch: Watch) -> bool:
    """Whether it wrote when it was asked to stop, and then failed, as for want of room on the disk.

    A launcher like torchrun ends like that, too, though its workers have saved: it is no more than a reason for doubt.
    """
    failed = any(code > 0 and code not in _LEAVING for code in watch.returncodes.values())
    return watch.exit.stop_requested and failed and Contents.of(intent.checkpoint_dir) != watch.contents_at_stop


def _complete(watch: Watch, intent: Intent) -> Exit:
    """A rank that failed speaks for the attempt: the leader ended only because it was stopped for that."""
    outcome = watch.exit
    failed_rank = watch.ending.failed_rank
    outcome.set_return_code(watch.returncodes[LEADER if failed_rank is None else failed_rank])
    outcome.failed_rank = 0 if failed_rank is None else intent.first_rank + failed_rank
    return outcome


def _judge_checkpoint(
    intent: Intent,
    watch: Watch,
    reports: Reports,
    outcome: Exit,
    sealed: checkpoints.Checkpoint | None,
    ended_at: float,
) -> None:
    requested_at = watch.ending.stop_requested_at
    assert requested_at is not None
    with rights_of(intent.account):
        outcome.checkpointed = evidence.judge(
            intent.checkpoint_dir,
            watch.contents_at_stop,
            sealed,
            cut_short=watch.cut_short,
            handled=outcome.caught,
            uses_sdk=reports.any,
        )
    if outcome.checkpointed is Checkpointed.YES:
        published_at = ended_at if watch.checkpoint_at is None else watch.checkpoint_at
        outcome.checkpoint_s = published_at - requested_at
