"""Says which of two divisions of the GPUs is the fairer one, whichever jobs run."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ebbtide_core.job.job import Job
from ebbtide_core.planning.fair_share.claims import ShareClaim, Turn, common_factor, rank_of, share_by
from ebbtide_core.planning.fair_share.groups import Groups, Kind, ShareGroup


class LastingShares:
    """The shares, less what is bound, with each group's oldest job as its first: they do not depend on which jobs run.

    ``claims`` are those of a pass that stand for all groups, by kind, or by key for groups that none is like.
    """

    def __init__(
        self, capacity: int, claims: Mapping[Kind | str, ShareClaim], least: Callable[[ShareClaim], int]
    ) -> None:
        self._claims = claims
        leasts = [least(claim) for claim in claims.values()]
        factor = common_factor(capacity, [*claims.values()], leasts)
        self._shares = {
            of: share_by(factor, claim, least) - claim.bound
            for (of, claim), least in zip(claims.items(), leasts, strict=True)
        }
        self._units: dict[str, int] = {}

    def rank(self, group: ShareGroup, parts: int) -> Turn:
        """Return the rank of the next part of ``group`` if it has ``parts``."""
        of: Kind | str = group.key if group.kind is None or group.key in self._claims else group.kind
        if group.key not in self._units:
            self._units[group.key] = min([job.gpus_min for _, job in group.jobs])
        return rank_of(self._claims[of].weight, group.number, self._shares[of] - parts, self._units[group.key])


@dataclass(frozen=True, slots=True)
class Fairness:
    """How fairly GPUs are shared: which parts of its share each group has, with all jobs at their smallest size.

    A part is ranked by what its group would lack without it, in terms of the group's smallest job and rounded up, then
    by weight and age, as in `Turn`. Of two divisions of the GPUs, the fairer one has the first part in which they
    differ; if the groups have the same in both, the one with the oldest job is fairer. This is an order, because
    neither the shares nor the ranks depend on which jobs run. So a policy that preempts only for a fairer division
    does not preempt forever. ``has`` returns what a group has in the present draft.
    """

    groups: Groups
    shares: LastingShares
    has: Callable[[ShareGroup], int]

    def is_fairer(self, job: Job, victims: list[Job]) -> bool:
        """Return whether it is fairer that ``job`` runs instead of ``victims``."""
        own, more = self.groups.key(job), Counter[str]()
        more[own] += job.gpus_min
        for victim in victims:
            more[self.groups.key(victim)] -= victim.gpus_min
        lost = [self._rank(key, parts) for key, parts in more.items() if parts < 0]
        if more[own] > 0:
            rank = self._rank(own, 0)
            return all(rank < other for other in lost)
        return not lost and all(job.sequence < victim.sequence for victim in victims)

    def _rank(self, key: str, more: int) -> Turn:
        """Return the rank of the next part of a group once it has ``more`` parts."""
        group = self.groups.groups[key]
        return self.shares.rank(group, self.has(group) + more)
