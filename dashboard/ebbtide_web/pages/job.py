"""The page of a job: how far it is, why it waits, its attempts and suspensions, and the changes that people ask for.

The page of the queue asks for the same changes, of several jobs at once.
"""

import asyncio
import logging
import re
import shlex
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import groupby
from typing import Any, Final

from ebbtide_protos.v1 import client_pb2, job_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.access.sessions import Session
from ebbtide_web.answers import BadInputError, answer, body
from ebbtide_web.board.picture import CLASSES, FINISHED, WAITING, count_words, optional, share_of, state_of
from ebbtide_web.board.shared_page import encoded, event
from ebbtide_web.pages.page import Change, Page, PageRoute
from ebbtide_web.pages.query import check_id
from ebbtide_web.reach import AwayError, Master, MasterRefusedError
from ebbtide_web.streams import PING, PING_S, Events, before_end, pause

VERBS: Final = ("suspend", "resume", "resize", "drill", "hold", "release", "requeue", "priority", "cancel")
MOST_AT_ONCE: Final = 200
"""Jobs that one change of the queue's page names: as many as it shows."""
PAUSE_S: Final = 0.25
EXPLAINED_S: Final = 15.0
"""Seconds after which a job that waits is explained again: a forecast costs the master a copy of itself."""
PARTS: Final = ("save", "exit", "free", "queue", "start", "import", "load", "first_step")
MOST_EVENTS: Final = 500
_GPUS: Final = re.compile(r"(\d{1,5})(?:/(\d{1,2}))?(?:\s*[-–]\s*(\d{1,5})(?:/(\d{1,2}))?)?")
_SUSPEND: Final = {
    job_pb2.SUSPEND_MODE_UNSPECIFIED: "checkpoint",
    job_pb2.SUSPEND_MODE_CHECKPOINT: "checkpoint",
    job_pb2.SUSPEND_MODE_NONE: "none",
    job_pb2.SUSPEND_MODE_SWAP: "swap",
}
_SAVED: Final = {
    job_pb2.CHECKPOINTED_UNKNOWN: "unknown",
    job_pb2.CHECKPOINTED_YES: "yes",
    job_pb2.CHECKPOINTED_NO: "no",
}


log = logging.getLogger(__name__)


class JobPage(Page):
    """Shows one job, and changes one or several."""

    def routes(self) -> Sequence[PageRoute]:
        """Return the routes of the page."""
        return (
            PageRoute("/jobs/{id}", self.show),
            PageRoute("/jobs/{id}/story", self.story),
            PageRoute("/jobs/{id}/explain", self.explain),
            PageRoute("/stream/jobs/{id}", self.stream),
            PageRoute("/jobs", self.change_many, changes=True),
            PageRoute("/jobs/{id}/{verb}", self.change_one, changes=True),
        )

    async def show(self, request: Request, session: Session) -> Response:
        """Show the page."""
        id = _id(request)
        asked = self._dashboard.call(session, "ShowJob", client_pb2.JobRequest(job_id=id))
        job = await self._first_seen(session, asked, f"Job {id}")
        return self._templates.page("job.html", session, id=id, name=job.spec.name if job is not None else "")

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream a job whenever it changes, with why it waits while it does, as its viewer may see it."""
        id = _id(request)
        return streams.again(session, lambda: _job_now(session, self._dashboard.master, id))

    async def story(self, request: Request, session: Session) -> Response:
        """Return the events of a job."""
        found = await self._dashboard.call(session, "ShowStory", client_pb2.JobRequest(job_id=_id(request)))
        return answer(story_facts(found.events))

    async def explain(self, request: Request, session: Session) -> Response:
        """Return why a job waits, and what another priority or size would bring; nothing is changed."""
        wanted = client_pb2.ExplainRequest(job_id=_id(request))
        query = request.query_params
        if query.get("priority"):
            text = query["priority"]
            number = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0
            wanted.priority = change("priority", wanted.job_id, {"priority": number}).request.priority
        if query.get("gpus"):
            resize = change("resize", wanted.job_id, {"gpus": query["gpus"]}).request
            wanted.gpus_min.CopyFrom(resize.gpus_min)
            wanted.gpus_max.CopyFrom(resize.gpus_max)
        found = await self._dashboard.call(session, "Explain", wanted)
        return answer(explanation_facts(found, time.time()))

    # --- changes ---

    async def change_one(self, request: Request, session: Session) -> Response:
        """Change one job."""
        wanted = change(request.path_params["verb"], request.path_params["id"], await body(request))
        job = await self._dashboard.call(session, wanted.method, wanted.request)
        log.info("user=%s job=%s %s", session.user, request.path_params["id"], request.path_params["verb"])
        done = f"{wanted.done} {job.effect}".strip() if wanted.method == "Change" else wanted.done
        return answer({"done": done, "id": job.job_id})

    async def change_many(self, request: Request, session: Session) -> Response:
        """Change several jobs in turn; what the master refuses of them, or is not asked any more, is told for each."""
        fields = await body(request)
        ids, verb = fields.get("ids"), fields.get("verb")
        if not isinstance(ids, list) or not 1 <= len(ids) <= MOST_AT_ONCE:
            raise BadInputError(f"ids: is not a list of 1 to {MOST_AT_ONCE} jobs")
        if verb not in VERBS:
            raise BadInputError(f"verb: is none of {', '.join(VERBS)}")
        wanted = [(str(id), change(verb, str(id), fields)) for id in ids]
        refused = dict[str, str]()
        for number, (id, each) in enumerate(wanted, 1):
            try:
                await self._dashboard.call(session, each.method, each.request)
            except MasterRefusedError as error:
                refused[id] = str(error)
            except AwayError as error:
                refused[id] = f"it is not known whether this was done, as the master does not answer: {error}"
                words = "this was not asked for, as the master does not answer"
                refused |= {left: words for left, _ in wanted[number:]}
                break
            else:
                log.info("user=%s job=%s %s", session.user, id, verb)
        return answer({"done": len(wanted) - len(refused), "refused": refused})


def _id(request: Request) -> str:
    return check_id(request.path_params["id"])


async def _job_now(session: Session, master: Master, id: str) -> Events:
    """Yield a job whenever it changes, over one connection to the master."""
    dirty = asyncio.Event()
    watch = asyncio.create_task(_mark(master, id, session.token, dirty))
    explained: tuple[float, Any] = (0.0, None)
    dirty.set()
    try:
        while True:
            woken = await before_end(session, _set_within(dirty, PING_S))
            if woken is None:
                return
            if watch.done():
                watch.result()
            dirty.clear()
            job = await master.call("ShowJob", client_pb2.JobRequest(job_id=id), session.token)
            yield event("job", encoded(job_facts(job, time.time())))
            waits, key = state_of(job) in WAITING, (state_of(job), job.reason, job.held_by)
            due = time.monotonic() - explained[0] >= EXPLAINED_S or key != explained[1]
            if waits and due and not job.HasField("tasks"):
                explained = (time.monotonic(), key)
                request = client_pb2.ExplainRequest(job_id=id)
                found = await master.call("Explain", request, session.token)
                yield event("explained", encoded(explanation_facts(found, time.time())))
            if state_of(job) in FINISHED and watch.done():
                yield event("final", "{}")
                while await before_end(session, pause(PING_S)):
                    yield PING
                return
            await asyncio.sleep(PAUSE_S)
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError, AwayError, MasterRefusedError):
            await watch


async def _mark(master: Master, id: str, token: str, dirty: asyncio.Event) -> None:
    try:
        async with aclosing(master.stream("WatchJobs", client_pb2.WatchJobsRequest(job_ids=[id]), token)) as jobs:
            async for _ in jobs:
                dirty.set()
    finally:
        dirty.set()


async def _set_within(wanted: asyncio.Event, at_most_s: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await wanted.wait()
    return True


# --- what it shows ---


def job_facts(job: client_pb2.Job, at: float) -> dict[str, Any]:
    """Return what the page of a job shows; ``at`` is the time for which its running and waiting times hold."""
    spec, state = job.spec, state_of(job)
    return {
        "id": job.job_id,
        "name": spec.name,
        "user": job.user,
        "state": state,
        "finished": state in FINISHED,
        "reason": job.reason,
        "held": job.held_by,
        "pool": job.pool,
        "moves_to": job.moves_to,
        "gpus": {
            "min": count_words(spec.gpus_min),
            "max": count_words(spec.gpus_max),
            "now": count_words(job.gpus_allocated),
        },
        "nodes": [{"node": part.node, "gpus": [gpu.uuid for gpu in part.gpus]} for part in job.allocation],
        "attempt": job.attempt,
        "preemptible": job.preemptible,
        "proved": job.proved,
        "preemptions": job.preemptions,
        "resizes": job.resizes,
        "restarts": job.restarts,
        "progress": _progress(job),
        "steps_per_s": optional(job, "steps_per_s"),
        "submitted": job.submit_time,
        "started": optional(job, "start_time"),
        "ended": optional(job, "end_time"),
        "waited": job.waiting_s,
        "ran": job.running_s,
        "at": at,
        "exit_code": optional(job, "exit_code"),
        "save_s": optional(job, "save_s"),
        "restart_cost_s": optional(job, "restart_cost_s"),
        "checkpoint": _checkpoint(job),
        "attempts": [_attempt(attempt) for attempt in job.attempts],
        "suspensions": [_suspension(found) for found in job.suspensions],
        "request": _request(job),
        "array": job.array,
        "index": job.index,
        "params": dict(job.params),
        "tasks": {"indices": job.tasks.indices, "states": dict(job.tasks.states)} if job.HasField("tasks") else None,
        "again_of": job.again_of,
        "again_as": job.again_as,
    }


def _progress(job: client_pb2.Job) -> dict[str, Any] | None:
    if not job.HasField("progress"):
        return None
    found = job.progress
    numbers = {name: value for name, value in found.metrics.items() if value == value and abs(value) != float("inf")}
    loss = optional(found, "loss")
    return {
        "step": found.step,
        "total": optional(found, "total"),
        "loss": loss if loss is not None and loss == loss and abs(loss) != float("inf") else None,
        "metrics": numbers,
        "diverged": list(found.diverged),
    }


def _checkpoint(job: client_pb2.Job) -> dict[str, Any] | None:
    if not job.HasField("checkpoint"):
        return None
    found = job.checkpoint
    return {"step": optional(found, "step"), "bytes": found.bytes, "path": found.path, "verified": found.verified}


def _attempt(attempt: client_pb2.AttemptSummary) -> dict[str, Any]:
    return {
        "number": attempt.attempt,
        "placed": attempt.placed_time,
        "started": optional(attempt, "start_time"),
        "ended": optional(attempt, "end_time"),
        "nodes": [part.node for part in attempt.allocation],
        "gpus": sum(share_of(gpu.share) for part in attempt.allocation for gpu in part.gpus),
        "outcome": attempt.outcome,
        "resumed_step": optional(attempt, "resumed_step"),
        "warm": optional(attempt, "warm"),
    }


def _suspension(found: client_pb2.Suspension) -> dict[str, Any]:
    return {
        "requested": found.requested,
        "exited": optional(found, "exited"),
        "free": optional(found, "gpu_free"),
        "placed": optional(found, "placed"),
        "resumed": optional(found, "resumed"),
        "working": optional(found, "working"),
        "saved": _SAVED[found.checkpointed],
        "bytes": optional(found, "checkpoint_bytes"),
        "reason": found.reason,
        "parts": {part: found.parts_s[part] for part in PARTS if part in found.parts_s},
        "left_step": optional(found, "left_step"),
        "kept_step": optional(found, "kept_step"),
        "working_step": optional(found, "working_step"),
        "lost": found.lost,
        "hint": found.hint,
        "note": found.note,
    }


def _request(job: client_pb2.Job) -> dict[str, Any]:
    spec = job.spec
    return {
        "command": shlex.join(spec.command),
        "workdir": spec.workdir,
        "class": CLASSES.get(spec.job_class, "be"),
        "priority": spec.priority,
        "weight": spec.weight if spec.HasField("weight") else 1.0,
        "group": spec.group,
        "suspend": _SUSPEND[spec.suspend],
        "signal": spec.signal,
        "grace_s": spec.grace_s,
        "time_limit_s": optional(spec, "time_limit_s"),
        "gpu_mem": job.gpu_mem_bytes,
        "cpus": spec.cpus,
        "mem": spec.mem_bytes,
        "retries": spec.retries,
        "nodes": spec.nodes or 1,
        "max_nodes": spec.max_nodes or 1,
        "env": sorted(spec.env),
    }


def explanation_facts(found: client_pb2.Explanation, now: float) -> dict[str, Any]:
    """Return why a job waits, and when it may start."""
    return {
        "reason": found.reason,
        "needs": found.needs,
        "ahead": optional(found, "ahead"),
        "nodes": [
            {"node": view.node, "idle": view.idle_gpus, "gpus": view.gpus, "obstacle": view.obstacle}
            for view in found.nodes[:100]
        ],
        "more_nodes": max(0, len(found.nodes) - 100),
        "room_at": optional(found, "room_at"),
        "basis": found.basis,
        "stays": [
            {
                "jobs": list(stays.job_ids),
                "many": stays.jobs,
                "reason": stays.reason,
                "until": optional(stays, "until"),
            }
            for stays in found.stays
        ],
        "forecast": _forecast(found.forecast) if found.HasField("forecast") else None,
        "what_if": _forecast(found.what_if) if found.HasField("what_if") else None,
        "at": now,
    }


def _forecast(seen: client_pb2.Forecast) -> dict[str, Any]:
    return {
        "start": optional(seen, "start_at"),
        "basis": seen.basis,
        "after": list(seen.after),
        "preempts": list(seen.preempts),
        "nodes": list(seen.nodes),
    }


def story_facts(events: Iterable[client_pb2.Event]) -> dict[str, Any]:
    """Return the last events of a job in words; checkpoints in a row are told as one."""
    told = list[dict[str, Any]]()
    for kind, run in groupby(events, lambda event: event.kind):
        several = list(run)
        if kind == "CheckpointPublished" and len(several) > 2:
            last = several[-1]
            told.append({"time": last.time, "kind": kind, "text": f"{len(several)} checkpoints, the last: {last.text}"})
        else:
            told += [{"time": event.time, "kind": kind, "text": event.text} for event in several]
    return {"events": told[-MOST_EVENTS:], "left_out": max(0, len(told) - MOST_EVENTS)}


# --- what it changes ---


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
