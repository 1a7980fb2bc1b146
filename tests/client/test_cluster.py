"""`ebb up` and `ebb down` with real daemons and real jobs on fake GPUs."""

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ebbtide_cli import cluster, daemons
from ebbtide_cli.home import Home
from ebbtide_cli.terminal.output import StatusLine
from ebbtide_cli.verbs import up
from ebbtide_cli.verbs.up import UpRequest
from ebbtide_machine.process import Identity

from tests.client.runs import UNHURRIED, Ebb, start_ebb

COUNTING_JOB = """
import ebbtide, time
job = ebbtide.job()
state = job.load_checkpoint()
for step in range(state.step if state else 0, 10**6):
    job.report(step=step)
    if job.should_suspend():
        job.suspend(save=lambda directory: (directory / "state").write_text("x"))
    time.sleep(0.01)
"""

STUBBORN_JOB = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""


@pytest.fixture
def local(home: Path) -> Iterator[Home]:
    """A home whose daemons and jobs are gone when the test is over."""
    yield Home(home)
    if living(home):
        with start_ebb("down", "--now") as process:
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0, out + err
        eventually(lambda: not living(home))


def living(home: Path) -> list[int]:
    """Every process that has this EBB_HOME, or belongs to a job of it, but this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(home).encode() in environment and state != "Z":
                found.append(int(entry.name))
    return found


def eventually(condition: Callable[[], bool], within: float = 30.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def shown(ebb: Ebb, job_id: str) -> dict[str, object]:
    return ebb("show", "--json", job_id).json


def submit(ebb: Ebb, script: str, *options: str) -> str:
    return ebb("submit", "--json", *options, "--", sys.executable, "-c", script).json["id"]


def kill(process: Identity | None) -> None:
    assert process is not None
    process.signal(signal.SIGKILL)
    assert process.ended_within(10)


def test_up_starts_a_cluster_and_down_leaves_nothing(ebb_process, local):
    up = ebb_process("up", "--gpus", "2xRTX4090", "--json")
    assert (up.code, up.err) == (0, "")
    assert up.json["started"] == ["master", "agent"]
    assert [gpu["model"] for gpu in up.json["node"]["gpus"]] == ["RTX4090", "RTX4090"]
    assert up.json["node"]["state"] == "up"
    again = ebb_process("up")
    assert "was running" in again.out
    assert "2 x RTX4090 (fake)" in again.out
    down = ebb_process("down")
    assert (down.code, down.err) == (0, "")
    assert living(local.root) == []
    assert "Nothing is running" in ebb_process("down").out


def test_a_token_of_another_cluster_does_not_keep_this_one_from_going_up_and_down(ebb_process, local, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("EBB_TOKEN", "ebb_0123456789abcdef_x")
        up = ebb_process("up", "--gpus", "1xT4")
        assert (up.code, up.err) == (0, "")
        kill(local.master())
        assert ebb_process("up").code == 0
        down = ebb_process("down")
        assert (down.code, down.err) == (0, "")
    assert living(local.root) == []


def test_a_cluster_that_came_back_resumes_its_jobs(ebb, ebb_process, local):
    ebb_process("up", "--gpus", "1xT4")
    job_id = submit(ebb, COUNTING_JOB)
    eventually(lambda: (shown(ebb, job_id)["progress"]["step"] or 0) > 3)
    assert ebb_process("down").code == 0
    assert living(local.root) == []
    ebb_process("up")
    eventually(lambda: shown(ebb, job_id)["state"] == "RUNNING")
    job = shown(ebb, job_id)
    assert job["attempt"] == 2
    assert job["attempts"][1]["resumed_step"] >= 3


def test_up_restarts_what_has_died_with_the_same_settings(ebb, ebb_process, local):
    ebb_process("up", "--gpus", "1xT4", "--policy", "fifo", "--node", "ws7")
    for part, died in (("master", local.master), ("agent", lambda: local.agent("ws7"))):
        kill(died())
        up = ebb_process("up", "--json")
        assert up.json["started"] == [part]
        assert (up.json["policy"], up.json["node"]["name"]) == ("fifo", "ws7")
        assert [gpu["model"] for gpu in up.json["node"]["gpus"]] == ["T4"]


def test_down_ends_the_jobs_of_daemons_that_were_killed(ebb, ebb_process, local):
    ebb_process("up", "--gpus", "1xT4")
    job_id = submit(ebb, COUNTING_JOB)
    eventually(lambda: (shown(ebb, job_id)["progress"]["step"] or 0) > 3)
    (agent,) = local.agents().values()
    kill(local.master())
    kill(agent)
    down = ebb_process("down")
    assert down.code == 0
    assert "the master had died" in down.err
    assert living(local.root) == []


def test_an_interrupted_down_is_taken_back_by_up(ebb, ebb_process, local):
    ebb_process("up", "--gpus", "1xT4")
    stubborn = submit(ebb, STUBBORN_JOB, "--grace", "10m")
    eventually(lambda: ebb("logs", stubborn).out == "deaf\n")
    waiting = submit(ebb, "pass")
    with start_ebb("down", times=UNHURRIED) as process:
        eventually(lambda: shown(ebb, stubborn)["state"] == "SUSPENDING")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "'ebb up'" in err
    assert "restarting the master" in ebb_process("up").err
    assert ebb("cancel", "--now", stubborn).code == 0
    assert ebb("wait", waiting).code == 0


def test_down_now_does_not_wait_for_the_grace_period(ebb, ebb_process, local):
    ebb_process("up", "--gpus", "1xT4")
    stubborn = submit(ebb, STUBBORN_JOB, "--grace", "10m")
    eventually(lambda: ebb("logs", stubborn).out == "deaf\n")
    assert ebb_process("down", "--now").code == 0
    assert living(local.root) == []


def test_two_ups_at_once_make_one_cluster(local):
    with start_ebb("up", "--json", "--gpus", "1xT4") as one, start_ebb("up", "--json", "--gpus", "1xT4") as other:
        answers = [json.loads(process.communicate(timeout=60)[0]) for process in (one, other)]
    assert sorted(len(answer["started"]) for answer in answers) == [0, 2]
    assert answers[0]["master"] == answers[1]["master"]


def test_the_settings_of_what_runs_cannot_be_changed(ebb, ebb_process, local):
    ebb_process("up", "--gpus", "1xT4")
    for option, value in (("--gpus", "2xT4"), ("--policy", "fifo"), ("--node", "other"), ("--ports", "20000-20009")):
        refused = ebb("up", option, value)
        assert refused.code == 1
        assert "'ebb down' first" in refused.complaint


@pytest.mark.parametrize(
    ("option", "value"),
    [("--gpus", "2xNONSENSE"), ("--gpus", "0xT4"), ("--node", "../x"), ("--ports", "9"), ("--interface", "none0")],
)
def test_settings_that_make_no_sense_start_nothing(ebb, home, option, value):
    refused = ebb("up", option, value)
    assert refused.code == 2
    assert refused.complaint.startswith("up: ")
    assert living(home) == []


def test_a_restarted_agent_offers_the_same_ports(ebb_process, local):
    ebb_process("up", "--gpus", "1xT4", "--node", "ws1", "--interface", "lo", "--ports", "20000-20009")
    kill(local.agent("ws1"))
    assert ebb_process("up").code == 0
    restarted = local.agent("ws1")
    assert restarted is not None
    arguments = Path(f"/proc/{restarted.pid}/cmdline").read_bytes().split(b"\0")
    assert {b"--interface=lo", b"--ports=20000-20009"} <= set(arguments)


def test_a_daemon_that_does_not_start_shows_the_end_of_its_log(ebb_process, local):
    failed = ebb_process("up", "--policy", "nonsense", "--gpus", "1xT4")
    assert failed.code == 2
    *log, complaint = failed.err.splitlines()
    assert any("nonsense" in line for line in log)
    assert complaint == f"ebb: the master ended with exit code 2: see {local.master_log}"
    assert ebb_process("up", "--gpus", "1xT4").code == 0


def test_a_master_that_hangs_is_killed_and_that_is_said(ebb_process, local, monkeypatch, capfd):
    ebb_process("up", "--gpus", "1xT4")
    master = local.master()
    assert master is not None
    monkeypatch.setattr(daemons, "STOP_S", 0.2)
    master.signal(signal.SIGSTOP)
    daemons.stop_process("the master", master)
    said = f"ebb: the master (pid {master.pid}) did not end within 0.2 s of SIGTERM: sending SIGKILL\n"
    assert capfd.readouterr().err == said
    assert not master.is_alive()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_up_in_the_foreground_goes_down_when_told_to(local, number):
    with start_ebb("up", "--foreground", "--gpus", "1xT4") as process:
        assert "master" in process.stdout.readline()
        assert "node" in process.stdout.readline()
        process.send_signal(number)
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0
    assert living(local.root) == []


def test_up_in_the_foreground_ends_when_a_daemon_dies(local):
    with start_ebb("up", "--foreground", "--gpus", "1xT4", "--node", "ws7") as process:
        assert "master" in process.stdout.readline()
        assert "node" in process.stdout.readline()
        kill(local.agent("ws7"))
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err.splitlines()[-1] == "ebb: the agent of node ws7 has died: 'ebb up' restarts it"


def test_up_in_the_foreground_ends_when_a_master_dies_that_was_started_by_hand(local):
    with start_ebb("master") as master:
        eventually(lambda: local.master() is not None)
        with start_ebb("up", "--foreground", "--gpus", "1xT4", "--node", "ws7") as process:
            assert "was running" in process.stdout.readline()
            assert "node" in process.stdout.readline()
            kill(local.master())
            _, err = process.communicate(timeout=30)
        master.communicate(timeout=30)
    assert process.returncode == 1
    assert err.splitlines()[-1] == "ebb: the master has died: 'ebb up' restarts it"


def test_of_a_long_log_only_the_end_is_read(tmp_path, capfd):
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(64 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe last words\n")
    tracemalloc.start()
    daemons.print_log_end(log)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert capfd.readouterr().err.endswith("  the last words\n")
    assert peak_bytes < 4 << 20


def test_down_never_signals_a_process_that_only_has_a_daemons_pid(ebb_process, home):
    with subprocess.Popen(["sleep", "60"]) as bystander:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stale = {"pid": bystander.pid, "starttime": 1, "boot_id": boot_id, "host": "127.0.0.1", "port": 1}
        (home / "master.json").write_text(json.dumps(stale))
        (home / "nodes/ws1").mkdir(parents=True)
        (home / "nodes/ws1/agent.json").write_text(json.dumps(stale | {"node": "ws1"}))
        assert "Nothing is running" in ebb_process("down", "--now").out
        assert bystander.poll() is None
        bystander.kill()


def test_a_node_that_has_joined_another_cluster_goes_on_when_this_one_goes_down(ebb_process, local):
    """Its agent was stopped, and a master was started for its jobs, which are those of the other cluster."""
    node = local.root / "nodes" / "ws9"
    (node / "attempts" / "17.1").mkdir(parents=True)
    (node / "tls").mkdir()
    (node / "tls" / "joined.json").write_text('{"address": "192.0.2.1:7078"}')
    with subprocess.Popen(["sleep", "600"], env={}) as agent, subprocess.Popen(["sleep", "600"], env={}) as supervisor:
        for process, record in ((agent, node / "agent.json"), (supervisor, node / "attempts/17.1/supervisor.json")):
            record.write_text(json.dumps(Identity.of(process.pid).to_json()))
        try:
            alone = ebb_process("down")
            up = ebb_process("up", "--node", "ws1", "--gpus", "1xT4")
            down = ebb_process("down", "--json")
            assert (up.code, agent.poll(), supervisor.poll()) == (0, None, None)
        finally:
            agent.kill()
            supervisor.kill()
    told = "ebb: down: node ws9 goes on, as it has joined the cluster at 192.0.2.1:7078: "
    assert (alone.code, alone.out) == (0, f"Nothing else is running in {local.root}.\n")
    assert (down.code, down.json["stopped"]) == (0, ["node ws1", "master"])
    assert alone.err == down.err == f"{told}'ebb node leave' clears it of its jobs\n"


def test_a_node_that_has_joined_this_cluster_at_an_address_goes_down_with_it(ebb_process, local):
    """`ebb agent join` on the master's own machine: down left its agent, and its jobs when the master had died."""
    assert ebb_process("up", "--node", "ws1", "--gpus", "1xT4").code == 0
    node = local.root / "nodes" / "ws2"
    (node / "attempts" / "17.1").mkdir(parents=True)
    (node / "tls").mkdir()
    (node / "tls" / "joined.json").write_text('{"address": "192.0.2.1:7078", "ca": "ours"}')
    local.authority.parent.mkdir()
    local.authority.write_text("ours")
    with subprocess.Popen(["sleep", "600"], env={}) as process:
        record = node / "attempts/17.1/supervisor.json"
        record.write_text(json.dumps(Identity.of(process.pid).to_json()))
        try:
            assert [supervisor.pid for supervisor in local.own_supervisors()] == [process.pid]
            record.rename(node / "agent.json")
            down = ebb_process("down")
            assert process.wait(60) == -signal.SIGTERM
        finally:
            process.kill()
    told = "Stopped: node ws1, node ws2, master. 'ebb up' resumes the jobs, 'ebb agent --name ws2' starts node ws2.\n"
    assert (down.code, down.out, down.err) == (0, told, "")


def test_a_node_beside_a_copy_of_its_clusters_authority_goes_on_where_no_master_of_this_home_serves(ebb_process, local):
    """All master machines have the authority, and `ebb down` on that of a standby stopped the leader's node."""
    node = local.root / "nodes" / "ws2"
    (node / "attempts" / "17.1").mkdir(parents=True)
    (node / "tls").mkdir()
    (node / "tls" / "joined.json").write_text('{"address": "m1:7078,m2:7078", "ca": "ours"}')
    local.authority.parent.mkdir()
    local.authority.write_text("ours")
    with subprocess.Popen(["sleep", "600"], env={}) as process:
        for record in (node / "agent.json", node / "attempts/17.1/supervisor.json"):
            record.write_text(json.dumps(Identity.of(process.pid).to_json()))
        try:
            down = ebb_process("down")
            assert process.poll() is None
        finally:
            process.kill()
    assert (down.code, down.out) == (0, f"Nothing else is running in {local.root}.\n")
    assert down.err.startswith("ebb: down: node ws2 goes on, as it has joined the cluster at m1:7078,m2:7078: ")


def test_how_long_logs_and_checkpoints_are_kept_is_told_to_the_agent_and_remembered(home, ebb, monkeypatch):
    """Without that a home on one machine only ever grows."""
    started = []
    monkeypatch.setattr(cluster, "start_daemon", lambda name, arguments, *_: started.append(arguments))
    monkeypatch.setattr(cluster, "wait_until_ready", lambda *_: None)
    here = Home.current()
    wish = UpRequest("none", "ws1", None, {}, None, None, None, "90d", None, None)
    with StatusLine(wanted=False) as line:
        settings = up._settings(None, wish)
        settings.remember(here)
        cluster.ensure_agent(here, settings, line)
    assert "--keep=90d" in started[0]
    again = up._settings(
        cluster.LocalSettings.remembered(here), UpRequest(None, None, None, {}, None, None, None, None, None, None)
    )
    assert again.keep == "90d"
    assert ebb("up", "--keep", "soon").complaint.startswith("up: 'soon'")
