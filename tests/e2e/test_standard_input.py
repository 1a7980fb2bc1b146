"""What is piped or redirected into `ebb run` is its job's standard input, byte for byte, whatever breaks meanwhile."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.e2e.cluster import EBB, Cluster, wait_for
from tests.e2e.test_between_machines import two_machines

MIB = 2**20
COUNTS = "import hashlib, sys; d = sys.stdin.buffer.read(); print(len(d), hashlib.sha256(d).hexdigest())"
"""Prints how many bytes it reads, and their digest, once it has read the end."""
READS_LATER = (
    "import os, sys, time\nprint('up', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\n" + COUNTS
)

READS_SLOWLY = (
    "import hashlib, sys, time\nprint('up', flush=True)\nn, h = 0, hashlib.sha256()\n"
    "while d := sys.stdin.buffer.read1(2**20): n += len(d); h.update(d); time.sleep(0.003)\n"
    "print(n, h.hexdigest())"
)


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """One for all tests here."""
    return shared_cluster


class Run:
    """`ebb run` with something piped or redirected into it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process

    def give(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def line(self) -> bytes:
        assert self.process.stdout
        return self.process.stdout.readline()

    def end(self, data: bytes = b"") -> tuple[int, bytes, str]:
        """Its exit code, output and errors, once this is given to it, too, and then the end."""
        out, err = self.process.communicate(data if self.process.stdin else None, timeout=280)
        return self.process.returncode, out, err.decode()


@contextmanager
def running(cluster: Cluster, *command: str, stdin: IO[bytes] | int = subprocess.PIPE) -> Iterator[Run]:
    process = subprocess.Popen(
        [*EBB, "run", "--cpu-only", *command], env=cluster.environment, stdin=stdin, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        yield Run(process)
    finally:
        process.kill()
        process.communicate()


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return ("--", sys.executable, "-S", "-c", code, *arguments)


def counted(data: bytes) -> bytes:
    """What `COUNTS` prints of it."""
    return f"{len(data)} {hashlib.sha256(data).hexdigest()}\n".encode()


def last_job(cluster: Cluster) -> str:
    return str(max(int(job["id"]) for job in cluster.facts("ls", "--all")))


@pytest.mark.parametrize("data", [b"", b"some text\n", bytes(range(256)) * 999], ids=["nothing", "text", "binary"])
def test_what_is_piped_in_is_read_byte_for_byte_and_its_end_is_the_end(cluster: Cluster, data: bytes) -> None:
    with running(cluster, *python(COUNTS)) as run:
        assert run.end(data) == (0, counted(data), "")


@pytest.mark.parametrize("kind", [pytest.param("pipe", marks=pytest.mark.slow), "file"])
def test_fifty_megabytes_arrive_as_they_are(cluster: Cluster, tmp_path: Path, kind: str) -> None:
    data = os.urandom(50 * MIB)
    (tmp_path / "data").write_bytes(data)
    with (tmp_path / "data").open("rb") as file:
        stdin = file if kind == "file" else subprocess.PIPE
        with running(cluster, *python(COUNTS), stdin=stdin) as run:
            assert run.end(data) == (0, counted(data), "")


def test_what_comes_late_is_waited_for_and_an_answer_is_shown_meanwhile(cluster: Cluster) -> None:
    with running(cluster, "--", "sh", "-c", "while read line; do echo got $line; done; echo end; exit 3") as run:
        run.give(b"one\n")
        assert run.line() == b"got one\n"
        run.give(b"two\n")
        assert run.line() == b"got two\n"
        code, out, err = run.end()
        assert (code, out) == (3, b"end\n")
        assert err.startswith("ebb: job ")


def test_a_terminal_or_nothing_is_no_input(cluster: Cluster) -> None:
    for stdin in ("</dev/null", "<&-"):
        command = f"exec {' '.join(EBB)} run --cpu-only --be -- wc -c {stdin}"
        done = subprocess.run(["sh", "-c", command], env=cluster.environment, capture_output=True, timeout=60)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"0", b"")


@pytest.mark.parametrize("command", ["head -1; exit 3", "exec 0<&-; sleep 0.5; echo y; exit 3", "echo y; exit 3"])
def test_who_reads_a_part_or_nothing_ends_as_it_does_in_a_pipeline(cluster: Cluster, command: str) -> None:
    """`ebb run` ends with its job, and what writes to it then gets SIGPIPE."""
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        with running(cluster, "--", "sh", "-c", command, stdin=endless.stdout) as run:
            assert endless.stdout
            endless.stdout.close()
            code, out, err = run.end()
            assert (code, out, err.count("\n")) == (3, b"y\n", 1), err
        assert endless.wait(30) == -signal.SIGPIPE


def test_what_nobody_reads_any_more_is_not_taken_from_whoever_writes_it(cluster: Cluster, tmp_path: Path) -> None:
    """As in a shell's pipeline the writer gets SIGPIPE though the job goes on."""
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        wait = f"exec 0<&-; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
        with running(cluster, "--", "sh", "-c", wait, stdin=endless.stdout) as run:
            assert endless.stdout
            endless.stdout.close()
            assert endless.wait(30) == -signal.SIGPIPE
            (tmp_path / "go").touch()
            assert run.end() == (0, b"", "")


def test_a_job_that_does_not_read_holds_up_its_writer_and_is_cancelled_while_the_pipe_is_full(cluster: Cluster) -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        with running(cluster, "--", "sh", "-c", "echo up; sleep 600", stdin=endless.stdout) as run:
            assert endless.stdout
            endless.stdout.close()
            assert run.line() == b"up\n"
            job = last_job(cluster)
            wait_for("nobody takes any more", lambda: not writes(endless.pid))
            run.process.send_signal(signal.SIGINT)
            code, _, err = run.end()
            assert (code, "cancelling job" in err) == (143, True), err
        assert endless.wait(30) == -signal.SIGPIPE
    assert cluster.show(job)["state"] == "CANCELLED"


def writes(pid: int) -> bool:
    """Whether the process writes anything in half a second."""

    def written() -> str:
        return Path(f"/proc/{pid}/io").read_text().partition("wchar: ")[2].partition("\n")[0]

    before = written()
    time.sleep(0.5)
    return written() != before


@pytest.mark.parametrize("victims", [("agent",), ("master",), ("master", "agent")], ids=" and ".join)
def test_the_input_goes_on_where_it_was_when_who_passes_it_on_is_killed(
    cluster: Cluster, tmp_path: Path, victims: tuple[str, ...]
) -> None:
    """kill -9 in the middle of it, while more is given than anybody holds: nothing is lost, and nothing comes twice."""
    data, node, go = os.urandom(20 * MIB), cluster.node_name(), tmp_path / "go"
    (tmp_path / "data").write_bytes(data)
    with (tmp_path / "data").open("rb") as file, running(cluster, *python(READS_LATER, str(go)), stdin=file) as run:
        assert run.line() == b"up\n"
        wait_for("some of it is on its way", lambda: os.lseek(file.fileno(), 0, os.SEEK_CUR) > 0)
        for victim in victims:
            cluster.kill(cluster.daemon(node if victim == "agent" else victim))
        cluster.up()
        go.touch()
        assert run.end() == (0, counted(data), "")
    assert len(cluster.show(last_job(cluster))["attempts"]) == 1


def test_kills_at_random_moments_neither_lose_nor_double_a_byte_of_what_flows(cluster: Cluster) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice, data, node = random.Random(seed), os.urandom(30 * MIB), cluster.node_name()
    with running(cluster, *python(READS_SLOWLY)) as run, ThreadPoolExecutor(1) as elsewhere:
        assert run.line() == b"up\n"
        ended = elsewhere.submit(run.end, data)
        for victims in dice.choices([["master"], [node], ["master", node]], k=3):
            time.sleep(dice.uniform(0.0, 0.4))  # the random moment itself
            for victim in victims:
                cluster.kill(cluster.daemon(victim))
            cluster.up()
        assert ended.result() == (0, counted(data), "")


def test_who_feeds_it_is_not_waited_for_when_the_job_is_to_end(cluster: Cluster) -> None:
    with running(cluster, "--", "sh", "-c", "echo up; cat; echo never") as run:
        assert run.line() == b"up\n"
        job = last_job(cluster)
        cluster.ebb("cancel", "--wait", job)
        assert run.end()[:2] == (143, b"")
    assert cluster.show(job)["state"] == "CANCELLED"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_half_of_the_input_is_never_taken_for_all_of_it_when_ebb_run_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    with running(cluster, "--", "sh", "-c", f"echo up; cat > {tmp_path}/got; touch {tmp_path}/end") as run:
        run.give(b"half\n")
        assert run.line() == b"up\n"
        wait_for("the half arrived", lambda: (tmp_path / "got").read_bytes() == b"half\n")
        job = last_job(cluster)
        run.process.kill()
    shown = cluster.wait_for_state(job, "FAILED", "COMPLETED", seconds=150)
    lost = "failed: its standard input was lost after 5 bytes, before its end: none was sent for 90 s"
    assert (shown["state"], shown["reason"], len(shown["attempts"])) == ("FAILED", lost, 1)
    assert not (tmp_path / "end").exists()


def test_what_was_read_is_gone_so_the_job_is_neither_run_again_nor_submitted_again(cluster: Cluster) -> None:
    with running(cluster, "--", "sh", "-c", "cat; exit 75") as run:
        code, out, err = run.end(b"x\n")
        assert (code, out) == (75, b"x\n")
        assert "it is not run again: its standard input cannot be read twice" in err
    job = last_job(cluster)
    assert cluster.show(job)["state"] == "FAILED"
    again = cluster.ebb("requeue", job, code=1)
    assert again.err == f"ebb: job {job} read standard input, which is gone: run it anew with 'ebb run'\n"


@pytest.mark.slow
def test_it_comes_over_tls_as_it_does_over_sockets(tmp_path: Path) -> None:
    with two_machines() as (here, there):
        invitation = here.facts("node", "invite", "ws2")["invitation"]
        there.ebb("agent", "join", invitation, "--name", "ws2")
        there.start_workstation("ws2", "2xA100-40GB", None, "--min-uid", "0")
        wait_for("ws2 is up", lambda: "ws2" in here.nodes_up())
        data = os.urandom(5 * MIB)
        with running(here, "--on", "ws2", *python(COUNTS)) as run:
            assert run.end(data) == (0, counted(data), "")
