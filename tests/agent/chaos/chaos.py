"""A node whose driver misbehaves at random: what can be done to it, one injection at a time."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
from ebbtide_agent.processes import procfs
from ebbtide_core.model.types import HeldBy, JobState
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.master.world import Master, share

NODE = "ws"
PROFILE = "4xT4"
GIB = 1 << 30
WITNESS = Path(__file__).with_name("witness.py")
CODES = (2, 3, 4, 6, 9, 12, 13, 15, 16, 18, 25, 28, 999)
CALLS = (
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetTemperature",
)
XIDS = (13, 31, 43, 48, 63, 74, 79, 94, 95, 119)
MOST_JOBS = 8


class Chaos:
    """One node with its agent, a master that gives it jobs, and everything that goes wrong."""

    def __init__(self, home: Path, master: Master, rng: random.Random, command: list[str]) -> None:
        """`command` starts the agent."""
        self.home, self.master, self.rng, self.command = home, master, rng, command
        self.gpu_dir = home / "nodes" / NODE / "gpus"
        self.folder = home / "witness"
        for name in ("locks", "violations", "done"):
            (self.folder / name).mkdir(parents=True)
        self.jobs: list[str] = []
        self.injections: list[str] = []
        self.faults: dict[str, object] = {}
        self.foreign: list[subprocess.Popen[bytes]] = []
        self._xids = 0
        # Whether a job is submitted depends on time, and what is injected must not.
        self._rng_of_jobs = random.Random(rng.random())

    # --- the agent ---

    async def start_agent(self) -> None:
        """Start it, and wait until the master has it and its GPUs."""
        with (self.home / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(self.command, stdout=log, stderr=log, start_new_session=True)
        await self.until("the agent is up", lambda: NODE in self.master.cluster.state.pools["default"].books.usable)
        self.uuids = [gpu["uuid"] for gpu in json.loads((self.gpu_dir / "gpus.json").read_text())["gpus"]]

    async def kill_agent(self) -> None:
        """kill -9; the driver may count its GPUs otherwise afterwards."""
        self.agent.kill()
        self.agent.wait()
        self.faults["order"] = self.rng.sample(self.uuids, len(self.uuids))
        self.write_faults()
        await self.until("it is missed", lambda: NODE not in self.master.cluster.state.pools["default"].books.usable)
        await self.start_agent()

    # --- one injection ---

    async def inject(self) -> None:
        """Something happens: most of it at once, so that it meets what happened before in every order."""
        kinds: list[tuple[Callable[[], Awaitable[None] | None], int]] = [
            (self.lose, 4), (self.fail, 4), (self.hide_memory, 2), (self.release_late, 3), (self.raise_xid, 2),
            (self.hang, 1), (self.repair, 8), (self.foreign_comes, 4), (self.foreign_goes, 4), (self.kill_agent, 1),
        ]  # fmt: skip
        [kind] = self.rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
        self.injections.append(kind.__name__)
        if (more := kind()) is not None:
            await more
        self.write_faults()
        await self.submit()
        await asyncio.sleep(self.rng.choice((0.0, 0.01, 0.05, 0.1)))
        self.check()

    def lose(self) -> None:
        self.faults["lost"] = [*self.faults.get("lost", []), self.rng.choice(self.uuids)]

    def fail(self) -> None:
        whom = self.rng.choice([*self.uuids, "*"])
        self.faults["errors"] = {whom: {self.rng.choice(CALLS): self.rng.choice(CODES)}}

    def hide_memory(self) -> None:
        self.faults["no_memory"] = self.rng.sample(self.uuids, 2)

    def release_late(self) -> None:
        self.faults["release_after_s"] = {self.rng.choice(self.uuids): self.rng.choice((0.3, 1.0, 15.0))}

    def raise_xid(self) -> None:
        self._xids += 1
        happened = {"uuid": self.rng.choice(self.uuids), "xid": self.rng.choice(XIDS), "number": self._xids}
        self.faults["xids"] = [*self.faults.get("xids", []), happened]

    async def hang(self) -> None:
        """For a moment only: every reading has to wait for it."""
        self.faults["hang"] = [self.rng.choice(CALLS)]
        self.write_faults()
        await asyncio.sleep(0.3)
        del self.faults["hang"]

    def repair(self) -> None:
        kinds = sorted(self.faults.keys() - {"order"})
        for kind in self.rng.sample(kinds, min(2, len(kinds))):
            del self.faults[kind]

    def foreign_comes(self) -> None:
        if len(self.foreign) < 3:
            process = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
            self.foreign.append(process)
            stat = procfs.read_stat(process.pid)
            held = {self.rng.choice(self.uuids): self.rng.choice((GIB, 9 * GIB))}
            content = {"pid": process.pid, "starttime": stat.starttime, "gpus": held}
            self._write(f"processes/{process.pid}.json", content)

    def foreign_goes(self) -> None:
        if self.foreign:
            process = self.foreign.pop(self.rng.randrange(len(self.foreign)))
            process.kill()
            process.wait()
            (self.gpu_dir / f"processes/{process.pid}.json").unlink(missing_ok=True)

    async def submit(self) -> None:
        """Keep some jobs waiting and running."""
        if sum(not job.state.finished for job in self.master.cluster.state.jobs.values()) >= MOST_JOBS:
            return
        name = str(len(self.jobs) + 1)
        leaves = ["leaves"] if self._rng_of_jobs.random() < 0.2 else []
        seconds = str(self._rng_of_jobs.choice((0.05, 0.3, 1.0)))
        urgent = self._rng_of_jobs.random() < 0.25
        submit = self.master.submit(
            command=[sys.executable, "-SE", str(WITNESS), str(self.folder), name, seconds, *leaves],
            env={"PATH": os.environ["PATH"]},
            gpus_min=self._rng_of_jobs.choice((share(1), share(1), share(2), share(1, 2))),
            grace_s=10.0,
            job_class=job_pb2.JOB_CLASS_TRIAL_AND_ERROR if urgent else job_pb2.JOB_CLASS_BEST_EFFORT,
            cold=True,
        )
        try:
            self.jobs.append(await submit)
        except grpc.aio.AioRpcError as error:
            # An agent that is started while the driver answers nothing has no GPUs to tell of until it does.
            if "of the largest node" not in (error.details() or ""):
                raise

    # --- what must hold ---

    def check(self) -> None:
        """The agent lives, nobody met anybody else on its GPUs, and no job has failed."""
        assert self.agent.poll() is None, f"the agent ended with {self.agent.returncode}"
        assert {path.name: path.read_text() for path in (self.folder / "violations").iterdir()} == {}
        jobs = self.master.cluster.state.jobs.values()
        assert [(job.id, job.reason) for job in jobs if job.state in (JobState.FAILED, JobState.CANCELLED)] == []

    async def until(self, what: str, holds: Callable[[], bool], seconds: float = 200.0) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"not in {seconds:g} s: {what}") from None

    async def heal(self) -> None:
        """All works again; who was held for having lost too much is let go on. In the end everything was done."""
        self.faults = {}
        self.write_faults()
        while self.foreign:
            self.foreign_goes()
        if "raise_xid" in self.injections:
            await self.kill_agent()  # fatal ones stand until then
        async with asyncio.timeout(200):
            while not await self._are_done():
                await asyncio.sleep(0.02)
        self.check()
        assert {path.name for path in (self.folder / "done").iterdir()} == {str(n + 1) for n in range(len(self.jobs))}
        node = self.master.cluster.state.nodes[NODE]
        await self.until("all GPUs are well", lambda: all(gpu.healthy for gpu in node.gpus.values()))
        assert node.quarantine == {}

    async def _are_done(self) -> bool:
        """Whether all jobs have completed; who is held for having lost too much is let go on."""
        jobs = list(self.master.cluster.state.jobs.values())
        for job in jobs:
            if job.held_by is HeldBy.SYSTEM:
                await self.master.ask.Release(client_pb2.JobRequest(job_id=job.id))
        return all(job.state is JobState.COMPLETED for job in jobs)

    def close(self) -> None:
        """End the agent and what is foreign; jobs are over by then, or end with their test."""
        if self.agent.poll() is None:
            self.agent.send_signal(signal.SIGTERM)
            self.agent.wait(20)
        while self.foreign:
            self.foreign_goes()

    def write_faults(self) -> None:
        self._write("faults.json", self.faults)

    def _write(self, name: str, content: object) -> None:
        draft = self.gpu_dir / f".draft-{os.getpid()}"
        draft.write_text(json.dumps(content))
        draft.replace(self.gpu_dir / name)
