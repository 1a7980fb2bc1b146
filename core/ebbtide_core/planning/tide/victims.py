"""Weighs whether others step aside for a job: whether that costs less than that the job waits."""

import math
from collections.abc import Iterable
from typing import Final

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, JobId, NodeId
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.preemption import (
    Choice,
    Nodes,
    choose,
    could_make_room,
    may_be_preempted,
    minimal_set,
    suffice,
)
from ebbtide_core.planning.production import PRODUCTION, weakest, weakness
from ebbtide_core.planning.tide.candidates import NEXT_TO_NOTHING, Candidate
from ebbtide_core.planning.tide.foresight import Foresight
from ebbtide_core.planning.tide.index import Search
from ebbtide_core.planning.tide.prices import at_risk_s, cost_s, may_ask_equals, price, save_s, unsaved_s

PATIENCE: Final = 0.01
"""The wait for which a job preempts no less urgent ones, as a share of its time per completion."""
TWICE: Final = 2.0
"""How many times a victim's delay counts, and how many times as long as the other job it has to be expected to take."""
MOST_TRIED: Final = 32
"""The nodes, the cheapest first, on which a job looks for less urgent ones that step aside; once it has found some, it
looks at an eighth of the rest.
"""
MOST_WEIGHED: Final = 4
"""The due jobs, and the others, of one priority for which a pass weighs whether others should step aside."""


class Victims:
    """Chooses who steps aside, in one pass.

    ``bound`` is how many times as long as a due job its victims have to be expected to take, ``min_run_s`` for how long
    a resumed job is spared.
    """

    def __init__(self, draft: Draft, foresight: Foresight, bound: float, min_run_s: float) -> None:
        self._draft = draft
        self._foresight = foresight
        self._bound = bound
        self._min_run_s = min_run_s
        self.weighed = 0
        """For how many jobs of one priority nodes were looked at."""

    @property
    def are_enough(self) -> bool:
        """Return whether as many jobs were weighed as may be."""
        return self.weighed >= MOST_WEIGHED

    def choose(self, job: Job, wait_s: float, *, due: bool) -> Choice | None:
        """Return whose stepping aside costs less than a wait of ``wait_s`` costs ``job``; None if nobody's does."""
        if self.are_enough:
            return None
        if job.priority <= PRODUCTION and (powerful := self._on_powerful_node(job)) is not None:
            self.weighed += 1
            return powerful
        mine = self._foresight.outlook(job)
        worth = price(job, mine)
        longer = TWICE if may_ask_equals(job, mine) else max(TWICE, self._bound) if due else math.inf
        index, less_urgent = self._foresight.index, wait_s > PATIENCE * mine.left_s
        equals, candidates = longer < math.inf, index.rates.candidates
        least = candidates.least_price(job.priority, equals=equals, less_urgent=less_urgent)
        if TWICE * least * mine.left_s >= worth * wait_s:
            return None
        self.weighed += 1
        search, since = Search(candidates.renewals, worth * wait_s, mine.left_s, longer, less_urgent), 0
        if (vain := index.in_vain.get(job.id)) is not None and search.finds_no_more_than(vain):
            search, since = vain._replace(renewal=candidates.renewals), vain.renewal
        best, levels = None, candidates.less_urgent_than(job.priority) if less_urgent else []
        for level in levels if len(levels) > 1 else ():
            there = candidates.cheapest_first(level - 1, equals=False, less_urgent=True, since=since)
            best = best or self._best_choice(job, there, worth, wait_s, math.inf, level)
        nodes = candidates.cheapest_first(job.priority, equals=equals, less_urgent=less_urgent, since=since)
        best = best or self._best_choice(job, nodes, worth, wait_s, longer, job.priority)
        if best is None and not self._draft.trial.is_gang(job):
            index.in_vain[job.id] = search
        return best

    def _on_powerful_node(self, job: Job) -> Choice | None:
        """Return who steps aside for a production ``job`` on a node that is not of the weakest: no other production.

        As in seed 004 §3.2, the least urgent go first, and of those who are on the most powerful node; then who has
        least that is not saved.
        """
        if self._draft.trial.is_gang(job):
            return None
        nodes, index, most = self._draft.snapshot.nodes, self._foresight.index, weakest(self._draft.snapshot.books)
        if most is None:
            return None
        with_victims = index.rates.candidates.cheapest_first(PRODUCTION, equals=False, less_urgent=True)
        stronger = [found.node for found in with_victims if weakness(nodes[found.node]) < most]
        levels: dict[int, dict[JobId, tuple[float, float, int]]] = {}
        for id in sorted(stronger, key=lambda id: weakness(nodes[id]))[:MOST_TRIED]:
            for _, other in self._foresight.planned_on(id):
                if other.priority > PRODUCTION and self._may_step_aside(other, job, math.inf):
                    risk_s = at_risk_s(other, self._foresight.outlook(other))
                    level = levels.setdefault(other.priority, {})
                    level.setdefault(other.id, (weakness(nodes[id]), risk_s, -other.sequence))
        least_urgent_first = (
            [self._draft.snapshot.job(id) for id in sorted(level, key=level.__getitem__)]
            for _, level in sorted(levels.items(), reverse=True)
        )
        return choose(self._draft, job, least_urgent_first)

    def _best_choice(
        self,
        job: Job,
        nodes: Iterable[Candidate],
        worth: float,
        wait_s: float,
        longer: float,
        level: int,
    ) -> Choice | None:
        """Return the cheapest victims whose delay costs less than ``job`` waits; None if there are none.

        Only jobs of priority ``level`` or less urgent ones are looked at. The figures of nodes bound what victims cost
        there, so the search ends at the first node that cannot be cheaper.
        """
        best, least, left_s = None, worth * wait_s, self._foresight.outlook(job).left_s
        longer_s = left_s * (longer if longer < math.inf else TWICE)
        if self._draft.trial.is_gang(job):
            everywhere = {
                other.id: other
                for candidate in nodes
                if candidate.left_s > longer_s
                for other in self._able(job, candidate.node, longer, level)
            }
            found = self._cheapest(job, None, [*everywhere.values()], worth, least)
            return None if found is None else found[1]
        tried, needed, patience = 0, job.gpus_min // WHOLE, worth * PATIENCE * left_s
        for cheapest, _, id, most_s, least_save_s, gpus in nodes:
            at_least = TWICE * cheapest * left_s + (patience if most_s == math.inf else 0.0)
            if at_least >= least or tried >= MOST_TRIED:
                break
            if gpus < needed or at_least + worth * least_save_s >= least:
                continue
            if most_s > longer_s and (able := self._able(job, id, longer, level)):
                if most_s == math.inf:
                    tried += 1 if best is None else 8
                found = self._cheapest(job, (id,), able, worth, least)
                if found is not None:
                    least, best = found
        return best

    def _able(self, job: Job, id: NodeId, longer: float, level: int) -> list[Job]:
        """Return the jobs of a node that may step aside for ``job``; none if all together have too few GPUs there.

        They are of priority ``level`` or less urgent.
        """
        node, need, there = self._draft.snapshot.nodes[id], -(-job.gpus_min // WHOLE), self._foresight.planned_on(id)
        left = 0 if self._draft.trial.is_gang(job) else need - node.idle(self._draft.trial.use(id))
        if sum([gpus for gpus, _ in there]) < left:
            return []
        able = [
            entry
            for entry in there
            if (entry[0] or not need) and entry[1].priority >= level and self._may_step_aside(entry[1], job, longer)
        ]
        return [] if sum([gpus for gpus, _ in able]) < left else [other for _, other in able]

    def _may_step_aside(self, other: Job, job: Job, longer: float) -> bool:
        """Return whether ``other`` may be preempted for ``job`` if it pays."""
        if other.priority < job.priority or (other.gpus_min and not job.gpus_min):
            return False
        if other.priority == job.priority:
            if not other.running or longer == math.inf or other.id in self._foresight.index.was_due:
                return False
            if self._foresight.outlook(other).left_s <= longer * self._foresight.outlook(job).left_s + cost_s(other):
                return False
        return may_be_preempted(self._draft, other, self._min_run_s)

    def _loss(self, other: Job, job: Job) -> float:
        """Return what it costs that ``other`` steps aside for ``job``.

        If it is less urgent, its delay costs hardly anything; what it may lose has to be computed again, and counts as
        a wait of ``job``, except for production.
        """
        mine, theirs = self._foresight.outlook(job), self._foresight.outlook(other)
        away_s = mine.left_s
        if other.priority != job.priority:
            away_s = min(away_s, self._foresight.index.rates.wait_s(other, False))
        loss = TWICE * price(other, theirs) * (away_s + cost_s(other) + at_risk_s(other, theirs))
        if other.priority == job.priority:
            return loss
        lost_s = unsaved_s(other, theirs) if job.priority > PRODUCTION else 0.0
        return loss * NEXT_TO_NOTHING + price(job, mine) * lost_s

    def _cheapest(
        self, job: Job, nodes: Nodes, there: list[Job], worth: float, least: float
    ) -> tuple[float, Choice] | None:
        """Return the cheapest victims on ``nodes`` and what they cost, if that is less than ``least``; else None."""
        losses = sorted([(self._loss(other, job), other.sequence, other) for other in there])
        able = [other for loss, _, other in losses if loss + worth * save_s(other) < least]
        rooms = [room for other in able if (room := self._draft.allocation(other)) is not None]
        if not able or (nodes is not None and not could_make_room(self._draft, job, rooms, nodes[0])):
            return None
        alone = next(([other] for other in able if suffice(self._draft, job, [other], nodes)), None)
        victims = alone or minimal_set(self._draft, job, able, nodes)
        if not victims:
            return None
        cost = sum([self._loss(other, job) for other in victims]) + worth * max(map(save_s, victims))
        if any(other.priority > job.priority for other in victims):
            cost += worth * PATIENCE * self._foresight.outlook(job).left_s
        return (cost, (victims, nodes)) if cost < least else None
