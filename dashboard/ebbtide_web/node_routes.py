"""The routes of nodes: the list of all, the page of one, what it reads, and the changes that operators ask for."""

import logging

from ebbtide_protos.v1 import client_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import node_facts, streams
from ebbtide_web.answers import Templates, answer, body
from ebbtide_web.changes import BadInputError
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.node_changes import check_node, drain_request, node_change
from ebbtide_web.nodes_page import WantedNodes
from ebbtide_web.reach import AwayError, MasterRefusedError
from ebbtide_web.sessions import Session

log = logging.getLogger(__name__)


class NodeRoutes:
    """The handlers of what is about nodes."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        self._dashboard = dashboard
        self._templates = templates

    async def nodes(self, request: Request, session: Session) -> Response:
        """Show all nodes."""
        return self._templates.page("nodes.html", session, wanted=WantedNodes.read(request.query_params))

    async def node(self, request: Request, session: Session) -> Response:
        """Show one node."""
        name = check_node(request.path_params["name"])
        try:
            await self._reply(session, name)
        except MasterRefusedError as error:
            words = {"title": f"Node {name}", "words": str(error), "back": "nodes"}
            return self._templates.page("message.html", session, status=error.status, **words)
        except AwayError:
            pass  # the page says so by itself, and goes on when it is back
        return self._templates.page("node.html", session, name=name)

    async def facts(self, request: Request, session: Session) -> Response:
        """Return all about one node."""
        return answer(node_facts.node_facts(await self._reply(session, check_node(request.path_params["name"]))))

    async def preview(self, request: Request, session: Session) -> Response:
        """Return what would become of the jobs on a node if it were drained; nothing is changed."""
        query = request.query_params
        deadline = query.get("deadline", "")
        if len(deadline) > 9 or not (deadline == "" or (deadline.isascii() and deadline.isdigit())):
            raise BadInputError("deadline: is not a number of seconds")
        fields = {"deadline": int(deadline) if deadline else None, "force": query.get("force") == "1"}
        wanted = drain_request(request.path_params["name"], fields)
        return answer({"jobs": node_facts.job_fates(await self._dashboard.call(session, "ForecastDrain", wanted))})

    async def change(self, request: Request, session: Session) -> Response:
        """Change one node."""
        name, verb = request.path_params["name"], request.path_params["verb"]
        wanted = node_change(verb, name, await body(request))
        await self._dashboard.call(session, wanted.method, wanted.request)
        log.info("user=%s node=%s %s", session.user, name, verb)
        return answer({"done": wanted.done})

    async def stream_nodes(self, request: Request, session: Session) -> Response:
        """Stream a part of the nodes."""
        return streams.of_topic(session, self._dashboard.feed, WantedNodes.read(request.query_params))

    async def stream_node(self, request: Request, session: Session) -> Response:
        """Stream one node."""
        name = check_node(request.path_params["name"])
        session.check_room()
        return streams.EventStream(streams.of_node(session, self._dashboard.master, name))

    async def _reply(self, session: Session, name: str) -> client_pb2.NodeReply:
        """Ask the master for a node; its stream is left after the first message. Raises `MasterRefusedError`."""
        return await streams.node_now(self._dashboard.master, name, session.token)
