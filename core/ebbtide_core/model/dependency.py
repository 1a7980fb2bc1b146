"""Defines the dependencies of a job: the jobs that must end before it starts."""

from enum import Enum

from ebbtide_core.model.choices import JobId, JobState
from ebbtide_core.model.frozen import frozen


class AfterKind(Enum):
    """How the other job must end. For an array, OK means that every task completed, NOT_OK that not every task did."""

    ANY = "any"
    OK = "ok"
    NOT_OK = "not-ok"

    __hash__ = object.__hash__  # faster than the inherited Python function


@frozen
class Dependency:
    """The condition that ``job``, which may be an array, has ended as ``kind`` says."""

    job: JobId
    kind: AfterKind = AfterKind.ANY

    def __str__(self) -> str:
        match self.kind:
            case AfterKind.ANY:
                return f"job {self.job} to end"
            case AfterKind.OK:
                return f"job {self.job} to complete"
            case AfterKind.NOT_OK:
                return f"job {self.job} to fail or be cancelled"


def is_met(kind: AfterKind, unfinished: int, not_ok: int) -> bool | None:
    """Return whether a dependency is met; None if that is open.

    ``unfinished`` of the jobs that it is about have not ended, and ``not_ok`` have failed or were cancelled.
    """
    if kind is AfterKind.OK and not_ok:
        return False
    if unfinished:
        return None
    return kind is AfterKind.ANY or bool(not_ok) == (kind is AfterKind.NOT_OK)


def is_ok(state: JobState) -> bool:
    """Return whether a finished job in ``state`` ended well."""
    return state is JobState.COMPLETED
