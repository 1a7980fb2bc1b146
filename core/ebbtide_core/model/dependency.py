"""After which other jobs a job may start."""

from enum import Enum

from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import JobId, JobState


class AfterKind(Enum):
    """How the other job has to end. Of an array: every task of it completed, or not every task did."""

    ANY = "any"
    OK = "ok"
    NOT_OK = "not-ok"

    __hash__ = object.__hash__  # the inherited one is a Python function


@frozen
class Dependency:
    """That a job waits for ``job``, which may be an array, to end as ``kind`` says."""

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
    """Whether a dependency on jobs of which so many are unfinished, or ended badly, is met; None if that is open."""
    if kind is AfterKind.OK and not_ok:
        return False
    if unfinished:
        return None
    return kind is AfterKind.ANY or bool(not_ok) == (kind is AfterKind.NOT_OK)


def is_ok(state: JobState) -> bool:
    """Whether a job that is finished ended well."""
    return state is JobState.COMPLETED
