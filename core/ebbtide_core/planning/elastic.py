"""The stage that resizes elastic jobs; every rigid policy ends its pass with it.

Elastic jobs are admitted at their smallest size, what is left is shared out among them, and their surplus is taken back
before any job is preempted. A resize costs a restart, so an attempt is resized only once it has run for
``resize_after_s``, or ten times the job's measured restart cost if that is longer. Once that cost is known, a job grows
only if already the first step up ends it sooner by more than a restart costs. A job never grows beyond the largest size
of use to it, by the measured speed of its script.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from heapq import heapify, heappop, heapreplace, merge
from itertools import chain, islice
from typing import Final

from ebbtide_core.estimates.work import EstimateSource
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, JobId, NodeId
from ebbtide_core.planning.draft import Draft, count_text
from ebbtide_core.resources.elastic_jobs import resizable_at

NEAR: Final = 8
"""How many times as many jobs as nodes there have to be for the jobs to be looked for on the nodes."""
HORIZON_S: Final = 3600.0
"""The assumed remaining run time, in seconds, of a job of unknown work."""

_Shrink = tuple[Job, Allocation, Allocation]
"""A job that shrinks, its allocation before, and its allocation after."""


def fit_ranges(draft: Draft) -> None:
    """Resize running jobs whose users changed their range so that the present size is outside of it."""
    for job in draft.snapshot.out_of_range():
        current = draft.allocation(job)
        if current is None or _starting(job):
            continue
        target = job.gpus_max if current.share > job.gpus_max else job.gpus_min
        draft.trial.give(current)
        wanted = draft.trial.find(job, target, free_now=True)
        draft.trial.take(current)
        if wanted is None:
            draft.waits[job.id] = f"running; waiting for {count_text(target)} to resize"
        else:
            draft.place(job, wanted, "resized by user", claim=True)


def admit_by_shrinking(draft: Draft, job: Job, resize_after_s: float, among: list[Job] | None = None) -> bool:
    """Place ``job`` on the node where the fewest elastic jobs (of those ``among``) have to shrink for it.

    For a gang, jobs on all nodes may shrink, those with the greatest surplus first. Return False, with nothing changed,
    if that makes no room.
    """
    best: tuple[list[Job], NodeId | None] | None = None
    spread = any(draft.snapshot.job(id).spec.spread for id in draft.placements)
    leaving = spread or bool(draft.snapshot.elastic_jobs.leaving)
    for node, victims in _choices(draft, job, resize_after_s, among):
        if best is not None and (len(best[0]) == 1 or not (leaving or _may_suffice(draft, job, best[0], victims[0]))):
            break
        shrinks = _shrinks_for(draft, job, node, victims)
        if shrinks is not None and (best is None or len(shrinks) < len(best[0])):
            best = shrinks, node
    if best is None:
        return False
    victims, node = best
    for victim in victims:
        _resize(draft, victim, draft.least(victim), f"making room for job {job.id}", avoid=node)
    room = draft.trial.find(job, draft.least(job))
    assert room is not None, f"shrinking made no room for job {job.id}"
    draft.place(
        job, room, f"waiting for {count_text(draft.least(job))} that smaller elastic jobs give back", claim=True
    )
    return True


def _recheck_surplus(draft: Draft, resize_after_s: float) -> None:
    """Schedule another pass for when the first job that has run too short a time to shrink now has run long enough."""
    for due, job in draft.snapshot.elastic_jobs.surplus.later(resize_after_s, draft.snapshot.now):
        if job.running and job.preemptible and _share(draft, job) > draft.least(job):
            draft.recheck(due)
            return


def _choices(
    draft: Draft, job: Job, resize_after_s: float, among: list[Job] | None
) -> Iterator[tuple[NodeId | None, list[Job]]]:
    """Yield the nodes where ``job`` might fit if elastic jobs shrank, with these jobs, the greatest surplus first.

    A gang has one choice, all nodes.
    """
    if among is None and not draft.trial.is_gang(job):
        yield from _nodes_with_spare(draft, job, resize_after_s)
        return
    found: dict[NodeId, list[Job]] = {}
    for other in sorted(draft.elastic() if among is None else among, key=partial(_rank, draft)):
        if _may_shrink(draft, other, resize_after_s):
            for node in _may_give_back_on(draft, other):
                found.setdefault(node, []).append(other)
    if not draft.trial.is_gang(job):
        yield from found.items()
    elif found:
        yield None, [*{other.id: other for others in found.values() for other in others}.values()]


def _nodes_with_spare(draft: Draft, job: Job, resize_after_s: float) -> Iterator[tuple[NodeId, list[Job]]]:
    """Yield the same for a job that needs one node, and look at no more nodes than it takes."""
    _recheck_surplus(draft, resize_after_s)
    index, placed, seen = draft.snapshot.elastic_jobs, draft.placed_elastic(), set[NodeId]()
    if not (placed or index.greatest_surplus_first):
        return
    trial, share = draft.trial, draft.least(job)
    changed = {node for id in placed for node in draft.placements[id].allocation.node_ids}
    placed_on: dict[NodeId, list[Job]] = {}
    for one in placed.values():
        for node in _may_give_back_on(draft, one):
            placed_on.setdefault(node, []).append(one)
    for other in _greatest_surplus_first(draft, placed, changed, share):
        if _may_shrink(draft, other, resize_after_s):
            for node in _may_give_back_on(draft, other):
                if node in seen or node not in trial.nodes:
                    continue
                if node in changed or trial.has_spare(index, node, share):
                    there = [id for id in trial.nodes[node].planned if id in index.surplus.by_id and id not in placed]
                    stay = [one for id in there if _may_shrink(draft, one := index.jobs[id], resize_after_s)]
                    able = [one for one in stay if node in _may_give_back_on(draft, one)]
                    able += [one for one in placed_on.get(node, ()) if _may_shrink(draft, one, resize_after_s)]
                    yield node, sorted(able, key=partial(_rank, draft))
                seen.add(node)


def _greatest_surplus_first(draft: Draft, placed: dict[JobId, Job], changed: set[NodeId], share: int) -> Iterator[Job]:
    """Yield the elastic jobs with a surplus, and perhaps others, where ``share`` may become free.

    They are on ``changed`` nodes and on those with enough to give back; where these are many, all jobs are yielded.
    """
    index, rank, trial = draft.snapshot.elastic_jobs, partial(_rank, draft), draft.trial
    if (trial.how_many_with_spare(index, share) + len(changed)) * NEAR < len(index.greatest_surplus_first):
        nodes = (trial.nodes_with_spare(index, share) | changed) & trial.nodes.keys()
        ids = {id for node in nodes for id in trial.nodes[node].planned}
        known = {id: index.surplus.by_id[id] for id in ids if id in index.surplus.by_id and id not in draft.evictions}
        yield from sorted((known | placed).values(), key=rank)
        return
    yield from merge(_those_that_stay(draft, placed), sorted(placed.values(), key=rank), key=rank)


def _those_that_stay(draft: Draft, placed: dict[JobId, Job]) -> Iterator[Job]:
    index = draft.snapshot.elastic_jobs
    for _, _, id in index.greatest_surplus_first:
        if id not in placed and id not in draft.evictions:
            yield index.jobs[id]


def _may_suffice(draft: Draft, job: Job, best: list[Job], greatest: Job) -> bool:
    """Return whether fewer than the ``best`` jobs could make room, if none has more to give back than ``greatest``."""
    surplus = _share(draft, greatest) - greatest.gpus_min
    return (len(best) - 1) * surplus + draft.trial.most >= draft.least(job)


def _rank(draft: Draft, job: Job) -> tuple[int, int]:
    """Return by what jobs are sorted, the one with the greatest surplus first."""
    return job.gpus_min - _share(draft, job), job.sequence


def _may_shrink(draft: Draft, job: Job, resize_after_s: float) -> bool:
    current = draft.allocation(job)
    if current is None or not job.preemptible or current.share <= draft.least(job):
        return False
    return not job.running or may_resize(draft, job, resize_after_s)


def _may_give_back_on(draft: Draft, job: Job) -> tuple[NodeId, ...]:
    """Return the nodes where GPUs may be free once ``job`` has shrunk."""
    current = draft.allocation(job)
    assert current is not None
    return current.node_ids if job.spec.spread else current.node_ids[:1]


def _shrinks_for(draft: Draft, job: Job, node: NodeId | None, victims: list[Job]) -> list[Job] | None:
    """Return which ``victims`` must shrink for ``job`` to fit on ``node`` (None: anywhere); None if it cannot."""
    done: list[_Shrink] = []
    room = None
    for victim in victims:
        before = draft.allocation(victim)
        assert before is not None
        draft.trial.give(before)
        smaller = _smaller(draft, victim, before, node)
        if smaller is None:
            draft.trial.take(before)
            continue
        draft.trial.take(smaller)
        done.append((victim, before, smaller))
        room = draft.trial.find(job, draft.least(job), None if node is None else [node])
        if room is not None:
            break
    if room is not None and node is None:
        done = _needed(draft, job, done)
    for _, before, smaller in done:
        draft.trial.give(smaller)
        draft.trial.take(before)
    return [victim for victim, _, _ in done] if room is not None else None


def _needed(draft: Draft, job: Job, done: list[_Shrink]) -> list[_Shrink]:
    """Return the shrinks of ``done`` that a gang needs to fit; undo the others, which are often on other nodes."""
    needed = []
    for shrink in done:
        _, before, smaller = shrink
        draft.trial.give(smaller)
        draft.trial.take(before)
        if draft.trial.find(job, draft.least(job)) is None:
            draft.trial.give(before)
            draft.trial.take(smaller)
            needed.append(shrink)
    return needed


def grow(draft: Draft, resize_after_s: float, keep: Collection[JobId] = ()) -> None:
    """Share out what is left, one step at a time to the elastic job with the fewest GPUs, except those in ``keep``."""
    _recheck_growable(draft, resize_after_s, keep)
    growing = [
        (_share(draft, job), job.sequence, job)
        for job in _near_room(draft)
        if _has_use_for_more(draft, job, keep) and _may_grow(draft, job, resize_after_s)
    ]
    heapify(growing)
    sizes = {job.id: _sizes_of_use(draft, job) for _, _, job in growing}
    while growing:
        _, sequence, job = growing[0]
        wanted = _next_sizes(draft, sizes[job.id], growing)
        size = next((size for size in wanted if _resize(draft, job, size, "growing into idle GPUs")), None)
        if size is None:
            heappop(growing)
        else:
            heapreplace(growing, (size, sequence, job))


def _sizes_of_use(draft: Draft, job: Job) -> list[int]:
    most = draft.snapshot.most_of_use(job)
    return [size for size in job.sizes() if size <= most]


def _next_sizes(draft: Draft, sizes: list[int], growing: list[tuple[int, int, Job]]) -> list[int]:
    """Return to which of ``sizes`` the first job that is ``growing`` may grow: until another's turn, else by a step.

    Nothing is returned if a quick check of sums shows that it cannot grow.
    """
    share, sequence, job = growing[0]
    idle, first = _idle_beside(draft, job), bisect_right(sizes, share)
    if first == len(sizes) or not (idle or _may_have_shares(draft, job, sizes[first])):
        return []
    last = bisect_right(sizes, share + idle) - 1
    other = min(growing[1:3], default=None)  # the second one of a heap is one of these
    if other is not None:
        last = min(last, bisect_left(sizes, other[0] + (sequence < other[1]), first))
    return [sizes[last], sizes[first]] if last > first else [sizes[first]]


def _idle_beside(draft: Draft, job: Job) -> int:
    """Return the idle GPUs on the nodes of ``job``, or of all nodes if it may be spread, in parts."""
    current, trial = draft.allocation(job), draft.trial
    if current is None or job.spec.spread:
        return trial.most
    return sum([trial.nodes[id].idle(trial.use(id)) for id in current.node_ids if id in trial.nodes]) * WHOLE


def _may_have_shares(draft: Draft, job: Job, size: int) -> bool:
    """Return False only if no GPU of the node of ``job``, where none is idle, has room for ``size``."""
    current, trial = draft.allocation(job), draft.trial
    if current is None or draft.snapshot.books.beside:
        return True
    if current.share >= WHOLE or size > WHOLE or current.node_ids[0] not in trial.nodes:
        return False
    own = {gpu.gpu: gpu.share for gpu in current.nodes[0].gpus}
    in_use = trial.use(current.node_ids[0]).shares
    return any(used - own.get(gpu, 0) + size <= WHOLE for gpu, used in in_use.items())


def _recheck_growable(draft: Draft, resize_after_s: float, keep: Collection[JobId]) -> None:
    """Schedule another pass for when the first job that has run too short a time to grow now has run long enough."""
    for due, job in draft.snapshot.elastic_jobs.growable.later(resize_after_s, draft.snapshot.now):
        stays = job.id not in draft.evictions and job.id not in draft.placements
        if stays and job.running and job.preemptible and _has_use_for_more(draft, job, keep):
            draft.recheck(due)
            return


def _near_room(draft: Draft) -> Iterable[Job]:
    """Return the elastic jobs that would run and might find more room, and perhaps others.

    A job finds more only where it is, unless it may be spread; and where such a job comes from, others find room.
    """
    if not draft.trial.most:
        return ()
    index, placed, evictions = draft.snapshot.elastic_jobs, draft.placed_elastic(), draft.evictions
    growable = index.growable.by_id
    if not index.spread and not any(job.spec.spread for job in placed.values()):
        near = list(islice(draft.trial.nodes_with_room(), len(growable)))
        if len(near) < len(growable):
            planned = chain.from_iterable(draft.trial.nodes[node].planned for node in near)
            growable = {id: growable[id] for id in planned if id in growable}
    return ({id: job for id, job in growable.items() if id not in evictions} | placed).values()


def _has_use_for_more(draft: Draft, job: Job, keep: Collection[JobId]) -> bool:
    """Return whether a job that would run is to have more GPUs if there are any."""
    if job.id in draft.waits or (job.id in keep and job.id not in draft.placements):
        return False
    return _share(draft, job) < draft.snapshot.most_of_use(job)


def _share(draft: Draft, job: Job) -> int:
    allocation = draft.allocation(job)
    return allocation.share if allocation is not None else 0


def _smaller(draft: Draft, job: Job, before: Allocation, node: NodeId | None) -> Allocation | None:
    """Return room of the smallest size for ``job``, which had ``before``, that leaves more of ``node`` free.

    None as ``node`` means any of the job's nodes. A job that may be spread leaves that node entirely if it can.
    """
    find, size, own = draft.trial.find, draft.least(job), before.node_ids
    if not job.spec.spread:
        return find(job, size, own if node is None else [node])
    return find(job, size, [id for id in own if id != node]) or find(job, size, own)


def _resize(draft: Draft, job: Job, size: int, why: str, avoid: NodeId | None = None) -> bool:
    """Give ``job`` another size on its own nodes if it fits there; return whether it does.

    A job that may be spread grows wherever it fits, and leaves the node to ``avoid`` if it can when it shrinks.
    """
    before = draft.allocation(job)
    assert before is not None
    draft.trial.give(before)
    if job.spec.spread and size == draft.least(job):
        after = _smaller(draft, job, before, avoid)
    else:
        nodes = None if job.spec.spread else before.node_ids
        after = draft.trial.find(job, size, nodes, free_now=size > before.share)
    draft.trial.take(before)
    if after is None:
        return False
    planned = draft.placements.get(job.id)
    starts = job.live is None and not job.claiming
    sticky = planned is not None and planned.sticky
    draft.place(job, after, planned.reason if planned else why, claim=not starts, sticky=sticky)
    return True


def _may_grow(draft: Draft, job: Job, resize_after_s: float) -> bool:
    if job.id in draft.placements:  # the job is (re)started anyway, so a bigger size costs nothing more
        return True
    return job.running and job.preemptible and may_resize(draft, job, resize_after_s) and _is_worth_it(draft, job)


def _is_worth_it(draft: Draft, job: Job) -> bool:
    """Return whether the next size up saves more than a restart costs; unknown work is assumed to last an hour."""
    if not job.suspending.restart_cost_s:
        return True
    share, speedup = _share(draft, job), draft.snapshot.speedup_of(job)
    bigger = next((size for size in job.sizes() if size > share), share)
    left = draft.snapshot.remaining(job)
    # A job that has run for longer than its earlier runs shows that they do not predict it.
    known = left is not None and (left.work_s > 0 or left.source is not EstimateSource.EARLIER_RUNS)
    counted_by = job.attempts[-1].speedup or draft.snapshot.speedup
    left_s = left.work_s / counted_by(share) if left is not None and known else HORIZON_S
    return left_s * (1 - speedup(share) / speedup(bigger)) > job.suspending.restart_cost_s


def may_resize(draft: Draft, job: Job, resize_after_s: float) -> bool:
    """Return whether the running attempt has run long enough to resize; if not, schedule another pass for then."""
    due = resizable_at(job, resize_after_s)
    if due is None:
        return False
    if due > draft.snapshot.now:
        draft.recheck(due)
        return False
    return True


def _starting(job: Job) -> bool:
    live = job.live
    return live is not None and live.started is None
