"""One GPU with jobs on it, twice: the fake's directory, and the C stubs of libcuda and NVML, which share a state."""

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from ebbtide_agent.gpu import fake
from ebbtide_agent.gpu.profiles import MIB, FakeGpu, Profile
from ebbtide_agent.processes import procfs
from ebbtide_agent.processes.process_tree import descendants
from ebbtide_agent.swap.fake import FakeDriver
from ebbtide_agent.swap.operation import carry_out
from ebbtide_agent.swap.sequence import SwapAction, SwapOrder, Swapped, SwapResult

GIB = 1 << 30
# Small enough for the host memory of any machine that runs these tests: the real driver asks for it.
TOTAL_BYTES = 3 * GIB
HANG = -1
_WORK = "import time\nwhile True:\n    time.sleep(0.001)"
# Starts so many processes, says who they are, and waits for them: what a supervisor has below it.
_ROOT = """
import subprocess, sys
jobs = [subprocess.Popen([sys.executable, "-Sc", sys.argv[1]]) for _ in range(int(sys.argv[2]))]
print(*[job.pid for job in jobs], flush=True)
for job in jobs:
    job.wait()
"""


class World:
    """What both have in common. `uuid` is the GPU of the jobs, `other` a second one."""

    uuid: str
    other: str
    fake_gpu_dir = ""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._roots: list[subprocess.Popen[str]] = []

    def job(self, *holds: int, processes: int = 0) -> "Job":
        """A job whose first processes hold so many bytes of the GPU each; `processes` is how many it has at least."""
        root = subprocess.Popen(
            [sys.executable, "-Sc", _ROOT, _WORK, str(max(len(holds), processes))], stdout=subprocess.PIPE, text=True
        )
        self._roots.append(root)
        ready, _, _ = select.select([root.stdout], [], [], 30)
        assert ready, "the job did not start"
        pids = [int(word) for word in root.stdout.readline().split()]
        for pid, mem_bytes in zip(pids, holds, strict=False):
            self.hold(pid, mem_bytes)
        return Job(self, root.pid, pids)

    def occupy(self, mem_bytes: int) -> int:
        """Somebody else's process takes so many bytes of the GPU."""
        return self.job(mem_bytes).pids[0]

    def close(self) -> None:
        for root in self._roots:
            for pid in [*descendants(root.pid), root.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            root.wait()
            root.stdout.close()

    def hold(self, pid: int, mem_bytes: int, uuid: str = "") -> None:
        raise NotImplementedError

    def fault(self, call: str, code: int) -> None:
        """From now on this call of the driver fails with this code, or hangs."""
        raise NotImplementedError

    def on_gpu(self) -> dict[int, int]:
        """Who holds how many bytes of the GPU."""
        raise NotImplementedError

    def state(self, pid: int) -> str:
        raise NotImplementedError


class Job:
    """A root with processes below it, as a supervisor has."""

    def __init__(self, world: World, root: int, pids: list[int]) -> None:
        self.world = world
        self.root = root
        self.pids = pids

    def suspend(self, deadline_s: float = 30, **changes: object) -> SwapResult:
        return self._carry_out(deadline_s, do=SwapAction.SUSPEND, **changes)

    def resume(self, swapped: Swapped, deadline_s: float = 30) -> SwapResult:
        return self._carry_out(deadline_s, do=SwapAction.RESUME, swapped=swapped)

    def frozen(self) -> bool:
        return all(procfs.read_stat(pid).stopped for pid in self.pids)

    def moves(self) -> bool:
        return not any(procfs.read_stat(pid).stopped for pid in self.pids)

    def _carry_out(self, deadline_s: float, **changes: object) -> SwapResult:
        world = self.world
        order = {
            "root": self.root,
            "gpu": world.uuid,
            "fake_gpu_dir": world.fake_gpu_dir,
            "reservations": str(world.directory / "reservations"),
            "lock_timeout_s": 0.2,
            "patience_s": 0.5,
        }
        return carry_out(SwapOrder(**{**order, **changes}), deadline_s)


class FakeWorld(World):
    """The fake."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._state_dir = directory / "gpus"
        self.fake_gpu_dir = str(self._state_dir)
        fake.set_up(self._state_dir, Profile((FakeGpu("A", TOTAL_BYTES + 16 * MIB),) * 2), keep=False)
        self._nvml = fake.FakeNvml(self._state_dir)
        self.uuid, self.other = (self._nvml.nvmlDeviceGetHandleByIndex(index).uuid for index in range(2))

    def hold(self, pid: int, mem_bytes: int, uuid: str = "") -> None:
        content = {"pid": pid, "starttime": procfs.read_stat(pid).starttime, "gpus": {uuid or self.uuid: mem_bytes}}
        (self._state_dir / "processes" / f"{pid}.json").write_text(json.dumps(content))

    def fault(self, call: str, code: int) -> None:
        self.faults(driver={call: "hang" if code == HANG else code})

    def faults(self, **faults: object) -> None:
        (self._state_dir / "faults.json").write_text(json.dumps(faults))

    def on_gpu(self) -> dict[int, int]:
        handle = self._nvml.nvmlDeviceGetHandleByUUID(self.uuid)
        return {entry.pid: entry.usedGpuMemory for entry in self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)}

    def state(self, pid: int) -> str:
        return FakeDriver(self._state_dir).state(pid).name


class StubWorld(World):
    """The C stubs; `libraries` is where they were compiled. They are found through the environment."""

    uuid, other = "GPU-0", "GPU-1"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.stub_dir = directory / "stub"
        (self.stub_dir / "processes").mkdir(parents=True)
        (self.stub_dir / "gpus").write_text("".join(f"{uuid} {TOTAL_BYTES}\n" for uuid in (self.uuid, self.other)))
        (self.stub_dir / "driver").write_text("580.65.06")

    def hold(self, pid: int, mem_bytes: int, uuid: str = "", mps: bool = False, state: int = 0) -> None:
        (self.stub_dir / "processes" / str(pid)).write_text(f"{state} {mem_bytes} {uuid or self.uuid} {int(mps)}\n")

    def fault(self, call: str, code: int) -> None:
        (self.stub_dir / "faults").write_text(f"{call} {code}\n")

    def on_gpu(self) -> dict[int, int]:
        found = {}
        for path in (self.stub_dir / "processes").iterdir():
            state, mem_bytes, uuid, _ = path.read_text().split()
            if int(state) < 2 and uuid == self.uuid:
                found[int(path.name)] = int(mem_bytes)
        return found

    def state(self, pid: int) -> str:
        state = int((self.stub_dir / "processes" / str(pid)).read_text().split()[0])
        return ("RUNNING", "LOCKED", "CHECKPOINTED", "FAILED")[state]
