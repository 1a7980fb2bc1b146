"""The routes of arrays: the page of one, and what it reads as its tasks go on."""

from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.answers import Templates
from ebbtide_web.array_facts import WantedTasks
from ebbtide_web.changes import check_id
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.reach import AwayError, MasterRefusedError
from ebbtide_web.sessions import Session


class ArrayRoutes:
    """The handlers of what is about arrays. Each viewer is shown what the master shows them."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        self._dashboard = dashboard
        self._templates = templates

    async def array(self, request: Request, session: Session) -> Response:
        """Show one array."""
        id, name = check_id(request.path_params["id"]), ""
        try:
            name = (await self._dashboard.call(session, "ShowArray", WantedTasks().request(id))).name
        except MasterRefusedError as error:
            words = {"title": f"Array {id}", "words": str(error), "back": "queue"}
            return self._templates.page("message.html", session, status=error.status, **words)
        except AwayError:
            pass  # the page says so by itself, and goes on when it is back
        return self._templates.page("array.html", session, id=id, name=name)

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream an array."""
        id, wanted = check_id(request.path_params["id"]), WantedTasks.read(request.query_params)
        session.check_room()
        return streams.EventStream(streams.of_array(session, self._dashboard.master, id, wanted))
