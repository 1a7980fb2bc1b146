"""Measures the dashboard before a scripted master of 1,000 nodes with 8 GPUs, 10,000 jobs and 50 viewers.

    python benchmarks/dashboard.py                 # CPU time of the dashboard, bytes for viewers
    python benchmarks/dashboard.py --browser       # also first paint, long tasks and all memory of a tab, in Chromium

What the master itself pays for a dashboard, `dashboard_master.py` measures. The exit code is 1 if a mark is missed.

The scripted master tells as much as a busy one does: 50 changes of jobs a second, and new readings of a quarter of the
nodes every two seconds. The dashboard is a process of its own, as in life. The memory of a tab is that of its renderer
with all its children, the heap of JavaScript and all else that no file backs, as a browser's task manager counts it. It
is compared with its bound after 8 s, and after a minute, when a leak would show. The PSS is printed as well: it has a
share of the browser's own code, which depends on how many other processes run that.
"""

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import psutil
from ebbtide_protos.v1 import client_pb2, client_pb2_grpc, job_pb2, timeline_pb2, user_pb2
from ebbtide_web import serve as serving
from ebbtide_web.access.sessions import Links
from ebbtide_web.dashboard import DashboardSettings

NODES, GPUS, JOBS, VIEWERS = 1000, 8, 10_000, 50
SESSIONS = 10
"""Sessions of the viewers, who all are one user: such a one may have 25."""
GIB = 2**30
CHANGES_PER_S = 50
LINES_PER_S = 200
"""Lines that the job prints whose page is opened; it begins with the last 1,000, and keeps the last 3,000."""
MOST_MIB = 150 * 10**6 / 2**20
"""What a tab may have of memory (150 MB)."""
MOST_CORE = 0.25
"""What the dashboard may take of a core with all viewers."""
MOST_PAINT_MS = 1500
MOST_DELAY_S = 1.0
"""From a change until it is on the screen (95th percentile)."""
STAMP = "stamp-"
"""What the name of the job begins with that says when it changed last."""
MOST_TASK_MS = 100
POOLS = ("default", "interactive", "night", "old")
SPANS = 200
"""Spans of each of the 100 lanes that a page of the timeline has: 20,000, the most that the master sends."""
PAGES = (
    ("/", "canvas.map"),
    ("/queue", "tbody tr"),
    ("/nodes", "tbody tr"),
    ("/timeline", "#lanes canvas"),
    ("/timeline?by=node", "#lanes canvas"),
    ("/timeline?by=gpu", "#lanes canvas"),
    ("/events", ".story li"),
    ("/admin", "#agents tbody tr"),
    ("/jobs/1", "#log .block:nth-child(3)"),
)
"""Pages, and what is there when they are filled."""
STREAMS = ("/stream/cluster", "/stream/queue", "/stream/nodes", "/stream/timeline?by=pool")
"""What the viewers read, in turn."""
STATES = ("RUNNING", "PENDING", "SUSPENDING", "SUSPENDED")


class ScriptedMaster(client_pb2_grpc.ClientServiceServicer):
    """Tells a board that changes all the time."""

    def __init__(self) -> None:
        self.dice = random.Random(7)
        self.began = time.time()
        self.busy = NODES * GPUS * 9 // 10

    def node(self, n: int) -> client_pb2.BoardNode:
        gpus = [
            client_pb2.BoardGpu(uuid=f"GPU-{n:04}-{g}", index=g, model="H100-80GB", mem_bytes=80 * GIB)
            for g in range(GPUS)
        ]
        return client_pb2.BoardNode(name=f"gpu{n:04}", pool="default", gpus=gpus)

    def load(self, n: int) -> client_pb2.BoardLoad:
        load = client_pb2.BoardLoad(name=f"gpu{n:04}", state="down" if n % 131 == 7 else "up", cpus=96, mem_bytes=2**40)
        for g in range(GPUS):
            gpu = load.gpus.add(use=round(self.dice.random(), 2), mem_used_bytes=self.dice.randrange(80) * GIB)
            number = n * GPUS + g
            if load.state == "down":
                gpu.state = client_pb2.GPU_STATE_UNREACHABLE
            elif number % 97 == 3:
                gpu.state, gpu.why = client_pb2.GPU_STATE_UNHEALTHY, "fell off the bus"
            elif number % 71 == 5:
                gpu.state = client_pb2.GPU_STATE_FOREIGN
            elif number < self.busy:
                gpu.state = client_pb2.GPU_STATE_ALLOCATED
                holder = job_pb2.Share(numerator=1, denominator=1)
                gpu.holders.add(job_id=str(number // 4), share=holder, mem_used_bytes=gpu.mem_used_bytes)
            else:
                gpu.state = client_pb2.GPU_STATE_IDLE
        return load

    def job(self, n: int, state: str | None = None) -> client_pb2.BoardJob:
        runs = n < self.busy // 4
        one = job_pb2.Share(numerator=4, denominator=1)
        return client_pb2.BoardJob(
            job_id=str(n),
            name=f"{('pretrain', 'finetune', 'eval', 'sweep')[n % 4]}-{n % 311}",
            user=f"user{n % 37:02}",
            pool="default",
            state=job_pb2.JobState.Value(f"JOB_STATE_{state or ('RUNNING' if runs else 'PENDING')}"),
            reason="" if runs else "waiting for 4 GPUs",
            gpus_min=one,
            gpus_max=one,
            gpus_allocated=one if runs else None,
            priority=42,
            submit_time=time.time() - 3600,
            waiting_s=600,
            running_s=3000 if runs else 0,
            at=time.time(),
            attempt=int(runs),
            nodes=[f"gpu{n * 4 // GPUS:04}"] if runs else [],
            node_count=int(runs),
            step=self.dice.randrange(10_000) if runs else None,
            total=10_000 if runs else None,
        )

    async def WatchBoard(self, request: Any, context: Any) -> AsyncIterator[client_pb2.BoardUpdate]:
        now = time.time
        for start in range(0, NODES, 50):
            numbers = range(start, start + 50)
            yield client_pb2.BoardUpdate(
                first=not start, now=now(), nodes=map(self.node, numbers), loads=map(self.load, numbers)
            )
        for start in range(0, JOBS, 200):
            yield client_pb2.BoardUpdate(now=now(), jobs=map(self.job, range(start, start + 200)))
        head = [str(n) for n in range(self.busy // 4, self.busy // 4 + 200)]
        queue = client_pb2.BoardQueue(pool="default", job_ids=head, length=JOBS - self.busy // 4, policy="fitgpp")
        yield client_pb2.BoardUpdate(now=now(), queues=[queue], notices=client_pb2.BoardNotices(), last=True)
        turn = 0
        while True:
            await asyncio.sleep(0.25)
            turn += 1
            changed = [self.dice.randrange(JOBS) for _ in range(CHANGES_PER_S // 4)]
            jobs = [self.job(n, self.dice.choice(STATES)) for n in changed]
            stamped = self.job(JOBS - 1)
            stamped.name = f"{STAMP}{time.time():.3f}"
            jobs.append(stamped)
            loads = [] if turn % 8 else [self.load(n) for n in self.dice.sample(range(NODES), NODES // 4)]
            yield client_pb2.BoardUpdate(now=now(), jobs=jobs, loads=loads, last=True)

    async def ForecastQueue(self, request: Any, context: Any) -> client_pb2.ForecastQueueReply:
        return client_pb2.ForecastQueueReply(why_not=f"not foreseen: {JOBS} unfinished jobs are over the limit of 2000")

    async def CreateToken(self, request: Any, context: Any) -> user_pb2.CreateTokenReply:
        return user_pb2.CreateTokenReply(token=user_pb2.Token(id="t", user="ada"), text="ebb_t_x")

    async def WhoAmI(self, request: Any, context: Any) -> user_pb2.Identity:
        return user_pb2.Identity(user=user_pb2.User(name="ada", role="admin"))

    async def RevokeToken(self, request: Any, context: Any) -> user_pb2.Token:
        return user_pb2.Token()

    async def ShowJob(self, request: Any, context: Any) -> client_pb2.Job:
        one, now = job_pb2.Share(numerator=4, denominator=1), self.began
        attempts = [
            client_pb2.AttemptSummary(
                attempt=n + 1, placed_time=now - 9000 + 900 * n, end_time=now - 8500 + 900 * n if n < 9 else None
            )
            for n in range(10)
        ]
        parts = dict.fromkeys(("save", "exit", "free", "queue", "start", "import", "load", "first_step"), 2.0)
        suspensions = [client_pb2.Suspension(requested=now - 8500 + 900 * n, parts_s=parts) for n in range(9)]
        spec = job_pb2.JobSpec(name="pretrain", command=["python", "train.py"], gpus_min=one, gpus_max=one)
        return client_pb2.Job(
            job_id=request.job_id, spec=spec, user="ada", state=job_pb2.JOB_STATE_RUNNING, attempt=10, preemptible=True,
            attempts=attempts, suspensions=suspensions, submit_time=now - 9900, gpus_allocated=one,
            progress=job_pb2.Progress(step=self.dice.randrange(10_000), total=10_000),
        )  # fmt: skip

    async def WatchJobs(self, request: Any, context: Any) -> AsyncIterator[client_pb2.Job]:
        while True:
            yield client_pb2.Job(job_id=request.job_ids[0])
            await asyncio.sleep(0.3)

    async def ShowStory(self, request: Any, context: Any) -> client_pb2.StoryReply:
        words = "starts on gpu0001, with 4 GPUs, as somebody else's job steps aside for it"
        events = [client_pb2.Event(kind="AttemptStarted", time=time.time(), text=words) for _ in range(500)]
        return client_pb2.StoryReply(events=events)

    async def ReadLogs(self, request: Any, context: Any) -> AsyncIterator[client_pb2.LogChunk]:
        offset = number = 0
        while True:
            count = LINES_PER_S // 20 if number else request.tail
            data = "".join(map(self.line, range(number, number + count))).encode()
            yield client_pb2.LogChunk(attempt=10, data=data, offset=offset, next=offset + len(data))
            offset, number = offset + len(data), number + count
            await asyncio.sleep(0.05)

    def line(self, number: int) -> str:
        loss = f"loss {1 / (number + 1):.6f} lr 3.0e-04 grad_norm 0.7312 tokens/s 184320 \x1b[32mok\x1b[0m"
        return f"epoch 3 step {number} {loss}\n"

    async def QueryTimeline(self, request: Any, context: Any) -> timeline_pb2.QueryTimelineReply:
        now, length = time.time(), request.until - request.since
        count = {timeline_pb2.TIMELINE_LANES_POOLS: len(POOLS), timeline_pb2.TIMELINE_LANES_NODES: NODES}
        total = count.get(request.lanes, NODES * GPUS)
        lanes = []
        for n in range(request.first, min(total, request.first + request.limit)):
            lane = timeline_pb2.TimelineLane(pool=POOLS[n % len(POOLS)])
            if request.lanes in count:
                drawn = min(request.buckets, int(request.buckets * (now - request.since) / length) + 1)
                lane.gpus = NODES * GPUS // total
                lane.heat.present.extend([float(lane.gpus)] * drawn)
                lane.heat.held.extend(lane.gpus * self.dice.random() for _ in range(drawn))
                lane.heat.foreign.extend([0.0] * drawn)
                lane.heat.unavailable.extend(lane.gpus * self.dice.choice((0.0, 0.0, 0.1)) for _ in range(drawn))
            if request.lanes != timeline_pb2.TIMELINE_LANES_POOLS:
                lane.node = f"gpu{n if request.lanes in count else n // GPUS:04}"
            if request.lanes not in count:
                lane.gpu_index = n % GPUS
                lane.spans.extend(self.span(request.since + length * s / SPANS, length / SPANS) for s in range(SPANS))
            lanes.append(lane)
        return timeline_pb2.QueryTimelineReply(lanes=lanes, total=total, edge=now, done=1.0)

    def span(self, start: float, length: float) -> timeline_pb2.TimelineSpan:
        job = self.dice.randrange(JOBS)
        return timeline_pb2.TimelineSpan(
            start=start, end=start + 0.9 * length, doing=timeline_pb2.TIMELINE_DOING_COMPUTING, job_id=str(job),
            user=f"user{job % 37:02}", name="pretrain", attempt=1, gpus=1.0, why="completed", count=1,
        )  # fmt: skip

    async def QueryEvents(self, request: Any, context: Any) -> client_pb2.QueryEventsReply:
        words = "starts on gpu0001, with 4 GPUs"
        events = [
            client_pb2.Event(sequence=10**6 - n, kind="AttemptStarted", time=time.time(), job_id=str(n), text=words)
            for n in range(0 if request.after_sequence else 200)
        ]
        return client_pb2.QueryEventsReply(events=events, last_sequence=10**6)

    async def ShowSettings(self, request: Any, context: Any) -> user_pb2.ShowSettingsReply:
        return user_pb2.ShowSettingsReply(journal=user_pb2.JournalHealth(kind="file", has_room=True))

    async def ListUsers(self, request: Any, context: Any) -> user_pb2.ListUsersReply:
        return user_pb2.ListUsersReply(users=[user_pb2.User(name=f"user{n:03}", role="user") for n in range(300)])

    async def ListTokens(self, request: Any, context: Any) -> user_pb2.ListTokensReply:
        tokens = [user_pb2.Token(id=f"{n:016x}", user=f"user{n:03}", created=time.time()) for n in range(300)]
        return user_pb2.ListTokensReply(tokens=tokens)

    async def ShowCluster(self, request: Any, context: Any) -> client_pb2.ClusterInfo:
        return client_pb2.ClusterInfo(version="0.1.0", epoch=3)

    async def ListNodes(self, request: Any, context: Any) -> client_pb2.ListNodesReply:
        nodes = [client_pb2.Node(name=f"gpu{n:04}", state="up", version="0.1.0") for n in range(NODES)]
        return client_pb2.ListNodesReply(nodes=nodes)

    async def WatchNode(self, request: Any, context: Any) -> AsyncIterator[client_pb2.NodeReply]:
        yield client_pb2.NodeReply(node=client_pb2.Node(name=request.node, state="up", version="0.1.0"))


async def serve(target: str, links: Path, port: int, token: str) -> None:
    """Run a dashboard before the master at ``target``, which knows it by ``token``."""

    @contextlib.asynccontextmanager
    async def opener() -> AsyncIterator[grpc.aio.Channel]:
        async with grpc.aio.insecure_channel(target, options=[("grpc.max_receive_message_length", -1)]) as channel:
            yield channel

    listening = serving.listen(port)
    settings = DashboardSettings(
        opener=opener, token=lambda: token, links=Links(links), origin=listening.origin, replay=()
    )
    await serving.serve(settings, listening, lambda: print("ready", flush=True), asyncio.Event())


class Viewer:
    """Reads one stream, and counts what comes."""

    def __init__(self) -> None:
        self.bytes = self.events = 0

    async def read(self, port: int, path: str, cookie: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        lines = [f"GET {path} HTTP/1.1", f"host: 127.0.0.1:{port}", f"cookie: {cookie}", "", ""]
        writer.write("\r\n".join(lines).encode())
        try:
            while data := await reader.read(2**16):
                self.bytes += len(data)
                self.events += data.count(b"event: frame")
        finally:
            writer.close()


async def log_in(port: int, links: Links) -> str:
    """The cookie of a new session."""
    body = json.dumps({"code": links.make()}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    host = f"127.0.0.1:{port}"
    lines = [
        "POST /login/code HTTP/1.1", f"host: {host}", f"origin: http://{host}", "content-type: application/json",
        f"content-length: {len(body)}", "connection: close", "", "",
    ]  # fmt: skip
    writer.write("\r\n".join(lines).encode() + body)
    head = (await reader.read()).decode()
    writer.close()
    return next(line for line in head.split("\r\n") if line.startswith("set-cookie")).split(": ")[1].split(";")[0]


async def measure(seconds: float, browser: bool, pictures: Path | None, stays: float) -> list[str]:
    """Start both, let viewers look, print what that costs, and return what is over its bound."""
    over = list[str]()
    server = grpc.aio.server()
    client_pb2_grpc.add_ClientServiceServicer_to_server(ScriptedMaster(), server)  # type: ignore[abstract]
    with tempfile.TemporaryDirectory() as folder:
        target = f"unix:{folder}/master.sock"
        server.add_insecure_port(target)
        await server.start()
        listening = serving.listen(0)
        port = listening.port
        listening.socket.close()
        links = Links(Path(folder) / "links")
        command = [sys.executable, __file__, "--serve", target, "--links", f"{folder}/links", "--port", str(port)]
        child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            assert child.stdout is not None
            await child.stdout.readline()
            process = psutil.Process(child.pid)
            await asyncio.sleep(3.0)
            alone = await cpu_of(process, seconds)
            print(f"dashboard, nobody looks: {100 * alone:.1f} % of a core")
            viewers, tasks = [Viewer() for _ in range(VIEWERS)], []
            cookies = [await log_in(port, links) for _ in range(SESSIONS)]
            for number, viewer in enumerate(viewers):
                path, cookie = STREAMS[number % len(STREAMS)], cookies[number % SESSIONS]
                tasks.append(asyncio.create_task(viewer.read(port, path, cookie)))
            await asyncio.sleep(3.0)
            before = [viewer.bytes for viewer in viewers]
            busy = await cpu_of(process, seconds)
            read = sum(viewer.bytes for viewer in viewers) - sum(before)
            memory, each = process.memory_info().rss / 2**20, read / VIEWERS / seconds / 1024
            print(f"dashboard, {VIEWERS} viewers: {100 * busy:.1f} % of a core, {memory:.0f} MiB")
            print(f"each viewer: {each:.0f} KiB/s, first frame {max(before) / 1024:.0f} KiB at most")
            if busy > MOST_CORE:
                over.append(f"the dashboard took {100 * busy:.1f} % of a core")
            if browser:
                code = links.make()
                over += await asyncio.to_thread(look, port, code, pictures, stays)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        finally:
            child.terminate()
            await child.wait()
            await server.stop(0)
    return over


async def cpu_of(process: psutil.Process, seconds: float) -> float:
    """The share of a core that a process takes."""
    times = process.cpu_times()
    begun, used = time.monotonic(), times.user + times.system
    await asyncio.sleep(seconds)
    times = process.cpu_times()
    return (times.user + times.system - used) / (time.monotonic() - begun)


DELAYS = """() => new Promise((done) => {
    const seen = new Map();
    const look = () => {
        for (const [stamp] of document.getElementById("rows").textContent.matchAll(/stamp-[0-9.]+/g))
            if (!seen.has(stamp)) seen.set(stamp, Date.now() / 1000 - Number(stamp.slice(6)));
    };
    look();
    seen.clear();  // what was there before is as old as it is
    new MutationObserver(look).observe(document.body, { childList: true, subtree: true, characterData: true });
    setTimeout(() => done([...seen.values()].slice(1)), 15000);
})"""
LOOK = """() => new Promise((done) => {
    performance.mark("looked-at");
    const long = [];
    new PerformanceObserver((list) => long.push(...list.getEntries().map((one) => one.duration)))
        .observe({ type: "longtask", buffered: true });
    setTimeout(() => done({
        paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
        long: Math.max(0, ...long),
    }), 8000);
})"""


def look(port: int, code: str, pictures: Path | None, stays: float) -> list[str]:
    """Open the pages in Chromium, print how that felt, and return what is over its bound ``stays`` seconds later."""
    from playwright.sync_api import sync_playwright

    over = list[str]()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        print("an empty tab: {:.0f} MiB, PSS {:.0f} MiB".format(*memory_of_tab(browser)))
        page.goto(f"http://127.0.0.1:{port}/login#code={code}")
        page.wait_for_selector("canvas.map")
        for path, ready in PAGES:
            page.close()
            page = context.new_page()  # else it would have the garbage of the page before
            browser.start_tracing(page=page, categories=["toplevel", "blink.user_timing"])
            begun = time.monotonic()
            page.goto(f"http://127.0.0.1:{port}{path}")
            page.wait_for_selector(ready)
            shown = time.monotonic() - begun
            felt = page.evaluate(LOOK)
            task_ms = longest_task_ms(browser.stop_tracing())
            session = context.new_cdp_session(page)
            session.send("Performance.enable")
            metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
            first = memory_of_tab(browser)
            page.wait_for_timeout(1000 * stays)
            last = memory_of_tab(browser)
            over += [f"{path}: {own:.0f} MiB" for own, _ in (first, last) if own > MOST_MIB]
            over += [f"{path}: painted after {felt['paint']:.0f} ms"] if felt["paint"] > MOST_PAINT_MS else []
            over += [f"{path}: a task of {task_ms:.0f} ms"] if task_ms > MOST_TASK_MS else []
            print(
                f"{path}: first paint {felt['paint']:.0f} ms, filled after {1000 * shown:.0f} ms, "
                f"longest task {task_ms:.0f} ms of CPU time ({felt['long']:.0f} ms by the clock), "
                f"{metrics['JSHeapUsedSize'] / 2**20:.0f} MiB of JavaScript; "
                f"the whole tab {first[0]:.0f} MiB (PSS {first[1]:.0f}), "
                f"and {last[0]:.0f} MiB (PSS {last[1]:.0f}) after {stays + 8:.0f} s"
            )
            name = path.strip("/").replace("/", "-").replace("?by=", "-of-") or "cluster"
            for theme in ("light", "dark") if pictures else ():
                page.emulate_media(color_scheme=theme)
                page.evaluate("document.dispatchEvent(new Event('themed'))")
                page.wait_for_timeout(400)
                for width in (1440, 390):
                    page.set_viewport_size({"width": width, "height": 900})
                    page.wait_for_timeout(600)
                    page.screenshot(path=pictures / f"large-{name}-{theme}-{width}.png")  # type: ignore[operator]
                page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(f"http://127.0.0.1:{port}/queue?q={STAMP}")
        page.wait_for_selector(f"tbody :text('{STAMP}')")
        delays = sorted(page.evaluate(DELAYS))
        p95 = delays[int(0.95 * len(delays))]
        print(
            f"a change is on the screen after {delays[len(delays) // 2]:.2f} s (median), {p95:.2f} s (95th percentile)"
        )
        over += [f"a change is on the screen after {p95:.2f} s"] if p95 > MOST_DELAY_S else []
        browser.close()
    return over


def longest_task_ms(trace: bytes) -> float:
    """The CPU time of the longest task of the main thread that `LOOK` marked, to which other programs do not add.

    Other renderers than the page's, in which the browser makes parts of its own window, do not count.
    """
    events = json.loads(trace)["traceEvents"]
    main = {(one["pid"], one["tid"]) for one in events if one["name"] == "looked-at"}
    tasks = [one for one in events if one["name"].endswith("RunTask") and (one["pid"], one["tid"]) in main]
    return max(float(one.get("tdur", one.get("dur", 0))) for one in tasks) / 1000


def memory_of_tab(browser: Any) -> tuple[float, float]:
    """MiB of the largest renderer, which is the tab's, with all its children: what no file backs, and the PSS."""
    session = browser.new_browser_cdp_session()
    found = [one["id"] for one in session.send("SystemInfo.getProcessInfo")["processInfo"] if one["type"] == "renderer"]
    session.detach()
    sizes = []
    for pid in found:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        pss = sum(process.memory_full_info().pss for process in tree)
        sizes.append((sum(own_memory(process.pid) for process in tree) / 2**20, pss / 2**20))
    return max(sizes)


def own_memory(pid: int) -> int:
    """Bytes of a process that no file backs, those swapped out included: what browsers call its memory footprint."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(1024 * int(words[1]) for words in lines if words[0] in ("RssAnon:", "RssShmem:", "VmSwap:"))


def main() -> None:
    """Do what the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--browser", action="store_true")
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of the pages at this size")
    parser.add_argument(
        "--stays", type=float, default=52.0, help="seconds for which a page is open before it is judged"
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--links", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--token", default="x", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve, given.links, given.port, given.token))
    else:
        over = asyncio.run(
            measure(given.seconds, given.browser or given.pictures is not None, given.pictures, given.stays)
        )
        if over:
            sys.exit(f"over the marks: {'; '.join(over)}")


if __name__ == "__main__":
    main()
