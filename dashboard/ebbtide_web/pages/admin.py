"""The page for admins: settings, quotas, users, tokens, the journal and the agents, as far as the master shows them."""

import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ebbtide_protos.v1 import client_pb2, user_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web.access.sessions import Session
from ebbtide_web.answers import BadInputError, Templates, answer, body
from ebbtide_web.board.picture import ENDED, gpu_state, natural, optional
from ebbtide_web.dashboard import Dashboard
from ebbtide_web.pages.page import Change, Page, PageRoute
from ebbtide_web.reach import MasterRefusedError

NODES_KEPT_S: Final = 60.0
"""Seconds for which the list of nodes is kept, which everybody may see: of a large cluster it is megabytes."""
ADMIN_VERBS: Final = ("create", "revoke", "reload")
MOST_USERS: Final = 500
MOST_TOKENS: Final = 500
MOST_NODES: Final = 1000
MOST_DAYS: Final = 3650
LONGEST_LABEL: Final = 128
DAY_S: Final = 86_400.0
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_TOKEN: Final = re.compile(r"[0-9a-zA-Z]{1,40}")

log = logging.getLogger(__name__)


class AdminPage(Page):
    """Shows what only operators and admins may see, and changes it."""

    def __init__(self, dashboard: Dashboard, templates: Templates) -> None:
        super().__init__(dashboard, templates)
        self._nodes: tuple[float, dict[str, Any]] | None = None

    def routes(self) -> Sequence[PageRoute]:
        """Return the routes of the page."""
        return (
            PageRoute("/admin", self.show),
            PageRoute("/admin/facts", self.facts),
            PageRoute("/admin/{verb}", self.change, changes=True),
        )

    async def show(self, request: Request, session: Session) -> Response:
        """Show the page; those who may not see it are told so in the master's words."""
        asked = self._dashboard.call(session, "ShowSettings", user_pb2.ShowSettingsRequest())
        await self._first_seen(session, asked, "Admin")
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
                **settings_facts(settings),
                **user_facts(users),
                **token_facts(tokens, session.token_id, all_users=all_users),
                **await self._nodes_now(session),
                "cluster": cluster_facts(cluster),
            }
        )

    async def change(self, request: Request, session: Session) -> Response:
        """Create or revoke a token, or let the master read its configuration again."""
        verb = request.path_params["verb"]
        wanted = admin_change(verb, await body(request))
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
            self._nodes = time.monotonic(), node_facts(found)
        return self._nodes[1]


# --- what it shows ---


def user_facts(reply: user_pb2.ListUsersReply) -> dict[str, Any]:
    """Return the users."""
    users = [
        {
            "name": user.name,
            "role": user.role,
            "account": user.account or user.name,
            "tokens": user.tokens,
            "used": optional(user, "last_used"),
        }
        for user in reply.users[:MOST_USERS]
    ]
    return {"users": users, "more_users": max(0, len(reply.users) - MOST_USERS)}


def token_facts(reply: user_pb2.ListTokensReply, own: str, *, all_users: bool) -> dict[str, Any]:
    """Return the tokens, the newest first; ``own`` is the id of the one that the viewer's session has."""
    tokens = sorted(reply.tokens, key=lambda token: -token.created)
    return {
        "all_tokens": all_users,
        "more_tokens": max(0, len(tokens) - MOST_TOKENS),
        "tokens": [
            {
                "id": token.id,
                "user": token.user,
                "label": token.label,
                "created": token.created,
                "expires": optional(token, "expires"),
                "used": optional(token, "last_used"),
                "own": token.id == own,
            }
            for token in tokens[:MOST_TOKENS]
        ],
    }


def settings_facts(reply: user_pb2.ShowSettingsReply) -> dict[str, Any]:
    """Return what holds and what the file says, the quotas in use, and how the journal is."""
    journal = reply.journal
    return {
        "settings": [
            {"name": one.name, "value": optional(one, "value"), "in_file": optional(one, "in_file")}
            for one in reply.settings
        ],
        "changed": list(reply.changed),
        "needs_restart": list(reply.needs_restart),
        "problem": reply.problem,
        "quotas": [
            {
                "user": one.user,
                "gpus_used": one.gpus_used,
                "gpus": optional(one, "gpus"),
                "unfinished": one.unfinished,
                "queued": optional(one, "queued"),
            }
            for one in reply.quotas
        ],
        "journal": {
            "kind": journal.kind,
            "events": journal.last_sequence,
            "last": journal.last_time or None,
            "damaged": journal.damaged,
            "has_room": journal.has_room,
            "restored": optional(journal, "restored"),
            "backed_up": optional(journal, "backed_up"),
            "standbys": [{"name": one.name, "heard_s": one.heard_s} for one in journal.standbys],
        },
    }


def node_facts(reply: client_pb2.ListNodesReply) -> dict[str, Any]:
    """Return the agents' versions and certificates, and what needs somebody's attention on nodes."""
    nodes = sorted(reply.nodes, key=lambda node: natural(node.name))
    return {
        "versions": dict(Counter(node.version or "not known" for node in nodes).most_common()),
        "nodes": [
            {
                "name": node.name,
                "state": node.state,
                "version": node.version,
                "certificate_ends": optional(node, "certificate_ends"),
            }
            for node in nodes[:MOST_NODES]
        ],
        "more_nodes": max(0, len(nodes) - MOST_NODES),
        "node_problems": [{"node": name, "words": words} for name, words in _problems(nodes)][:MOST_NODES],
        "doubted": list(reply.doubted),
        "unheard": list(reply.unheard),
    }


def _problems(nodes: Iterable[client_pb2.Node]) -> Iterable[tuple[str, str]]:
    for node in nodes:
        if node.state == ENDED:
            continue
        if node.state == "down":
            yield node.name, node.reason or "silent"
        if node.strays:
            yield node.name, f"{len(node.strays)} attempts are set aside"
        for gpu in node.gpus:
            if not gpu.info.healthy and gpu_state(gpu) in ("unhealthy", "quarantined"):  # a stray's GPU is healthy
                why = gpu.info.unhealthy_reason
                yield node.name, f"GPU {gpu.info.index} is {gpu_state(gpu)}{why and f': {why}'}"


def cluster_facts(info: client_pb2.ClusterInfo) -> dict[str, Any]:
    """Return which master this is."""
    return {
        "version": info.version,
        "epoch": info.epoch,
        "recovering": info.recovering,
        "unfinished": info.jobs_unfinished,
        "certificate_ends": optional(info, "certificate_ends"),
        "pools": [
            {
                "name": pool.name,
                "policy": pool.policy,
                "options": dict(pool.options),
                "fitting": pool.fitting,
                "for_gpus": pool.for_gpus,
                "for_cpus": pool.for_cpus,
            }
            for pool in info.pools
        ],
    }


# --- what it changes ---


def admin_change(verb: str, fields: Mapping[str, Any]) -> Change:
    """Return the change that ``verb`` asks for. Raises `BadInputError`."""
    match verb:
        case "create":
            return Change("CreateToken", _token(fields), "The token is made.")
        case "revoke":
            id = fields.get("id")
            if not isinstance(id, str) or not _TOKEN.fullmatch(id):
                raise BadInputError("id: is not the id of a token")
            return Change("RevokeToken", user_pb2.RevokeTokenRequest(id=id), f"Token {id} proves nobody any more.")
        case "reload":
            return Change("Reload", user_pb2.ReloadRequest(), "The configuration was read again.")
        case _:
            raise BadInputError(f"verb: is none of {', '.join(ADMIN_VERBS)}")


def _token(fields: Mapping[str, Any]) -> user_pb2.CreateTokenRequest:
    user, label, days = fields.get("user", ""), fields.get("label", ""), fields.get("days", 90)
    if not isinstance(user, str) or (user and not _NAME.fullmatch(user)):
        raise BadInputError("user: is not a name of at most 32 letters, digits, '.', '_' and '-'")
    if not isinstance(label, str) or len(label) > LONGEST_LABEL or not label.isprintable():
        raise BadInputError(f"label: is not a text of at most {LONGEST_LABEL} printable characters")
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= MOST_DAYS:
        raise BadInputError(f"days: is not a whole number from 1 to {MOST_DAYS}")
    return user_pb2.CreateTokenRequest(for_user=user, label=label, lifetime_s=days * DAY_S)
