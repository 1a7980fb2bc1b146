"""What is said of an attempt when no process of it is left."""

import time

from ebbtide import checkpoints

from ebbtide_agent.supervisor import evidence
from ebbtide_agent.supervisor.ending import LEADER
from ebbtide_agent.supervisor.intent import Intent
from ebbtide_agent.supervisor.reports import Reports
from ebbtide_agent.supervisor.status import Checkpointed, Exit, Phase, PublishedCheckpoint, Status
from ebbtide_agent.supervisor.watch import Watch


def conclude(intent: Intent, watch: Watch, reports: Reports, status: Status) -> None:
    """Seal what the script wrote by itself, and complete the status."""
    ended_at, ended_monotonic = time.time(), time.monotonic()
    reports.drain()
    watch.note_checkpoint()
    sealed = _seal(intent, watch)
    status.phase = Phase.EXITED
    status.progress, status.checkpoint = reports.progress, reports.checkpoint
    if sealed is not None:
        status.checkpoint = PublishedCheckpoint(sealed.step, sealed.bytes, str(sealed.path), True)
    status.exit = _complete(watch, intent)
    status.exit.ended_at = ended_at
    status.exit.asked, status.exit.acknowledged = reports.asked, reports.acknowledged
    if status.exit.stop_requested:
        _judge_checkpoint(intent, watch, reports, status.exit, sealed is not None, ended_monotonic)


def _seal(intent: Intent, watch: Watch) -> checkpoints.Checkpoint | None:
    if intent.node_rank != 0:
        return None  # the directory is one for all nodes of the attempt, and it takes one to seal it
    ended_well = all(returncode >= 0 for returncode in watch.returncodes.values())
    complete = ended_well and not watch.swept
    try:
        return checkpoints.seal(intent.checkpoint_dir, job_id=intent.job_id, attempt=intent.attempt, complete=complete)
    except OSError:
        return None  # e.g. the disk is full: without its manifest nobody will resume from it


def _complete(watch: Watch, intent: Intent) -> Exit:
    """A rank that failed speaks for the attempt: the leader ended only because it was stopped for that."""
    outcome = watch.exit
    failed_rank = watch.ending.failed_rank
    outcome.set_return_code(watch.returncodes[LEADER if failed_rank is None else failed_rank])
    outcome.failed_rank = 0 if failed_rank is None else intent.first_rank + failed_rank
    return outcome


def _judge_checkpoint(
    intent: Intent, watch: Watch, reports: Reports, outcome: Exit, sealed: bool, ended_at: float
) -> None:
    requested_at = watch.ending.stop_requested_at
    assert requested_at is not None
    outcome.checkpointed = evidence.judge(
        intent.checkpoint_dir,
        watch.contents_at_stop,
        killed=watch.swept,
        handled=outcome.caught,
        uses_sdk=reports.any,
        sealed=sealed,
    )
    if outcome.checkpointed is Checkpointed.YES:
        published_at = ended_at if watch.checkpoint_at is None else watch.checkpoint_at
        outcome.checkpoint_s = published_at - requested_at
