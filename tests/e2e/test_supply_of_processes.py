"""Nodes are borrowed with commands: the example that lends processes of this machine."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import ANY_ACCOUNT, EBB, REPOSITORY, Cluster, wait_for
from tests.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LENDS = str(REPOSITORY / "examples/lends_processes.py")


class Lent:
    """A cluster with TLS and without GPUs, a supply of processes, and its supplier."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(folder / "login")
        self.cluster.environment |= {"LENT": str(folder / "lent")}
        self.cluster.ebb("master", "init", "--host", "localhost", "--port", str(free_ports(2)[0]))
        supply = {
            "kind": "hook", "pool": "own", "max_nodes": 2, "gpus_per_node": 1, "gpu_type": "A100-40GB",
            "gpu_mem": "40GiB", "time": "10m", "after": "0s", "idle": "3s",
            "home": str(folder / "loans"), "checkpoint_root": str(folder / "root"),
            "grow": [sys.executable, LENDS, "grow"], "shrink": [sys.executable, LENDS, "shrink"],
            "list": [sys.executable, LENDS, "list"], "agent": ["--gpus", "1xA100-40GB", *ANY_ACCOUNT],
        }  # fmt: skip
        lines = [f"{field} = {json.dumps(value)}" for field, value in supply.items()]
        (self.cluster.home / "supply.toml").write_text("\n".join(["[supply.here]", *lines]) + "\n")
        (self.cluster.home / "ebbtide.toml").write_text("[pools.own]\n")
        self.cluster.up("none", "--node", "login")
        with (folder / "supplier.log").open("ab") as log:
            command = [*EBB, "supply", "run", "here"]
            self.supplier = subprocess.Popen(command, env=self.cluster.environment, stdout=log, stderr=log)

    def submit(self, *options: str) -> str:
        sleeps = (sys.executable, "-c", "import time; time.sleep(600)")
        return self.cluster.submit("--pool", "own", "--gpus", "1", "--grace", "2s", *options, "--", *sleeps)

    def loans(self) -> dict[str, str]:
        [supply] = self.cluster.facts("supply", "ls")
        return {loan["id"]: loan["phase"] for loan in supply["loans"]}

    def close(self) -> None:
        self.supplier.send_signal(signal.SIGTERM)
        assert self.supplier.wait(30) == 0
        for path in (self.folder / "lent").glob("*.json"):
            asked = json.dumps({"id": path.stem, "job": ""})
            subprocess.run(
                [sys.executable, LENDS, "shrink"], input=asked, text=True, env=self.cluster.environment, check=True
            )
            wait_for(f"{path.stem} has ended", lambda path=path: "exit" in json.loads(path.read_text()))
        self.cluster.close()


@pytest.fixture
def lent() -> Iterator[Lent]:
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        made = Lent(Path(folder))
        try:
            yield made
        finally:
            made.close()


def test_a_node_comes_as_a_process_and_goes_when_nobody_needs_it(lent: Lent) -> None:
    job = lent.submit()
    lent.cluster.wait_for_state(job, "RUNNING", seconds=60)
    wait_for("its node is up", lambda: lent.loans() == {"here-1": "up"})
    lent.cluster.ebb("cancel", "--wait", job)
    wait_for("its node has gone", lambda: lent.loans() == {"here-1": "ended"}, seconds=90)
    wait_for("it is forgotten", lambda: "here-1" not in {node["name"] for node in lent.cluster.facts("nodes", "--all")})


def test_who_asks_why_a_job_waits_is_told_that_the_supply_is_paused(lent: Lent) -> None:
    lent.cluster.ebb("supply", "pause", "here")
    job = lent.submit()
    words = "Supply here asks for no node: paused.\n"
    wait_for("it is said", lambda: words in lent.cluster.ebb("explain", job).out)
    lent.cluster.ebb("supply", "resume", "here")
    lent.cluster.wait_for_state(job, "RUNNING", seconds=60)


def test_a_node_that_is_released_leaves_its_job_to_the_next_one(lent: Lent) -> None:
    job = lent.submit()
    lent.cluster.wait_for_state(job, "RUNNING", seconds=60)
    lent.cluster.ebb("supply", "release", "here-1")
    wait_for("it runs on another node", lambda: lent.cluster.show(job)["nodes"] == ["here-2"], seconds=90)
    lent.cluster.wait_for_state(job, "RUNNING", seconds=60)
    assert lent.cluster.show(job)["attempts"][0]["nodes"] == ["here-1"]
