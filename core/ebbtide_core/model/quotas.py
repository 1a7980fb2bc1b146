"""Defines quotas: how many GPUs and unfinished jobs one user may have at a time."""

from collections.abc import Mapping
from dataclasses import field

from ebbtide_core.model.frozen import frozen


@frozen
class Quota:
    """The limits of one user: ``gpus`` in parts of GPUs, and ``queued`` unfinished jobs; None means no limit."""

    gpus: int | None = None
    queued: int | None = None


@frozen
class Quotas:
    """The quota of each user by name; a user who is not named has the ``default``."""

    default: Quota = field(default_factory=Quota)
    users: Mapping[str, Quota] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.users) or self.default != Quota()

    def of(self, user: str) -> Quota:
        """Return the quota of ``user``."""
        return self.users.get(user, self.default)
