"""Simulates a supply: nodes that are borrowed from another scheduler while jobs wait for them, and what they cost.

The supply itself is the live one, `ebbtide_core.supply`, and so is the count of the nodes that waiting jobs have a use
for. The lender is simulated, which lets loans wait, preempts and ends them, and so are the pilots, which give idle
nodes back.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, InvariantError
from ebbtide_core.events import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import WHOLE, Loan, NodeId, StopCause
from ebbtide_core.supply.supply import (
    BETWEEN_LOANS_S,
    NOT_NEEDED_S,
    SUPPLY_LABEL,
    AskForLoan,
    BorrowedNode,
    CallOff,
    LenderFacts,
    LenderState,
    NodeSupply,
    SupplySettings,
)
from ebbtide_core.views.demand import copy_of, demand
from ebbtide_core.views.forecast import fork

from ebbtide_sim.engine import registration
from ebbtide_sim.metrics import FULL, summarise
from ebbtide_sim.workload import SimJob, WorkloadError
from ebbtide_sim.workloads.nodes import SimNode

LOOK_S: Final = 5.0
"""Seconds between two counts of the nodes that are needed, as in the live supplier."""
HOUR_S: Final = 3600.0
MOST_MOVES_IN_VAIN: Final = 100
"""Times in a row that a job is stopped before it computes, because its node ends; it is taken never to end then."""


@frozen(kw_only=True)
class LenderAssumptions:
    """What is assumed of a lender.

    A loan waits for one of ``queue_s`` seconds, each as likely as another. The lender preempts it after an
    exponentially distributed time with the mean ``preempted_after_s``, None for never; its jobs have ``notice_s``
    seconds to leave then. A GPU costs ``price`` for an hour.
    """

    queue_s: tuple[float, ...] = (0.0,)
    preempted_after_s: float | None = None
    notice_s: float = 30.0
    price: float = 0.0

    def __post_init__(self) -> None:
        if not self.queue_s or not all(0 <= wait_s < math.inf for wait_s in self.queue_s):
            raise ValueError("queue: is not one time or more")
        if self.preempted_after_s is not None and not 0 < self.preempted_after_s < math.inf:
            raise ValueError("preempted_after: is not above 0s")
        if not 1 <= self.notice_s < math.inf:
            raise ValueError("notice: is not at least 1s")
        if not 0 <= self.price < math.inf:
            raise ValueError("price: is not at least 0")


@frozen(kw_only=True)
class SimulatedSupply:
    """A supply whose nodes are like ``node``, and end after ``time_s`` seconds; see `SupplySettings`.

    A job has waited for ``after_s`` seconds before a node is asked for it; a node that was idle for ``idle_s`` seconds
    is given back.
    """

    name: str
    settings: SupplySettings
    node: SimNode
    time_s: float
    after_s: float
    idle_s: float
    lender: LenderAssumptions = LenderAssumptions()

    def changed(self, setting: str, value: float) -> "SimulatedSupply":
        """Return it with another value of one of `SETTINGS`. Raises `WorkloadError`."""
        try:
            match setting:
                case "after":
                    return replace(self, after_s=value)
                case "idle":
                    return replace(self, idle_s=value)
                case _:
                    name = setting.replace("-", "_")
                    return replace(self, settings=replace(self.settings, **{name: int(value)}))
        except ValueError as error:
            raise WorkloadError(f"--sweep: {error}") from None


SETTINGS: Final = ("after", "idle", "backlog", "max-nodes", "min-nodes")
"""The settings of a supply that simulations can vary."""


class _Next(Enum):
    """What happens to a loan next."""

    STARTS = 1
    PREEMPTED = 2
    IDLE = 3
    ENDS = 4


@dataclass(slots=True, eq=False)
class _Lent:
    """A loan as the lender sees it: it starts and ends at these times, and is ``over`` for a reason.

    ``attempts`` are those on its node; with none, it has been idle since ``idle_since``.
    """

    loan: BorrowedNode
    asked: float
    starts: float
    ends: float = math.inf
    why: str = ""
    over: bool = False
    attempts: int = 0
    idle_since: float = 0.0


@dataclass(slots=True, eq=False)
class _Use:
    """What an attempt has of borrowed nodes since ``placed``: GPUs by node; it ``moves`` if its node ends."""

    placed: float
    gpus: Mapping[str, float]
    moves: bool = False


@dataclass(slots=True)
class BorrowingTotals:
    """What was borrowed in a simulation: times in seconds, GPU time in GPU-seconds.

    ``moves`` counts the stops of jobs because their node ended; ``queue_s`` has how long each loan waited.
    """

    loans: int = 0
    preempted: int = 0
    moves: int = 0
    lent_gpu_s: float = 0.0
    used_gpu_s: float = 0.0
    queue_s: list[float] = field(default_factory=list)

    def facts(self, price: float) -> dict[str, Any]:
        """Return what a report says of it; ``price`` is that of one GPU for an hour."""
        return {
            "loans": self.loans,
            "preempted": self.preempted,
            "moves": self.moves,
            "queue_s": summarise(self.queue_s, FULL),
            "gpu_hours": self.lent_gpu_s / HOUR_S,
            "idle_gpu_hours": (self.lent_gpu_s - self.used_gpu_s) / HOUR_S,
            "cost": self.lent_gpu_s / HOUR_S * price,
        }


class Borrower:
    """Borrows nodes for a simulation: a `NodeSource` and an observer of the same simulation."""

    def __init__(self, supply: SimulatedSupply, seed: int = 0) -> None:
        self.totals = BorrowingTotals()
        self._of = supply
        self._seed = seed
        self._supply = NodeSupply(supply.name, supply.settings)
        self._lent: dict[str, _Lent] = {}
        self._due: list[tuple[float, int, _Next, str]] = []
        self._order = 0
        self._uses: dict[tuple[str, int], _Use] = {}
        self._moves_in_vain: Counter[str] = Counter()
        self._gone: list[NodeId] = []
        """Nodes that have ended, and that the cluster has not forgotten."""
        self._look_at: float | None = 0.0
        self._looked = -math.inf
        self._more_come = True
        self._is_over = False
        """Whether all jobs have ended, and only nodes that are kept are there."""
        self._stirred = 0.0
        """When a job was submitted, placed or stopped last."""
        self._demand = 0
        self._counted_until = -math.inf
        """Until when the demand is the same, if nothing happens."""

    # --- the simulation's nodes ---

    def next_time(self, more_come: bool, unfinished: bool) -> float | None:
        """Return when something may happen to nodes."""
        self._more_come = more_come
        needed = more_come or unfinished
        self._is_over = not needed and all(loan.kept for loan in self._supply.unfinished())
        times = [self._due[0][0]] if self._due else []
        if needed and self._look_at is not None:
            times.append(self._look_at)
        return None if self._is_over else min(times, default=None)

    def take(self, cluster: Cluster, now: float) -> Iterator[Event]:
        """Yield what happens to nodes now."""
        if self._is_over:
            return
        due = []
        while self._due and self._due[0][0] <= now:
            due.append(heapq.heappop(self._due))
        for _, _, what, id in due:  # what follows from these at this very time comes after a pass
            if (lent := self._lent.get(id)) is not None:
                yield from self._happen(what, lent, cluster, now)
        yield from self._forget(cluster)
        if self._look_at is not None and self._look_at <= now:
            self._look(cluster, now)

    def _forget(self, cluster: Cluster) -> Iterator[Event]:
        """Have the cluster forget nodes that are gone; it keeps the last one that has the checkpoints of a job."""
        for node in self._gone:
            removal = e.NodeRemoved(node)
            if cluster.refusal(removal) is None:
                yield removal
        self._gone = [node for node in self._gone if node in cluster.state.nodes]

    def finish(self) -> None:
        """Count nodes that are kept, until anything happened to a job for the last time."""
        for lent in list(self._lent.values()):
            self._settle(lent, max(self._stirred, lent.starts))

    # --- what happens to loans ---

    def _happen(self, what: _Next, lent: _Lent, cluster: Cluster, now: float) -> Iterator[Event]:
        match what:
            case _Next.STARTS:
                yield self._start(lent, now)
            case _Next.PREEMPTED:
                lent.ends, lent.why = now + self._of.lender.notice_s, "preempted"
                self._later(lent.ends, _Next.ENDS, lent)
                yield e.LoanChanged(NodeId(lent.loan.id), self._of.lender.notice_s)
            case _Next.IDLE if not lent.attempts and lent.idle_since + self._of.idle_s <= now:
                node = cluster.state.nodes[NodeId(lent.loan.id)]
                if node.planned:
                    self._note_idle(lent, now)
                else:
                    lent.why = lent.why or "idle"
                    yield from self._end(lent, now)
            case _Next.ENDS if lent.ends <= now:
                yield from self._end(lent, now)
            case _:
                pass

    def _start(self, lent: _Lent, now: float) -> Event:
        id = lent.loan.id
        self._supply.see_up({id}, now)
        lent.ends = now + self._of.time_s
        self.totals.loans += 1
        self.totals.queue_s.append(now - lent.asked)
        self._later(lent.ends, _Next.ENDS, lent)
        if (mean_s := self._of.lender.preempted_after_s) is not None:
            after_s = self._random("preempted", id).expovariate(1.0 / mean_s)
            if after_s + self._of.lender.notice_s < self._of.time_s:
                self._later(now + after_s, _Next.PREEMPTED, lent)
        self._note_idle(lent, now)
        return self._registration(id, lent.ends)

    def _end(self, lent: _Lent, now: float) -> Iterator[Event]:
        """End a loan, whose jobs have left."""
        if lent.attempts:
            raise InvariantError(f"{lent.loan.id} ends at {now:g} s, and {lent.attempts} attempts are still there")
        lent.why = lent.why or "its time is over"
        self.totals.preempted += lent.why == "preempted"
        self._settle(lent, now)
        node = NodeId(lent.loan.id)
        self._gone.append(node)
        yield e.NodeDisconnected(node)
        yield e.NodeConfirmedDead(node=node, user=self._of.name)

    def _settle(self, lent: _Lent, now: float) -> None:
        """Take in that a loan is over now."""
        lent.over = True
        if lent.loan.was_up:
            self.totals.lent_gpu_s += (now - lent.starts) * self._of.node.gpus
        self._hear(now)
        del self._lent[lent.loan.id]

    def _note_idle(self, lent: _Lent, now: float) -> None:
        lent.idle_since = now
        if not lent.loan.kept:
            self._later(now + self._of.idle_s, _Next.IDLE, lent)

    def _later(self, time: float, what: _Next, lent: _Lent) -> None:
        self._order += 1
        heapq.heappush(self._due, (time, self._order, what, lent.loan.id))

    def _registration(self, id: str, until: float) -> e.NodeRegistered:
        loan, labels = Loan(until, self._of.name), {SUPPLY_LABEL: self._of.name}
        return replace(registration(replace(self._of.node, name=id)), loan=loan, labels=labels)

    def _random(self, what: str, id: str) -> Random:
        """Return the source of one draw, so that loans of the same name fare alike under other settings."""
        return Random(f"{self._seed} {what} {id}")

    # --- the supply ---

    def _look(self, cluster: Cluster, now: float) -> None:
        """Count how many nodes are needed, do what the supply wants, and note when to look again."""
        self._looked, self._look_at = now, None
        self._hear(now)
        if not self._more_come and now - self._stirred > self._patience_s:
            return  # those that wait cannot run on what can be borrowed
        self._count(cluster, now)
        acted = False
        for action in list(self._supply.decide(self._demand, now)):
            acted = True
            match action:
                case AskForLoan(id):
                    loan = self._supply.loans[id]
                    self._supply.heard_job(id, id, now)
                    lent = self._lent[id] = _Lent(
                        loan, now, now + self._random("queue", id).choice(self._of.lender.queue_s)
                    )
                    self._later(lent.starts, _Next.STARTS, lent)
                case CallOff(id):
                    self._settle(self._lent[id], now)
        self._look_at = self._next_look(acted, now)

    @property
    def _patience_s(self) -> float:
        """For how long it is looked for more nodes though nothing happens to jobs."""
        return max(self._of.lender.queue_s) + 2 * self._of.time_s + self._of.after_s + NOT_NEEDED_S

    def _next_look(self, acted: bool, now: float) -> float | None:
        supply, settings = self._supply, self._of.settings
        there = supply.unfinished()
        coming = [loan for loan in there if loan.comes]
        waiting = sum(loan.waits for loan in coming)
        times = [now + LOOK_S] if acted else []
        if self._counted_until < math.inf:
            times.append(self._counted_until)
        wanted = self._demand > len(coming) or sum(loan.kept for loan in there) < settings.min_nodes
        if wanted and len(there) < settings.max_nodes and waiting < settings.backlog:
            times.append(supply.asked_at + BETWEEN_LOANS_S)
        if self._demand < len(coming):
            times.append(supply.needed_at + NOT_NEEDED_S)
        return max(min(times), now + 1.0) if times else None

    def _hear(self, now: float) -> None:
        """Have the supply hear how its loans are."""
        up = {id for id, lent in self._lent.items() if lent.loan.was_up and not lent.over}
        self._supply.hear({id: self._facts(lent) for id, lent in self._lent.items()}, up, now)
        self._supply.forget()

    def _facts(self, lent: _Lent) -> LenderFacts:
        if lent.over:
            return LenderFacts(LenderState.OVER, lent.loan.id, lent.why)
        if lent.loan.was_up:
            return LenderFacts(LenderState.RUNS, lent.loan.id, until=lent.ends)
        return LenderFacts(LenderState.WAITS, lent.loan.id)

    def _count(self, cluster: Cluster, now: float) -> None:
        """Count the nodes that are needed, unless that is known."""
        if now < self._counted_until:
            return
        waiting = [job for job in cluster.state.unfinished.values() if job.live is None and job.planned is None]
        short = [self._of.after_s - job.waiting_s(now) for job in waiting]
        self._counted_until = now + min((left_s for left_s in short if left_s > 0), default=math.inf)
        self._demand = 0
        if len(self._counted_nodes()) and any(left_s <= 0 for left_s in short):
            nodes = [
                copy_of(self._registration(self._of.name, now + self._of.time_s), n) for n in self._counted_nodes()
            ]
            self._demand = len(demand(fork(cluster), nodes, now, self._of.after_s).nodes)

    def _counted_nodes(self) -> range:
        """Return numbers for the nodes that could still come."""
        return range(self._of.settings.max_nodes - sum(lent.loan.was_up for lent in self._lent.values()))

    # --- an observer ---

    def submitted(self, now: float, job: SimJob, work: float) -> None:
        """Note that more nodes may be needed."""
        self._stir(now)

    def dropped(self, now: float, job: str, reason: str) -> None:
        """Note that fewer nodes may be needed."""
        self._stir(now)

    def computed(self, job: str, attempt: int, seconds: float, work: float, kept: bool) -> None:
        """Note that the job gets on."""
        if kept:
            del self._moves_in_vain[job]

    def recorded(self, now: float, event: Event) -> None:
        """Keep who uses which borrowed node, and look again if anything has changed."""
        match event:
            case e.AttemptPlaced():
                self._place(now, event)
            case e.AttemptExited():
                self._exit(now, event)
            case e.StopRequested(cause=StopCause.DRAINED):
                self._move(event)
            case e.NodeRegistered() | e.NodeConfirmedDead():
                self._note_change(now)
            case _:
                pass

    def _place(self, now: float, event: e.AttemptPlaced) -> None:
        self._stir(now)
        pieces = [piece for piece in event.allocation.nodes if piece.node in self._lent]
        gpus = {str(piece.node): sum(gpu.share for gpu in piece.gpus) / WHOLE for piece in pieces}
        self._uses[event.job, event.attempt] = _Use(now, gpus)
        for node in gpus:
            self._lent[node].attempts += 1

    def _exit(self, now: float, event: e.AttemptExited) -> None:
        self._stir(now)
        use = self._uses.pop((event.job, event.attempt))
        for node, gpus in use.gpus.items():
            lent = self._lent[node]
            self.totals.used_gpu_s += (now - use.placed) * gpus
            lent.attempts -= 1
            if not lent.attempts:
                self._note_idle(lent, now)

    def _move(self, event: e.StopRequested) -> None:
        use, job = self._uses[event.job, event.attempt], event.job
        if use.moves:
            return  # it is to leave even sooner
        use.moves = True
        self.totals.moves += 1
        self._moves_in_vain[job] += 1
        if self._moves_in_vain[job] > MOST_MOVES_IN_VAIN:
            times = f"{MOST_MOVES_IN_VAIN} times in a row before it had started"
            raise WorkloadError(f"--supply: job {job} was moved {times}: on such loans it may never end")

    def _stir(self, now: float) -> None:
        self._stirred = now
        self._note_change(now)

    def _note_change(self, now: float) -> None:
        self._counted_until = -math.inf
        look_at = max(now, self._looked + LOOK_S)
        self._look_at = look_at if self._look_at is None else min(self._look_at, look_at)
