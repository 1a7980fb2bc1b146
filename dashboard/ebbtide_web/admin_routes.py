"""The routes for admins and operators: the page, what it reads, and the changes that it asks for."""

import logging
import time
from typing import Any, Final

from ebbtide_protos.v1 import client_pb2, user_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import admin_page
from ebbtide_web.answers import Templates, answer, body
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.reach import AwayError, MasterRefusedError
from ebbtide_web.sessions import Session

NODES_KEPT_S: Final = 60.0
"""Seconds for which the list of nodes is kept, which everybody may see: of a large cluster it is megabytes."""

log = logging.getLogger(__name__)


class AdminRoutes:
    """The handlers of what only operators and admins may see; the master decides who that is."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        self._dashboard = dashboard
        self._templates = templates
        self._nodes: tuple[float, dict[str, Any]] | None = None

    async def admin(self, request: Request, session: Session) -> Response:
        """Show the page; those who may not see it are told so in the master's words."""
        try:
            await self._dashboard.call(session, "ShowSettings", user_pb2.ShowSettingsRequest())
        except MasterRefusedError as error:
            words = {"title": "Admin", "words": str(error), "back": "queue"}
            return self._templates.page("message.html", session, status=error.status, **words)
        except AwayError:
            pass  # the page says so by itself, and goes on when it is back
        return self._templates.page("admin.html", session)

    async def facts(self, request: Request, session: Session) -> Response:
        """Return all that the page shows."""
        call = self._dashboard.call
        settings = await call(session, "ShowSettings", user_pb2.ShowSettingsRequest())
        users = await call(session, "ListUsers", user_pb2.ListUsersRequest())
        cluster = await call(session, "ShowCluster", client_pb2.ShowClusterRequest())
        tokens, all_users = await self._tokens(session)
        return answer(
            {
                **admin_page.settings_facts(settings),
                **admin_page.user_facts(users),
                **admin_page.token_facts(tokens, session.token_id, all_users=all_users),
                **await self._nodes_now(session),
                "cluster": admin_page.cluster_facts(cluster),
            }
        )

    async def change(self, request: Request, session: Session) -> Response:
        """Create or revoke a token, or let the master read its configuration again."""
        verb = request.path_params["verb"]
        wanted = admin_page.admin_change(verb, await body(request))
        found = await self._dashboard.call(session, wanted.method, wanted.request)
        log.info("user=%s admin %s", session.user, verb)
        match found:
            case user_pb2.CreateTokenReply():
                return answer({"done": wanted.done, "id": found.token.id, "user": found.token.user, "text": found.text})
            case user_pb2.ReloadReply():
                later = f" What needs a restart: {', '.join(found.needs_restart)}." if found.needs_restart else ""
                return answer({"done": f"{wanted.done} New: {', '.join(found.changed) or 'nothing'}.{later}"})
            case _:
                return answer({"done": wanted.done})

    async def _tokens(self, session: Session) -> tuple[user_pb2.ListTokensReply, bool]:
        """Return everybody's tokens and True, or, if those may not be seen, the viewer's own and False."""
        try:
            return await self._dashboard.call(session, "ListTokens", user_pb2.ListTokensRequest(all=True)), True
        except MasterRefusedError as error:
            if error.status != 403:
                raise
        return await self._dashboard.call(session, "ListTokens", user_pb2.ListTokensRequest()), False

    async def _nodes_now(self, session: Session) -> dict[str, Any]:
        if self._nodes is None or time.monotonic() - self._nodes[0] > NODES_KEPT_S:
            found = await self._dashboard.call(session, "ListNodes", client_pb2.ListNodesRequest())
            self._nodes = time.monotonic(), admin_page.node_facts(found)
        return self._nodes[1]
