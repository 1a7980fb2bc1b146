"""The cluster: one object, one way in.

``handle(event, now)`` takes a fact and returns what the world is asked to do. Whoever drives it, the live master from
its queue or a simulator from its heap, gets the same decisions for the same facts.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.commands import Command, Record, WakeAt
from ebbtide_core.dispatch import RULES, STEPS, apply
from ebbtide_core.estimates.work import LINEAR, Speedup
from ebbtide_core.events import Event
from ebbtide_core.job import gang
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle import idling, pool_membership
from ebbtide_core.lifecycle.requeuing import given_up
from ebbtide_core.lifecycle.successive_halving import review
from ebbtide_core.measuring import interference
from ebbtide_core.model import limits
from ebbtide_core.model.refusals import Refusal as Refusal
from ebbtide_core.model.refusals import RefusalKind as RefusalKind
from ebbtide_core.model.settings import DEFAULT_POOL, Settings
from ebbtide_core.model.types import JobId, StopCause
from ebbtide_core.nodes import booking_placement, draining, quiescing, silence
from ebbtide_core.policies.policy import Policy
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.reconcile import Unplaced, place_more, reconcile, settle_claims, stop
from ebbtide_core.resources.pools import PoolState
from ebbtide_core.snapshot import Snapshot
from ebbtide_core.state import ClusterState

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
        self._unplaced: dict[str, Unplaced] = {name: deque() for name in self.state.pools}
        self._wake_at: float | None = None
        self._doomed = self.state.gates.doomed

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
        """Why a user's request cannot be granted, or None. Asked before the request becomes an event."""
        refuse = RULES[type(event)].refuse
        return None if refuse is None else refuse(self.state, event)

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
        news, change, command, decide = STEPS[type(event)]
        if news is not None and not news(state, event):
            if (again := RULES[type(event)].again) is not None:
                out.extend(again(state, event))
            return
        if change is not None:
            change(state, event, now)
        if event.durable:
            out.append(Record(event))
        if command is not None:
            out.extend(command(state, event))
        if decide is not None:
            for decision in decide(state, event):
                self._take(decision, now, out)

    def _decide(self, events: Iterable[Event], now: float, out: list[Command]) -> None:
        for event in events:
            self._take(event, now, out)

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
        if state.halvings_changed:
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

        1. Start those whose claimed room is free.  2. Do more of the last plan if something of it is left.
        3. Else ask the policy, unless there is nothing that it could do.  4. Do what follows from its plan.
        """
        pool.recheck_at = None
        if pool.settings is None:
            self._decide(pool_membership.stranded(pool), now, out)
            return
        if pool.claims:
            self._decide(settle_claims(pool), now, out)
        else:
            pool.freed_nodes.clear()
        if pool.books.booked is not None:
            self._decide(booking_placement.admit(self.state, pool), now, out)
        unplaced = self._unplaced[pool.name]
        if unplaced:
            self._decide(place_more(pool, unplaced), now, out)
            if unplaced:
                pool.recheck_at = now
                return
        if not (pool.queue or pool.elastic or pool.resizing or pool.claims):
            return
        plan = self.policies[pool.name].plan(Snapshot(pool, now))
        self._decide(reconcile(pool, plan, unplaced), now, out)
        for id, reason in plan.waits.items():
            pool.jobs[id].reason = reason
        pool.recheck_at = now if unplaced else plan.recheck_at

    def _end_times(self, now: float, out: list[Command]) -> None:
        """Do what is due by itself."""
        state = self.state
        state.end_delays(now)
        state.overdue = False
        if state.has_anti_affinity:
            state.end_anti_affinity(now)
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
