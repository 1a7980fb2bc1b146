"""The dashboard's routes: who is logged in, pages, what they read, and the changes that they ask for."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import jinja2
from ebbtide_protos.quantities import printable
from ebbtide_protos.v1 import client_pb2, user_pb2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from ebbtide_web import job_facts, streams
from ebbtide_web.changes import MOST_AT_ONCE, VERBS, BadInputError, change, check_id
from ebbtide_web.feed import SharedFeed
from ebbtide_web.guard import App, Guard, Origin
from ebbtide_web.queue_page import Wanted
from ebbtide_web.reach import AwayError, Master, MasterRefusedError, Opener
from ebbtide_web.sessions import SESSION_S, Failures, Links, NoRoomError, Session, WebSessions
from ebbtide_web.shared_page import encoded

HERE: Final = Path(__file__).parent
CHECKED_S: Final = 3.0
"""Seconds after which the master is asked again whether a session's token still holds."""
LABEL: Final = "dashboard"

log = logging.getLogger(__name__)

Handler = Callable[[Request, Session], Awaitable[Response]]


@dataclass(slots=True)
class DashboardSettings:
    """How a dashboard is reached, and as whom it asks for what everybody may see."""

    opener: Opener
    token: Callable[[], str]
    """The token of the account that runs this: the feed's, and that of those who come by a link."""
    links: Links
    origin: Origin
    base: str = ""
    """The path below which all pages are, such as ``/ebb``, for a proxy that serves more; empty without one."""
    cluster: str = ""
    """What the header calls the cluster."""


@dataclass(slots=True)
class Dashboard:
    """The state of one dashboard."""

    settings: DashboardSettings
    master: Master
    feed: SharedFeed
    sessions: WebSessions = field(default_factory=WebSessions)
    failures: Failures = field(default_factory=Failures)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    """What runs for as long as the dashboard does; if one of them ends, that is a fault of it."""

    @property
    def cookie(self) -> str:
        """The name of the session's cookie: browsers keep one with such a beginning only as it is meant to be set."""
        if not self.settings.origin.tls:
            return "ebbtide"
        return "__Secure-ebbtide" if self.settings.base else "__Host-ebbtide"

    # --- sessions ---

    async def log_in(self, token: str) -> tuple[Session, str]:
        """Open a session with a token of its own, made with ``token``; return it and the text of its cookie."""
        request = user_pb2.CreateTokenRequest(lifetime_s=SESSION_S, label=LABEL)
        made = await self.master.call("CreateToken", request, token)
        who = await self.master.call("WhoAmI", user_pb2.WhoAmIRequest(), made.text)
        now = time.monotonic()
        session = Session(who.user.name, who.user.role, made.text, made.token.id, now + SESSION_S, checked=now)
        try:
            return session, self.sessions.open(session)
        except NoRoomError:
            await self.revoke(session)
            raise

    async def revoke(self, session: Session) -> None:
        """End a session, and revoke its token; if the master is away, the token ends by itself."""
        session.end("you have logged out")
        with suppress(AwayError, MasterRefusedError):
            request = user_pb2.RevokeTokenRequest(id=session.token_id)
            await self.master.call("RevokeToken", request, session.token)

    async def check(self, session: Session) -> None:
        """End the session if the master does not accept its token any more."""
        if time.monotonic() - session.checked < CHECKED_S:
            return
        session.checked = time.monotonic()
        try:
            who = await self.master.call("WhoAmI", user_pb2.WhoAmIRequest(), session.token)
            session.role = who.user.role
        except MasterRefusedError as error:
            if error.status == 401:
                session.end(streams.OVER)
        except AwayError:
            pass  # what is shown is what was shown before; nothing can be changed meanwhile

    async def watch(self) -> None:
        """Check, again and again, the sessions that have a page open, so that no stream outlives its token."""
        while True:
            await asyncio.sleep(CHECKED_S)
            self.sessions.expire()
            for session in self.sessions.all():
                if session.streams:
                    await self.check(session)

    async def close(self) -> None:
        """End all sessions, and revoke their tokens."""
        ended = self.sessions.all()
        for session in ended:
            session.end("the dashboard has been stopped")
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.gather(*(self.revoke(session) for session in ended))
        await self.master.close()


class Pages:
    """The handlers of all routes."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=lambda value: printable(value) if type(value) is str else value,
        )

    def routes(self) -> list[Route | Mount]:
        """Return all routes; every one but those of logging in needs a session."""

        def get(path: str, handler: Handler) -> Route:
            return Route(path, self._with_session(handler), methods=["GET"])

        def post(path: str, handler: Handler) -> Route:
            return Route(path, self._with_session(handler, changes=True), methods=["POST"])

        return [
            Route("/login", self.login, methods=["GET"]),
            Route("/login/code", self.log_in_by_code, methods=["POST"]),
            Route("/login/token", self.log_in_by_token, methods=["POST"]),
            Mount("/static", StaticFiles(directory=HERE / "static")),
            get("/", self.cluster),
            get("/queue", self.queue),
            get("/me", self.me),
            get("/jobs/{id}", self.job),
            get("/jobs/{id}/story", self.story),
            get("/jobs/{id}/tasks", self.tasks),
            get("/jobs/{id}/explain", self.explain),
            get("/jobs/{id}/log.txt", self.log_file),
            get("/nodes/{name}", self.node),
            get("/stream/cluster", self.stream_cluster),
            get("/stream/queue", self.stream_queue),
            get("/stream/jobs/{id}", self.stream_job),
            get("/stream/jobs/{id}/log", self.stream_log),
            post("/logout", self.log_out),
            post("/jobs", self.change_many),
            post("/jobs/{id}/{verb}", self.change_one),
        ]

    # --- sessions ---

    def _with_session(self, handler: Handler, *, changes: bool = False) -> Callable[[Request], Awaitable[Response]]:
        """Return ``handler`` for those who are logged in, and, if it ``changes`` anything, have the page's token."""

        async def handled(request: Request) -> Response:
            session = self._session(request)
            if session is not None:
                await self._dashboard.check(session)
            if session is None or session.ended.is_set():
                return self._not_known(request)
            if changes and not session.proves(request.headers.get("x-csrf", "")):
                return problem("this page is not of this session: load it again", 403)
            try:
                return await handler(request, session)
            except MasterRefusedError as error:
                return problem(str(error), error.status)
            except AwayError as error:
                return problem(f"the master does not answer: {error}", 503)
            except BadInputError as error:
                return problem(str(error), 400)
            except NoRoomError as error:
                return problem(str(error), 429)

        return handled

    def _session(self, request: Request) -> Session | None:
        return self._dashboard.sessions.find(request.cookies.get(self._dashboard.cookie, ""))

    def _not_known(self, request: Request) -> Response:
        """Lead a person to the page where they log in, and tell a script."""
        if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(f"{self._dashboard.settings.base}/login", 303)
        return problem("log in first", 401)

    async def login(self, request: Request) -> Response:
        """Show where to log in."""
        if self._session(request) is not None:
            return RedirectResponse(f"{self._dashboard.settings.base}/", 303)
        return self._page("login.html", None, {})

    async def log_in_by_code(self, request: Request) -> Response:
        """Open a session for whoever has the code of a link."""
        return await self._log_in(request, "code")

    async def log_in_by_token(self, request: Request) -> Response:
        """Open a session for whoever has a token."""
        return await self._log_in(request, "token")

    async def _log_in(self, request: Request, kind: str) -> Response:
        dashboard, address = self._dashboard, _address(request, proxied=self._dashboard.settings.origin.proxied)
        if dashboard.failures.too_many(address):
            return problem("too many attempts to log in: wait a minute", 429)
        given = (await body(request)).get(kind)
        text = given.strip() if isinstance(given, str) and len(given) < 1000 else ""
        if kind == "code" and not dashboard.settings.links.use(text):
            dashboard.failures.add(address)
            return problem("the link is not valid any more: it logs in once, within a minute", 401)
        try:
            session, cookie = await dashboard.log_in(dashboard.settings.token() if kind == "code" else text)
        except MasterRefusedError as error:
            dashboard.failures.add(address)
            return problem(str(error), error.status)
        except AwayError as error:
            return problem(f"the master does not answer: {error}", 503)
        except (NoRoomError, UnicodeError) as error:
            dashboard.failures.add(address)
            return problem(str(error) if isinstance(error, NoRoomError) else "this is not a token", 400)
        log.info("user=%s logged in by a %s", session.user, "link" if kind == "code" else kind)
        response = answer({"user": session.user})
        response.set_cookie(
            dashboard.cookie,
            cookie,
            max_age=int(SESSION_S),
            path=dashboard.settings.base or "/",
            secure=dashboard.settings.origin.tls,
            httponly=True,
            samesite="strict",
        )
        return response

    async def log_out(self, request: Request, session: Session) -> Response:
        """End the session, and revoke its token."""
        await self._dashboard.revoke(session)
        response = answer({})
        settings = self._dashboard.settings
        response.delete_cookie(self._dashboard.cookie, path=settings.base or "/", secure=settings.origin.tls)
        return response

    async def me(self, request: Request, session: Session) -> Response:
        """Say who is logged in; a page asks whether it still is."""
        return answer({"user": session.user, "role": session.role})

    # --- pages ---

    async def cluster(self, request: Request, session: Session) -> Response:
        """Show the cluster."""
        return self._page("cluster.html", session, {})

    async def queue(self, request: Request, session: Session) -> Response:
        """Show the jobs that wait and run."""
        wanted = Wanted.read(request.query_params)
        return self._page("queue.html", session, {"wanted": wanted})

    async def job(self, request: Request, session: Session) -> Response:
        """Show one job."""
        id = check_id(request.path_params["id"])
        name = ""
        try:
            name = (await self._call(session, "ShowJob", client_pb2.JobRequest(job_id=id))).spec.name
        except MasterRefusedError as error:
            words = {"title": f"Job {id}", "words": str(error)}
            return self._page("message.html", session, words, error.status)
        except AwayError:
            pass  # the page says so by itself, and goes on when it is back
        return self._page("job.html", session, {"id": id, "name": name})

    def _page(self, template: str, session: Session | None, values: dict[str, Any], status: int = 200) -> HTMLResponse:
        settings = self._dashboard.settings
        text = self._templates.get_template(template).render(
            base=settings.base, cluster=settings.cluster, session=session, **values
        )
        return HTMLResponse(text, status)

    # --- what pages read ---

    async def _call(self, session: Session, method: str, request: Any) -> Any:
        """Call the master as the person who asks; end the session if the master does not know them any more."""
        try:
            return await self._dashboard.master.call(method, request, session.token)
        except MasterRefusedError as error:
            if error.status == 401:
                session.end(streams.OVER)
            raise

    async def story(self, request: Request, session: Session) -> Response:
        """Return the events of a job."""
        found = await self._call(session, "ShowStory", _job_request(request))
        return answer(job_facts.story_facts(found.events))

    async def tasks(self, request: Request, session: Session) -> Response:
        """Return the tasks of an array."""
        wanted = client_pb2.ListJobsRequest(job_ids=[_job_request(request).job_id])
        return answer(job_facts.task_facts((await self._call(session, "ListJobs", wanted)).jobs))

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
        found = await self._call(session, "Explain", wanted)
        return answer(job_facts.explanation_facts(found, time.time()))

    async def node(self, request: Request, session: Session) -> Response:
        """Return all about one node; the stream of the master is left after its first message."""
        wanted = client_pb2.NodeRequest(node=request.path_params["name"][:256])
        async with aclosing(self._dashboard.master.stream("WatchNode", wanted, session.token)) as stream:
            reply = await anext(stream, None)
        return problem("there is no such node", 404) if reply is None else answer(job_facts.node_facts(reply))

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

    async def stream_cluster(self, request: Request, session: Session) -> Response:
        """Stream the cluster."""
        return self._shared(session, None)

    async def stream_queue(self, request: Request, session: Session) -> Response:
        """Stream a part of the queue."""
        return self._shared(session, Wanted.read(request.query_params))

    def _shared(self, session: Session, wanted: Wanted | None) -> Response:
        session.check_room()
        self._dashboard.feed.check_room(wanted)
        return streams.EventStream(streams.shared(session, self._dashboard.feed, wanted))

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
        job = await self._call(session, wanted.method, wanted.request)
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
                await self._call(session, each.method, each.request)
            except MasterRefusedError as error:
                refused[id] = str(error)
        return answer({"done": len(wanted) - len(refused), "refused": refused})


def _address(request: Request, *, proxied: bool) -> str:
    """Return where a request comes from, for counting failed logins only: nothing else believes a forwarded header.

    All that comes by a proxy's socket would count as one otherwise, and five wrong tokens keep everybody out.
    """
    if request.client is not None:
        return request.client.host
    return request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()[:64] if proxied else ""


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


async def body(request: Request) -> dict[str, Any]:
    """Return the JSON object that a request has. Raises `BadInputError`."""
    try:
        found = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError):
        raise BadInputError("the body is not JSON") from None
    if not isinstance(found, dict):
        raise BadInputError("the body is not an object")
    return found


def answer(value: dict[str, Any], status: int = 200) -> Response:
    """Return a reply with JSON that is safe to show."""
    return Response(encoded(value), status, media_type="application/json")


def problem(words: str, status: int) -> Response:
    """Return a reply that says what is wrong."""
    return answer({"error": words}, status)


def make_app(settings: DashboardSettings) -> tuple[App, Dashboard]:
    """Return the application, and its state."""
    master = Master(settings.opener)
    dashboard = Dashboard(settings, master, SharedFeed(master, settings.token))

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        dashboard.tasks += [asyncio.create_task(dashboard.feed.run()), asyncio.create_task(dashboard.watch())]
        try:
            yield
        finally:
            for task in dashboard.tasks:
                task.cancel()
            await asyncio.wait(dashboard.tasks)
            await dashboard.close()

    inner = Starlette(routes=_below(settings.base, Pages(dashboard).routes()), lifespan=running)
    inner.router.redirect_slashes = False  # it would lead to an address that a proxy has not got
    return Guard(inner, settings.origin), dashboard


def _below(base: str, routes: list[Route | Mount]) -> list[Route | Mount]:
    """Return the same routes below ``base``, and answers for what is outside."""
    if not base:
        return routes

    async def first(request: Request) -> Response:
        return RedirectResponse(f"{base}/", 303)

    async def outside(request: Request) -> Response:
        return problem(f"this dashboard is below {base}/: a proxy before it has to keep that part of the path", 404)

    return [
        Route(base, first, methods=["GET"]),
        Mount(base, Router(routes, redirect_slashes=False)),
        Route("/{path:path}", outside, methods=["GET", "POST"]),
    ]
