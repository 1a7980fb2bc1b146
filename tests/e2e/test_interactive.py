"""Work by hand: run, exec, shell, cp, tunnels."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.cluster import EBB, Cluster, wait_for
from tests.e2e.terminal import in_background, on_terminal

JUPYTER = '''#!/usr/bin/env python3
"""A stand-in: HTTP by hand, and an echo after an upgrade."""
import os, socketserver, sys
port = next(int(argument.partition("=")[2]) for argument in sys.argv if "port=" in argument)
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        head = b""
        while not head.endswith(b"\\r\\n\\r\\n"):
            line = self.rfile.readline()
            if not line:
                return
            head += line
        if b"Upgrade" in head:
            self.wfile.write(b"HTTP/1.1 101 Switching Protocols\\r\\n\\r\\n")
            while data := self.request.recv(65536):
                self.wfile.write(data)
            return
        body = b"hello" if os.environ["JUPYTER_TOKEN"].encode() in head.split(b"\\r\\n")[0] else b"who?"
        head = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n" % len(body)
        self.wfile.write(head + body)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
with Server(("127.0.0.1", port), Handler) as server:
    server.serve_forever()
'''


@pytest.mark.slow
def test_a_command_is_followed_and_a_running_job_is_entered_and_read(cluster: Cluster, tmp_path: Path) -> None:
    followed = cluster.ebb("run", "--cpu-only", "--", "sh", "-c", "echo out; echo err >&2; exit 3", code=3)
    assert "out\n" in followed.out
    assert "job 1 FAILED" in followed.err
    assert cluster.show("1")["kind"] == "command"
    assert cluster.show("1")["preemptible"] is False
    (tmp_path / "in").write_bytes(data := os.urandom(2**20))
    job = cluster.submit("--workdir", str(tmp_path), "--", "sh", "-c", "echo r > $EBB_OUTPUT_DIR/r; sleep 600")
    cluster.wait_for_state(job, "RUNNING")
    with (tmp_path / "in").open("rb") as stdin:
        entered = subprocess.run(
            [*EBB, "exec", job, "--", "sh", "-c", "cat; echo $EBB_JOB_ID >&2; exit 7"],
            env=cluster.environment, stdin=stdin, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
    assert (entered.returncode, entered.stdout == data, entered.stderr) == (7, True, f"{job}\n".encode())
    (tmp_path / "to").mkdir()
    cluster.ebb("cp", f"{job}:in", f"{job}:{{output}}", str(tmp_path / "to"))
    assert (tmp_path / "to/in").read_bytes() == data
    assert (tmp_path / "to/output/r").read_text() == "r\n"
    assert cluster.show(job)["state"] == "RUNNING"


@pytest.mark.slow
def test_a_shell_is_left_and_found_again_and_survives_the_master(cluster: Cluster) -> None:
    with on_terminal(cluster, "shell", "--gpus", "2", "--", "sh") as terminal:
        terminal.until("comes back")
        terminal.until("$ ") if os.getuid() else terminal.until("# ")
        terminal.type("X=kept; echo $EBB_GPU_COUNT gpus; stty size\n")
        terminal.until("2 gpus")
        terminal.until("24 80")
        terminal.type("~.")
        assert terminal.end() == 0
        assert b"job 1 goes on" in terminal.shown
    with on_terminal(cluster, "shell", "--attach", "1") as terminal:
        terminal.until("2 gpus")
        cluster.kill(cluster.daemon("master"))
        assert terminal.end() == 125
        assert b"lost the master" in terminal.shown
        assert b"ebb shell --attach 1" in terminal.shown
    cluster.up()
    with on_terminal(cluster, "shell", "--attach", "1") as terminal:
        terminal.until("2 gpus")
        terminal.type("echo $X; exit 4\n")
        terminal.until("kept\r\n")
        assert terminal.end() == 4
    assert cluster.wait_for_state("1", "COMPLETED")["exit_code"] == 4


@pytest.mark.slow
def test_ctrl_c_cancels_what_is_run_and_only_detaches_from_logs_and_wait(cluster: Cluster) -> None:
    job = cluster.submit("--", "sh", "-c", "echo up; sleep 600")
    cluster.wait_for_state(job, "RUNNING")
    for arguments in (("logs", "-f", job), ("wait", job)):
        with in_background(cluster, *arguments) as follower:
            if arguments[0] == "logs":
                assert follower.stdout
                assert follower.stdout.readline() == "up\n"
            else:
                wait_for("it waits", lambda follower=follower: follower.poll() is None and connected(follower.pid))
            follower.send_signal(signal.SIGINT)
            _, err = follower.communicate(timeout=30)
            assert (follower.returncode, "detached" in err) == (130, True), err
    assert cluster.show(job)["state"] == "RUNNING"
    with in_background(cluster, "run", "--cpu-only", "--", "sh", "-c", "trap '' TERM; echo up; sleep 600") as run:
        assert run.stdout
        assert run.stdout.readline() == "up\n"
        run.send_signal(signal.SIGINT)
        wait_for("it is asked to stop", lambda: cluster.show("2")["state"] == "STOPPING")
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=30)
        assert run.returncode == 137
    assert cluster.show("2")["state"] == "CANCELLED"


def connected(pid: int) -> bool:
    """Whether the process has a connection open."""
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # it has closed this one meanwhile
            if os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith("socket:"):
                return True
    return False


@pytest.mark.slow
def test_a_command_in_a_pipe_ends_with_its_reader(cluster: Cluster) -> None:
    command = f"{' '.join(EBB)} run --cpu-only -- yes | head -2"
    done = subprocess.run(command, shell=True, env=cluster.environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, "job 1 is cancelled" in done.stderr) == ("y\ny\n", True), done.stderr
    cluster.wait_for_state("1", "CANCELLED")


@pytest.mark.slow
def test_a_shell_that_waits_says_why_and_ctrl_c_gives_it_up(cluster: Cluster) -> None:
    cluster.submit("--gpus", "4", "--suspend", "none", "--", "sleep", "600")
    cluster.wait_for_state("1", "RUNNING")
    with on_terminal(cluster, "shell") as terminal:
        terminal.until("PENDING")
        terminal.type("\x03")
        os.killpg(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
    assert cluster.show("2")["state"] == "CANCELLED"


@pytest.mark.slow
def test_a_notebook_is_reached_through_its_tunnel_by_many_at_once(cluster: Cluster, tmp_path: Path) -> None:
    path, cluster.environment["PATH"] = cluster.environment["PATH"], "/usr/bin:/bin"  # where no jupyter is
    failed = cluster.ebb("notebook", code=1)
    cluster.environment["PATH"] = path
    assert "jupyter is not installed in the job's environment" in failed.err
    (tmp_path / "jupyter").write_text(JUPYTER)
    (tmp_path / "jupyter").chmod(0o755)
    cluster.environment["PATH"] = f"{tmp_path}:{cluster.environment['PATH']}"
    with in_background(cluster, "notebook", "--stop") as notebook:
        assert notebook.stdout
        url = notebook.stdout.readline().strip()
        fetch = [subprocess.Popen(["curl", "-s", url], stdout=subprocess.PIPE) for _ in range(8)]
        assert [process.communicate()[0] for process in fetch] == [b"hello"] * 8
        assert read(url.partition("?")[0]) == b"who?"
        echo_through(url)
        with in_background(cluster, "tunnel", "2") as again:
            assert again.stdout
            assert read(again.stdout.readline().strip()) == b"hello"
        refused = cluster.ebb("tunnel", "2", "1", code=1)
        assert refused.err == "ebb: port 1: no process of the job listens on it\n"
        notebook.send_signal(signal.SIGINT)
        notebook.communicate(timeout=30)
        assert notebook.returncode == 0
    cluster.wait_for_state("2", "CANCELLED")


@pytest.mark.slow
def test_tensorboard_shows_what_a_job_wrote(cluster: Cluster, tmp_path: Path) -> None:
    # The real one, wherever its script lies.
    (tmp_path / "tensorboard").write_text(f'#!/bin/sh\nexec {sys.executable} -m tensorboard.main "$@"\n')
    (tmp_path / "tensorboard").chmod(0o755)
    cluster.environment["PATH"] = f"{tmp_path}:{cluster.environment['PATH']}"
    write = "from torch.utils.tensorboard import SummaryWriter as W; import os; w = W(os.environ['EBB_OUTPUT_DIR'])\n"
    job = cluster.submit("--cpu-only", "--", "python", "-c", f"{write}w.add_scalar('loss', 1.0, 1); w.close()")
    cluster.wait_for_state(job, "COMPLETED")
    with in_background(cluster, "tensorboard", job) as board:
        assert board.stdout
        url = board.stdout.readline().strip()
        wait_for("the run is shown", lambda: read(f"{url}data/runs").strip() not in (b"[]", b""))
        board.send_signal(signal.SIGINT)
        _, err = board.communicate(timeout=30)
        assert "left running" in err
    shown = cluster.show("2")
    assert (shown["state"], shown["kind"], shown["gpus"]["max"]) == ("RUNNING", "tensorboard", 0)


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as reply:
        body: bytes = reply.read()
        return body


def echo_through(url: str) -> None:
    """Upgrade a connection, and see a megabyte come back."""

    host, _, port = url.split("/")[2].partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"GET /ws HTTP/1.1\r\nUpgrade: websocket\r\n\r\n")
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(1)
        data = os.urandom(2**17)
        connection.sendall(data)
        back = b""
        while len(back) < len(data):
            back += connection.recv(65536)
        assert back == data


@pytest.mark.slow
def test_a_shell_that_nobody_uses_is_warned_on_its_terminal_and_ended(cluster: Cluster) -> None:
    with on_terminal(cluster, "shell", "--cpu-only", "--idle", "12s", "--", "sh") as terminal:
        terminal.until("comes back")
        terminal.until("job 1 is unused: it is ended in")
        assert "unused: ended in" in cluster.show("1")["reason"]
        terminal.type("echo us$((1+1))ed\n")
        terminal.until("us2ed")
        terminal.until("job 1 is unused: it is ended in")
        terminal.end()
    assert cluster.wait_for_state("1", "CANCELLED")["reason"] == "unused for 12 s"
    story = cluster.ebb("story", "1").out
    assert story.count("unused: ended in") == 2
    assert "used again" in story
