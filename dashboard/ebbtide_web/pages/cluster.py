"""The page of the cluster: how many GPUs are in which state, who is next, and a cell for each node."""

import base64
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from ebbtide_protos.v1 import client_pb2
from starlette.requests import Request
from starlette.responses import Response

from ebbtide_web import streams
from ebbtide_web.access.sessions import Session
from ebbtide_web.board.feed import Forecasts
from ebbtide_web.board.picture import (
    FEW_GPUS,
    FINISHED,
    ClusterPicture,
    gpu_state,
    gpus_words,
    natural,
    optional,
    share_of,
    state_of,
)
from ebbtide_web.board.shared_page import encoded
from ebbtide_web.pages.page import Page, PageRoute

HEAD: Final = 6
"""Jobs at the head of each queue that are shown."""
UNKNOWN: Final = 255
_CELL: Final = struct.Struct(">BBBBI")


class ClusterPage(Page):
    """Shows the cluster."""

    def routes(self) -> Sequence[PageRoute]:
        """Return the routes of the page."""
        return PageRoute("/", self.show), PageRoute("/stream/cluster", self.stream)

    async def show(self, request: Request, session: Session) -> Response:
        """Show the page."""
        return self._templates.page("cluster.html", session)

    async def stream(self, request: Request, session: Session) -> Response:
        """Stream the cluster."""
        return streams.of_topic(session, self._dashboard.feed, WantedCluster())


@dataclass(frozen=True, slots=True)
class WantedCluster:
    """All of the cluster, which is the same for every viewer."""

    foresees: ClassVar[bool] = False

    def cells(self, picture: ClusterPicture, forecasts: Forecasts) -> dict[str, str]:
        """Return sums, the heads of the queues, and a cell for each node."""
        total = picture.gpu_count
        kind, make = ("few", _card) if total <= FEW_GPUS else ("many", _packed)
        heads = [_head_row(picture, id) for queue in picture.queues.values() for id in _head_of(queue)]
        cells = {"sums": encoded(_sums(picture, total)), "head": encoded(heads)}
        for name in sorted(picture.present, key=lambda name: (picture.nodes[name].pool, natural(name))):
            cells[f"node:{name}"] = picture.cell(kind, name, partial(make, picture))
        return cells


def _sums(picture: ClusterPicture, total: int) -> dict[str, Any]:
    pools: dict[str, Counter[str]] = {name: Counter() for name in picture.queues}
    idle_on: Counter[str] = Counter()
    present = picture.present
    for name in present:
        load, counts = picture.load(name), pools.setdefault(picture.nodes[name].pool, Counter())
        for gpu in load.gpus:
            counts[gpu_state(gpu)] += 1
        if load.state == "up":
            idle_on[name] = sum(gpu.state == client_pb2.GPU_STATE_IDLE for gpu in load.gpus)
    jobs = Counter(state_of(job) for job in picture.jobs.values())
    pending = [job for job in picture.jobs.values() if state_of(job) == "PENDING"]
    waiting = [job for job in pending if not job.held_by]
    oldest = min(waiting, key=lambda job: job.submit_time, default=None)
    block = idle_on.most_common(1)
    return {
        "total": total,
        "few": total <= FEW_GPUS,
        "nodes": len(present),
        "gpus": dict(sum(pools.values(), Counter())),
        "pools": [
            {
                "name": name,
                "gpus": dict(counts),
                "queue": picture.queues[name].length if name in picture.queues else 0,
                "policy": picture.queues[name].policy if name in picture.queues else "",
            }
            for name, counts in pools.items()
        ],
        "jobs": {state: count for state, count in jobs.items() if state not in FINISHED},
        "waiting": len(waiting),
        "held": len(pending) - len(waiting),
        "oldest": None if oldest is None else {"id": oldest.job_id, "since": oldest.submit_time},
        "block": {"gpus": block[0][1], "node": block[0][0]} if block and block[0][1] else None,
        "notices": {
            "doubted": list(picture.notices.doubted),
            "unheard": list(picture.notices.unheard),
            "recovering": picture.notices.recovering,
            "quiesced": picture.notices.quiesced,
        },
    }


def _head_of(queue: client_pb2.BoardQueue) -> list[str]:
    """Return who is next; of the tasks of an array only the first."""
    found = dict[str, str]()
    for id in queue.job_ids:
        found.setdefault(id.partition(".")[0], id)
    return list(found.values())[:HEAD]


def _head_row(picture: ClusterPicture, id: str) -> dict[str, Any]:
    job = picture.jobs.get(id, client_pb2.BoardJob(job_id=id))
    return {
        "id": id,
        "name": job.name,
        "user": job.user,
        "pool": job.pool,
        "state": state_of(job),
        "gpus": gpus_words(job),
        "since": job.submit_time,
        "reason": job.reason,
    }


def _node(node: client_pb2.BoardNode, load: client_pb2.BoardLoad) -> dict[str, Any]:
    return {
        "name": node.name,
        "pool": node.pool,
        "state": load.state,
        "reason": load.reason,
        "seen": load.last_seen or None,
        "cpus": [load.cpus_allocated, load.cpus],
        "mem": [load.mem_allocated_bytes, load.mem_bytes],
        "model": node.gpus[0].model if node.gpus else "",
    }


def _card(picture: ClusterPicture, node: client_pb2.BoardNode, load: client_pb2.BoardLoad) -> dict[str, Any]:
    """Return a node with all that is told of each GPU."""
    gpus = [
        {
            "uuid": gpu.uuid,
            "index": gpu.index,
            "model": gpu.model,
            "mem": gpu.mem_bytes,
            "state": gpu_state(now),
            "use": optional(now, "use"),
            "used": optional(now, "mem_used_bytes"),
            "temp": optional(now, "temperature_c"),
            "power": optional(now, "power_w"),
            "reserved": now.reserved,
            "why": now.why,
            "jobs": [
                {
                    **picture.holder(holder.job_id),
                    "share": share_of(holder.share),
                    "used": optional(holder, "mem_used_bytes"),
                }
                for holder in now.holders
            ],
        }
        for gpu, now in zip(node.gpus, load.gpus, strict=False)
    ]
    return _node(node, load) | {"gpus": gpus}


def _packed(picture: ClusterPicture, node: client_pb2.BoardNode, load: client_pb2.BoardLoad) -> dict[str, Any]:
    """Return a node with eight bytes for each GPU: state, use, memory, share, and the number of its holder."""
    packed, holders = bytearray(), dict[int, list[Any]]()
    for gpu, now in zip(node.gpus, load.gpus, strict=False):
        number = 0
        for holder in now.holders[:1]:
            number, told = picture.number(holder.job_id), picture.holder(holder.job_id)
            holders[number] = [number, told["id"], told["user"], told["name"]]
        use = min(100, max(0, round(100 * now.use))) if now.HasField("use") else UNKNOWN
        full = now.HasField("mem_used_bytes") and gpu.mem_bytes
        memory = min(100, round(100 * now.mem_used_bytes / gpu.mem_bytes)) if full else UNKNOWN
        share = min(100, round(100 * sum(share_of(holder.share) for holder in now.holders)))
        packed += _CELL.pack(now.state, use, memory, share, number)
    return _node(node, load) | {
        "packed": base64.b64encode(packed).decode(),
        "holders": list(holders.values()),
    }
