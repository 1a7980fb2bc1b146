"""Complete the status of an attempt when none of its processes is left."""

import os
import signal
import time
from contextlib import suppress

from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.supervisor import gpu_memory
from ebbtide_agent.supervisor.leaving.ending import LEADER, LEAVING, is_failure
from ebbtide_agent.supervisor.reports import Reports
from ebbtide_agent.supervisor.sealing import settling
from ebbtide_agent.supervisor.sealing.evidence import StopConduct
from ebbtide_agent.supervisor.sealing.settling import LeftFiles, SavedState
from ebbtide_agent.supervisor.status import Exit, Phase, Status, WireCheckpointed
from ebbtide_agent.supervisor.watch import Watch


def conclude(intent: Intent, watch: Watch, reports: Reports, status: Status, place: AttemptDir) -> None:
    """Seal what the script wrote without the SDK, and complete the status."""
    ended_at, ended_monotonic = time.time(), time.monotonic()
    reports.drain()
    watch.relay.note_checkpoint()
    watch.relay.note_start()
    _note_overdue(watch, place)
    settled = _settled(intent, watch, reports, place)
    status.phase = Phase.EXITED
    status.progress, status.checkpoint, status.sdk = reports.progress, reports.checkpoint, reports.sdk
    if settled.checkpoint is not None:
        status.checkpoint = settled.checkpoint
    status.exit = _complete(watch, intent)
    if reports.requeue:
        status.exit.set_return_code(os.EX_TEMPFAIL)  # the exit code of a script that asks to be run again
    status.exit.ended_at = ended_at
    status.exit.asked, status.exit.acknowledged = reports.asked, reports.acknowledged
    known = status.exit.memory_failure or status.exit.input_failure
    may_be_gpu = bool(intent.gpus) and _failed(status.exit) and not known
    status.exit.out_of_memory = may_be_gpu and gpu_memory.ran_out(place.output)
    if status.exit.stop_requested:
        _note_checkpointed(watch, status.exit, settled.checkpointed, ended_monotonic)


def _note_overdue(watch: Watch, place: AttemptDir) -> None:
    """Note that the agent killed processes which this process did not end in time; that is no failure of the job."""
    with suppress(OSError, ValueError):
        fenced = place.killed_overdue()
        if fenced is not None and -signal.SIGKILL in watch.returncodes.values():
            watch.note_killed_by_agent(fenced)


def _settled(intent: Intent, watch: Watch, reports: Reports, place: AttemptDir) -> SavedState:
    """Return what a process with the user's rights finds and does in the checkpoint directory, if it answers."""
    with suppress(OSError, ValueError):
        watch.leaving.cut_short |= place.cut_short()  # when the agent killed what this process did not
    remains = LeftFiles(
        intent.attempt,
        complete=not watch.exit.killed and all(_left(watch, code) for code in watch.returncodes.values()),
        doubtful=watch.exit.stop_requested and _failed_to_leave(watch),
        cut_short=tuple(sorted(watch.leaving.cut_short)),
    )
    conduct = StopConduct(watch.exit.caught, watch.leaving.failed_to_save(), reports.vouches, reports.publishes)
    ends_steps = intent.slurm and intent.num_nodes > 1 and intent.node_rank == 0
    settled = SavedState(unsealed=True)
    with suppress(OSError, LookupError, TypeError, ValueError):
        found = watch.answer_to(settling.settle, intent, remains, watch.look.contents, conduct, ends_steps)
        if not isinstance(found, NoAnswer):
            settled = SavedState.from_json(found)
    if settled.unsealed:
        with suppress(OSError):
            settling.note(intent, remains)
    return settled


def _failed(outcome: Exit) -> bool:
    """Return whether the attempt failed, and was not asked to stop."""
    succeeded = not outcome.signal and outcome.exit_code in (0, *LEAVING)
    return not outcome.stop_requested and not succeeded


def _left(watch: Watch, returncode: int) -> bool:
    """Return whether a launched process ended as it intended: many handlers send themselves the stop signal."""
    return returncode >= 0 or (watch.exit.caught and returncode == -watch.signum)


def _failed_to_leave(watch: Watch) -> bool:
    """Return whether a launched process failed while it left, for example because the disk was full.

    A launcher like torchrun also ends like that after its workers have saved, so this is only a reason for doubt.
    """
    return any(is_failure(code) for code in watch.returncodes.values())


def _complete(watch: Watch, intent: Intent) -> Exit:
    """Set the return code and the failed rank, which counts before the leader: that was stopped because of it."""
    outcome = watch.exit
    failed_rank = watch.ending.failed_rank
    outcome.set_return_code(watch.returncodes[LEADER if failed_rank is None else failed_rank])
    outcome.failed_rank = 0 if failed_rank is None else intent.first_rank + failed_rank
    return outcome


def _note_checkpointed(watch: Watch, outcome: Exit, checkpointed: WireCheckpointed, ended_at: float) -> None:
    requested_at = watch.ending.stop_requested_at
    assert requested_at is not None
    outcome.checkpointed = checkpointed
    if checkpointed is WireCheckpointed.YES:
        published_at = ended_at if watch.relay.checkpoint_at is None else watch.relay.checkpoint_at
        outcome.checkpoint_s = published_at - requested_at
