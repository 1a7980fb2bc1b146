"""Events in words, for people who ask what happened."""

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.events.bookings import BookedGpu
from ebbtide_core.events.fencing import StrayKind
from ebbtide_core.job.edited_scripts import changed
from ebbtide_core.job.outcome import describe_exit
from ebbtide_core.lifecycle import unsaved_work, unused_sessions
from ebbtide_core.measuring.gpu_memory import gib, why_overran
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.types import WHOLE, NodeId, gpus
from ebbtide_core.policies.draft import count_text, where
from ebbtide_core.resources.bookings import reserved_for
from ebbtide_core.resources.foreign_processes import users_text


def narrate(event: Event) -> str:
    """One line that says what ``event`` was; jobs and nodes are named only where it is not about them."""
    return _about_job(event) if isinstance(event, e.JobEvent) else _about_cluster(event)


def _about_cluster(event: Event) -> str:
    match event:
        case e.MasterStarted():
            return f"master started (epoch {event.epoch})"
        case e.Quiesced():
            return "the cluster is going down: every attempt is asked to stop"
        case e.ConfigurationRead():
            return f"configuration read again{_by(event.user)}: {', '.join(event.sections)} changed"
        case e.BookingMade() | e.BookingMoved() | e.BookingCancelled():
            return _about_booking(event)
        case e.Unquiesced():
            return "jobs may start again"
        case e.SchedulingDue():
            return "time to look at everything again"
        case e.SilenceDoubted():
            silent = f"{len(event.nodes)} of {event.of} nodes"
            return f"{silent} fell silent together: the master may be the one that is cut off, and makes nothing of it"
        case e.SilenceBelieved():
            return f"nodes that are silent count as silent by themselves again{_by(event.user)}"
        case _:
            return _about_journal(event)


def _about_journal(event: Event) -> str:
    match event:
        case e.JobsForgotten() | e.RunForgotten() | e.RateForgotten():
            return "a job that is forgotten"
        case e.JournalCompacted():
            return f"{event.count} jobs that ended long ago were forgotten"
        case e.JournalRestored():
            return f"put back from a backup; {event.skipped} ids of jobs are skipped"
        case _:
            return _about_node(event)


def _about_removal(event: e.JobRetired | e.JobRemoved) -> str:
    if isinstance(event, e.JobRetired):
        return "forgotten: it ended long ago"
    return f"removed{_by(event.user)}, with its logs and checkpoints"


def _about_node(event: Event) -> str:
    match event:
        case e.NodeRegistered():
            pool = "" if event.pool == DEFAULT_POOL else f" in pool {event.pool}"
            return f"registered{pool} with {count_text_of(len(event.gpus))}, {event.cpus:g} CPUs{_marks(event)}"
        case e.NodeDrained():
            return f"taken out of service{_by(event.user)}{f': {event.reason}' if event.reason else ''}"
        case e.NodeResumed():
            return f"put into service again{_by(event.user)}"
        case e.NodeDisconnected():
            return "its connection broke; it may be back in a moment"
        case e.NodeLost():
            return f"has been silent for {event.silent_s:.0f} s; what runs there is not started elsewhere"
        case e.GpuHealthChanged():
            return f"GPU {event.gpu} {'is usable again' if event.healthy else f'is unusable: {event.reason}'}"
        case e.ForeignUseChanged(processes=()):
            return f"GPU {event.gpu} is used by no process but jobs' any more"
        case e.ForeignUseChanged():
            return f"GPU {event.gpu} is used by {users_text(event.processes)}, which belongs to no job"
        case _:
            return _about_fencing(event)


def _about_fencing(event: Event) -> str:
    match event:
        case e.NodeConfirmedDead():
            hook = " by the fence hook" if event.by_hook else ""
            return f"confirmed dead{hook or _by(event.user)}: nothing of what was there runs any more"
        case e.NodeRemoved():
            return f"removed{_by(event.user)}"
        case e.FenceFailed():
            return f"fence hook: {event.reason}; tried again in {event.again_s:.0f} s"
        case e.StrayFound(over=True):
            return f"attempt {event.attempt} was on node {event.node}, and this journal does not know it"
        case e.StrayFound():
            known = "this journal does not know it" if event.kind is StrayKind.UNKNOWN else "it counts as over"
            fate = "set aside" if event.kind is StrayKind.UNKNOWN else "it is ended"
            orphan = ", whose agent lost all that it knew of it" if event.orphan else ""
            return f"attempt {event.attempt} is on node {event.node}{orphan}, and {known}: {fate}"
        case e.StrayGone():
            return f"nothing is left on node {event.node} of attempt {event.attempt}, which was set aside"
        case e.StrayEndRequested():
            what = f"attempt {event.attempt}, set aside on node {event.node},"
            return f"{what} is to end within {event.grace_s:g} s{_by(event.user)}"
        case e.AttemptOrphaned():
            what = f"attempt {event.attempt} has processes on node {event.node}, and its directory there is gone"
            return f"{what}: how it ends cannot be told"
        case _:
            return type(event).__name__


def _about_job(event: e.JobEvent) -> str:
    match event:
        case e.JobSubmitted():
            return _about_submit(event)
        case e.SuspendRequested():
            return f"user asked to suspend it{_until_then(event.waited)}"
        case e.ResumeRequested():
            return "user asked to resume it"
        case e.ResizeRequested():
            return f"user asked for {count_range(event.gpus_min, event.gpus_max)}"
        case e.DrillRequested():
            return "user asked for a drill: to step aside and come back at once"
        case e.JobChanged() | e.JobMoved():
            return f"{_changes(event)}{_by(event.user)}"
        case e.CancelRequested():
            return f"user asked to cancel it{' at once' if event.now else ''}{_until_then(event.waited)}"
        case e.RungReached():
            value = "no number" if event.value is None else f"{event.value:.6g}"
            return f"reached the rung at {event.steps} steps with {value}"
        case e.JobHeld() | e.DependencyFailed() | e.TaskPromoted() | e.TaskStopped():
            return event.reason
        case e.HoldRequested() | e.ReleaseRequested() | e.RequeueRequested() | e.JobRequeued() | e.ArrayChanged():
            return _about_queue(event)
        case e.JobRetired() | e.JobRemoved():
            return _about_removal(event)
        case _:
            return _about_attempt(event)


def _about_booking(event: e.BookingMade | e.BookingMoved | e.BookingCancelled) -> str:
    match event:
        case e.BookingMade():
            made = f"by {event.by}: " if event.by not in ("", event.user) else ""
            note = f" ({event.note})" if event.note else ""
            return f"{made}{_booked(event.gpus)} {reserved_for(event)}{note}"
        case e.BookingMoved():
            return f"reservation {event.booking} moved to {_booked(event.gpus)}: {event.reason}"
        case e.BookingCancelled():
            return f"reservation {event.booking} cancelled by {event.by or 'user'}"


def _booked(gpus: tuple[BookedGpu, ...]) -> str:
    nodes = list(dict.fromkeys(booked.node for booked in gpus))
    return f"{count_text_of(len(gpus))} of node {', '.join(nodes)}"


def _about_submit(event: e.JobSubmitted) -> str:
    kind = "trial-and-error" if event.spec.job_class.value == "te" else "best-effort"
    nodes = f" on {event.spec.nodes} nodes" if event.spec.nodes > 1 else ""
    nodes = f" on {event.spec.max_nodes} nodes or fewer" if event.spec.spread else nodes
    again = f", again after job {event.again_of}" if event.again_of is not None else ""
    size = count_range(event.spec.gpus_min, event.spec.gpus_max)
    return f"submitted by {event.user}: {kind}, {size}{nodes}{_gates(event)}{again}"


def _about_queue(
    event: e.HoldRequested | e.ReleaseRequested | e.RequeueRequested | e.JobRequeued | e.ArrayChanged,
) -> str:
    match event:
        case e.HoldRequested():
            return f"held by user{_until_then(event.waited)}"
        case e.ReleaseRequested():
            return "released by user"
        case e.RequeueRequested():
            return "user asked for it to go back to the queue"
        case e.JobRequeued():
            return f"submitted again, as job {event.again_as}"
        case e.ArrayChanged():
            return f"{_limits(event)}{_by(event.user)}"


def _gates(event: e.JobSubmitted) -> str:
    """What it was told to wait for."""
    task, spec = event.task, event.spec
    array = f", task {task.index} of array {task.array}" if task is not None else ""
    return array + "".join(f", after {dependency}" for dependency in spec.after)


def _limits(event: e.ArrayChanged) -> str:
    old, new = gpus(event.old_slots), gpus(event.max_slots)
    changes = (("jobs", event.old_concurrent, event.max_concurrent), ("GPUs", old, new))
    words = [
        f"{what} at a time {before or 'all'} → {after or 'all'}" for what, before, after in changes if before != after
    ]
    return ", ".join(words) or "nothing changed"


def _by(user: str) -> str:
    return f" by {user}" if user else ""


def _marks(event: e.NodeRegistered) -> str:
    labels = ", ".join(f"{key}={value}" for key, value in sorted(event.labels.items()))
    taints = f", tainted {', '.join(event.taints)}" if event.taints else ""
    return f"{f', {labels}' if labels else ''}{taints}"


def _changes(event: e.JobChanged | e.JobMoved) -> str:
    if isinstance(event, e.JobMoved):
        return f"pool {event.old_pool} → {event.pool}"
    changes = (("priority", event.old_priority, event.priority), ("weight", event.old_weight, event.weight))
    words = [f"{what} {old:g} → {new:g}" for what, old, new in changes if old != new]
    return ", ".join(words) or "nothing changed"


def _about_attempt(event: Event) -> str:
    match event:
        case e.AttemptPlaced():
            # What was decided beside the place, such as a reservation, follows the semicolon of the reason.
            _, semicolon, more = event.reason.partition(";")
            placed = f"attempt {event.attempt} placed on {where(event.allocation)}{semicolon}{more}"
            return placed + _until_then(event.waited)
        case e.AttemptStarted():
            came_from = "" if event.resumed_step is None else f", resuming from step {event.resumed_step}"
            again = " again" if event.swaps else ""
            edited = f"; {changed(event.edited)}" if event.edited else ""
            return f"attempt {event.attempt} runs{again} as process {event.pid}{_on(event.node)}{came_from}{edited}"
        case e.StopRequested():
            return f"attempt {event.attempt} asked to stop within {event.grace_s:g} s: {event.reason}"
        case e.FirstStepMade() | e.WorkResumed() | e.WorkUnsaved() | e.RateMeasured() | e.InterferenceFound():
            return _about_steps(event)
        case e.CheckpointPublished():
            step = "" if event.checkpoint.step is None else f" of step {event.checkpoint.step}"
            return f"checkpoint{step} published ({event.checkpoint.bytes} bytes)"
        case e.ProgressReported():
            return f"at step {event.progress.step}"
        case e.AttemptExited():
            free = "; what it held is free" if event.freed else ""
            exit = event.exit
            why = f" ({exit.mps_failure})" if exit.mps_failure else ", out of GPU memory" if exit.out_of_memory else ""
            return f"attempt {event.attempt} ended{_on(event.node)}: {describe_exit(exit)}{why}{free}"
        case e.AttemptFreed():
            dirty = "".join([f"; not {gpu}: {event.why_dirty(gpu)}" for gpu in event.dirty_gpus])
            return f"what attempt {event.attempt} held{_on(event.node)} is free{dirty}"
        case e.AttemptRefused():
            return f"attempt {event.attempt} was not started{_on(event.node)}: {event.reason}"
        case e.RoomClaimed():
            return f"{where(event.allocation)} kept for it: {event.reason}{_until_then(event.waited)}"
        case e.ClaimDropped():
            return f"gave up the room kept for it: {event.reason}"
        case _:
            return _about_swap(event)


def _until_then(waited: str) -> str:
    """Why it had waited, if it had to."""
    return f" (until then: {waited})" if waited else ""


def _about_steps(event: e.FirstStepMade | e.WorkResumed | e.WorkUnsaved | e.RateMeasured | e.InterferenceFound) -> str:
    match event:
        case e.WorkUnsaved():
            return f"attempt {event.attempt} has left; {unsaved_work.in_words(event)}"
        case e.WorkResumed():
            return f"attempt {event.attempt} is at work again: step {event.step}"
        case e.RateMeasured():
            beside, s = "alone" if event.alone else "beside others", "" if event.samples == 1 else "s"
            speed = f"{event.steps_per_s:.4g} steps/s on {count_text(event.share)}, {beside}"
            return f"attempt {event.attempt} makes {speed} ({event.samples} window{s})"
        case e.InterferenceFound():
            others, speeds = ", ".join(event.others), " + ".join(f"{speed:.2f}" for speed in event.speeds)
            return f"disturbed beside job {others} on GPU {event.gpu}: {speeds} of their speeds alone"
        case e.FirstStepMade():
            return _about_first_step(event)


def _about_first_step(event: e.FirstStepMade) -> str:
    warm = ", held ready before" if event.start.warm else ""
    seconds = event.start.import_s + (event.start.load_s or 0.0) + event.start.step_s
    return f"attempt {event.attempt} made its first step after {seconds:.1f} s{warm}"


def _about_swap(event: Event) -> str:
    match event:
        case e.AttemptSwapped(note=""):
            amount = f"{event.mem_bytes / 2**30:.1f} GiB"
            return f"attempt {event.attempt} left its GPU: {amount} moved to host memory in {event.seconds:.1f} s"
        case e.AttemptSwapped():
            return f"attempt {event.attempt} could not come back to its GPU: {event.note}"
        case e.ReturnRequested():
            return f"attempt {event.attempt} is {event.reason}{_until_then(event.waited)}"
        case e.MemoryOverran() | e.GpuMemoryChanged():
            return _about_memory(event)
        case e.JobIdle():
            warning = "" if event.suspend_at is None else "; it is suspended unless it soon does"
            return f"attempt {event.attempt} does not use its GPUs{warning}"
        case e.JobBusy():
            return f"attempt {event.attempt} uses its GPUs again"
        case e.LogMatched():
            return f"attempt {event.attempt} printed {event.match.line!r} ({event.match.action.value}){_on(event.node)}"
        case e.GpusExcluded():
            return f"not to run on GPU {', '.join(event.gpus)} again{_on(event.node)}: {event.reason}"
        case e.SessionUnused():
            return unused_sessions.why(event)
        case e.NodeExcluded():
            return f"not to run on node {event.node} any more: {event.reason}"
        case _:
            return type(event).__name__


def _about_memory(event: e.MemoryOverran | e.GpuMemoryChanged) -> str:
    if isinstance(event, e.MemoryOverran):
        return f"attempt {event.attempt} {why_overran(event)} (GPU {event.gpu})"
    alone = " and a GPU of its own" if event.gpus_min >= WHOLE else ""
    return f"needs {gib(event.mem_bytes)} of GPU memory{alone}: {event.reason}"


def _on(node: NodeId) -> str:
    return f" on node {node}" if node else ""


def count_text_of(gpu_count: int) -> str:
    """A number of GPUs that a node has, in words."""
    return f"{gpu_count} GPU{'' if gpu_count == 1 else 's'}"


def count_range(low: int, high: int) -> str:
    """A range of GPU counts in words."""
    return count_text(low) if low == high else f"{count_text(low)} to {count_text(high)}"
