"""The routes of "what if": the page, and what it reads while a simulation runs for it."""

from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.answers import Templates
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.sessions import Session
from ebbtide_web.what_if_page import WantedWhatIf, offered_policies


class WhatIfRoutes:
    """The handlers of what is about simulations of the cluster's past."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        self._dashboard = dashboard
        self._templates = templates

    async def what_if(self, request: Request, session: Session) -> Response:
        """Show what can be tried, and, if the address says it, what came of it."""
        wanted = WantedWhatIf.read(request.query_params)
        chosen = dict(wanted.options)
        return self._templates.page("what_if.html", session, wanted=wanted, chosen=chosen, policies=offered_policies())

    async def stream(self, request: Request, session: Session) -> Response:
        """Run a simulation, and stream how far it is and its result; leaving the stream ends it."""
        session.check_room()
        wanted = WantedWhatIf.read(request.query_params)
        return streams.EventStream(streams.of_what_if(session, self._dashboard.replays, wanted))
