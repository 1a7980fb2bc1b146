"""The routes of the timeline: the page, and what it draws."""

from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.answers import Templates
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.picture import FEW_GPUS
from ebbtide_web.sessions import Session
from ebbtide_web.timeline_page import WantedTimeline


class TimelineRoutes:
    """The handlers of what is about the timeline."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        self._dashboard = dashboard
        self._templates = templates

    async def timeline(self, request: Request, session: Session) -> Response:
        """Show who had which GPU, and what jobs did meanwhile; of a large cluster, how much of each pool was held."""
        by = "pool" if self._dashboard.feed.picture.gpu_count > FEW_GPUS else "gpu"
        wanted = WantedTimeline.read(request.query_params)
        return self._templates.page("timeline.html", session, wanted=wanted, by=by)

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream what is drawn whenever it is another than before."""
        session.check_room()
        wanted = WantedTimeline.read(request.query_params)
        return streams.EventStream(streams.of_timeline(session, self._dashboard.timeline, wanted))
