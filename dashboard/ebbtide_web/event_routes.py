"""The routes of events: the page, what it reads as they come, and the pages of older ones."""

from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import events_page, streams
from ebbtide_web.answers import Templates, answer
from ebbtide_web.changes import BadInputError
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.events_page import WantedEvents
from ebbtide_web.sessions import Session

MOST_DIGITS = 18


class EventRoutes:
    """The handlers of what is about events. Each viewer is shown what the master shows them."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        self._dashboard = dashboard
        self._templates = templates

    async def events(self, request: Request, session: Session) -> Response:
        """Show the events."""
        kinds = {
            subject: [(kind, events_page.in_words(kind)) for kind in names]
            for subject, names in events_page.SUBJECTS.items()
        }
        wanted = WantedEvents.read(request.query_params)
        return self._templates.page("events.html", session, wanted=wanted, kinds=kinds)

    async def older(self, request: Request, session: Session) -> Response:
        """Return the page of events before one."""
        before = request.query_params.get("before", "")
        if not (before.isascii() and before.isdigit()) or len(before) > MOST_DIGITS:
            raise BadInputError("before: is not the number of an event")
        wanted = WantedEvents.read(request.query_params).request(before=int(before))
        return answer(events_page.page_facts(await self._dashboard.call(session, "QueryEvents", wanted)))

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream the newest events, and what is added."""
        session.check_room()
        wanted = WantedEvents.read(request.query_params)
        return streams.EventStream(streams.of_events(session, self._dashboard.master, wanted))
