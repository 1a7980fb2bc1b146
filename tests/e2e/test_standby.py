"""A master that stands by, with everything around it: agents and `ebb` find whoever leads, and jobs do not notice."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.cluster import EBB, Cluster, processes_of, wait_for
from tests.postgres import Server

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


class Pair:
    """Two masters on one database, a node, and the words that name both masters."""

    def __init__(self, cluster: Cluster, second_home: Path, url: str) -> None:
        self.cluster = cluster
        self.homes = (cluster.home, second_home)
        self._url = url
        self._running: list[subprocess.Popen[bytes]] = []
        cluster.environment["EBB_MASTER"] = ",".join(f"unix:{home}" for home in self.homes)

    def start(self, which: int) -> subprocess.Popen[bytes]:
        """The first or the second master."""
        environment = self.cluster.environment | {"EBB_HOME": str(self.homes[which])}
        command = [*EBB, "master", "--store", self._url]
        with (self.homes[which] / "log").open("ab") as log:
            self._running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        return self._running[-1]

    def log(self, which: int) -> str:
        return (self.homes[which] / "log").read_text()

    def leads(self, which: int) -> None:
        wait_for(f"master {which} leads", lambda: (self.homes[which] / "master.json").exists(), 60)

    def close(self) -> None:
        for agent in self.cluster.agents:
            agent.terminate()
            agent.wait(20)
        self.cluster.agents.clear()
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait(20)
        for process in list(processes_of(self.cluster.home)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture
def pair(idle_cluster: Cluster, postgres: Server, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(idle_cluster, tmp_path, postgres.database())
    yield pair
    pair.close()


def test_a_job_runs_on_while_the_lead_goes_from_one_master_to_the_other_and_back(pair: Pair, tmp_path: Path) -> None:
    cluster, done = pair.cluster, tmp_path / "done"
    first = pair.start(0)
    pair.leads(0)
    second = pair.start(1)
    wait_for("the second stands by", lambda: "standby=waiting" in pair.log(1))
    cluster.add_workstation("n1", "2xT4")
    job = cluster.submit("--gpus", "1", "--", "sh", "-c", f"until [ -e {done} ]; do sleep 0.1; done; exit 7")
    process = psutil.Process(cluster.wait_for_state(job, "RUNNING")["pid"])

    first.send_signal(signal.SIGSTOP)
    pair.leads(1)
    first.send_signal(signal.SIGCONT)
    assert first.wait(30) == 70
    assert "journal=failed" in pair.log(0)
    wait_for("the node is with the second", lambda: cluster.nodes_up() == {"n1"})
    assert cluster.wait_for_state(job, "RUNNING")["attempt"] == 1

    pair.start(0)
    second.kill()
    second.wait(30)
    pair.leads(0)
    late = cluster.submit("--gpus", "1", "--", "true")
    cluster.wait_for_state(late, "COMPLETED")
    assert process.is_running()
    done.touch()
    ended = cluster.wait_for_state(job, "FAILED")
    assert (ended["exit_code"], ended["attempt"], ended["restarts"]) == (7, 1, 0)
