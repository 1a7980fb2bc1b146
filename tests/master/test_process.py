"""The master as a process: what it writes, what it answers to signals, and with which code it ends."""

import contextlib
import json
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from ebbtide_master.initialise import initialise
from ebbtide_protos.handshake import speaks_tls
from ebbtide_protos.v1 import client_pb2, client_pb2_grpc

from tests.master.world import make_spec
from tests.ports import free_ports
from tests.proof import reach

DEADLINE_S = 90.0
PROGRAM = """
import sys
from pathlib import Path
from ebbtide_master.main import MasterOptions, run
options = dict(pair.split("=") for pair in sys.argv[2:])
numbers = {name: int(options.pop(name)) for name in ("port", "agent_port") if name in options}
sys.exit(run(MasterOptions(Path(sys.argv[1]), **numbers, **options)))
"""


class Process:
    """One master process."""

    def __init__(self, home: Path, *options: str) -> None:
        self.home = home
        command = [sys.executable, "-c", PROGRAM, str(home), *options]
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def ready(self) -> dict[str, Any]:
        """What master.json says, once it is there."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            assert self.popen.poll() is None, self.end()
            with contextlib.suppress(FileNotFoundError):
                record: dict[str, Any] = json.loads((self.home / "master.json").read_text())
                if record["pid"] == self.popen.pid:
                    return record
            time.sleep(0.01)
        raise AssertionError("no master.json came")

    def end(self) -> tuple[int, str]:
        """Exit code and what was on stderr."""
        _, err = self.popen.communicate(timeout=DEADLINE_S)
        return self.popen.returncode, err


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts masters in one home; none outlives the test."""
    started: list[Process] = []

    def start(*options: str, home: Path = tmp_path) -> Process:
        started.append(Process(home, *options))
        return started[-1]

    yield start
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.communicate()


@contextlib.contextmanager
def client(record: dict[str, Any], home: Path) -> Iterator[client_pb2_grpc.ClientServiceStub]:
    with reach(home) as channel:
        yield client_pb2_grpc.ClientServiceStub(channel)


def submit(stub: client_pb2_grpc.ClientServiceStub) -> str:
    request = client_pb2.SubmitRequest(spec=make_spec(), user="ann")
    return stub.Submit(request, timeout=DEADLINE_S).job_id


def test_it_says_where_and_who_it_is_and_takes_that_back_when_it_is_told_to_stop(start: Start, tmp_path: Path) -> None:
    process = start()
    record = process.ready()
    stat = Path(f"/proc/{process.popen.pid}/stat").read_text()
    assert record["starttime"] == int(stat[stat.rindex(")") + 2 :].split()[19])
    assert record["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert set(record) == {"pid", "starttime", "boot_id", "started_at", "cluster_id"}
    assert (tmp_path / "master.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert _listening(process.popen.pid) == []
    with client(record, tmp_path) as stub:
        info = stub.ShowCluster(client_pb2.ShowClusterRequest(), timeout=DEADLINE_S)
        assert (info.cluster_id, info.epoch) == (record["cluster_id"], 1)
    deadline = time.monotonic() + DEADLINE_S
    while not (tmp_path / "history.db").exists():
        assert time.monotonic() < deadline, "no history was begun"
        time.sleep(0.01)
    process.popen.send_signal(signal.SIGTERM)
    code, err = process.end()
    assert (code, "Traceback" in err) == (0, False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "history.db",
        "journal.db",
        "master.lock",
        "run",
        "token",
        "vault.db",
    ]


def test_ctrl_c_is_as_good_as_sigterm_also_while_someone_watches(start: Start, tmp_path: Path) -> None:
    process = start()
    with client(process.ready(), tmp_path) as stub:
        watching = stub.WatchEvents(client_pb2.WatchEventsRequest(follow=True), timeout=DEADLINE_S)
        assert next(watching).kind == "MasterStarted"
        process.popen.send_signal(signal.SIGINT)
        code, err = process.end()
        assert (code, "Traceback" in err) == (0, False)
        watching.cancel()


def test_after_kill_9_the_next_one_takes_over_the_home_and_knows_every_job(start: Start, tmp_path: Path) -> None:
    first = start()
    with client(first.ready(), tmp_path) as stub:
        jobs = [submit(stub) for _ in range(3)]
        first.popen.kill()
        first.end()
    second = start()
    record = second.ready()
    assert record["pid"] == second.popen.pid
    with client(record, tmp_path) as stub:
        listed = stub.ListJobs(client_pb2.ListJobsRequest(), timeout=DEADLINE_S).jobs
        assert [job.job_id for job in listed] == jobs
        assert stub.ShowCluster(client_pb2.ShowClusterRequest(), timeout=DEADLINE_S).epoch == 2


def _listening(pid: int) -> list[int]:
    """The TCP ports at which a process listens."""
    return [one.laddr.port for one in psutil.Process(pid).net_connections("tcp") if one.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize("host", ["192.168.1.1", "example.org", ""])
def test_a_host_that_is_none_of_this_machine_is_refused(start: Start, host: str) -> None:
    code, err = start(f"host={host}", "port=0").end()
    assert (code, f"--host {host!r}" in err or "cannot listen there" in err) == (1, True), err


def comes_to_speak_tls(port: int) -> bool:
    """Whether a port does so, however long a busy machine takes for a handshake."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := speaks_tls("127.0.0.1", port)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("said", ["host=127.0.0.1", "host=0.0.0.0", "port=0", "agent_port=0"])
def test_who_wants_a_port_gets_an_authority_without_being_asked_and_speaks_tls_only(
    start: Start, tmp_path: Path, said: str
) -> None:
    process = start(said, *(["port=0"] if said != "port=0" else []))
    record = process.ready()
    assert record["host"] == "127.0.0.1"
    ports = [record["port"], record["agent_port"]]
    assert sorted(_listening(process.popen.pid)) == sorted(ports)
    assert all(comes_to_speak_tls(port) for port in ports)
    with client(record, tmp_path) as stub:
        submit(stub)
    assert (tmp_path / "tls/ca.key").stat().st_mode & 0o777 == 0o600


def test_with_an_authority_every_host_is_served_over_tls_and_this_account_besides(start: Start, tmp_path: Path) -> None:
    initialise(tmp_path, ("localhost",), None)
    record = start("host=0.0.0.0", "port=0").ready()
    assert record["host"] == "127.0.0.1"
    assert record["port"] != record["agent_port"]
    assert all(comes_to_speak_tls(record[port]) for port in ("port", "agent_port"))
    with client(record, tmp_path) as stub:
        stub.ShowCluster(client_pb2.ShowClusterRequest(), timeout=DEADLINE_S)
    plain = grpc.insecure_channel(f"127.0.0.1:{record['port']}")
    with plain as channel, pytest.raises(grpc.RpcError) as caught:
        client_pb2_grpc.ClientServiceStub(channel).ShowCluster(client_pb2.ShowClusterRequest(), timeout=DEADLINE_S)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_masters_on_one_database_do_not_make_an_authority_each(start: Start) -> None:
    code, err = start("port=0", "store=postgresql://ebbtide@192.0.2.1/x").end()
    assert (code, "the same authority: 'ebb master init'" in err) == (2, True), err


def test_an_authority_without_its_key_is_no_reason_to_serve_without_tls(start: Start, tmp_path: Path) -> None:
    initialise(tmp_path, ("localhost",), None)
    (tmp_path / "tls/ca.key").unlink()
    code, err = start("host=127.0.0.1").end()
    assert (code, "ca.key" in err) == (1, True)


def test_loopback_may_be_named(start: Start, tmp_path: Path) -> None:
    process = start("host=localhost")
    with client(process.ready(), tmp_path) as stub:
        submit(stub)


def test_an_unknown_policy_is_refused(start: Start, tmp_path: Path) -> None:
    code, err = start("policy=roulette").end()
    assert code == 2
    assert err.startswith("ebb: ")
    assert err.count("\n") == 1


def test_a_port_in_use_is_named(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, err = start(f"port={port}").end()
    assert code == 1
    assert f"ebb: --port {port}: cannot listen there on 127.0.0.1, is it in use?" in err
    assert "Traceback" not in err


def test_the_port_that_was_asked_for_is_served(start: Start) -> None:
    port = free_ports(2)[0]  # agents get the next one
    assert start(f"port={port}").ready()["port"] == port


def test_a_second_master_in_the_same_home_is_refused_and_the_first_goes_on(start: Start, tmp_path: Path) -> None:
    first = start()
    record = first.ready()
    code, err = start().end()
    assert (code, err) == (1, f"ebb: another master uses {tmp_path}\n")
    assert json.loads((tmp_path / "master.json").read_text()) == record
    with client(record, tmp_path) as stub:
        submit(stub)


def test_a_home_that_cannot_be_used_is_named(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, err = start(home=tmp_path / "file").end()
    assert code == 1
    assert err.startswith("ebb: the journal failed: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("TeaBrewed", "{}", "line 3 of the journal, TeaBrewed, was written by a newer version"),
        ("NodeLost", '{"node": "n9", "silent_s": 1.0}', "line 3 of the journal, NodeLost, does not follow"),
    ],
)
def test_a_journal_that_cannot_be_folded_stops_it_and_is_left_as_it_is(
    start: Start, tmp_path: Path, kind: str, body: str, words: str
) -> None:
    first = start()
    with client(first.ready(), tmp_path) as stub:
        submit(stub)
    first.popen.send_signal(signal.SIGTERM)
    first.end()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        db.execute("INSERT INTO events VALUES (3, 2e9, ?, '', '', ?)", (kind, body))
        db.commit()
    code, err = start().end()
    assert (code, words in err, "Traceback" in err) == (70, True, False)
    assert not (tmp_path / "master.json").exists()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        assert db.execute("SELECT max(sequence) FROM events").fetchone() == (3,)


def test_a_journal_that_can_no_longer_be_written_ends_it_with_70_and_without_a_promise(
    start: Start, tmp_path: Path
) -> None:
    process = start()
    record = process.ready()
    with client(record, tmp_path) as stub:
        kept = submit(stub)
        resource.prlimit(process.popen.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        with pytest.raises(grpc.RpcError) as error:
            submit(stub)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    code, err = process.end()
    assert (code, "journal=failed" in err, "Traceback" in err) == (70, True, False)
    assert not (tmp_path / "master.json").exists()
    with client(start().ready(), tmp_path) as stub:
        listed = stub.ListJobs(client_pb2.ListJobsRequest(), timeout=DEADLINE_S).jobs
        assert [job.job_id for job in listed] == [kept]
