"""The application: all pages, and who may ask for what of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from ebbtide_web.access.guard import App, Guard
from ebbtide_web.access.sessions import NoRoomError
from ebbtide_web.answers import HERE, BadInputError, Templates, problem
from ebbtide_web.board.feed import SharedFeed
from ebbtide_web.dashboard import Dashboard, DashboardSettings
from ebbtide_web.pages.admin import AdminPage
from ebbtide_web.pages.array import ArrayPage
from ebbtide_web.pages.cluster import ClusterPage
from ebbtide_web.pages.events import EventsPage
from ebbtide_web.pages.job import JobPage
from ebbtide_web.pages.log import LogPage
from ebbtide_web.pages.login import LoginPage
from ebbtide_web.pages.node import NodePage
from ebbtide_web.pages.nodes import NodesPage
from ebbtide_web.pages.page import NotShownError, Page, PageRoute
from ebbtide_web.pages.queue import QueuePage
from ebbtide_web.pages.timeline import TimelinePage
from ebbtide_web.pages.usage import UsagePage
from ebbtide_web.pages.what_if import WhatIfPage
from ebbtide_web.reach import AwayError, Master, MasterRefusedError

PAGES: Final[tuple[type[Page], ...]] = (
    LoginPage,
    ClusterPage,
    QueuePage,
    JobPage,
    LogPage,
    ArrayPage,
    NodesPage,
    NodePage,
    EventsPage,
    TimelinePage,
    UsagePage,
    WhatIfPage,
    AdminPage,
)


def make_app(settings: DashboardSettings) -> tuple[App, Dashboard]:
    """Return the application, and its state."""
    master = Master(settings.opener)
    dashboard = Dashboard(settings, master, SharedFeed(master, settings.token))
    templates = Templates(settings.base, settings.cluster)
    pages = [kind(dashboard, templates) for kind in PAGES]

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        dashboard.tasks += [asyncio.create_task(dashboard.feed.run()), asyncio.create_task(dashboard.watch())]
        try:
            yield
        finally:
            for task in dashboard.tasks:
                task.cancel()
            await asyncio.wait(dashboard.tasks)
            await dashboard.end_sessions()
            for page in pages:
                await page.close()
            await master.close()

    static: list[Route | Mount] = [Mount("/static", StaticFiles(directory=HERE / "static"))]
    routes = static + [_served(dashboard, route) for page in pages for route in page.routes()]
    inner = Starlette(routes=_below(settings.base, routes), lifespan=running, exception_handlers=_refusals(templates))
    inner.router.redirect_slashes = False  # it would lead to an address that a proxy has not got
    return Guard(inner, settings.origin), dashboard


def _served(dashboard: Dashboard, route: PageRoute | Route) -> Route:
    """Return a route that serves those who are logged in; a `Route` serves everybody as it is."""
    if isinstance(route, Route):
        return route

    async def handled(request: Request) -> Response:
        session = dashboard.session_of(request.cookies)
        if session is not None:
            await dashboard.check(session)
        if session is None or session.ended.is_set():
            return _not_known(dashboard, request)
        if route.changes and not session.proves(request.headers.get("x-csrf", "")):
            return problem("this page is not of this session: load it again", 403)
        return await route.handler(request, session)

    return Route(route.path, handled, methods=["POST" if route.changes else "GET"])


def _not_known(dashboard: Dashboard, request: Request) -> Response:
    """Lead a person to the page where they log in, and tell a script."""
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(f"{dashboard.settings.base}/login", 303)
    return problem("log in first", 401)


def _refusals(templates: Templates) -> dict[Any, Callable[[Request, Any], Awaitable[Response]]]:
    """Return how each error that a page raises is answered."""

    async def not_shown(request: Request, error: NotShownError) -> Response:
        words = {"title": error.title, "words": str(error), "back": error.back}
        return templates.page("message.html", error.session, status=error.status, **words)

    async def refused(request: Request, error: MasterRefusedError) -> Response:
        return problem(str(error), error.status)

    async def away(request: Request, error: AwayError) -> Response:
        return problem(f"the master does not answer: {error}", 503)

    async def bad_input(request: Request, error: BadInputError) -> Response:
        return problem(str(error), 400)

    async def no_room(request: Request, error: NoRoomError) -> Response:
        return problem(str(error), 429)

    return {
        NotShownError: not_shown,
        MasterRefusedError: refused,
        AwayError: away,
        BadInputError: bad_input,
        NoRoomError: no_room,
    }


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
