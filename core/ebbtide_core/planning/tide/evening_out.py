"""Lets elastic jobs grow at the cost of others on their node that have more GPUs.

A job that comes while others have all GPUs of a node starts at its smallest size, and would keep it until one of them
ends. So job v gives GPUs to job j, until both have as many, if that costs v less than j gains:

    2 · price(v) · (min(t_v', t_j') · (1 - s_v' / s_v) + cost(v))  <  price(j) · (t_j - t_j' - cost(j) - save(v))

Here t is a job's time per completion at its size, s its speed there, and ' marks what they are afterwards: v is slower
until one of both is done. A cost is what it takes to step aside and to come back, with the work that may be lost; a job
that starts in this pass, or is resized anyway, has none. And j waits for v to save.
"""

from typing import Final, NamedTuple

from ebbtide_core.estimates.sharing import working_size
from ebbtide_core.job.job import Job
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.types import WHOLE, Allocation, NodeId
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.elastic import may_resize
from ebbtide_core.planning.preemption import nodes_of
from ebbtide_core.planning.tide.foresight import Foresight
from ebbtide_core.planning.tide.prices import at_risk_s, cost_s, price, save_s, weight_of
from ebbtide_core.planning.tide.victims import TWICE

MOST_TAKERS: Final = 3
"""The jobs of a node, soonest done first, that get GPUs of others in one pass; if all did, none would get many."""
MOST_GIVERS: Final = 32
"""The jobs of a node, those with the most GPUs, that are asked; no more can have two on a node of 64."""


class _Exchange(NamedTuple):
    """What is gained if ``giver`` gives GPUs to another job; ``size`` is what that one has then, ``rest`` the giver."""

    gain: float
    giver: Job
    size: int
    rest: int


@mypyc_attr(allow_interpreted_subclasses=True)
class EveningOut:
    """What elastic jobs give each other in one pass; ``resize_after_s`` is the option of `Tide`."""

    def __init__(self, draft: Draft, foresight: Foresight, resize_after_s: float) -> None:
        self._draft = draft
        self._foresight = foresight
        self._resize_after_s = resize_after_s

    def where_something_changed(self) -> None:
        """Even out on nodes whose figures this pass renewed, and where jobs start or may be resized from now on."""
        snapshot, index, placed_on = self._draft.snapshot, self._foresight.index, dict[NodeId, list[Job]]()
        for job in self._draft.placed_elastic().values():
            placed_on.setdefault(self._room(job).node_ids[0], []).append(job)
        nodes = dict.fromkeys([*index.rates.renewed, *placed_on])
        for jobs in (snapshot.elastic_jobs.surplus, snapshot.elastic_jobs.growable):
            for job in jobs.since(self._resize_after_s, index.evened_out_at, snapshot.now):
                nodes.update(dict.fromkeys(nodes_of(job)))
        for id in nodes:
            if snapshot.elastic_jobs.spare.get(id) and id in self._draft.trial.nodes:
                self._on_node([*self._staying_on(id), *placed_on.get(id, ())])
        index.evened_out_at = snapshot.now

    def _staying_on(self, node: NodeId) -> list[Job]:
        """Return the elastic jobs on ``node`` that the draft has left as they are so far."""
        draft, elastic = self._draft, self._draft.snapshot.elastic_jobs.jobs
        there = [elastic[id] for id in draft.trial.nodes[node].planned if id in elastic]
        return [job for job in there if job.id not in draft.evictions and job.id not in draft.placements]

    def _on_node(self, jobs: list[Job]) -> None:
        """Even out among the elastic ``jobs`` of a node, without those that are on several."""
        there = [job for job in jobs if len(self._room(job).nodes) == 1 and job.id not in self._draft.waits]
        poor = [job for job in there if self._share(job) < self._draft.snapshot.most_of_use(job)]
        if len(there) < 2 or not poor:
            return
        rich = [job for job in there if self._share(job) >= 2 * WHOLE and self._may_resize(job)]
        givers = sorted(rich, key=lambda job: (-self._share(job), job.sequence))[:MOST_GIVERS]
        takers = [job for job in poor if self._may_resize(job)] if givers else []
        for job in sorted(takers, key=self._turn)[:MOST_TAKERS]:
            while self._take_from_one(job, givers):
                pass

    def _may_resize(self, job: Job) -> bool:
        """Return whether the size of ``job`` may change now: it starts, or starts again anyway, or has run for long."""
        if job.id in self._draft.placements:
            return True
        return job.running and job.preemptible and may_resize(self._draft, job, self._resize_after_s)

    def _turn(self, job: Job) -> tuple[float, int]:
        outlook = self._foresight.outlook(job)
        return outlook.left_s / weight_of(job, outlook), job.sequence

    def _room(self, job: Job) -> Allocation:
        room = self._draft.allocation(job)
        assert room is not None, f"job {job.id} would not run"
        return room

    def _share(self, job: Job) -> int:
        return self._room(job).share

    def _take_from_one(self, job: Job, givers: list[Job]) -> bool:
        """Let that of ``givers`` give to ``job`` for which most is gained; return whether one did."""
        exchanges = [found for giver in givers if (found := self._exchange(job, giver)) is not None]
        return bool(exchanges) and self._carry_out(job, max(exchanges, key=lambda found: found.gain))

    def _exchange(self, job: Job, giver: Job) -> _Exchange | None:
        """Return what ``giver`` could give to ``job``; None if that does not pay."""
        has, theirs, most = self._share(job), self._share(giver), self._draft.snapshot.most_of_use(job)
        if giver.id == job.id or giver.priority < job.priority:
            return None
        together = theirs + (has if has >= WHOLE else 0)
        size = min(most, together // 2) // WHOLE * WHOLE
        rest = together - size
        if size <= has or rest < self._draft.least(giver):
            return None
        now_s, soon_s = self._left_s(job, has), self._left_s(job, size)
        speed = self._draft.snapshot.speedup_of(giver)
        slower_s = min(self._left_s(giver, rest), soon_s) * (1 - speed(rest) / speed(theirs))
        gain = price(job, self._foresight.outlook(job)) * (now_s - soon_s - self._cost_s(job) - save_s(giver))
        gain -= TWICE * price(giver, self._foresight.outlook(giver)) * (slower_s + self._cost_s(giver))
        return _Exchange(gain, giver, size, rest) if gain > 0 else None

    def _left_s(self, job: Job, size: int) -> float:
        """Return the time per completion of ``job`` at ``size``, in seconds."""
        speed = self._draft.snapshot.speedup_of(job)
        return self._foresight.outlook(job).left_s * speed(working_size(job, speed)) / speed(size)

    def _cost_s(self, job: Job) -> float:
        if job.id in self._draft.placements:
            return 0.0
        return cost_s(job) + at_risk_s(job, self._foresight.outlook(job))

    def _carry_out(self, job: Job, exchange: _Exchange) -> bool:
        """Give both jobs their sizes; return False, with nothing changed, if they do not fit."""
        trial, giver = self._draft.trial, exchange.giver
        mine, theirs = self._room(job), self._room(giver)
        trial.give(theirs)
        smaller = trial.find(giver, exchange.rest, theirs.node_ids)
        bigger = None
        if smaller is not None:
            trial.take(smaller)
            trial.give(mine)
            bigger = trial.find(job, exchange.size, mine.node_ids)
            trial.take(mine)
            trial.give(smaller)
        trial.take(theirs)
        if smaller is None or bigger is None:
            return False
        self._resize(giver, smaller, f"giving GPUs to job {job.id}, which has fewer")
        grows = f"growing into GPUs of job {giver.id}"
        self._resize(job, bigger, grows if job.running else f"waiting for GPUs that job {giver.id} gives back")
        return True

    def _resize(self, job: Job, room: Allocation, why: str) -> None:
        planned = self._draft.placements.get(job.id)
        sticky = planned is not None and planned.sticky
        reason = planned.reason if planned is not None and job.running else why
        self._draft.place(job, room, reason, claim=True, sticky=sticky)
