"""Programs and masters under strace, which makes their system calls fail, wait, or kill them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ebbtide_protos.v1 import client_pb2, client_pb2_grpc

from tests.master.test_process import PROGRAM
from tests.master.world import make_spec
from tests.proof import reach

DEADLINE_S = 60.0


def injecting(calls: str, fault: str) -> list[str]:
    """The beginning of a command line: a fault for those system calls."""
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:{fault}"]


def kill_at(calls: str, number: int) -> list[str]:
    """The same: SIGKILL upon the call of that number, which is not made any more."""
    return injecting(calls, f"signal=KILL:when={number}")


def run(program: Path, *arguments: object, before: list[str]) -> tuple[int, list[str]]:
    """Run a program of Python; its exit code, negative for a signal, and the whole lines that it printed."""
    environment = dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": "1"}
    command = [*before, sys.executable, str(program), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, timeout=DEADLINE_S)
    lines = [line.decode().strip() for line in done.stdout.splitlines(keepends=True) if line.endswith(b"\n")]
    return -signal.SIGKILL if done.returncode in (-9, 137) else done.returncode, lines


class Master:
    """A master process, under strace if there is something ``before``; it may know its home by another name."""

    def __init__(self, home: Path, before: list[str], its_name: Path | None = None) -> None:
        self.home = home
        self.popen = subprocess.Popen(
            [*before, sys.executable, "-c", PROGRAM, str(its_name or home)],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ready(self) -> dict[str, Any] | None:
        """What master.json says, once it is there; None if it ends instead."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and self.popen.poll() is None:
            with suppress(FileNotFoundError):
                record: dict[str, Any] = json.loads((self.home / "master.json").read_text())
                return record
            time.sleep(0.01)
        return None

    @contextmanager
    def client(self, record: dict[str, Any]) -> Iterator[client_pb2_grpc.ClientServiceStub]:
        with reach(self.home) as channel:
            yield client_pb2_grpc.ClientServiceStub(channel)

    def end(self) -> tuple[int, str]:
        """Exit code and what was on stderr."""
        _, err = self.popen.communicate(timeout=DEADLINE_S)
        return self.popen.returncode, err

    def stop(self, record: dict[str, Any]) -> tuple[int, str]:
        """As by SIGTERM."""
        os.kill(record["pid"], signal.SIGTERM)
        return self.end()


@contextmanager
def a_master(home: Path, before: list[str], its_name: Path | None = None) -> Iterator[Master]:
    """A master that does not outlive the block."""
    (home / "master.json").unlink(missing_ok=True)  # of one that was killed
    master = Master(home, before, its_name)
    try:
        yield master
    finally:
        if master.popen.poll() is None:
            os.killpg(master.popen.pid, signal.SIGKILL)
        master.popen.communicate()


def submit(stub: client_pb2_grpc.ClientServiceStub) -> str:
    """Submit a job that is held; its id."""
    request = client_pb2.SubmitRequest(spec=make_spec(), user="ann", hold=True)
    return str(stub.Submit(request, timeout=DEADLINE_S).job_id)


def jobs_in(home: Path) -> set[str]:
    """The jobs that a master knows that is started in that home, and has nothing to trouble it."""
    with a_master(home, []) as master:
        record = master.ready()
        assert record is not None, master.end()
        with master.client(record) as stub:
            listed = stub.ListJobs(client_pb2.ListJobsRequest(all=True), timeout=DEADLINE_S).jobs
        assert master.stop(record)[0] == 0
        return {job.job_id for job in listed}
