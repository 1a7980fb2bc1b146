"""The cluster: one object, one way in.

``handle(event, now)`` takes a fact and returns what the world is asked to do. Whoever drives it, the live master from
its queue or a simulator from its heap, gets the same decisions for the same facts.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.commands import Command, Forget, Record, WakeAt
from ebbtide_core.estimates.work import LINEAR, Speedup
from ebbtide_core.events import EVENT_TYPES, Event
from ebbtide_core.job import gang
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle import idling, pool_membership, removing, submission_checks, unreadable_jobs
from ebbtide_core.lifecycle.forgetting import unknown_job
from ebbtide_core.lifecycle.requeuing import given_up
from ebbtide_core.lifecycle.successive_halving import review
from ebbtide_core.measuring import interference
from ebbtide_core.model import limits
from ebbtide_core.model.constraints import NO_NEEDS
from ebbtide_core.model.refusals import Refusal as Refusal
from ebbtide_core.model.refusals import RefusalKind as RefusalKind
from ebbtide_core.model.settings import DEFAULT_POOL, Settings
from ebbtide_core.model.sizes import compared, size_text
from ebbtide_core.model.spec import JobSpec, SpecError, check_gpu_range, check_standing, validate
from ebbtide_core.model.types import WHOLE, JobId, JobState, StopCause, SuspendMode, gpus
from ebbtide_core.nodes import booking_placement, draining, quiescing, silence, strays
from ebbtide_core.policies.policy import Policy
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.reconcile import reconcile, settle_claims, stop
from ebbtide_core.resources.books import Books
from ebbtide_core.resources.infeasible import unmet
from ebbtide_core.resources.pools import PoolState
from ebbtide_core.resources.topology import together
from ebbtide_core.snapshot import Snapshot
from ebbtide_core.state import ClusterState
from ebbtide_core.transitions.fences import FENCES
from ebbtide_core.transitions.fold import HANDLERS, apply
from ebbtide_core.transitions.react import COMMANDS, DECISIONS

RULES: Final = {
    kind: (FENCES.get(kind), HANDLERS.get(kind), COMMANDS.get(kind), DECISIONS.get(kind))
    for kind in EVENT_TYPES.values()
}
"""For each event: whether it is news, what it changes, what the world is asked to do, and which decisions follow."""
DEFAULTS: Final = Settings()
ROUNDING_S: Final = 1e-6
"""Sums of Unix times are off by less than this: at the very end of its time, a job may seem to have run shorter."""

GIVEN_UP_AT_ONCE: Final = 100
"""Jobs that can never start; the others follow at once, but others have their turn before."""


class InvariantError(AssertionError):
    """The cluster's own books are wrong: a bug that must not go on unseen."""


class Cluster:
    """Jobs, nodes and policies; see the module. ``trusting``: see `ebbtide_core.state.ClusterState`.

    ``policy`` is that of the pool `DEFAULT_POOL`; those of the others are as ``settings`` say.
    """

    def __init__(
        self, policy: Policy, speedup: Speedup = LINEAR, *, trusting: bool = False, settings: Settings = DEFAULTS
    ) -> None:
        self.policy = policy
        others = {name: create_policy(pool.policy, pool.options) for name, pool in settings.pools.items()}
        self.policies: dict[str, Policy] = {**others, DEFAULT_POOL: policy}
        queues = {name: known.queue() for name, known in self.policies.items()}
        self.state = ClusterState(queues, speedup, settings, trusting=trusting)
        for name, known in self.policies.items():
            pool = self.state.pools[name]
            pool.ranking = known.ranking(pool)
        self._wake_at: float | None = None
        self._doomed = self.state.gates.doomed
        self._valid: JobSpec | None = None  # the tasks of an array have one spec

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in ``event`` at Unix time ``now``; return what is asked of the world, in order.

        Raises `InvariantError` or `InvalidTransitionError` if the books went wrong.
        """
        out: list[Command] = []
        if type(event) is e.SchedulingDue:
            self._schedule(now, out)
        else:
            self._take(event, now, out)
        if self._doomed:
            self._decide(islice(given_up(self.state), GIVEN_UP_AT_ONCE), now, out)
        if self.state.leaving:
            self._decide(quiescing.ask_some(self.state), now, out)
        if self._doomed or self.state.goes_on:
            self._wake_by(now, now, out)
        if (time := self.state.next_time()) is not None:
            self._wake_by(time, now, out)
        if self.state.problems:
            raise InvariantError("; ".join(self.state.problems))
        return out

    def replay(self, event: Event, now: float) -> None:
        """Take in an event of the journal again: only the state changes."""
        apply(self.state, event, now)

    def reconfigure(self, settings: Settings, now: float) -> None:
        """Go by other ``settings`` from now on, of the same pools; as a restart with them would, but for who has what.

        It is no fact: settings are no part of the state, and a replay goes by those of its own time.
        """
        self.state.settings = settings
        self.state.change_quotas(settings.quotas, now)
        self.state.look_again()

    def refusal(self, event: Event) -> Refusal | None:
        """Why a user's wish cannot be granted, or None. Asked before the wish becomes a fact."""
        if isinstance(event, e.JobSubmitted):
            return self._refuse_submit(event)
        if isinstance(event, e.NodeEvent | e.SilenceBelieved | e.JobRemoved):
            return _refuse_upkeep(self.state, event)
        if isinstance(event, e.ArrayChanged):
            return self._refuse_limits(event)
        if not isinstance(
            event,
            e.SuspendRequested
            | e.ResumeRequested
            | e.ResizeRequested
            | e.JobChanged
            | e.JobMoved
            | e.DrillRequested
            | e.RequeueRequested
            | e.CancelRequested
            | e.HoldRequested
            | e.ReleaseRequested,
        ):
            return None
        job = self.state.jobs.get(event.job)
        if job is None:
            return Refusal(RefusalKind.UNKNOWN, unknown_job(self.state, event.job))
        if job.state.finished:
            return Refusal(RefusalKind.CONFLICT, f"job {job.id} is {job.state.value} already")
        if job.state is JobState.STOPPING and not isinstance(event, e.CancelRequested):
            return Refusal(RefusalKind.CONFLICT, f"job {job.id} is being ended: {job.reason}")
        if (refusal := unreadable_jobs.refusal(self.state, event) or _refuse_stop(job, event)) is not None:
            return refusal
        if isinstance(event, e.ResizeRequested):
            return self._refuse_resize(job, event)
        if isinstance(event, e.JobChanged):
            return _refuse_change(event)
        if isinstance(event, e.JobMoved):
            return pool_membership.refuse_move(self.state, job, event.pool) or self._refuse_room(job, event.pool)
        return strays.refuse_start(self.state, job, event)

    def story(self, job: JobId) -> list[tuple[float, Event]]:
        """The last events of a job, oldest first; the journal has all of them."""
        return list(self.state.jobs[job].story)

    def job(self, job: JobId) -> Job | None:
        """The job of that id; not to be changed."""
        return self.state.jobs.get(job)

    # --- the parts of handle ---

    def _take(self, event: Event, now: float, out: list[Command]) -> None:
        """Apply ``event`` and all that follows from it."""
        state = self.state
        fence, handler, commands, decisions = RULES[type(event)]
        if fence is not None and not fence(state, event):
            out.extend(self._forget_old(event))
            return
        if handler is not None:
            handler(state, event, now)
        if event.durable:
            out.append(Record(event))
        if commands is not None:
            out.extend(commands(state, event))
        if decisions is not None:
            for decision in decisions(state, event):
                self._take(decision, now, out)

    def _decide(self, events: Iterable[Event], now: float, out: list[Command]) -> None:
        for event in events:
            self._take(event, now, out)

    def _forget_old(self, event: Event) -> Iterator[Command]:
        """A node that reports the end of an attempt once more has not heard that it may forget it."""
        match event:
            case e.AttemptExited(freed=True) | e.AttemptFreed() | e.AttemptRefused():
                job = self.state.jobs.get(event.job)
                if job is not None and 0 < event.attempt <= len(job.attempts):
                    attempt = job.attempts[event.attempt - 1]
                    if attempt.freed is not None:
                        yield Forget(attempt.allocation.node_ids, job.id, attempt.number)
            case _:
                pass

    def _schedule(self, now: float, out: list[Command]) -> None:
        """One scheduling pass.

        1. End what has run out of time.  2. Wait for the nodes that a restarted master has not heard yet.
        3. Do the rest for each pool in which something changed, or whose policy asked for it; the only one every time.
        """
        state = self.state
        if state.goes_on:
            state.go_on(now)
        if state.is_due(now):
            self._end_times(now, out)
        if state.leasing:
            self._decide(silence.over_leases(state, now), now, out)
        if state.bookings or state.shut_out:
            self._review_bookings(now, out)
        if state.quiesced or state.awaited or state.unheard:
            return
        if state.sweeps_changed:
            self._decide(review(state), now, out)
        if state.aside:
            interference.review(state, now)
        alone = len(state.pools) == 1
        for pool in state.pools.values():
            if alone or pool.changed or (pool.recheck_at is not None and pool.recheck_at <= now):
                self._schedule_pool(pool, now, out)
                pool.changed = False
        times = [pool.recheck_at for pool in state.pools.values() if pool.recheck_at is not None]
        if times:
            self._wake_by(min(times), now, out)

    def _review_bookings(self, now: float, out: list[Command]) -> None:
        """Have those leave who are in the way of bookings, and stand in line who is not kept out by them."""
        self._decide(booking_placement.review(self.state, now), now, out)
        booking_placement.shut_out(self.state, now)
        self.state.look_again()
        if (time := booking_placement.next_time(self.state, now)) is not None:
            self._wake_by(time, now, out)

    def _schedule_pool(self, pool: PoolState, now: float, out: list[Command]) -> None:
        """The pass over one pool.

        1. Start those whose claimed room is free.  2. Ask the policy, unless there is nothing that it could do.
        3. Do what follows from its plan.
        """
        pool.recheck_at = None
        if pool.settings is None:
            self._decide(pool_membership.stranded(pool), now, out)
            return
        if pool.claims:
            self._decide(settle_claims(pool), now, out)
        else:
            pool.roomier.clear()
        if pool.books.booked is not None:
            self._decide(booking_placement.admit(self.state, pool), now, out)
        if not (pool.queue or pool.elastic or pool.resizing or pool.claims):
            return
        plan = self.policies[pool.name].plan(Snapshot(pool, now))
        self._decide(reconcile(pool, plan), now, out)
        for id, reason in plan.waits.items():
            pool.jobs[id].reason = reason
        pool.recheck_at = plan.recheck_at

    def _end_times(self, now: float, out: list[Command]) -> None:
        """Do what is due by itself."""
        state = self.state
        state.end_delays(now)
        state.overdue = False
        if state.is_anybody_apart:
            state.end_apartness(now)
        if state.draining:
            self._decide(draining.leave(state, now, now + ROUNDING_S), now, out)
        for job in state.due_deadlines(now):
            ran_s, reserved_s = job.running_s(now) + ROUNDING_S, job.attempts[-1].reserved_s
            if job.spec.time_limit_s is not None and ran_s >= job.spec.time_limit_s:
                reason = f"time limit of {job.spec.time_limit_s:g} s reached"
                self._take(stop(job, StopCause.TIME_LIMIT, reason), now, out)
            elif reserved_s is not None and ran_s >= reserved_s:
                reason = f"its reservation of {reserved_s:g} s is over; it asks for the next"
                self._take(stop(job, StopCause.RESERVATION, reason), now, out)
            elif gang.followed_late(job.attempts[-1], now + ROUNDING_S):
                reason = "its first node is done, and the others did not follow"
                self._take(stop(job, StopCause.BROKEN, reason, grace_s=limits.GANG_GRACE_S), now, out)
            elif idling.is_due(job.attempts[-1], now + ROUNDING_S):
                self._decide(idling.suspend(job, now), now, out)
        if state.awaited and now >= state.recovery_ends:
            state.awaited.clear()

    def _wake_by(self, time: float, now: float, out: list[Command]) -> None:
        """Ask to be woken at ``time`` unless that was asked for already."""
        if self._wake_at is None or self._wake_at <= now or time < self._wake_at:
            self._wake_at = time
            out.append(WakeAt(time))

    # --- refusals ---

    def _refuse_submit(self, event: e.JobSubmitted) -> Refusal | None:
        try:
            if event.spec is not self._valid:
                validate(event.spec)
                self._valid = event.spec
            submission_checks.check_submit(self.state, event)
        except SpecError as error:
            return Refusal(RefusalKind.INVALID, str(error))
        except submission_checks.FullError as error:
            return Refusal(RefusalKind.LIMIT, str(error))
        if event.task is not None and event.task.array in self.state.gates.arrays:
            return None  # with the first task, all were looked at: they are accepted together
        pool = event.spec.pool or DEFAULT_POOL
        unknown = pool_membership.refuse_unknown(pool, self.state.settings.pools)
        return unknown or self.impossible(event.spec, pool=pool)

    def _refuse_limits(self, event: e.ArrayChanged) -> Refusal | None:
        if event.job not in self.state.gates.arrays:
            return Refusal(RefusalKind.UNKNOWN, f"array {event.job} does not exist")
        try:
            submission_checks.check_limits(self.state, event)
        except SpecError as error:
            return Refusal(RefusalKind.INVALID, str(error))
        return None

    def _refuse_resize(self, job: Job, event: e.ResizeRequested) -> Refusal | None:
        try:
            check_gpu_range(event.gpus_min, event.gpus_max, job.spec.nodes)
            submission_checks.check_resize(job, event.gpus_min)
        except SpecError as error:
            return Refusal(RefusalKind.INVALID, str(error))
        except submission_checks.FullError as error:
            return Refusal(RefusalKind.LIMIT, str(error))
        if (event.gpus_min == 0) != (job.gpus_min == 0):
            return Refusal(RefusalKind.INVALID, "--gpus: a job cannot change between GPUs and no GPUs")
        if job.spec.suspend is SuspendMode.SWAP:
            return Refusal(RefusalKind.CONFLICT, f"job {job.id} was submitted with --suspend swap: it keeps its size")
        return self.impossible(job.spec, event.gpus_min, job.pool)

    def _refuse_room(self, job: Job, pool: str) -> Refusal | None:
        return self.impossible(job.spec, job.gpus_min, pool)

    def impossible(self, spec: JobSpec, gpus_min: int | None = None, pool: str = DEFAULT_POOL) -> Refusal | None:
        """Refuse what no node that ever registered could run, idle as it might be; with none registered, wait."""
        share = spec.gpus_min if gpus_min is None else gpus_min
        books = self.state.pools[pool].books
        most = books.most
        if not most.gpus:
            return None
        message = ""
        if spec.nodes > 1 and (fitting := most.nodes_with(each := share // spec.nodes)) < spec.nodes:
            what = f" with {gpus(each)} GPU{'s' if each > WHOLE else ''} each" if each else ""
            message = f"--nodes: {spec.nodes} nodes{what} are more than the {fitting} there are"
        elif share > most.gpus[0] * WHOLE and share > (count := most.gpus_of(spec.most_nodes)) * WHOLE:
            where = "the largest node" if spec.most_nodes == 1 else f"the {spec.most_nodes} largest nodes"
            message = f"--gpus: {gpus(share)} is more than the {count} of {where}"
        elif share and spec.gpu_mem_bytes > most.gpu_mem_bytes:
            asked, largest = compared(spec.gpu_mem_bytes, most.gpu_mem_bytes)
            message = f"--gpu-mem: {asked} is more than any GPU's {largest}"
        elif spec.gpu_mem_bytes and share > (count := _with_memory(books, spec)) * WHOLE:
            large = f"{gpus(share)} GPUs with {size_text(spec.gpu_mem_bytes)} each"
            where = "that one node has" if spec.most_nodes == 1 else f"of {spec.most_nodes} nodes"
            message = f"--gpu-mem: {large} are more than the {count} {where}"
        elif spec.cpus > most.cpus:
            message = f"--cpus: {spec.cpus:g} is more than the {most.cpus:g} of the largest node"
        elif spec.mem_bytes > most.mem_bytes:
            asked, largest = compared(spec.mem_bytes, most.mem_bytes)
            message = f"--mem: {asked} is more than any node's {largest}"
        elif not (most.alike and (spec.needs is NO_NEEDS or spec.needs == NO_NEEDS)):
            message = _unmet(books, spec, share)
        return Refusal(RefusalKind.INVALID, message + self.state.pools[pool].where) if message else None


def _unmet(books: Books, spec: JobSpec, share: int) -> str:
    """As `unmet`, which looks at every GPU: once for all jobs that are alike in that, until a node changes."""
    size = (share, spec.gpu_mem_bytes, spec.cpus, spec.mem_bytes, spec.nodes, spec.max_nodes)
    return books.remember((spec.needs, size), lambda: unmet(spec, share, books.nodes.values()))


def _refuse_upkeep(state: ClusterState, event: e.NodeEvent | e.SilenceBelieved | e.JobRemoved) -> Refusal | None:
    match event:
        case e.JobRemoved():
            return removing.refuse_job(state, event.job)
        case e.NodeDrained() | e.NodeResumed() if event.node not in state.nodes:
            return Refusal(RefusalKind.UNKNOWN, f"node {event.node} does not exist")
        case e.NodeConfirmedDead():
            return silence.refuse_dead(state, event)
        case e.NodeRemoved():
            return removing.refuse_node(state, event.node)
        case e.StrayEndRequested():
            return strays.refuse_end(state, event)
        case e.SilenceBelieved():
            return silence.refuse_belief(state, event)
        case _:
            return None


def _refuse_stop(job: Job, event: Event) -> Refusal | None:
    """Why ``job``, which is not over, cannot be asked to step aside."""
    if isinstance(event, e.RequeueRequested) and not job.running:
        return Refusal(RefusalKind.CONFLICT, f"job {job.id} is {job.state.value}: it has nothing to give up")
    if isinstance(event, e.DrillRequested) and job.state is not JobState.RUNNING:
        return Refusal(RefusalKind.CONFLICT, f"job {job.id} is {job.state.value}: only one that runs can be drilled")
    if isinstance(event, e.DrillRequested) and job.held_by is not None:  # it would keep its room and not come back
        return Refusal(RefusalKind.CONFLICT, f"job {job.id} is held: release it first, so that it can come back")
    if isinstance(event, e.DrillRequested) and not job.preemptible:
        return Refusal(RefusalKind.CONFLICT, f"job {job.id} was submitted with --suspend none: it is never asked")
    if (
        isinstance(event, e.SuspendRequested | e.ResizeRequested | e.RequeueRequested)
        and job.live is not None
        and not job.preemptible
    ):
        return Refusal(RefusalKind.CONFLICT, f"job {job.id} was submitted with --suspend none: cancel it instead")
    return None


def _refuse_change(event: e.JobChanged) -> Refusal | None:
    try:
        check_standing(event.priority, event.weight)
    except SpecError as error:
        return Refusal(RefusalKind.INVALID, str(error))
    return None


def _with_memory(books: Books, spec: JobSpec) -> int:
    """How many GPUs with the memory that ``spec`` names one job can have on as many nodes as it may."""
    nodes = books.nodes.values()
    counts = sorted((together(node.gpus.values(), spec.gpu_mem_bytes) for node in nodes), reverse=True)
    return sum(counts[: spec.most_nodes])
