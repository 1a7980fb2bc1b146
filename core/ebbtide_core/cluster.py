"""Takes in events, runs scheduling passes, and returns commands.

``Cluster.handle(event, now)`` is the only way in. The live master calls it with the events of its queue, a simulator
with those of its heap; both get the same decisions for the same events.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.commands import Command, Record, WakeAt
from ebbtide_core.dispatch import RULES, STEPS, apply
from ebbtide_core.estimates.work import NOTHING_PROVED, Assumptions
from ebbtide_core.events import Event
from ebbtide_core.job import gang
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle import clock, idling, pool_membership
from ebbtide_core.lifecycle.attempts import unrecorded_drops
from ebbtide_core.lifecycle.requeuing import given_up
from ebbtide_core.lifecycle.successive_halving import review
from ebbtide_core.measuring import interference
from ebbtide_core.model import limits
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.refusals import Refusal as Refusal
from ebbtide_core.model.refusals import RefusalKind as RefusalKind
from ebbtide_core.model.settings import DEFAULT_POOL, Settings
from ebbtide_core.model.types import JobId, StopCause
from ebbtide_core.nodes import booking_placement, draining, loan_ends, quiescing, silence
from ebbtide_core.planning.policy import Policy
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.reconcile import Unplaced, bring_back, place_more, reconcile, settle_claims, stop
from ebbtide_core.resources.pools import PoolState
from ebbtide_core.snapshot import Snapshot
from ebbtide_core.state import ClusterState

DEFAULTS: Final = Settings()
ROUNDING_S: Final = 1e-6
"""Seconds. Sums of Unix times are off by less: at its time limit, a job may seem to have run shorter."""

DUE_AT_ONCE: Final = 100
"""Deadlines that one pass looks at. If more have come, it goes no further, and the next pass follows at once."""

GIVEN_UP_AT_ONCE: Final = 100
"""Doomed jobs that one call of `Cluster.handle` cancels. The rest follow right after, with other events in between."""


@mypyc_attr(native_class=False)
class InvariantError(AssertionError):
    """The cluster's own books are wrong, which is a bug that must not stay hidden."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Cluster:
    """The jobs, the nodes and the policies of all pools.

    ``policy`` schedules the pool `DEFAULT_POOL`; ``settings`` name the policies of the other pools. ``assumed`` is
    what holds for a job of which nothing was measured yet.
    """

    def __init__(self, policy: Policy, assumed: Assumptions = NOTHING_PROVED, *, settings: Settings = DEFAULTS) -> None:
        self.policy = policy
        others = {name: create_policy(pool.policy, pool.options) for name, pool in settings.pools.items()}
        self.policies: dict[str, Policy] = {**others, DEFAULT_POOL: policy}
        queues = {name: known.queue() for name, known in self.policies.items()}
        self.state = ClusterState(queues, assumed, settings)
        for name, known in self.policies.items():
            pool = self.state.pools[name]
            pool.ranking = known.ranking(pool)
        self._unplaced: dict[str, Unplaced] = {name: deque() for name in self.state.pools}
        self._wake_at: float | None = None
        self._last = 0.0
        """The Unix time at which an event was taken in last."""
        self._look: Callable[[Event, float], None] | None = None
        self._doomed = self.state.gates.doomed

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in ``event`` at Unix time ``now``; return the commands that follow from it, in order.

        Raises `InvariantError` or `InvalidTransitionError` if the books are wrong afterwards.
        """
        out: list[Command] = []
        if now < self._last - clock.LEAST_S:
            self._take(e.ClockSetBack(self._last - now), now, out)
        self._last = now
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
            self._wake_by(max(time, now), now, out)
        if self.state.problems:
            raise InvariantError("; ".join(self.state.problems))
        return out

    def replay(self, event: Event, now: float) -> None:
        """Apply an event of the journal to the state; decide nothing and return no commands."""
        for dropped in unrecorded_drops(self.state, event):
            apply(self.state, dropped, now)
        apply(self.state, event, now)
        if self._look is not None:
            self._look(event, now)

    def follow(self, look: Callable[[Event, float], None] | None) -> None:
        """Call ``look`` with each durable event and its Unix time as soon as it has taken effect; None: nobody."""
        self._look = look

    def reconfigure(self, settings: Settings, now: float) -> None:
        """Use other ``settings``, with the same pools, as after a restart, except that jobs keep their room and places.

        Settings are not part of the state, so this is no event: a replay uses the settings of its own time.
        """
        self.state.settings = settings
        self.state.change_quotas(settings.quotas, now)
        self.state.look_again()

    def refusal(self, event: Event) -> Refusal | None:
        """Return why a user's request cannot be granted, or None. Call this before the request becomes an event."""
        refuse = RULES[type(event)].refuse
        return None if refuse is None else refuse(self.state, event)

    def story(self, job: JobId) -> list[tuple[float, Event]]:
        """Return the last events of a job with their Unix times, oldest first; the journal has all of them."""
        return list(self.state.jobs[job].story)

    def job(self, job: JobId) -> Job | None:
        """Return the job with that id, or None; callers must not change it."""
        return self.state.jobs.get(job)

    # --- the parts of handle ---

    def _take(self, event: Event, now: float, out: list[Command]) -> None:
        """Apply ``event`` and the events that follow from it."""
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
            if self._look is not None:
                self._look(event, now)
        if command is not None:
            out.extend(command(state, event))
        if decide is not None:
            for decision in decide(state, event):
                self._take(decision, now, out)

    def _decide(self, events: Iterable[Event], now: float, out: list[Command]) -> None:
        for event in events:
            self._take(event, now, out)

    def _schedule(self, now: float, out: list[Command]) -> None:
        """Run one scheduling pass.

        1. End the attempts whose time is over.  2. Go no further if that takes another pass, while the cluster is
        quiesced, or while a restarted master has not heard from all nodes.
        3. Schedule each pool in which something changed, or whose policy asked for it; a single pool always.
        """
        state = self.state
        for pool in state.pools.values():
            pool.books.loans.now = now
        if state.goes_on:
            state.go_on(now)
        if state.is_due(now) and not self._end_times(now, out):
            return
        if state.leasing:
            self._decide(silence.over_leases(state, now), now, out)
        if state.bookings or state.blocked_by_bookings:
            self._review_bookings(now, out)
        if state.quiesced or state.awaited or state.unheard:
            return
        if state.halvings_changed:
            self._decide(review(state), now, out)
        if state.displaced:
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
        """Stop the jobs that are in the way of bookings, and put into the queue those that no booking keeps out."""
        self._decide(booking_placement.review(self.state, now), now, out)
        booking_placement.update_blocked(self.state, now)
        self.state.look_again()
        if (time := booking_placement.next_time(self.state, now)) is not None:
            self._wake_by(time, now, out)

    def _schedule_pool(self, pool: PoolState, now: float, out: list[Command]) -> None:
        """Schedule one pool.

        1. Start the jobs whose claimed room is free, or that can go on only on a drained node.
        2. Do more of the last plan if something of it is left.
        3. Otherwise ask the policy, unless it could do nothing.  4. Carry out its plan.
        """
        pool.recheck_at, pool.books.loans.changes_at = None, math.inf
        if pool.settings is None:
            self._decide(pool_membership.stranded(pool), now, out)
            return
        if pool.claims:
            self._decide(settle_claims(pool), now, out)
        else:
            pool.freed_nodes.clear()
        if pool.books.drained:
            self._decide(bring_back(pool, now), now, out)
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
        again = [at for at in (plan.recheck_at, pool.books.loans.changes_at) if at is not None and at < math.inf]
        pool.recheck_at = now if unplaced else min(again, default=None)

    def _end_times(self, now: float, out: list[Command]) -> bool:
        """End the delays, drains, deadlines and waits whose time has come; return False if deadlines are left."""
        state = self.state
        state.end_delays(now)
        state.overdue = False
        if state.has_anti_affinity:
            state.end_anti_affinity(now)
        if state.draining:
            self._decide(draining.leave(state, now, now + ROUNDING_S), now, out)
        self._decide(loan_ends.leave(state, now), now, out)
        for job in state.due_deadlines(now, DUE_AT_ONCE):
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
            elif (time := idling.suspend_at(state, job)) is not None and time > now + ROUNDING_S:
                state.set_deadline(job, time)
            elif time is not None:
                self._decide(idling.suspend(job, now), now, out)
        if state.awaited and now >= state.recovery_ends:
            state.awaited.clear()
        return not state.has_due_deadlines(now)

    def _wake_by(self, time: float, now: float, out: list[Command]) -> None:
        """Ask to be woken at ``time`` unless a wake-up is due by then anyway."""
        if self._wake_at is None or self._wake_at <= now or time < self._wake_at:
            self._wake_at = time
            out.append(WakeAt(time))
