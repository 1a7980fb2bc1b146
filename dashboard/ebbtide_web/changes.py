"""Makes the master's request from a change that somebody asks for on a page. Pure."""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ebbtide_protos.v1 import client_pb2, job_pb2

VERBS: Final = ("suspend", "resume", "resize", "drill", "hold", "release", "requeue", "priority", "cancel")
MOST_AT_ONCE: Final = 200
"""Jobs that one change of the queue's page names: as many as it shows."""
_ID: Final = re.compile(r"[0-9A-Za-z_.,-]{1,64}")
_GPUS: Final = re.compile(r"(\d{1,5})(?:/(\d{1,2}))?(?:\s*[-–]\s*(\d{1,5})(?:/(\d{1,2}))?)?")


class BadInputError(Exception):
    """What was asked for makes no sense; the message names the field and the limit."""


@dataclass(frozen=True, slots=True)
class Change:
    """A method of the master, what to send it, and how the page says that it was done."""

    method: str
    request: Any
    done: str


def check_id(id: str) -> str:
    """Return ``id`` if it can be one. Raises `BadInputError`."""
    if not _ID.fullmatch(id):
        raise BadInputError("id: is not a job's id")
    return id


def change(verb: str, id: str, fields: Mapping[str, Any]) -> Change:
    """Return the change that ``verb`` asks for job ``id``. Raises `BadInputError`."""
    check_id(id)
    job = client_pb2.JobRequest(job_id=id)
    match verb:
        case "suspend":
            return Change("Suspend", job, f"Job {id} steps aside, and stays so until it is resumed.")
        case "resume":
            return Change("Resume", job, f"Job {id} goes on as soon as there is room.")
        case "drill":
            return Change("Drill", job, f"Job {id} steps aside and comes back at once.")
        case "hold":
            return Change("Hold", job, f"Job {id} does not start until it is released.")
        case "release":
            return Change("Release", job, f"Job {id} may start.")
        case "requeue":
            again = client_pb2.RequeueRequest(job_id=id, operation_id=_operation(fields))
            return Change("Requeue", again, f"Job {id} is in the queue again.")
        case "cancel":
            now = fields.get("now") is True
            return Change("Cancel", client_pb2.CancelRequest(job_id=id, now=now), f"Job {id} is cancelled.")
        case "priority":
            other = client_pb2.ChangeRequest(job_id=id, priority=_priority(fields.get("priority")))
            return Change("Change", other, f"Job {id} has priority {fields['priority']}.")
        case "resize":
            low, high = _gpus(fields.get("gpus"))
            size = client_pb2.ResizeRequest(job_id=id, gpus_min=low, gpus_max=high)
            return Change("Resize", size, f"Job {id} gets its new size as soon as there is room.")
        case _:
            raise BadInputError(f"verb: is none of {', '.join(VERBS)}")


def _operation(fields: Mapping[str, Any]) -> str:
    """Return the id by which the master knows a request that is sent twice."""
    given = fields.get("operation")
    return given if isinstance(given, str) and re.fullmatch(r"[0-9a-f-]{8,64}", given) else str(uuid.uuid4())


def _priority(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 99:
        raise BadInputError("priority: is not a number from 1 to 99")
    return value


def _gpus(value: Any) -> tuple[job_pb2.Share, job_pb2.Share]:
    """Read ``2``, ``1/2`` or ``1-4``."""
    found = _GPUS.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise BadInputError("gpus: is not a number such as 2, a share such as 1/2, or a range such as 1-4")
    low = _share(found[1], found[2])
    return low, (_share(found[3], found[4]) if found[3] else low)


def _share(numerator: str, denominator: str | None) -> job_pb2.Share:
    if denominator is not None and not 0 < int(denominator) <= 16:
        raise BadInputError("gpus: shares of a GPU are 1/2 to 1/16")
    return job_pb2.Share(numerator=int(numerator), denominator=int(denominator or 1))
