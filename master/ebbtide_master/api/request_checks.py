"""What is refused of any request that adds jobs, or names who asks."""

import hashlib
from typing import Final

from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import JobId
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.config.limits import Bounds
from ebbtide_master.identity.caller import Role, caller
from ebbtide_master.loop import RefusedError
from ebbtide_master.store.journal import Store

MAX_USER_LENGTH: Final = limits.MAX_USER_LENGTH


Submission = client_pb2.SubmitRequest | client_pb2.RequeueRequest
"""A request that adds jobs."""


def check_user(user: str) -> None:
    """Raise `SpecError` for what is no name of a user."""
    if len(user) > MAX_USER_LENGTH or not user.isprintable():
        raise SpecError("user", f"is not a name of at most {MAX_USER_LENGTH} printable characters")


def check_submission(request: Submission, store: Store) -> None:
    """Raise `SpecError` for what is wrong with it, or `RefusedError` if nothing can be recorded for now."""
    if len(request.operation_id) > limits.MAX_OPERATION_ID_LENGTH:
        raise SpecError("operation_id", f"is over the limit of {limits.MAX_OPERATION_ID_LENGTH} characters")
    check_user(request.user)
    if not store.has_room():
        raise RefusedError(Refusal(RefusalKind.LIMIT, "the master's disk is full: no job is accepted for now"))


def check_rank(bounds: Bounds, priority: int | None, weight: float | None) -> None:
    """Raise `RefusedError` for a priority, or weight, that is beyond what a user may give to their own jobs."""
    if caller().role >= Role.OPERATOR:
        return
    if priority is not None and priority < bounds.priority:
        raise _beyond("--priority", f"{priority} is more urgent than {bounds.priority}, the limit for users")
    if weight is not None and weight > bounds.weight:
        raise _beyond("--weight", f"{weight:g} is more than {bounds.weight:g}, the limit for users")


def _beyond(option: str, why: str) -> RefusedError:
    return RefusedError(Refusal(RefusalKind.LIMIT, f"{option}: {why}: an operator can set it"))


def digest_of(request: Submission) -> str:
    """What tells this request from another of the same operation id; empty if it has none.

    An environment does not count: not even a digest of what may be a secret is kept.
    """
    if not request.operation_id:
        return ""
    bare = type(request).FromString(request.SerializeToString())
    bare.operation_id = ""
    if isinstance(bare, client_pb2.SubmitRequest):
        bare.spec.ClearField("env")
    return hashlib.blake2b(bare.SerializeToString(deterministic=True), digest_size=8).hexdigest()


def known_job(cluster: Cluster, operation_id: str, digest: str) -> JobId | None:
    """The job, or array, that came of this request already. `RefusedError` if it came of another one of that id."""
    job = cluster.state.operations.get(operation_id) if operation_id else None
    if job is not None and cluster.state.requests.get(operation_id, digest) != digest:
        message = f"operation_id: {operation_id} was used for another request: every request needs its own"
        raise RefusedError(Refusal(RefusalKind.CONFLICT, message))
    return job
