"""A master that does what a test wrote down: a real gRPC server over a list of jobs."""

import hashlib
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from ebbtide_protos import NODE_AWAY_KEY, RETRY_KEY, home_socket
from ebbtide_protos.v1 import agent_pb2, booking_pb2, client_pb2, client_pb2_grpc, job_pb2, usage_pb2

GIB = 2**30


def share(numerator: int, denominator: int = 1) -> job_pb2.Share:
    return job_pb2.Share(numerator=numerator, denominator=denominator)


def make_job(job_id: str = "17", state: str = "PENDING", **fields: Any) -> client_pb2.Job:
    """A job in the given state; a job in a running state has one GPU."""
    spec = job_pb2.JobSpec(
        name="train.py",
        command=["python", "train.py", "--lr", "3e-4"],
        workdir="/home/ada/run",
        env={"WANDB_API_KEY": "secret"},
        gpus_min=share(1),
        gpus_max=share(4),
        job_class=job_pb2.JOB_CLASS_BEST_EFFORT,
        priority=42,
        weight=1.0,
        grace_s=180,
        signal="SIGTERM",
    )
    job = client_pb2.Job(job_id=job_id, spec=spec, user="ada", reason="", preemptible=True, submit_time=1000.5)
    job.state = job_pb2.JobState.Value(f"JOB_STATE_{state}")
    if state in ("STARTING", "RUNNING", "SUSPENDING", "STOPPING"):
        job.gpus_allocated.CopyFrom(share(1))
        gpu = job_pb2.GpuAllocation(uuid="GPU-a", share=share(1), mem_bytes=40 * GIB)
        job.allocation.append(client_pb2.NodeAllocation(node="ws1", gpus=[gpu]))
    job.MergeFrom(client_pb2.Job(**fields))
    return job


class ScriptedMaster(client_pb2_grpc.ClientServiceServicer):
    """Answers from ``jobs``, ``nodes``, ``events`` and ``logs``; ``changes`` of a job follow when it is watched."""

    def __init__(self) -> None:
        self.jobs: dict[str, client_pb2.Job] = {}
        self.changes: dict[str, list[client_pb2.Job]] = defaultdict(list)
        self.pools: list[client_pb2.Pool] = []
        self.nodes: list[client_pb2.Node] = []
        self.latest: dict[str, str] = {}  # what `@` stands for
        self.foreign_gpu_s: dict[str, float] = {}
        self.events: list[client_pb2.Event] = []
        self.explanation = client_pb2.Explanation()
        self.usage = [usage_pb2.UsageReply()]
        self.reservations: list[booking_pb2.Reservation] = []
        self.reserved_from = 0.0
        self.logs: list[tuple[int, bytes]] = []
        self.logs_of: dict[str, list[tuple[int, bytes]]] = {}  # of jobs that have others than ``logs``
        self.unread: dict[str, str] = {}  # why a job's node cannot be asked, for its log or anything else
        self.unread_after: dict[str, str] = {}  # why a job's log cannot be read further than ``logs``
        self.most_followed = 0  # logs at a time
        self.snapshots: dict[str, bytes] = {}
        self.notice_reply = client_pb2.NoticeTestReply()
        self.busy_s: list[float] = []  # how long whoever asks has to wait, each time until it is empty
        self.busy_method = ""  # the only method that is so; empty: all are
        self.refusals: dict[str, tuple[grpc.StatusCode, str]] = {}
        self.requests: list[tuple[str, Any]] = []
        self.warnings: list[str] = []
        self.learned = client_pb2.SubmitReply()
        self.again: client_pb2.Job | None = None
        self.dying = 0
        self.mute = self.mute_after_submit = 0
        self.behind_s = 0.0
        self.watched = threading.Event()
        self._streams: list[threading.Event] = []
        self._closed = False
        self._told: list[client_pb2.Job] = []  # to whoever watches them
        self._news = threading.Condition()
        self._followed = 0

    def add(self, *jobs: client_pb2.Job) -> None:
        for job in jobs:
            self.jobs[job.job_id] = job

    def tell(self, *jobs: client_pb2.Job) -> None:
        """These jobs are so from now on, which is told to whoever watches them or follows their logs."""
        with self._news:
            self.add(*jobs)
            self._told += jobs
            self._news.notify_all()

    def print(self, job_id: str, data: bytes, attempt: int = 1) -> None:
        """The job prints this now."""
        with self._news:
            self.logs_of.setdefault(job_id, []).append((attempt, data))
            self._news.notify_all()

    def sent(self, method: str) -> list[Any]:
        """The requests that a method received."""
        return [request for name, request in self.requests if name == method]

    def close(self) -> None:
        """Let every stream that waits for more end."""
        self._closed = True
        for stream in self._streams:
            stream.set()
        with self._news:
            self._news.notify_all()

    def Submit(self, request: client_pb2.SubmitRequest, context: grpc.ServicerContext) -> client_pb2.SubmitReply:
        self._note("Submit", request, context)
        self._cut(context)
        job_id = "" if request.dry_run else "17"
        self.mute += 0 if request.dry_run else self.mute_after_submit
        reply = client_pb2.SubmitReply(job_id=job_id, warnings=self.warnings)
        reply.MergeFrom(self.learned)
        return reply

    def ListJobs(self, request: client_pb2.ListJobsRequest, context: grpc.ServicerContext) -> client_pb2.ListJobsReply:
        self._note("ListJobs", request, context)
        wanted = [job for id, job in self.jobs.items() if not request.job_ids or id in request.job_ids]
        if request.job_ids and request.folded:
            return client_pb2.ListJobsReply(jobs=wanted)
        wanted += [job for job in self.jobs.values() if job.array and _is_named(job, request.job_ids)]
        wanted = [job for job in wanted if not request.states or job.state in request.states]
        return client_pb2.ListJobsReply(jobs=[job for job in wanted if not (request.job_ids and job.HasField("tasks"))])

    def ShowJob(self, request: client_pb2.JobRequest, context: grpc.ServicerContext) -> client_pb2.Job:
        if request.job_id.startswith("@"):
            self._note("ShowJob", request, context)
            return self._find(self.latest.get(request.job_id, request.job_id), context)
        return self._one("ShowJob", request, context)

    def Suspend(self, request: client_pb2.JobRequest, context: grpc.ServicerContext) -> client_pb2.Job:
        return self._one("Suspend", request, context)

    def Resume(self, request: client_pb2.JobRequest, context: grpc.ServicerContext) -> client_pb2.Job:
        return self._one("Resume", request, context)

    def Resize(self, request: client_pb2.ResizeRequest, context: grpc.ServicerContext) -> client_pb2.Job:
        return self._one("Resize", request, context)

    def Drill(self, request: client_pb2.JobRequest, context: grpc.ServicerContext) -> client_pb2.Job:
        return self._one("Drill", request, context)

    def Change(self, request: client_pb2.ChangeRequest, context: grpc.ServicerContext) -> client_pb2.Job:
        return self._one("Change", request, context)

    def Cancel(self, request: client_pb2.CancelRequest, context: grpc.ServicerContext) -> client_pb2.Job:
        return self._one("Cancel", request, context)

    def Hold(self, request: client_pb2.JobRequest, context: grpc.ServicerContext) -> client_pb2.Job:
        return self._one("Hold", request, context)

    def Release(self, request: client_pb2.JobRequest, context: grpc.ServicerContext) -> client_pb2.Job:
        return self._one("Release", request, context)

    def Remove(self, request: client_pb2.JobRequest, context: grpc.ServicerContext) -> client_pb2.RemoveReply:
        self._one("Remove", request, context)
        gone = [job.job_id for job in self.jobs.values() if job.array == request.job_id] or [request.job_id]
        return client_pb2.RemoveReply(job_ids=gone)

    def RemoveNode(self, request: client_pb2.NodeRequest, context: grpc.ServicerContext) -> client_pb2.RemoveNodeReply:
        self._note("RemoveNode", request, context)
        return client_pb2.RemoveNodeReply()

    def Requeue(self, request: client_pb2.RequeueRequest, context: grpc.ServicerContext) -> client_pb2.Job:
        self._note("Requeue", request, context)
        return self.again if self.again is not None else self._find(request.job_id, context)

    def ShowStory(self, request: client_pb2.JobRequest, context: grpc.ServicerContext) -> client_pb2.StoryReply:
        self._one("ShowStory", request, context)
        return client_pb2.StoryReply(events=self.events)

    def Explain(self, request: client_pb2.ExplainRequest, context: grpc.ServicerContext) -> client_pb2.Explanation:
        self._note("Explain", request, context)
        return self.explanation

    def Usage(self, request: usage_pb2.UsageRequest, context: grpc.ServicerContext) -> Iterator[usage_pb2.UsageReply]:
        self._note("Usage", request, context)
        yield from self.usage

    def ReserveGpus(
        self, request: booking_pb2.ReserveGpusRequest, context: grpc.ServicerContext
    ) -> booking_pb2.Reservation:
        self._note("ReserveGpus", request, context)
        return self.reservations[0]

    def CancelReservation(
        self, request: booking_pb2.CancelReservationRequest, context: grpc.ServicerContext
    ) -> booking_pb2.Reservation:
        self._note("CancelReservation", request, context)
        return self.reservations[0]

    def ListReservations(
        self, request: booking_pb2.ListReservationsRequest, context: grpc.ServicerContext
    ) -> booking_pb2.ListReservationsReply:
        self._note("ListReservations", request, context)
        return booking_pb2.ListReservationsReply(reservations=self.reservations, now=self.reserved_from)

    def ListNodes(
        self, request: client_pb2.ListNodesRequest, context: grpc.ServicerContext
    ) -> client_pb2.ListNodesReply:
        self._note("ListNodes", request, context)
        return client_pb2.ListNodesReply(nodes=self.nodes, foreign_gpu_s=self.foreign_gpu_s, pools=self.pools)

    def ShowCluster(
        self, request: client_pb2.ShowClusterRequest, context: grpc.ServicerContext
    ) -> client_pb2.ClusterInfo:
        self._note("ShowCluster", request, context)
        return client_pb2.ClusterInfo(cluster_id="c1", policy="fitgpp", now=time.time() - self.behind_s)

    def WatchJobs(
        self, request: client_pb2.WatchJobsRequest, context: grpc.ServicerContext
    ) -> Iterator[client_pb2.Job]:
        self._note("WatchJobs", request, context)
        told = len(self._told)
        for job_id in request.job_ids or list(self.jobs):
            yield self._find(job_id, context)
        for job_id in request.job_ids:
            changes = self.changes[job_id]  # a watcher that has gone leaves those alone that a test sets next
            while changes:
                self._cut(context)
                self.jobs[job_id] = changes.pop(0)
                yield self.jobs[job_id]
        self.watched.set()
        while context.is_active() and not self._closed:
            with self._news:
                self._news.wait_for(lambda: self._closed or len(self._told) > told, timeout=0.1)  # noqa: B023
            for job in self._told[told:]:
                told += 1
                if job.job_id in request.job_ids:
                    yield job

    def WatchEvents(
        self, request: client_pb2.WatchEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[client_pb2.Event]:
        self._note("WatchEvents", request, context)
        for event in self.events:
            if event.sequence > request.after_sequence:
                yield event
                self._cut(context)
        if request.follow:
            self._wait(context)

    def FindSnapshot(self, request: job_pb2.Snapshot, context: grpc.ServicerContext) -> client_pb2.SnapshotState:
        self._note("FindSnapshot", request, context)
        return client_pb2.SnapshotState(present=request.digest in self.snapshots)

    def UploadSnapshot(
        self, request_iterator: Iterator[client_pb2.SnapshotUpload], context: grpc.ServicerContext
    ) -> Iterator[client_pb2.SnapshotState]:
        first = next(request_iterator)
        self._note("UploadSnapshot", first, context)
        sent = b"".join(message.data for message in request_iterator)
        if hashlib.sha256(zlib.decompressobj(31).decompress(sent)).hexdigest() != first.snapshot.digest:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "--snapshot: what was sent is not what was announced")
        self.snapshots[first.snapshot.digest] = sent
        yield client_pb2.SnapshotState(present=True)

    def TestNotice(self, request: client_pb2.NoticeTest, context: grpc.ServicerContext) -> client_pb2.NoticeTestReply:
        self._note("TestNotice", request, context)
        return self.notice_reply

    def ReadLogs(
        self, request: client_pb2.ReadLogsRequest, context: grpc.ServicerContext
    ) -> Iterator[client_pb2.LogChunk]:
        self._note("ReadLogs", request, context)
        self._find(request.job_id, context)
        self._be_away(self.unread.get(request.job_id), context)
        with self._news:
            self._followed += 1
            self.most_followed = max(self.most_followed, self._followed)
        try:
            yield from self._log(request, context)
            self._be_away(self.unread_after.get(request.job_id), context)
        finally:
            with self._news:
                self._followed -= 1

    def _log(self, request: client_pb2.ReadLogsRequest, context: grpc.ServicerContext) -> Iterator[client_pb2.LogChunk]:
        sent = 0
        while True:
            ended = self.jobs[request.job_id].HasField("end_time")
            chunks = self.logs_of.get(request.job_id, self.logs)
            for attempt, data in chunks[sent:]:
                sent += 1
                if request.attempt in (0, attempt):
                    yield client_pb2.LogChunk(attempt=attempt, data=data)
                    self._cut(context)
            if not request.follow or ended or self._closed or not context.is_active():
                return
            with self._news:
                self._news.wait(timeout=0.1)

    def Connect(self, request_iterator: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        want = next(request_iterator).open
        self._note("Connect", want, context)
        self._be_away(self.unread.get(want.job_id), context)
        yield from ()

    def _be_away(self, why: str | None, context: grpc.ServicerContext) -> None:
        """Fail as a master does that cannot ask the job's node."""
        if why is not None:
            context.set_trailing_metadata(((NODE_AWAY_KEY, "1"),))
            context.abort(grpc.StatusCode.UNAVAILABLE, why)

    def _one(self, method: str, request: Any, context: grpc.ServicerContext) -> client_pb2.Job:
        self._note(method, request, context)
        return self._find(request.job_id, context)

    def _note(self, method: str, request: Any, context: grpc.ServicerContext) -> None:
        self.requests.append((method, request))
        if self.mute:
            self.mute -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "the master is stopping")
        if self.busy_s and self.busy_method in ("", method):
            context.set_trailing_metadata(((RETRY_KEY, str(self.busy_s[0])),))
            words = f"ada submits too many jobs at a time: try again in {self.busy_s.pop(0):.1f} s"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        if method in self.refusals:
            context.abort(*self.refusals[method])

    def _find(self, job_id: str, context: grpc.ServicerContext) -> client_pb2.Job:
        if job_id not in self.jobs:
            context.abort(grpc.StatusCode.NOT_FOUND, f"job {job_id} does not exist")
        return self.jobs[job_id]

    def _cut(self, context: grpc.ServicerContext) -> None:
        """End the stream as a dying master does, as often as the test asked for."""
        if self.dying:
            self.dying -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "the master is stopping")

    def _wait(self, context: grpc.ServicerContext) -> None:
        gone = threading.Event()
        context.add_callback(gone.set)
        self._streams.append(gone)
        if self._closed:
            gone.set()
        gone.wait(60)


def _is_named(task: client_pb2.Job, ids: Sequence[str]) -> bool:
    """Whether one of the ids is of the task's array, or of a range with the task in it."""
    for id in ids:
        array, _, indices = id.partition(".")
        low, _, high = indices.partition("-")
        if task.array == array and (not indices or int(low) <= task.index <= int(high or low)):
            return True
    return False


@contextmanager
def serving(master: ScriptedMaster) -> Iterator[str]:
    """Where it serves for as long as the block lasts: at the socket in a home of its own."""
    server = grpc.server(ThreadPoolExecutor(64))
    client_pb2_grpc.add_ClientServiceServicer_to_server(master, server)
    with TemporaryDirectory(prefix="ebb-") as home, home_socket.made(Path(home)) as target:
        server.add_secure_port(target, grpc.local_server_credentials(grpc.LocalConnectionType.UDS))
        server.start()
        yield f"unix:{home}"
        master.close()
        server.stop(None).wait()


def make_node(**fields: Any) -> client_pb2.Node:
    """A node with one GPU that one job shares with a foreign process."""
    reading = agent_pb2.GpuReading(
        uuid="GPU-a",
        mem_used_bytes=10 * GIB,
        utilisation=0.5,
        healthy=True,
        processes=[
            agent_pb2.GpuProcess(pid=1, job_id="17", attempt=1, user="ada", command="python", mem_bytes=8 * GIB),
            agent_pb2.GpuProcess(pid=2, user="bob", command="jupyter", mem_bytes=2 * GIB),
        ],
    )
    info = agent_pb2.GpuInfo(uuid="GPU-a", index=0, model="A100-40GB", mem_bytes=40 * GIB, healthy=True)
    gpu = client_pb2.NodeGpu(info=info, reading=reading, share_allocated=share(1, 4), job_ids=["17"])
    node = client_pb2.Node(name="ws1", hostname="ws1", state="up", gpus=[gpu], cpus=8, mem_bytes=32 * GIB)
    node.gpu_backend = "fake"
    node.MergeFrom(client_pb2.Node(**fields))
    return node
