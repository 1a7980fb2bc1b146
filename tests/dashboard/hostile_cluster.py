"""A scripted master in which whatever somebody may write is a hostile text, and a dashboard before it.

    python -m tests.dashboard.hostile_cluster FOLDER

It prints its port, takes the turn of each number that it reads, and ends with its input. In a turn before the last one
there are 60 GPUs, which have cards, and in the last one 200 and more, which are cells of a map.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from ebbtide_protos.v1 import agent_pb2, client_pb2, client_pb2_grpc, job_pb2, timeline_pb2, usage_pb2, user_pb2
from ebbtide_web import serve as serving
from ebbtide_web.access.sessions import Links
from ebbtide_web.dashboard import DashboardSettings

from tests.dashboard.hostile import CORPUS

CARDS = 60
MAP = -(-len(CORPUS) // CARDS)
"""The turn with the map; the turns before it show each text on some card."""
OF_A_JOB = 6
"""Texts of which a job has each where there is room for one only."""
JOBS = -(-len(CORPUS) // OF_A_JOB)
"""Jobs in which each text is once at such a place."""
ARRAY, FLOOD, REFUSED = 900, 901, 1000
"""Ids: of an array, of a job that prints without end, and of the first job that is refused in hostile words."""
FLOOD_LINES = 20_000
USERS, FOREIGN = 100, 20
"""Users in one answer about usage, which are as many as the page shows, and those who used GPUs past the cluster."""
NODE_JOBS = 200
"""Jobs on a node, each with a text."""
ROOT = Path(__file__).resolve().parents[2]
REPLAY = ("/usr/bin/env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.dashboard.hostile_replay")
USER = "\"><script>alert('user')</script>\u202e"
RAW_LINES = (
    b"\xff\xfe\x00", b"\xc3", b"\xed\xa0\x80 half a surrogate", b"\xed\xb0\x80", b"\xf4\x90\x80\x80", b"\x1b[31",
    b"\x1b[1;31mred\x1b[0m <b>plain</b>", b"10%\r 20%\r<i>30%</i>", b"x" * 100_000,
)  # fmt: skip
"""What a job may print that is no text."""
STATE = job_pb2.JobState.Value
STATES = ("RUNNING", "PENDING", "SUSPENDED", "FAILED")
ONE = job_pb2.Share(numerator=1, denominator=1)


def text(number: int) -> str:
    return CORPUS[number % len(CORPUS)]


def single(number: int) -> list[str]:
    """The texts that this job has where there is room for one: name, command, directory, group, signal, user."""
    return [text((number - 1) * OF_A_JOB + n) for n in range(OF_A_JOB)]


def state(number: int) -> int:
    return STATE(f"JOB_STATE_{STATES[number % len(STATES)]}")


def waits(number: int) -> bool:
    return STATES[number % len(STATES)] in ("PENDING", "SUSPENDED")


def is_over(number: int) -> bool:
    return STATES[number % len(STATES)] == "FAILED"


def board(turn: int) -> client_pb2.BoardUpdate:
    """All that is reported to everybody."""
    first, count = (turn * CARDS, CARDS) if turn < MAP else (0, len(CORPUS))
    names = [text(first + n) for n in range(count)]
    nodes = [
        client_pb2.BoardNode(name=name, pool=text(first + n + 3), gpus=[
            client_pb2.BoardGpu(uuid=f"GPU-{n}-{name}", index=0, model=name, mem_bytes=2**34)
        ])
        for n, name in enumerate(names)
    ]  # fmt: skip
    loads = []
    for n, name in enumerate(names):
        load = client_pb2.BoardLoad(name=name, state="up", reason=text(first + n + 1), cpus=8, mem_bytes=2**34)
        gpu = load.gpus.add(use=0.5, mem_used_bytes=2**33, reserved=name, why=name)
        gpu.state = client_pb2.GpuState.Value(f"GPU_STATE_{('ALLOCATED', 'UNHEALTHY')[n % 2]}")
        gpu.holders.add(job_id=str(1 + (first + n) % len(CORPUS)), share=ONE, mem_used_bytes=2**32)
        loads.append(load)
    jobs = [
        client_pb2.BoardJob(
            job_id=str(n + 1), name=one, user=text(n + 5), pool=text(n + 7), reason=one, nodes=[text(n + 9)],
            node_count=1, state=state(n), gpus_min=ONE, gpus_max=ONE, priority=42, at=time.time(), end_time=n,
        )
        for n, one in enumerate(CORPUS)
    ]  # fmt: skip
    waiting = [job.job_id for job in jobs if job.state == STATE("JOB_STATE_PENDING")]
    queue = client_pb2.BoardQueue(pool="default", job_ids=waiting, length=len(waiting), policy=text(turn))
    notices = client_pb2.BoardNotices(doubted=[f"turn-{turn}", *CORPUS])
    return client_pb2.BoardUpdate(
        first=True, last=True, now=time.time(), nodes=nodes, loads=loads, jobs=jobs, queues=[queue], notices=notices
    )


def job(id: str) -> client_pb2.Job:
    """All of one job; its number says which texts are where there is room for one."""
    number = int(id)
    name, command, workdir, group, signal, user = single(number)
    spec = job_pb2.JobSpec(
        name=name, command=[command, *CORPUS], workdir=workdir, group=group, gpus_min=ONE, gpus_max=ONE,
        priority=42, env=dict.fromkeys(CORPUS, ""), signal=signal,
    )  # fmt: skip
    metrics = dict.fromkeys(single(number), 0.5)
    found = client_pb2.Job(
        job_id=id, spec=spec, user=user, reason=command, pool=workdir, moves_to=group, state=state(number),
        preemptible=True, progress=job_pb2.Progress(step=5, total=10, metrics=metrics, diverged=list(CORPUS)),
        params={one: one for one in CORPUS}, submit_time=time.time() - 900, attempt=1, gpus_allocated=ONE,
        allocation=[client_pb2.NodeAllocation(node=signal)],
        attempts=[
            client_pb2.AttemptSummary(
                attempt=n + 1, placed_time=time.time() - 800, start_time=time.time() - 700, outcome=one,
                allocation=[client_pb2.NodeAllocation(node=text(n + 1))],
            )
            for n, one in enumerate(CORPUS)
        ],
        suspensions=[
            client_pb2.Suspension(requested=time.time() - 600, reason=one, lost=one, hint=one, note=one,
                                  parts_s={"save": 1.0})
            for one in (text(number * 20 + n) for n in range(20))
        ],
    )  # fmt: skip
    if number == ARRAY:
        found.tasks.CopyFrom(client_pb2.TaskCounts(indices="0-9", states={"RUNNING": 5, "PENDING": 5}))
    return found


def outcomes() -> list[client_pb2.NodeJob]:
    """What becomes of jobs on a node; of so many the page shows all."""
    half = CORPUS[:NODE_JOBS]
    return [client_pb2.NodeJob(job_id="1", name=one, user=text(n + 1), text=one) for n, one in enumerate(half)]


HEAT = ("present", "held", "foreign", "unavailable")


class HostileMaster(client_pb2_grpc.ClientServiceServicer):
    """Knows everybody, and shows nothing but hostile texts."""

    def __init__(self) -> None:
        self.turn = 0
        self.turned = asyncio.Condition()

    async def take(self, turn: int) -> None:
        async with self.turned:
            self.turn = turn
            self.turned.notify_all()

    async def WatchBoard(self, request: Any, context: Any) -> AsyncIterator[client_pb2.BoardUpdate]:
        shown = -1
        while True:
            async with self.turned:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.turned.wait_for(lambda: self.turn != shown), 5.0)  # noqa: B023
            if self.turn == shown:
                yield client_pb2.BoardUpdate(now=time.time(), last=True)
            else:
                shown = self.turn
                yield board(shown)

    async def ForecastQueue(self, request: Any, context: Any) -> client_pb2.ForecastQueueReply:
        jobs = [client_pb2.QueuedForecast(job_id=str(n + 1), basis=one) for n, one in enumerate(CORPUS)]
        return client_pb2.ForecastQueueReply(jobs=jobs)

    async def CreateToken(self, request: Any, context: Any) -> user_pb2.CreateTokenReply:
        return user_pb2.CreateTokenReply(token=user_pb2.Token(id="t", user=USER), text="ebb_t_x")

    async def WhoAmI(self, request: Any, context: Any) -> user_pb2.Identity:
        return user_pb2.Identity(user=user_pb2.User(name=USER, role="admin"))

    async def RevokeToken(self, request: Any, context: Any) -> user_pb2.Token:
        return user_pb2.Token()

    async def ShowJob(self, request: Any, context: Any) -> client_pb2.Job:
        if int(request.job_id) >= REFUSED:
            await context.abort(grpc.StatusCode.NOT_FOUND, text(int(request.job_id) - REFUSED))
        return job(request.job_id)

    async def WatchJobs(self, request: Any, context: Any) -> AsyncIterator[client_pb2.Job]:
        yield job(request.job_ids[0])
        await asyncio.Event().wait()

    async def ShowArray(self, request: Any, context: Any) -> client_pb2.ShowArrayReply:
        rows = [
            client_pb2.ArrayTaskRow(index=n, state=state(n), reason=one, params=dict.fromkeys(CORPUS[:8], one))
            for n, one in enumerate(CORPUS)
        ][request.first : request.first + request.limit]
        many = len(CORPUS)
        states = bytes(map(state, range(many)))
        return client_pb2.ShowArrayReply(
            job_id=request.job_id, user=text(3), name=text(4), indices=range(many), states=states,
            params=CORPUS[:100], metrics=CORPUS[:100], param=text(5), metric=text(6), x=range(1, many + 1),
            y=range(many), rungs=[client_pb2.RungCount(steps=1, tasks=5)], rows=rows,
        )  # fmt: skip

    async def ShowStory(self, request: Any, context: Any) -> client_pb2.StoryReply:
        reported = [client_pb2.Event(kind="AttemptExited", text=one, time=time.time()) for one in CORPUS]
        return client_pb2.StoryReply(
            events=[*reported, *(client_pb2.Event(kind=one, time=time.time()) for one in CORPUS)]
        )

    async def Explain(self, request: Any, context: Any) -> client_pb2.Explanation:
        number = int(request.job_id)
        seen = client_pb2.Forecast(basis=text(number), nodes=list(CORPUS), after=["1"])
        return client_pb2.Explanation(
            job_id=request.job_id, reason=text(number + 1), needs=text(number + 2), basis=text(number), ahead=1,
            nodes=[client_pb2.NodeView(node=one, gpus=1, obstacle=one) for one in CORPUS],
            stays=[client_pb2.Stays(reason=one, job_ids=["1"], jobs=1) for one in CORPUS], forecast=seen, what_if=seen,
        )  # fmt: skip

    async def ReadLogs(self, request: Any, context: Any) -> AsyncIterator[client_pb2.LogChunk]:
        lines = [*(one.encode("utf-8", "surrogatepass") for one in CORPUS), *RAW_LINES, b"the last line\n"]
        if int(request.job_id) == FLOOD:
            lines = [b"line %d" % number for number in range(FLOOD_LINES)]
            lines[-500] = b"Traceback (most recent call last):"
        data, offset = b"\n".join(lines), 0
        while part := data[offset : offset + 10_007]:  # so that characters and lines come in pieces, too
            offset += len(part)
            yield client_pb2.LogChunk(attempt=1, data=part, offset=offset - len(part), next=offset)

    async def WatchNode(self, request: Any, context: Any) -> AsyncIterator[client_pb2.NodeReply]:
        gpus = []
        for start in range(0, len(CORPUS), 30):
            reading = agent_pb2.GpuReading(processes=[
                agent_pb2.GpuProcess(pid=n + 1, user=text(n), command=text(n)) for n in range(start, start + 30)
            ])  # fmt: skip
            info = agent_pb2.GpuInfo(uuid=text(start), model=text(start + 1), pci_bus_id=text(start + 2),
                                     unhealthy_reason=text(start + 3))  # fmt: skip
            gpus.append(client_pb2.NodeGpu(info=info, reading=reading, reserved=text(start + 4)))
        drain = client_pb2.NodeDrain(since=1.0, user=text(7), reason=text(8))
        strays = [client_pb2.Stray(job_id=one, attempt=1) for one in CORPUS]
        node = client_pb2.Node(name=request.node, state="up", reason=text(5), version=text(6), gpus=gpus, drain=drain,
                               hostname=text(9), pool=text(10), gpu_backend=text(11), moves_to=text(12), strays=strays,
                               labels={one: one for one in CORPUS}, taints=list(CORPUS))  # fmt: skip
        yield client_pb2.NodeReply(node=node, jobs=outcomes())
        await asyncio.Event().wait()

    async def DrainNode(self, request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text(13))

    async def ForecastDrain(self, request: Any, context: Any) -> client_pb2.NodeReply:
        return client_pb2.NodeReply(jobs=outcomes())

    async def Usage(self, request: Any, context: Any) -> AsyncIterator[usage_pb2.UsageReply]:
        accounts = [
            usage_pb2.UsageAccount(key=[one], jobs=1, allocated_gpu_s=7200.0, computing_gpu_s=7000.0, lost_gpu_s=n)
            for n, one in enumerate(CORPUS[:USERS])
        ]
        by_day = [usage_pb2.UsageAccount(key=["0"], allocated_gpu_s=7200.0, computing_gpu_s=7200.0)]
        yield usage_pb2.UsageReply(
            done=1.0, accounts=by_day if request.by == ["day"] else accounts, total=usage_pb2.UsageAccount(jobs=1),
            gpus=usage_pb2.GpuUsage(gpus=4, known_gpu_s=9000.0, allocated_gpu_s=7200.0), until=time.time(),
            foreign_gpu_s=dict.fromkeys(CORPUS[:FOREIGN], 60.0), problems=list(CORPUS),
        )  # fmt: skip

    async def QueryTimeline(self, request: Any, context: Any) -> timeline_pb2.QueryTimelineReply:
        now, of_jobs = time.time(), request.lanes == timeline_pb2.TIMELINE_LANES_JOBS
        doing = [number for number in timeline_pb2.TimelineDoing.values() if number]
        lanes = []
        for n, one in enumerate(CORPUS):
            span = timeline_pb2.TimelineSpan(
                start=now - 600, end=now - 60, doing=doing[n % len(doing)], job_id=text(n + 1), user=text(n + 2),
                name=text(n + 3), attempt=1, gpus=1.0, why=one, count=1 + n % 2,
            )  # fmt: skip
            lane = timeline_pb2.TimelineLane(pool=one, spans=[span])
            if of_jobs:
                lane.job_id, lane.user, lane.name = text(n + 1), text(n + 2), one
            else:
                lane.node = one
            if request.lanes in (timeline_pb2.TIMELINE_LANES_POOLS, timeline_pb2.TIMELINE_LANES_NODES):
                parts = [0.0] * (request.buckets - 1) + [1.0]
                lane.heat.CopyFrom(timeline_pb2.TimelineHeat(**dict.fromkeys(HEAT, parts)))
                if request.lanes == timeline_pb2.TIMELINE_LANES_POOLS:
                    lane.node = ""
            lanes.append(lane)
        return timeline_pb2.QueryTimelineReply(
            lanes=lanes, total=len(lanes), edge=now, done=1.0, known_since=now, problem=text(8)
        )

    async def WatchEvents(self, request: Any, context: Any) -> AsyncIterator[client_pb2.Event]:
        for number, one in enumerate(CORPUS):
            yield client_pb2.Event(sequence=number + 1, time=time.time(), kind=one, json=one)

    async def QueryEvents(self, request: Any, context: Any) -> client_pb2.QueryEventsReply:
        if request.after_sequence:
            return client_pb2.QueryEventsReply(last_sequence=request.after_sequence)
        reported = [
            client_pb2.Event(sequence=n + 1, time=time.time(), kind=text(n + 1), job_id=text(n + 2), node=one, text=one)
            for n, one in enumerate(CORPUS)
        ]
        return client_pb2.QueryEventsReply(events=reported[::-1], last_sequence=len(CORPUS))

    async def ShowSettings(self, request: Any, context: Any) -> user_pb2.ShowSettingsReply:
        settings = [user_pb2.Setting(name=one, value=one, in_file=text(n + 1)) for n, one in enumerate(CORPUS)]
        quotas = [user_pb2.UserQuota(user=one, gpus_used=1) for one in CORPUS]
        return user_pb2.ShowSettingsReply(
            settings=settings, changed=CORPUS, needs_restart=CORPUS, problem=text(request.ByteSize()), quotas=quotas,
            journal=user_pb2.JournalHealth(kind=text(2), has_room=True),
        )  # fmt: skip

    async def ListUsers(self, request: Any, context: Any) -> user_pb2.ListUsersReply:
        return user_pb2.ListUsersReply(users=[user_pb2.User(name=one, role=one, account=one) for one in CORPUS])

    async def ListTokens(self, request: Any, context: Any) -> user_pb2.ListTokensReply:
        tokens = [user_pb2.Token(id=one, user=one, label=one, created=time.time()) for one in CORPUS]
        return user_pb2.ListTokensReply(tokens=tokens)

    async def ShowCluster(self, request: Any, context: Any) -> client_pb2.ClusterInfo:
        pools = [client_pb2.Pool(name=one, policy=one, options={one: one}, fitting=one) for one in CORPUS]
        return client_pb2.ClusterInfo(version=text(3), pools=pools)

    async def ListNodes(self, request: Any, context: Any) -> client_pb2.ListNodesReply:
        nodes = [client_pb2.Node(name=one, state="down", reason=one, version=one) for one in CORPUS]
        return client_pb2.ListNodesReply(nodes=nodes, doubted=CORPUS, unheard=CORPUS)

    async def Hold(self, request: Any, context: Any) -> client_pb2.Job:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text(int(request.job_id)))
        raise AssertionError

    Suspend = Resume = Hold


async def main(folder: Path) -> None:
    server, master = grpc.aio.server(), HostileMaster()
    client_pb2_grpc.add_ClientServiceServicer_to_server(master, server)
    target = f"unix:{folder}/master.sock"
    server.add_insecure_port(target)
    await server.start()

    @contextlib.asynccontextmanager
    async def opener() -> AsyncIterator[grpc.aio.Channel]:
        async with grpc.aio.insecure_channel(target) as channel:
            yield channel

    reader, stopped = asyncio.StreamReader(), asyncio.Event()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def turns() -> None:
        while line := await reader.readline():
            await master.take(int(line))
        stopped.set()

    listening = serving.listen(0)
    links = Links(folder / "links")
    settings = DashboardSettings(
        opener=opener, token=lambda: "x", links=links, origin=listening.origin, replay=REPLAY, cluster=USER
    )  # fmt: skip
    taking = asyncio.create_task(turns())
    await serving.serve(settings, listening, lambda: print(listening.port, flush=True), stopped)
    await taking
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
