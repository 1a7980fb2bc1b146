"""Whatever comes in whatever order: a GPU is shared in one way at a time, and what was started for it ends."""

import asyncio
import random
import signal
from dataclasses import replace

import pytest
from ebbtide_agent.contract.intent import AllocatedGpu as Part
from ebbtide_agent.gpu.backend import Gpu, GpuReading, GpuSettings
from ebbtide_agent.mps.sharing import GpuSharing, NotShared

from tests.agent.mps.test_environment import intent

GPUS = ("GPU-0000aaaa", "GPU-1111bbbb")
GIB = 1 << 30


class Lab:
    """Attempts that are only told of, on real daemons."""

    def __init__(self, sharing, seed):
        self.sharing = sharing
        self.random = random.Random(seed)
        self.there = {}
        self.failed = []
        self.last = 0

    async def come(self):
        self.last += 1
        whole = self.random.random() < 0.2
        part = Part(self.random.choice(GPUS), 1, 1 if whole else 4, 6 * GIB)
        wanted = replace(intent({}), job_id=str(self.last), gpus=(part,), swaps=self.random.random() < 0.2)
        if whole and any(found.gpus[0].uuid == part.uuid for found in self.there.values()):
            return  # the core places no whole GPU where somebody is
        self.there[wanted.job_id] = wanted  # so that no whole one comes beside it meanwhile
        try:
            self.there[wanted.job_id] = await self.sharing.prepare(wanted)
        except NotShared:
            self.go(wanted.job_id)

    def go(self, job):
        del self.there[job]
        self.sharing.forget((job, 1))

    async def step(self):
        match self.random.randrange(5):
            case 0 | 1:
                await self.come()
            case 2 if self.there:
                self.go(self.random.choice(sorted(self.there)))
            case 3 if daemons := [gpu.daemon for gpu in self.sharing._gpus.values() if gpu.daemon]:
                process = self.random.choice(self.random.choice(daemons).processes)
                process.signal(signal.SIGKILL)
            case 4 if self.there:
                job = self.random.choice(sorted(self.there))
                await self.sharing.verdict(self.there[job], signalled=False)
                self.go(job)
        self.check()
        for job, _ in self.failed:
            if job in self.there:
                self.go(job)
        self.failed.clear()

    def check(self):
        for uuid in GPUS:
            ways = {found.sharing for found in self.there.values() if found.gpus[0].uuid == uuid and found.sharing}
            assert len(ways) <= 1, (uuid, self.there)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_shares_go_one_way_and_leave_nothing_behind(binary, place, seed, monkeypatch):
    monkeypatch.setattr("ebbtide_agent.mps.daemon._QUIT_S", 0.2)
    sharing = GpuSharing(place / "node", binary, look_s=0.02)
    await sharing.set_gpus(tuple(Gpu(uuid, 0, "A", 24 * GIB) for uuid in GPUS), lambda _: GpuSettings(), fake=False)
    lab = Lab(sharing, seed)
    await sharing.start(lambda key, reason: lab.failed.append(key))
    for _ in range(40):
        await lab.step()
    for job in list(lab.there):
        lab.go(job)
    async with asyncio.timeout(20):
        while any(gpu.daemon for gpu in sharing._gpus.values()):
            await asyncio.sleep(0.01)
    assert all(sharing.without_server(GpuReading(uuid)).healthy for uuid in GPUS)
    assert not list((place / "node" / "mps").glob("*.json"))
    await sharing.close()
