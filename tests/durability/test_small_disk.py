"""A real master, and an attempt, whose home is a small disk that somebody else fills to the last byte."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from ebbtide_protos.v1 import client_pb2, client_pb2_grpc

from tests.durability.traced import DEADLINE_S, a_master, submit

pytestmark = pytest.mark.namespaces
SIZE = "128m"
NEW = ["unshare", "--user", "--map-root-user", "--mount"]
ENDS_ON_A_FULL_DISK = """
import errno, sys
from pathlib import Path
from ebbtide_agent.contract.attempt_dir import AttemptDir
from tests.durability.test_small_disk import fill

place = AttemptDir(Path(sys.argv[1]))
place.reserve_final_status()
fill(place.path)
try:
    place.record_cut_short(frozenset({"state"}))
except OSError as error:
    print(errno.errorcode[error.errno])
place.record_final_status({"phase": "EXITED", "pid": 17})
print(place.final_status())
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Who sees, at ``tmp_path``, a disk that nobody outside sees; it is gone with the last process that does."""
    mount = f"mount -t tmpfs -o size={SIZE},mode=700 none {tmp_path} && echo mounted && exec cat"
    with subprocess.Popen([*NEW, "sh", "-c", mount], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mounted\n"
        yield holder
        holder.kill()


def fill(home: Path) -> Path:
    """Leave not a byte; the file that takes all of it."""
    file = home / "of somebody else"
    with file.open("wb", buffering=0) as written:
        try:
            while True:
                written.write(bytes(65536))
        except OSError:
            return file


def once_there_is_room(ask: client_pb2_grpc.ClientServiceStub) -> str:
    """The first submit that is accepted again."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return submit(ask)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_on_a_disk_that_is_full_what_runs_can_be_ended_and_all_goes_on_when_there_is_room(
    disk: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    home = Path(f"/proc/{disk.pid}/root{tmp_path}")
    inside = ["nsenter", f"--target={disk.pid}", "--user", "--mount", "--preserve-credentials"]
    with a_master(home, inside, tmp_path) as master:
        record = master.ready()
        assert record is not None, master.end()
        with master.client(record) as ask:
            accepted = [submit(ask) for _ in range(20)]
            taken = fill(home)
            with pytest.raises(grpc.RpcError) as refusal:
                submit(ask)
            assert refusal.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert refusal.value.details() == "the master's disk is full: no job is accepted for now"
            for job in accepted[:10]:
                ask.Cancel(client_pb2.CancelRequest(job_id=job), timeout=DEADLINE_S)
            listed = {job.job_id for job in ask.ListJobs(client_pb2.ListJobsRequest(), timeout=DEADLINE_S).jobs}
            assert listed == set(accepted[10:])
            taken.unlink()
            accepted += [once_there_is_room(ask)]
        assert master.stop(record)[0] == 0
    with a_master(home, inside, tmp_path) as master:
        record = master.ready()
        assert record is not None, master.end()
        with master.client(record) as ask:
            listed = {job.job_id for job in ask.ListJobs(client_pb2.ListJobsRequest(), timeout=DEADLINE_S).jobs}
        assert listed == set(accepted[10:])


def test_how_an_attempt_ended_is_recorded_on_a_disk_that_has_become_full(tmp_path: Path) -> None:
    mounted = f'mount -t tmpfs -o size=1m,mode=700 none {tmp_path} && exec "$@"'
    ends = [sys.executable, "-c", ENDS_ON_A_FULL_DISK, tmp_path]
    done = subprocess.run([*NEW, "sh", "-c", mounted, "sh", *ends], capture_output=True, text=True, check=False)
    assert done.stdout == "ENOSPC\n{'phase': 'EXITED', 'pid': 17}\n", done.stderr
