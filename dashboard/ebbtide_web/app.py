"""The application: all routes, who is logged in, and the pages of the cluster and the queue."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from ebbtide_web import streams
from ebbtide_web.admin_routes import AdminRoutes
from ebbtide_web.answers import HERE, Templates, answer, body, problem
from ebbtide_web.array_routes import ArrayRoutes
from ebbtide_web.changes import BadInputError
from ebbtide_web.dashboard import Dashboard, DashboardSettings
from ebbtide_web.event_routes import EventRoutes
from ebbtide_web.feed import SharedFeed
from ebbtide_web.guard import App, Guard
from ebbtide_web.job_routes import JobRoutes
from ebbtide_web.node_routes import NodeRoutes
from ebbtide_web.queue_page import Wanted
from ebbtide_web.reach import AwayError, Master, MasterRefusedError
from ebbtide_web.replays import Replays
from ebbtide_web.sessions import SESSION_S, NoRoomError, Session
from ebbtide_web.timeline_answers import TimelineAnswers
from ebbtide_web.timeline_routes import TimelineRoutes
from ebbtide_web.usage_ledger import UsageLedger
from ebbtide_web.usage_routes import UsageRoutes
from ebbtide_web.what_if_routes import WhatIfRoutes

log = logging.getLogger(__name__)

Handler = Callable[[Request, Session], Awaitable[Response]]


class Pages:
    """All routes, and the handlers of those that are about no job, node or event."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._templates = Templates(dashboard.settings.base, dashboard.settings.cluster)
        self._jobs = JobRoutes(dashboard, self._templates)
        self._arrays = ArrayRoutes(dashboard, self._templates)
        self._nodes = NodeRoutes(dashboard, self._templates)
        self._events = EventRoutes(dashboard, self._templates)
        self._timeline = TimelineRoutes(dashboard, self._templates)
        self._usage = UsageRoutes(dashboard, self._templates)
        self._admin = AdminRoutes(dashboard, self._templates)
        self._what_if = WhatIfRoutes(dashboard, self._templates)

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
            get("/stream/cluster", self.stream_cluster),
            get("/stream/queue", self.stream_queue),
            post("/logout", self.log_out),
            get("/jobs/{id}", self._jobs.job),
            get("/jobs/{id}/story", self._jobs.story),
            get("/jobs/{id}/tasks", self._jobs.tasks),
            get("/jobs/{id}/explain", self._jobs.explain),
            get("/jobs/{id}/log.txt", self._jobs.log_file),
            get("/stream/jobs/{id}", self._jobs.stream_job),
            get("/stream/jobs/{id}/log", self._jobs.stream_log),
            post("/jobs", self._jobs.change_many),
            post("/jobs/{id}/{verb}", self._jobs.change_one),
            get("/arrays/{id}", self._arrays.array),
            get("/stream/arrays/{id}", self._arrays.stream),
            get("/nodes", self._nodes.nodes),
            get("/nodes/{name}", self._nodes.node),
            get("/nodes/{name}/facts", self._nodes.facts),
            get("/nodes/{name}/preview", self._nodes.preview),
            get("/stream/nodes", self._nodes.stream_nodes),
            get("/stream/nodes/{name}", self._nodes.stream_node),
            post("/nodes/{name}/{verb}", self._nodes.change),
            get("/events", self._events.events),
            get("/events/older", self._events.older),
            get("/stream/events", self._events.stream),
            get("/timeline", self._timeline.timeline),
            get("/stream/timeline", self._timeline.stream),
            get("/usage", self._usage.usage),
            get("/usage.csv", self._usage.file),
            get("/stream/usage", self._usage.stream),
            get("/admin", self._admin.admin),
            get("/admin/facts", self._admin.facts),
            post("/admin/{verb}", self._admin.change),
            get("/whatif", self._what_if.what_if),
            get("/stream/whatif", self._what_if.stream),
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
        return self._templates.page("login.html", None)

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
        return self._templates.page("cluster.html", session)

    async def queue(self, request: Request, session: Session) -> Response:
        """Show the jobs that wait and run."""
        return self._templates.page("queue.html", session, wanted=Wanted.read(request.query_params))

    # --- streams ---

    async def stream_cluster(self, request: Request, session: Session) -> Response:
        """Stream the cluster."""
        return streams.of_topic(session, self._dashboard.feed, None)

    async def stream_queue(self, request: Request, session: Session) -> Response:
        """Stream a part of the queue."""
        return streams.of_topic(session, self._dashboard.feed, Wanted.read(request.query_params))


def _address(request: Request, *, proxied: bool) -> str:
    """Return where a request comes from, for counting failed logins only: nothing else believes a forwarded header.

    All that comes by a proxy's socket would count as one otherwise, and five wrong tokens keep everybody out.
    """
    if request.client is not None:
        return request.client.host
    return request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()[:64] if proxied else ""


def make_app(settings: DashboardSettings) -> tuple[App, Dashboard]:
    """Return the application, and its state."""
    master = Master(settings.opener)
    feed, usage = SharedFeed(master, settings.token), UsageLedger(master, settings.token)
    timeline, replays = TimelineAnswers(master, settings.token), Replays(master, settings.replay)
    dashboard = Dashboard(settings, master, feed, usage, timeline, replays)

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
