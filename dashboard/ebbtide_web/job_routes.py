"""The routes of jobs: the page of one, what it reads, and the changes that it and the queue ask for."""

import logging
import time

from ebbtide_protos.v1 import client_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import array_facts, job_facts, streams
from ebbtide_web.answers import Templates, answer, body
from ebbtide_web.array_facts import WantedTasks
from ebbtide_web.changes import MOST_AT_ONCE, VERBS, BadInputError, change, check_id
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.reach import AwayError, MasterRefusedError
from ebbtide_web.sessions import Session

log = logging.getLogger(__name__)


class JobRoutes:
    """The handlers of what is about one job, and of changes of several."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        self._dashboard = dashboard
        self._templates = templates

    # --- pages, and what they read ---

    async def job(self, request: Request, session: Session) -> Response:
        """Show one job."""
        id = check_id(request.path_params["id"])
        name = ""
        try:
            name = (await self._dashboard.call(session, "ShowJob", client_pb2.JobRequest(job_id=id))).spec.name
        except MasterRefusedError as error:
            words = {"title": f"Job {id}", "words": str(error), "back": "queue"}
            return self._templates.page("message.html", session, status=error.status, **words)
        except AwayError:
            pass  # the page says so by itself, and goes on when it is back
        return self._templates.page("job.html", session, id=id, name=name)

    async def story(self, request: Request, session: Session) -> Response:
        """Return the events of a job."""
        found = await self._dashboard.call(session, "ShowStory", _job_request(request))
        return answer(job_facts.story_facts(found.events))

    async def tasks(self, request: Request, session: Session) -> Response:
        """Return the first tasks of an array."""
        wanted = WantedTasks()
        found = await self._dashboard.call(session, "ShowArray", wanted.request(_job_request(request).job_id))
        return answer(array_facts.first_tasks(found))

    async def explain(self, request: Request, session: Session) -> Response:
        """Return why a job waits, and what another priority or size would bring; nothing is changed."""
        wanted = client_pb2.ExplainRequest(job_id=_job_request(request).job_id)
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
        return answer(job_facts.explanation_facts(found, time.time()))

    async def log_file(self, request: Request, session: Session) -> Response:
        """Send all of a log as a file, as the job printed it."""
        wanted = _log_request(request)
        session.check_room()
        stream = self._dashboard.master.stream("ReadLogs", wanted, session.token)
        first = await anext(stream, None)  # a refusal is an answer of its own

        name = f"job-{wanted.job_id}.log"
        return streams.EventStream(
            streams.of_file(session, first, stream),
            "text/plain; charset=utf-8",
            **{"content-disposition": f'attachment; filename="{name}"'},
        )

    # --- streams ---

    async def stream_job(self, request: Request, session: Session) -> Response:
        """Stream one job."""
        id = _job_request(request).job_id
        session.check_room()
        return streams.EventStream(streams.of_job(session, self._dashboard.master, id))

    async def stream_log(self, request: Request, session: Session) -> Response:
        """Stream the log of a job."""
        wanted = _log_request(request)
        wanted.follow, wanted.tail = True, streams.TAIL_LINES
        session.check_room()
        return streams.EventStream(streams.of_log(session, self._dashboard.master, wanted))

    # --- changes ---

    async def change_one(self, request: Request, session: Session) -> Response:
        """Change one job."""
        wanted = change(request.path_params["verb"], request.path_params["id"], await body(request))
        job = await self._dashboard.call(session, wanted.method, wanted.request)
        log.info("user=%s job=%s %s", session.user, request.path_params["id"], request.path_params["verb"])
        done = f"{wanted.done} {job.effect}".strip() if wanted.method == "Change" else wanted.done
        return answer({"done": done, "id": job.job_id})

    async def change_many(self, request: Request, session: Session) -> Response:
        """Change several jobs in turn; what the master refuses of them is told for each."""
        fields = await body(request)
        ids, verb = fields.get("ids"), fields.get("verb")
        if not isinstance(ids, list) or not 1 <= len(ids) <= MOST_AT_ONCE:
            raise BadInputError(f"ids: is not a list of 1 to {MOST_AT_ONCE} jobs")
        if verb not in VERBS:
            raise BadInputError(f"verb: is none of {', '.join(VERBS)}")
        wanted = [(str(id), change(verb, str(id), fields)) for id in ids]
        refused = dict[str, str]()
        for id, each in wanted:
            try:
                await self._dashboard.call(session, each.method, each.request)
            except MasterRefusedError as error:
                refused[id] = str(error)
        return answer({"done": len(wanted) - len(refused), "refused": refused})


def _job_request(request: Request) -> client_pb2.JobRequest:
    return client_pb2.JobRequest(job_id=check_id(request.path_params["id"]))


def _log_request(request: Request) -> client_pb2.ReadLogsRequest:
    wanted = client_pb2.ReadLogsRequest(job_id=_job_request(request).job_id)
    for name in ("attempt", "rank"):
        if text := request.query_params.get(name):
            if not (text.isascii() and text.isdigit() and len(text) < 7):
                raise BadInputError(f"{name}: is not a number")
            setattr(wanted, name, int(text))
    return wanted
