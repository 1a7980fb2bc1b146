"""Grants jobs their sizes, so that each group gets its share in whole jobs."""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace, merge
from itertools import islice, pairwise
from operator import itemgetter

from ebbtide_core.admission.queues import DemandQueue
from ebbtide_core.job.job import Job
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.types import WHOLE, JobId
from ebbtide_core.planning.draft import Draft, count_text
from ebbtide_core.planning.fair_share.claims import (
    ShareClaim,
    SizeStep,
    Turn,
    by_remainder,
    divide,
    first_step,
    turn_of,
)
from ebbtide_core.planning.fair_share.fairness import LastingShares
from ebbtide_core.planning.fair_share.groups import (
    BOUND,
    LOOK_AHEAD,
    Groups,
    Kind,
    ShareGroup,
    bound_demand,
    faded,
    share_of,
)
from ebbtide_core.resources.books import Books
from ebbtide_core.resources.eligibility import could_run


@dataclass(slots=True, eq=False)
class Block:
    """Jobs of one kind that all keep their room, each alone in its group: ``members`` are the groups, the oldest first.

    Each job is granted ``parts``, and has ``room``. ``rank`` is their `Turn` without the number of the group; None if
    they give way to no job.
    """

    members: list[tuple[int, ShareGroup]]
    parts: int
    room: int
    rank: tuple[int, float] | None

    def later(self, turn: Turn) -> int:
        """Return the index of the first member whose turn comes after ``turn``."""
        if self.rank is None or self.rank < turn[:2]:
            return len(self.members)
        return 0 if self.rank > turn[:2] else bisect_right(self.members, turn[2], key=itemgetter(0))

    def latest_first(self, since: int) -> Iterator[tuple[Turn, Job]]:
        """Yield the turns and jobs of the members from that index on, the last one first."""
        if (rank := self.rank) is not None:
            for at in range(len(self.members) - 1, since - 1, -1):
                number, group = self.members[at]
                yield (*rank, number), only_job(group)

    def remove(self, group: ShareGroup) -> None:
        """Remove one member."""
        del self.members[bisect_left(self.members, group.number, key=itemgetter(0))]


class LatestTurns:
    """The turns of granted jobs by the parts of their first steps, so that those which give way first are at hand."""

    def __init__(self, turns: Mapping[JobId, tuple[Turn, SizeStep]]) -> None:
        self._by_parts = defaultdict[int, list[tuple[Turn, int, Job]]](list)
        """In ascending order; of equal turns, the one that was put in first comes last."""
        self._of: dict[JobId, tuple[int, tuple[Turn, int, Job]]] = {}
        """The parts and the entry of each job."""
        self._count = 0
        for turn, step in turns.values():
            self._by_parts[step.parts].append(self._enter(turn, step))
        for entries in self._by_parts.values():
            entries.sort()

    def put(self, turn: Turn, step: SizeStep) -> None:
        """Put the turn of another job in, or another turn of the same job."""
        self.remove(step.job.id)
        insort(self._by_parts[step.parts], self._enter(turn, step))

    def remove(self, id: JobId) -> None:
        """Remove the turn of a job, if it is here."""
        if (found := self._of.pop(id, None)) is not None:
            parts, entry = found
            entries = self._by_parts[parts]
            del entries[bisect_left(entries, entry)]

    def latest_first(self, turn: Turn, parts: int) -> list[Iterator[tuple[Turn, Job]]]:
        """Return the turns after ``turn`` of steps smaller than ``parts``, of each size apart, the last one first."""
        smaller = [entries for each, entries in self._by_parts.items() if each < parts]
        return [_backwards(entries, bisect_right(entries, turn, key=_when)) for entries in smaller]

    def _enter(self, turn: Turn, step: SizeStep) -> tuple[Turn, int, Job]:
        self._count -= 1
        entry = (turn, self._count, step.job)
        self._of[step.job.id] = step.parts, entry
        return entry


def _backwards(entries: list[tuple[Turn, int, Job]], since: int) -> Iterator[tuple[Turn, Job]]:
    for index in range(len(entries) - 1, since - 1, -1):
        turn, _, job = entries[index]
        yield turn, job


def only_job(group: ShareGroup) -> Job:
    """Return the first job of ``group``, its only one if the group is in a block."""
    return group.jobs[0][1]


@mypyc_attr(allow_interpreted_subclasses=True)
class Granting:
    """The grants of one pass: ``grants`` maps the jobs that should run to their sizes, in parts.

    ``per`` and ``half_life_s`` are as for `FairShare`.
    """

    def __init__(self, draft: Draft, per: str, half_life_s: float | None) -> None:
        self.draft = draft
        self.per = per
        self.half_life_s = half_life_s
        self.groups: Groups = draft.snapshot.ranking
        nodes = draft.snapshot.nodes
        self.capacity = self.room = WHOLE * sum([len(node.slices) for node in nodes.values()])
        self.away = _jobs_away(draft)
        """The jobs that are neither share nor demand: those on nodes that are away, and those that wait for such."""
        self.stuck: set[Kind] = set()
        """The kinds of groups whose only jobs wait so, which are many at times; these are not in ``away``."""
        self._look_for_stuck()
        self.no_demand = Counter[str]()
        """What these jobs add to the demand of each group, in parts."""
        for job in self.away.values():
            if parts := self.groups.demand(job):
                self.no_demand[self.groups.key(job)] += parts
        self.grants: dict[JobId, int] = {}
        """What each job is granted, in parts, except for the jobs of ``blocks``."""
        self.blocks: dict[Kind, Block] = {}
        self.revoked: dict[JobId, Job] = {}
        """The jobs that were in a block and had to give way."""
        self.newcomers: list[Job] = []
        """The waiting jobs among ``grants``, in the order in which they were granted their room."""
        self.turns: dict[JobId, tuple[Turn, SizeStep]] = {}
        """The turns and first steps of the granted jobs that may have to give way to others."""
        self.claims = self._claims()
        """The claims among which the GPUs are divided, by kind, or by key for groups that none is like."""
        self.weights = sum([claim.weight * claim.count for claim in self.claims.values()])
        """The sum of the weights of all groups."""
        self._latest = LatestTurns({})
        self._lasting_shares: LastingShares | None = None
        self._grant_all([*self.claims.values()])

    def _look_for_stuck(self) -> None:
        """Find the waiting jobs that no node in service could run, and record why one of each demand waits."""
        queue, books = self.draft.snapshot.queue, self.draft.snapshot.books
        assert isinstance(queue, DemandQueue)
        kinds = [entry for entry in queue.kinds() if entry[0].gpus_min] if books.usable else []
        stuck = [(first, count) for first, count in kinds if not could_run_now(first, books)]
        by_demand = defaultdict[Hashable, list[Kind]](list)
        for kind, members in self.groups.kinds.items() if stuck else ():
            if len((group := members[0][1]).jobs) == 1 and (demand := bound_demand(only_job(group))) is not None:
                by_demand[demand].append(kind)
        for first, count in stuck:
            self.draft.wait(first)
            alone = by_demand[bound_demand(first)]
            if sum([len(self.groups.kinds[kind]) for kind in alone]) == count:
                self.stuck.update(alone)
            else:
                self.away.update([(job.id, job) for job in queue.alike(first)])

    def _grant_all(self, claims: list[ShareClaim]) -> None:
        for claim in claims:
            if claim.next is not None:
                claim.least = max(claim.least, self._least(claim, claim.next.parts))
        divide(self.room, claims)
        for claim in claims:
            self._grant_bound(claim)
        self._grantby_remainder(claims)
        self._give_way(claims)
        for claim in claims:
            if claim.granted and claim.next and claim.next.job.queued is not None:
                reason = f"waiting: the jobs of its {self.per} have their share of {count_text(claim.granted)}"
                self.draft.waits[claim.next.job.id] = reason

    def _least(self, claim: ShareClaim, first: int) -> int:
        """Return the least share of a group whose first job needs ``first``; 0 if that exceeds an equal share."""
        return first if first * self.weights <= self.capacity * claim.weight else 0

    def granted(self, job: Job) -> int:
        """Return what ``job`` is granted, in parts."""
        if (parts := self.grants.get(job.id)) is not None:
            return parts
        group = self.groups.groups.get(self.groups.key(job))
        block = None if group is None or group.kind is None else self.blocks.get(group.kind)
        return 0 if block is None or job.id in self.revoked or job.id in self.away else block.parts

    def _claims(self) -> dict[Kind | str, ShareClaim]:
        """Return the claims of all groups; those of one kind share one if all their jobs count, and no past use."""
        claims: dict[Kind | str, ShareClaim] = {}
        groups = self.groups
        if self.half_life_s is None:
            alone = {key: group for key in self.no_demand if (group := groups.groups[key]).kind is not None}
        else:
            kinds = [members for kind, members in groups.kinds.items() if kind not in self.stuck]
            alone = {group.key: group for members in kinds for _, group in members}
        for group in [*groups.others.values(), *alone.values()]:
            if (claim := self._claim(group)) is not None:
                claims[group.key] = claim
        mixed = {group.kind for group in alone.values()}
        for kind, members in groups.kinds.items():
            if kind in self.stuck:
                continue
            alike = members if kind not in mixed else [each for each in members if each[1].key not in alone]
            if alike and (claim := self._claim(alike[0][1])) is not None:
                claim.count, claim.alike, claim.others = len(alike), alike, islice(alike, 1, None)
                first = only_job(claim.group)
                claim.at_once = first.planned is not None and not first.elastic
                claims[kind] = claim
        return claims

    def _claim(self, group: ShareGroup) -> ShareClaim | None:
        """Return what ``group`` may have; None if none of its jobs counts."""
        demand = sum(group.demand.values())
        here = demand - self.no_demand[group.key]
        if not here:
            return None
        stay = [job for (where, _, _), job in group.with_room() if where == BOUND and self.is_here(job)]
        bound = sum(map(share_of, stay))
        weight = sum([weight * parts for weight, parts in group.demand.items()]) / demand
        weight /= 1.0 + self._had_lately(group)
        claim = ShareClaim(group, weight, here, bound, min(bound, here), self._steps(group))
        claim.next = next(claim.steps, None)
        return claim

    def is_here(self, job: Job) -> bool:
        """Return whether ``job`` counts: the nodes of its room are in service, or some node in service could run it."""
        return job.id not in self.away

    def _steps(self, group: ShareGroup) -> Iterator[SizeStep]:
        """Yield the steps of the jobs that can be preempted: first each one's smallest size, then their growth."""
        elastic = []
        for (where, _, _), job in group.jobs:
            if where != BOUND and self.is_here(job):
                yield SizeStep(job, job.gpus_min, job.planned is not None, grows=False)
                if job.elastic:
                    elastic.append(job)
        for job in elastic:
            has, most = share_of(job), self.draft.snapshot.most_of_use(job)
            for smaller, larger in pairwise([size for size in job.sizes() if size <= most]):
                yield SizeStep(job, larger - smaller, larger <= has, grows=True)

    def _had_lately(self, group: ShareGroup) -> float:
        """Return the average number of GPUs that the user had lately, present ones included."""
        half_life_s, now = self.half_life_s, self.draft.snapshot.now
        if half_life_s is None:
            return 0.0
        past = self.groups.past.get(group.key)
        average = 0.0 if past is None else past.average * faded(now - past.at, half_life_s)
        for _, job in group.jobs:
            if (live := job.live) is not None:
                average += live.allocation.share / WHOLE * (1.0 - faded(now - live.placed, half_life_s))
        return average

    def _grant_bound(self, claim: ShareClaim) -> None:
        if claim.bound and claim.alike:
            self._grant_at_once(claim, claim.bound, None)
        for (where, _, _), job in claim.group.with_room() if claim.bound and not claim.alike else ():
            if where == BOUND and self.is_here(job):
                self.grants[job.id] = share_of(job)
        self.room -= claim.bound * claim.count
        claim.left -= claim.bound
        claim.granted = claim.bound

    def _grant_at_once(self, claim: ShareClaim, parts: int, rank: tuple[int, float] | None) -> None:
        """Grant ``parts`` to the only job of each group that ``claim`` stands for."""
        kind = claim.group.kind
        assert kind is not None
        self.blocks[kind] = Block([*claim.alike], parts, share_of(only_job(claim.group)), rank)

    def _grantby_remainder(self, claims: list[ShareClaim]) -> None:
        """Repeatedly grant the next step of the group that lacks most of its share, in terms of its next job.

        A running job counts as one more job lacked, so it stays unless another group lacks more by a whole job.
        """
        heap = [by_remainder(claim, claim.next) for claim in claims if claim.next] if self.room > 0 else []
        heapify(heap)
        while heap and self.room > 0:
            claim = heap[0][-1]
            if claim.at_once:
                claim.at_once, level = False, heap[0][:2]
                if self._all_fit([entry[-1] for entry in heap if entry[:2] == level]):
                    self._keep_all(claim)
                    heappop(heap)
                    continue
            step, left, first = claim.next, claim.left, not claim.granted
            assert step is not None
            turn = turn_of(claim, step)
            if (left <= 0.0 and not step.job.preemptible) or not self._grant(claim, step):
                if 0.0 < left < step.parts and self._passes_over(claim):
                    heapreplace(heap, by_remainder(claim, first_step(claim)))
                else:
                    heappop(heap)
                continue
            if step.job.preemptible or not step.has:
                self.turns.setdefault(step.job.id, (turn, step))
            if claim.next is None:
                heappop(heap)
            else:
                heapreplace(heap, by_remainder(claim, claim.next))
            if first and (other := self._other(claim, left)) is not None:
                claims.append(other)
                heappush(heap, by_remainder(other, first_step(other)))

    def _all_fit(self, claims: list[ShareClaim]) -> bool:
        """Return whether all groups that ``claims`` stand for can have all that they ask for; some may have it."""
        return sum([claim.demand * claim.count - claim.granted for claim in claims]) <= self.room

    def _keep_all(self, claim: ShareClaim) -> None:
        """Grant its room to each job that ``claim``, which is to be granted ``at_once``, stands for."""
        step = first_step(claim)
        if claim.left > 0.0 or step.job.preemptible:
            self._grant_at_once(claim, step.parts, turn_of(claim, step)[:2] if step.job.preemptible else None)
            self.room -= step.parts * claim.count
            claim.left -= step.parts
            claim.granted, claim.next = step.parts, None

    def _passes_over(self, claim: ShareClaim) -> bool:
        """Skip the group's next job, which is too large, for a later one that fits and can be preempted."""
        for step in islice(claim.steps, LOOK_AHEAD):
            if not self._is_premature(step) and step.job.preemptible and step.parts <= self.room:
                if (passed := first_step(claim).job).queued is not None:
                    reason = f"waiting: larger than what is left of the share of its {self.per}"
                    self.draft.waits[passed.id] = reason
                claim.next = step
                return True
        return False

    def _give_way(self, claims: list[ShareClaim]) -> None:
        """Revoke grants of smaller jobs for the first job of a group whose turn comes before theirs."""
        blocks = [block.parts for block in self.blocks.values() if block.rank is not None]
        smallest = min([step.parts for _, step in self.turns.values()] + blocks, default=0)
        passed: list[tuple[Turn, ShareClaim]] = []
        for claim in claims:
            first, left = claim.next, claim.left
            if first and (not claim.granted or left >= first.parts) and left > 0 < smallest < first.parts:
                passed.append((turn_of(claim, first), claim))
                while first.has and (other := self._other(claim, left)) is not None:
                    passed.append((turn_of(other, first_step(other)), other))
        heapify(passed)
        self._latest = LatestTurns(self.turns if passed else {})
        while passed:
            turn, claim = heappop(passed)
            left = claim.left
            if self._takesturn_of(turn, claim) and (other := self._other(claim, left)) is not None:
                heappush(passed, (turn_of(other, first_step(other)), other))

    def _takesturn_of(self, turn: Turn, claim: ShareClaim) -> bool:
        """Grant the first step of ``claim`` instead of smaller, later ones; return False if it still does not fit."""
        first = first_step(claim)
        if self._is_premature(first):
            return False
        blocks = [block for block in self.blocks.values() if block.parts < first.parts]
        smaller = self._latest.latest_first(turn, first.parts)
        smaller += [block.latest_first(since) for block in blocks if (since := block.later(turn)) < len(block.members)]
        if not self._revoke(merge(*smaller, key=_when, reverse=True), first.parts):
            return False
        self.turns[first.job.id] = turn, first
        self._latest.put(turn, first)
        return self._grant(claim, first)

    def _is_premature(self, step: SizeStep) -> bool:
        """Return whether ``step`` would grow a job whose smallest size is not granted, or no longer."""
        return step.grows and step.job.id not in self.grants

    def _revoke(self, entries: Iterable[tuple[Turn, Job]], parts: int) -> bool:
        """Revoke grants from the first of ``entries`` on until ``parts`` fit, then restore those not needed.

        Return False, with nothing revoked, if all of them are not enough.
        """
        revoked, room = list[Job](), self.room
        for _, job in entries:
            if room >= parts:
                break
            revoked.append(job)
            room += self.granted(job)
        if room < parts:
            return False
        self.room = room
        for job in reversed(revoked):
            if self.room - self.granted(job) >= parts:
                self.room -= self.granted(job)
            else:
                self._take_back(job)
        return True

    def _take_back(self, job: Job) -> None:
        if job.id in self.grants:
            del self.grants[job.id], self.turns[job.id]
            self._latest.remove(job.id)
            return
        group = self.groups.groups[self.groups.key(job)]
        assert group.kind is not None
        self.blocks[group.kind].remove(group)
        self.revoked[job.id] = job

    def _other(self, claim: ShareClaim, left: float) -> ShareClaim | None:
        """Return the claim of the next oldest group of the same kind, with the same share; None if there is none."""
        _, group = next(claim.others or iter(()), (0, None))
        if group is None:
            return None
        steps = self._steps(group)
        return ShareClaim(
            group=group,
            weight=claim.weight,
            demand=claim.demand,
            bound=claim.bound,
            least=claim.least,
            steps=steps,
            count=claim.count,
            alike=claim.alike,
            others=claim.others,
            left=left,
            next=next(steps),
        )

    def _grant(self, claim: ShareClaim, step: SizeStep) -> bool:
        """Grant the next step of ``claim``; return False if there is no room."""
        if step.parts > self.room:
            return False
        if step.job.id not in self.grants and step.job.queued is not None:
            self.newcomers.append(step.job)
        self.grants[step.job.id] = self.grants.get(step.job.id, 0) + step.parts
        self.room -= step.parts
        claim.left -= step.parts
        claim.granted += step.parts
        claim.next = next(claim.steps, None)
        return True

    def lasting_shares(self) -> LastingShares:
        """Return the shares that do not depend on which jobs run; they are worked out once."""
        if self._lasting_shares is None:
            self._lasting_shares = LastingShares(self.capacity, self.claims, self._lasting_least)
        return self._lasting_shares

    def _lasting_least(self, claim: ShareClaim) -> int:
        """Return the least share of a group whose first job is its oldest one that can be preempted or waits."""
        group, has_room = claim.group, [*claim.group.with_room()]
        jobs = [job for (where, _, _), job in has_room if where != BOUND and self.is_here(job)]
        oldest = next((job for _, job in islice(group.jobs, len(has_room), None) if self.is_here(job)), None)
        jobs += [] if oldest is None else [oldest]  # of those that wait
        bound = min(claim.bound, claim.demand)
        return max(bound, self._least(claim, min(jobs, key=_sequence).gpus_min)) if jobs else bound


def _jobs_away(draft: Draft) -> dict[JobId, Job]:
    """Return the jobs that are promised room on a node that cannot be used now."""
    nodes, usable = draft.snapshot.books.nodes, draft.snapshot.nodes
    if len(nodes) == len(usable):
        return {}
    return {id: draft.snapshot.job(id) for node in nodes.values() if node.id not in usable for id in node.planned}


def could_run_now(job: Job, books: Books) -> bool:
    """Return whether nodes in service could run ``job``, which waits; in host memory, it waits for its own GPUs."""
    if (own := job.pinned_allocation) is None:
        return could_run(job, books)
    here = [(piece, books.usable[piece.node].slices) for piece in own.nodes if piece.node in books.usable]
    return len(here) == len(own.nodes) and all(gpu.gpu in slices for piece, slices in here for gpu in piece.gpus)


def _when(entry: tuple[Turn, *tuple[object, ...]]) -> Turn:
    return entry[0]


def _sequence(job: Job) -> int:
    return job.sequence
