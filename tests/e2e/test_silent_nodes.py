"""Nodes and masters that lost what they knew, with real processes: nothing starts twice, nothing is ended by mistake.

Rows 5, 6, 17, 21, 24 and 25 of docs/explanation/reliability.md.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.cluster import EBB, REPOSITORY, Cluster, alive, wait_for

pytestmark = pytest.mark.slow
WITNESS = Path(__file__).with_name("witness.py")
SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(600)")


def witness(cluster: Cluster, folder: Path, *options: str) -> tuple[str, psutil.Process]:
    """A job that runs until there is `enough`, and its process."""
    job = cluster.submit(*options, "--", sys.executable, str(WITNESS), str(folder), "0", "0")
    return job, psutil.Process(wait_for("the job runs", lambda: cluster.show(job)["pid"]))


@contextmanager
def a_master(cluster: Cluster) -> Iterator[subprocess.Popen[bytes]]:
    """A master in the cluster's home, as its journal is now; stopped in the end."""
    with (cluster.home / "other.log").open("ab") as log:
        master = subprocess.Popen([*EBB, "master"], env=cluster.environment, cwd=REPOSITORY, stdout=log, stderr=log)
    try:
        wait_for("the master serves", (cluster.home / "master.json").exists)
        yield master
    finally:
        master.terminate()
        master.wait(20)


def agent_says(cluster: Cluster, words: str) -> bool:
    return any(words in log.read_text(errors="replace") for log in cluster.home.glob("**/*agent*.log"))


def node_of(cluster: Cluster, name: str) -> dict:
    return next(node for node in cluster.facts("nodes") if node["name"] == name)


def test_a_master_with_an_empty_journal_is_refused_and_with_its_own_everything_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    job, process = witness(cluster, tmp_path)
    cluster.kill(cluster.daemon("master"))
    away = cluster.home / "away"
    away.mkdir()
    for file in cluster.home.glob("journal.db*"):
        file.rename(away / file.name)
    (cluster.home / "master.json").unlink(missing_ok=True)
    with a_master(cluster):
        wait_for("the agent refuses it", lambda: agent_says(cluster, "the node has attempts of another cluster"))
        assert cluster.facts("nodes") == []
        assert alive(process)
    for file in cluster.home.glob("journal.db*"):
        file.unlink()
    for file in away.iterdir():
        file.rename(cluster.home / file.name)
    cluster.up()
    assert cluster.show(job)["pid"] == process.pid
    (tmp_path / "enough").touch()
    assert cluster.wait_for_state(job, "COMPLETED")["attempt"] == 1


def test_what_a_restored_journal_does_not_know_is_set_aside_and_never_ended(cluster: Cluster, tmp_path: Path) -> None:
    name = cluster.node_name()
    backup = cluster.home / "backup.db"
    with closing(sqlite3.connect(cluster.home / "journal.db")) as db, closing(sqlite3.connect(backup)) as copy:
        db.backup(copy)
    job, process = witness(cluster, tmp_path, "--gpus", "3")
    cluster.kill(cluster.daemon("master"))
    for file in cluster.home.glob("journal.db*"):
        file.unlink()
    with closing(sqlite3.connect(backup)) as db, db:
        db.execute("UPDATE meta SET value = '1000' WHERE key = 'epoch'")  # as a restore does: agents take it
    backup.rename(cluster.home / "journal.db")
    cluster.up()
    [stray] = wait_for("it is set aside", lambda: node_of(cluster, name)["strays"])
    assert (stray["id"], stray["attempt"], stray["kind"], len(stray["gpu_uuids"])) == (job, 1, "unknown", 3)
    assert f"attempt 1 is on node {name}, and this journal does not know it: set aside" in cluster.ebb("events").out
    shown = cluster.ebb("nodes").out
    assert f"set aside: {job}.1 is not in the master's journal; 'ebb node end-stray {name} {job}.1' ends it" in shown
    one = cluster.submit("--gpus", "1", "--", "true")
    assert int(one) > int(job)
    cluster.wait_for_state(one, "COMPLETED")
    other = cluster.submit("--gpus", "2", "--", "true")
    assert cluster.show(other)["state"] == "PENDING"
    assert alive(process)
    cluster.ebb("node", "end-stray", name, f"{job}.1", "--grace", "1s")
    cluster.wait_for_state(other, "COMPLETED")
    assert not alive(process)


def test_processes_whose_records_are_gone_are_found_and_keep_their_job_from_starting_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    name = cluster.node_name()
    job, process = witness(cluster, tmp_path, "--gpus", "4")
    cluster.kill(cluster.daemon(name))
    for entry in (cluster.home / "nodes" / name).iterdir():
        if entry.name != "gpus":  # that is the hardware
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    cluster.up()
    wait_for("the node is back", lambda: name in cluster.nodes_up())
    wait_for("it is told of", lambda: "and its directory there is gone" in cluster.ebb("events").out)
    shown = cluster.show(job)
    assert (shown["state"], shown["attempt"]) == ("RUNNING", 1)
    other = cluster.submit("--cpu-only", "--", "true")
    cluster.wait_for_state(other, "COMPLETED")
    assert alive(process)
    assert cluster.show(job)["attempt"] == 1
    process.kill()
    wait_for("it runs again", lambda: cluster.show(job)["attempt"] == 2)
    (tmp_path / "enough").touch()
    shown = cluster.wait_for_state(job, "COMPLETED")
    assert shown["attempts"][0]["outcome"] == "interrupted: its exit status was not recorded"
    assert not (tmp_path / "overlap").exists()


def test_what_still_runs_on_a_node_that_was_confirmed_dead_is_ended_when_it_is_back(
    idle_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = idle_cluster
    cluster.up("1xA100-40GB", "--node", "left")
    root = cluster.home / "checkpoints"
    cluster.add_workstation("right", "1xA100-40GB", root)
    job = cluster.submit("--", *SLEEP)
    first = wait_for("it runs", lambda: cluster.show(job)["pid"])
    [where] = cluster.show(job)["nodes"]
    refused = cluster.ebb("node", "confirm-dead", where, "--yes", code=1)
    assert refused.err == f"ebb: node {where} is connected: it is not dead\n"
    agent = cluster.daemon(where)
    agent.send_signal(signal.SIGKILL)
    wait_for("it is silent", lambda: node_of(cluster, where)["state"] == "down")
    reply = cluster.facts("node", "confirm-dead", where, "--yes")
    assert reply["node"]["dead"]
    second = wait_for(
        "it runs elsewhere", lambda: pid if (pid := cluster.show(job)["pid"]) not in (0, None, first) else 0
    )
    assert psutil.pid_exists(first), "the word of whoever said so was wrong"
    cluster.start_workstation(where, "1xA100-40GB", root)
    wait_for("the older copy is ended", lambda: not psutil.pid_exists(first))
    wait_for("nothing is set aside", lambda: not node_of(cluster, where)["strays"])
    shown = cluster.show(job)
    assert (shown["state"], shown["attempt"], shown["pid"]) == ("RUNNING", 2, second)
    assert f"node {where}" in cluster.ebb("events").out
    assert "and it counts as over: it is ended" in cluster.ebb("events").out


def test_what_a_script_saved_by_itself_is_there_elsewhere_after_its_node_has_lost_power(
    idle_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = idle_cluster
    cluster.up("1xA100-40GB", "--node", "left")
    cluster.add_workstation("right", "1xA100-40GB", cluster.home / "checkpoints")
    script = tmp_path / "saves.sh"
    script.write_text('test -z "$EBB_RESUME_DIR" || exec cat "$EBB_RESUME_DIR/n"\n')
    with script.open("a") as more:
        more.write('echo 41 > "$EBB_CHECKPOINT_DIR/n"; echo saved; exec sleep 600\n')
    job = cluster.submit("--", "sh", str(script))
    wait_for("it has saved", lambda: "saved" in cluster.log(job))
    shown = cluster.show(job)
    process, [where] = psutil.Process(shown["pid"]), shown["nodes"]
    for dies in (cluster.daemon(where), process.parent(), process):  # nobody is left who could seal anything
        cluster.kill(dies)
    wait_for("it is silent", lambda: node_of(cluster, where)["state"] == "down")
    cluster.ebb("node", "confirm-dead", where, "--yes")
    assert cluster.wait_for_state(job, "COMPLETED")["attempt"] == 2
    assert cluster.ebb("logs", "--attempt", "2", job).out == "41\n"


@pytest.mark.timeout(600)
def test_a_job_with_a_lease_ends_itself_where_its_agent_stands_still_and_then_starts_once_elsewhere(
    idle_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = idle_cluster
    cluster.up("1xA100-40GB", "--node", "left")
    cluster.add_workstation("right", "1xA100-40GB", cluster.home / "checkpoints")
    job, process = witness(cluster, tmp_path, "--failover-after", "40s", "--grace", "2s")
    [where] = cluster.show(job)["nodes"]
    agent = cluster.daemon(where)
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        wait_for("it ended itself", lambda: not alive(process), 60)
        assert cluster.show(job)["attempt"] == 1
        wait_for("it runs elsewhere", lambda: cluster.show(job)["attempt"] == 2, 120)
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    wait_for("the node is back", lambda: node_of(cluster, where)["state"] == "up", 60)
    (tmp_path / "enough").touch()
    shown = cluster.wait_for_state(job, "COMPLETED")
    assert shown["attempt"] == 2
    assert "its lease ended" in shown["attempts"][0]["outcome"]
    assert not (tmp_path / "overlap").exists()
