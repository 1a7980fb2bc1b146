"""The routes of the usage: the page, what it reads, and the file for spreadsheets."""

from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.answers import Templates
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.sessions import Session
from ebbtide_web.usage_page import WantedUsage, csv_text


class UsageRoutes:
    """The handlers of what is about GPU time."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        self._dashboard = dashboard
        self._templates = templates

    async def usage(self, request: Request, session: Session) -> Response:
        """Show who had how much GPU time, and what became of it."""
        return self._templates.page("usage.html", session, wanted=WantedUsage.read(request.query_params))

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream the sums, and again whenever they are asked for anew."""
        session.check_room()
        wanted = WantedUsage.read(request.query_params)
        return streams.EventStream(streams.of_usage(session, self._dashboard.usage, wanted))

    async def file(self, request: Request, session: Session) -> Response:
        """Send all sums as a file for spreadsheets."""
        wanted = WantedUsage.read(request.query_params)
        found = await self._dashboard.usage.answer(wanted)
        name = f"usage-{wanted.window}-by-{wanted.by}.csv"
        kept = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(csv_text(wanted, found.by_key.accounts), media_type="text/csv", headers=kept)
