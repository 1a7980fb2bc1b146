"""Master processes on one database, of which one leads and the others wait."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ebbtide_protos.v1 import client_pb2, client_pb2_grpc, user_pb2

from tests.master.world import make_spec
from tests.proof import reach

DEADLINE_S = 40.0
LEASE_S = 6.0
PROGRAM = """
import sys
from pathlib import Path
from ebbtide_master.main import MasterOptions, run
from ebbtide_master.store import leadership
leadership.LEASE_S = float(sys.argv[1])
sys.exit(run(MasterOptions(Path(sys.argv[2]), store=sys.argv[3])))
"""


class Leader:
    """One master process, with a home of its own; what it says is read all the time."""

    def __init__(self, home: Path, url: str, lease_s: float = LEASE_S) -> None:
        self.home = home
        command = [sys.executable, "-c", PROGRAM, str(lease_s), str(home), url]
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self.popen.stderr is not None
        self._said.extend(iter(self.popen.stderr.readline, ""))

    def said(self) -> str:
        return "".join(self._said)

    def says(self, words: str) -> None:
        """Wait until it has said that."""
        _until(lambda: words in self.said(), f"{words!r} in {self.said()}")

    def ready(self) -> dict[str, Any]:
        """What master.json says, once it leads."""
        _until(lambda: self.popen.poll() is not None or self._record(), "a leader")
        assert self.popen.poll() is None, self.said()
        return self._record()

    @property
    def leads(self) -> bool:
        return bool(self._record())

    def _record(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError):
            record: dict[str, Any] = json.loads((self.home / "master.json").read_text())
            return record if record["pid"] == self.popen.pid else {}
        return {}

    def end(self) -> tuple[int, str]:
        """Exit code, and all it said."""
        code = self.popen.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code, self.said()

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.send_signal(signal.SIGCONT)
        self.popen.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert self.popen.stderr is not None
        self.popen.stderr.close()

    @contextlib.contextmanager
    def asked(self) -> Iterator[client_pb2_grpc.ClientServiceStub]:
        """A client's stub for it."""
        self.ready()
        with reach(self.home) as channel:
            yield client_pb2_grpc.ClientServiceStub(channel)


def request(operation: str = "") -> client_pb2.SubmitRequest:
    return client_pb2.SubmitRequest(spec=make_spec(), user="ann", operation_id=operation)


def submit(stub: client_pb2_grpc.ClientServiceStub, operation: str = "") -> str:
    return str(stub.Submit(request(operation), timeout=DEADLINE_S).job_id)


def jobs(stub: client_pb2_grpc.ClientServiceStub) -> list[str]:
    return [job.job_id for job in stub.ListJobs(client_pb2.ListJobsRequest(), timeout=DEADLINE_S).jobs]


def standbys(stub: client_pb2_grpc.ClientServiceStub, count: int) -> list[user_pb2.StandbyMaster]:
    """The masters that a leader says to stand by, once there are so many."""
    found: list[user_pb2.StandbyMaster] = []

    def asked() -> bool:
        found[:] = stub.ShowSettings(user_pb2.ShowSettingsRequest()).journal.standbys
        return len(found) == count

    _until(asked, f"{count} standbys")
    return found


def _until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)
