"""The page of a node: its GPUs and what runs on each, its jobs, and the changes that operators ask for."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from ebbtide_core.resources.foreign_processes import held_by
from ebbtide_protos.v1 import client_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.access.sessions import Session
from ebbtide_web.answers import BadInputError, answer, body
from ebbtide_web.board.picture import gpu_state, optional, share_of, state_of
from ebbtide_web.board.shared_page import encoded
from ebbtide_web.pages.page import Change, Page, PageRoute
from ebbtide_web.reach import MasterRefusedError

NODE_S: Final = 2.0
"""Seconds after which a node that somebody looks at is asked for again."""
NODE_VERBS: Final = ("drain", "undrain", "confirm-dead", "remove")
MOST_DEADLINE_S: Final = 30 * 86_400.0
LONGEST_NAME: Final = 64
LONGEST_REASON: Final = 200
MOST_GPUS: Final = 64
MOST_PROCESSES: Final = 32
"""Processes of one GPU that are shown."""
MOST_JOBS: Final = 200
MOST_MARKS: Final = 100
"""Labels, taints and attempts that are set aside, each."""

log = logging.getLogger(__name__)


class NodePage(Page):
    """Shows one node, and changes it."""

    def routes(self) -> Sequence[PageRoute]:
        """Return the routes of the page."""
        return (
            PageRoute("/nodes/{name}", self.show),
            PageRoute("/nodes/{name}/facts", self.facts),
            PageRoute("/nodes/{name}/preview", self.preview),
            PageRoute("/nodes/{name}/{verb}", self.change, changes=True),
            PageRoute("/stream/nodes/{name}", self.stream),
        )

    async def show(self, request: Request, session: Session) -> Response:
        """Show the page."""
        name = check_node(request.path_params["name"])
        await self._first_seen(session, self._reply(session, name), f"Node {name}", back="nodes")
        return self._templates.page("node.html", session, name=name)

    async def facts(self, request: Request, session: Session) -> Response:
        """Return all about one node."""
        return answer(node_facts(await self._reply(session, check_node(request.path_params["name"]))))

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream a node whenever it is another than before."""
        name = check_node(request.path_params["name"])

        async def ask() -> tuple[str, float]:
            return encoded(node_facts(await self._reply(session, name))), NODE_S

        return streams.again(session, lambda: streams.changes(session, "node", ask))

    async def preview(self, request: Request, session: Session) -> Response:
        """Return what would become of the jobs on a node if it were drained; nothing is changed."""
        query = request.query_params
        deadline = query.get("deadline", "")
        if len(deadline) > 9 or not (deadline == "" or (deadline.isascii() and deadline.isdigit())):
            raise BadInputError("deadline: is not a number of seconds")
        fields = {"deadline": int(deadline) if deadline else None, "force": query.get("force") == "1"}
        wanted = drain_request(request.path_params["name"], fields)
        return answer({"jobs": job_fates(await self._dashboard.call(session, "ForecastDrain", wanted))})

    async def change(self, request: Request, session: Session) -> Response:
        """Change one node."""
        name, verb = request.path_params["name"], request.path_params["verb"]
        wanted = node_change(verb, name, await body(request))
        await self._dashboard.call(session, wanted.method, wanted.request)
        log.info("user=%s node=%s %s", session.user, name, verb)
        return answer({"done": wanted.done})

    async def _reply(self, session: Session, name: str) -> client_pb2.NodeReply:
        """Ask the master for a node; its stream is left after the first message. Raises `MasterRefusedError`."""
        request = client_pb2.NodeRequest(node=name)
        async with aclosing(self._dashboard.master.stream("WatchNode", request, session.token)) as stream:
            reply: client_pb2.NodeReply | None = await anext(stream, None)
        if reply is None:
            raise MasterRefusedError(f"node {name} does not exist", 404)
        return reply


# --- what it shows ---


def node_facts(reply: client_pb2.NodeReply) -> dict[str, Any]:
    """Return all about one node and its GPUs, with the processes on each, and the jobs there."""
    node = reply.node
    return {
        "name": node.name,
        "hostname": node.hostname,
        "state": node.state,
        "reason": node.reason,
        "version": node.version,
        "pool": node.pool,
        "moves_to": node.moves_to,
        "backend": node.gpu_backend,
        "seen": node.last_seen or None,
        "cpus": [node.cpus_allocated, node.cpus],
        "mem": [node.mem_allocated_bytes, node.mem_bytes],
        "limits": {"cpus": node.cpu_limits, "mem": node.mem_limits},
        "certificate_ends": optional(node, "certificate_ends"),
        "labels": dict(sorted(node.labels.items())[:MOST_MARKS]),
        "taints": list(node.taints[:MOST_MARKS]),
        "dead": node.dead,
        "drain": _drain(node.drain) if node.HasField("drain") else None,
        "strays": [
            {"job": stray.job_id, "attempt": stray.attempt, "kind": stray.kind, "ending": stray.ending}
            for stray in node.strays[:MOST_MARKS]
        ],
        "gpus": [_gpu(node, gpu) for gpu in node.gpus[:MOST_GPUS]],
        "jobs": job_fates(reply),
        "more_jobs": max(0, len(reply.jobs) - MOST_JOBS),
    }


def job_fates(reply: client_pb2.NodeReply) -> list[dict[str, Any]]:
    """Return the jobs on a node, and what becomes of each."""
    return [
        {
            "id": job.job_id,
            "name": job.name,
            "user": job.user,
            "state": state_of(job),
            "fate": job.fate,
            "text": job.text,
            "when": optional(job, "at"),
        }
        for job in reply.jobs[:MOST_JOBS]
    ]


def _drain(drain: client_pb2.NodeDrain) -> dict[str, Any]:
    return {
        "since": drain.since,
        "user": drain.user,
        "reason": drain.reason,
        "deadline": optional(drain, "deadline"),
        "force": drain.force,
    }


def _gpu(node: client_pb2.Node, gpu: client_pb2.NodeGpu) -> dict[str, Any]:
    held = (held_by(stray.job_id, stray.attempt) for stray in node.strays if gpu.info.uuid in stray.gpus)
    return {
        "uuid": gpu.info.uuid,
        "index": gpu.info.index,
        "model": gpu.info.model,
        "bus": gpu.info.pci_bus_id,
        "state": gpu_state(gpu),
        "mem": gpu.info.mem_bytes,
        "used": optional(gpu.reading, "mem_used_bytes"),
        "use": optional(gpu.reading, "utilisation"),
        "temp": optional(gpu.reading, "temperature_c"),
        "power": optional(gpu.reading, "power_w"),
        "share": share_of(gpu.share_allocated),
        "jobs": list(gpu.job_ids),
        "processes": [
            {
                "pid": process.pid,
                "user": process.user,
                "job": process.job_id,
                "command": process.command,
                "mem": optional(process, "mem_bytes"),
            }
            for process in gpu.reading.processes[:MOST_PROCESSES]
        ],
        "unhealthy": gpu.info.unhealthy_reason or next(held, ""),
        "reserved": gpu.reserved,
    }


# --- what it changes ---


def check_node(name: str) -> str:
    """Return ``name`` if it can be a node's. Raises `BadInputError`."""
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise BadInputError(f"node: is not a name of 1 to {LONGEST_NAME} printable characters")
    return name


def node_change(verb: str, name: str, fields: Mapping[str, Any]) -> Change:
    """Return the change that ``verb`` asks for node ``name``. Raises `BadInputError`."""
    node = client_pb2.NodeRequest(node=check_node(name))
    match verb:
        case "drain":
            return Change("DrainNode", drain_request(name, fields), f"Nothing new starts on node {name}.")
        case "undrain":
            return Change("ResumeNode", node, f"Node {name} is in service.")
        case "confirm-dead":
            return Change("ConfirmDead", node, f"Node {name} counts as dead: its jobs go on elsewhere.")
        case "remove":
            return Change("RemoveNode", node, f"Node {name} is removed: it is one again if its agent comes back.")
        case _:
            raise BadInputError(f"verb: is none of {', '.join(NODE_VERBS)}")


def drain_request(name: str, fields: Mapping[str, Any]) -> client_pb2.DrainNodeRequest:
    """Return the request to drain a node, by ``deadline`` in seconds from now if there is one."""
    reason, deadline, force = fields.get("reason", ""), fields.get("deadline"), fields.get("force", False)
    if not isinstance(reason, str) or len(reason) > LONGEST_REASON or not reason.isprintable():
        raise BadInputError(f"reason: is not a text of at most {LONGEST_REASON} printable characters")
    if not isinstance(force, bool):
        raise BadInputError("force: is neither true nor false")
    if deadline is None:
        if force:
            raise BadInputError("force: needs a deadline")
        return client_pb2.DrainNodeRequest(node=check_node(name), reason=reason)
    if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not 0 <= deadline <= MOST_DEADLINE_S:
        raise BadInputError(f"deadline: is not a number of seconds from 0 to {MOST_DEADLINE_S:g}")
    return client_pb2.DrainNodeRequest(node=check_node(name), reason=reason, deadline_s=float(deadline), force=force)
