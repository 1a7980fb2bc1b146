"""The routes of "what if": the page, and what it reads while a simulation runs for it."""

import time

from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.answers import Templates
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.sessions import Session
from ebbtide_web.what_if_page import MOST_POLICIES, offered_policies, read_what_ifs


class WhatIfRoutes:
    """The handlers of what is about simulations of the cluster's past."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        self._dashboard = dashboard
        self._templates = templates

    async def what_if(self, request: Request, session: Session) -> Response:
        """Show what can be tried, and, if the address says it, what came of it."""
        return self._templates.page(
            "what_if.html", session, policies=offered_policies(), most=MOST_POLICIES, now=int(time.time())
        )

    async def stream(self, request: Request, session: Session) -> Response:
        """Run simulations one by one, and stream how far they are and their results; leaving the stream ends them."""
        session.check_room()
        wanted = read_what_ifs(request.query_params.multi_items())
        return streams.EventStream(streams.of_what_if(session, self._dashboard.replays, wanted))
