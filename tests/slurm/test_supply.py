"""Nodes are borrowed from Slurm as jobs wait, and given back when nobody needs them."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.cluster import ANY_ACCOUNT, EBB, REPOSITORY, Cluster, wait_for
from tests.e2e.test_between_machines import free_ports
from tests.slurm.rig import Slurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]
SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")
FILE = """
[supply.hpc]
pool = "hpc"
max_nodes = 3
gpus_per_node = 2
gpu_type = "A100-40GB"
gpu_mem = "40GiB"
time = "10m"
after = "0s"
idle = "5s"
home = "{home}"
checkpoint_root = "{root}"
sbatch = ["--partition=low", "--cpus-per-task=2", "--mem=1000", {more}]
agent = ["--gpus", "4xA100-40GB", {account}]
"""


class Borrower:
    """A cluster with TLS and without GPUs, and what it borrows."""

    def __init__(self, folder: Path, slurm: Slurm) -> None:
        self.cluster, self.slurm = Cluster(folder / "login"), slurm
        self.cluster.environment |= {"SLURM_CONF": slurm.env["SLURM_CONF"]}
        self.folder = folder
        self.suppliers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.cluster.ebb("master", "init", "--host", "localhost", "--port", str(free_ports()))
        self.write()
        (self.cluster.home / "ebbtide.toml").write_text("[pools.hpc]\n")
        self.cluster.up("none", "--node", "login")

    def write(self, more: str = '"--gres=gpu:2"') -> None:
        account = ", ".join(f'"{word}"' for word in ANY_ACCOUNT)
        home, root = self.folder / "loans", self.folder / "root"
        (self.cluster.home / "supply.toml").write_text(FILE.format(home=home, root=root, account=account, more=more))

    def serve(self) -> subprocess.Popen[bytes]:
        """Start a supplier."""
        log = (self.folder / "supplier.log").open("ab")
        with log:
            command = [*EBB, "supply", "run", "hpc"]
            supplier = subprocess.Popen(command, env=self.cluster.environment, cwd=REPOSITORY, stdout=log, stderr=log)
        self.suppliers.append(supplier)
        wait_for("the supplier runs", lambda: self.supply()["served"])
        return supplier

    def said(self) -> str:
        return (self.folder / "supplier.log").read_text()

    def supply(self) -> dict:
        [supply] = self.cluster.facts("supply", "ls")
        return supply

    def phases(self) -> list[str]:
        return [loan["phase"] for loan in self.supply()["loans"]]

    def submit(self, *options: str) -> str:
        return self.cluster.submit("--pool", "hpc", "--gpus", "2", "--grace", "2s", *options, "--", *SLEEPS)

    def jobs_in_slurm(self) -> list[str]:
        return self.slurm.command("squeue", "-h", "-o", "%j").split()

    def close(self) -> None:
        for supplier in self.suppliers:
            if supplier.poll() is None:
                supplier.send_signal(signal.SIGTERM)
                assert supplier.wait(30) == 0
        self.slurm.try_command("scancel", "--user", "root")
        wait_for("Slurm has all jobs back", lambda: not self.jobs_in_slurm())
        self.cluster.close()


@contextmanager
def a_borrower(slurm: Slurm) -> Iterator[Borrower]:
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        borrower = Borrower(Path(folder), slurm)
        try:
            borrower.start()
            yield borrower
        finally:
            borrower.close()


@pytest.fixture
def borrower(slurm: Slurm) -> Iterator[Borrower]:
    with a_borrower(slurm) as borrower:
        yield borrower


def test_nodes_come_as_jobs_wait_and_go_when_nobody_needs_them(borrower: Borrower) -> None:
    borrower.serve()
    time.sleep(3)
    assert borrower.phases() == []
    jobs = [borrower.submit(), borrower.submit()]
    for job in jobs:
        borrower.cluster.wait_for_state(job, "RUNNING", seconds=60)
    wait_for("both are up", lambda: borrower.phases() == ["up", "up"])
    assert {node["loan"]["owner"] for node in borrower.cluster.facts("nodes") if node["loan"]} == {"root"}
    secrets = list((borrower.cluster.home / "supplies").rglob("*.invitation"))
    assert secrets == []
    borrower.cluster.ebb("cancel", *jobs)
    wait_for(f"both nodes are given back: {borrower.said()}", lambda: borrower.phases() == ["ended", "ended"], 90)
    assert borrower.jobs_in_slurm() == []
    wait_for("the master forgets them", lambda: len(borrower.cluster.facts("nodes", "--all")) == 1, 60)
    assert "event=leaving why=idle" in borrower.cluster.ebb("supply", "logs", "hpc-1").out


def test_a_loan_that_is_killed_frees_its_job_at_once_because_slurm_proves_its_death(borrower: Borrower) -> None:
    borrower.serve()
    job = borrower.submit("--retries", "3")
    borrower.cluster.wait_for_state(job, "RUNNING", seconds=60)
    [loan] = borrower.supply()["loans"]
    borrower.slurm.command("scancel", "--signal=KILL", loan["job"])
    wait_for(f"it runs elsewhere: {borrower.said()}", lambda: borrower.cluster.show(job)["attempt"] == 2, 120)
    borrower.cluster.wait_for_state(job, "RUNNING", seconds=60)


def test_a_supplier_that_is_killed_finds_its_loans_again_and_asks_for_no_more_than_it_may(borrower: Borrower) -> None:
    jobs = [borrower.submit() for _ in range(5)]
    for _ in range(4):
        supplier = borrower.serve()
        time.sleep(4)
        supplier.kill()
        supplier.wait()
    borrower.serve()
    wait_for(f"all come up: {borrower.said()}", lambda: borrower.phases().count("up") == 3, 90)
    assert len(borrower.jobs_in_slurm()) == 3
    assert sum(borrower.cluster.show(job)["state"] == "RUNNING" for job in jobs) == 3


def test_what_slurm_refuses_is_said_and_backed_off_from(borrower: Borrower) -> None:
    borrower.write('"--gres=gpu:9"')
    said = borrower.cluster.ebb("supply", "try", "hpc", code=1).err
    assert "Requested node configuration is not available" in said
    borrower.serve()
    borrower.submit()
    wait_for("it backs off", lambda: borrower.supply()["state"] == "backing-off")
    assert "Requested node configuration is not available" in borrower.supply()["trouble"]
    assert "Requested node configuration is not available" in borrower.cluster.ebb("supply", "ls").out


def test_what_users_wish(borrower: Borrower) -> None:
    out = borrower.cluster.ebb("supply", "try", "hpc").out
    assert "#SBATCH --job-name=ebb-hpc-0" in out
    assert "Slurm: Job " in out
    says = (
        "no more nodes will be asked for; no supplier runs: 'ebb supply run hpc' starts one, and it is granted then\n"
    )
    assert borrower.cluster.ebb("supply", "pause", "hpc").out == says
    borrower.serve()
    wait_for("it is paused", lambda: borrower.supply()["state"] == "paused")
    borrower.submit()
    borrower.cluster.ebb("supply", "add", "hpc")
    wait_for("it is up", lambda: borrower.phases() == ["up"], 60)
    borrower.cluster.ebb("supply", "release", "hpc-1")
    wait_for("it is over", lambda: borrower.phases() == ["ended"], 60)
    [loan] = borrower.supply()["loans"]
    assert loan["reason"].startswith("released by ")
    borrower.cluster.ebb("supply", "resume", "hpc")
    wait_for("another one comes", lambda: borrower.phases() == ["ended", "up"], 60)
    assert "has no loan hpc-1 that has not ended" in borrower.cluster.ebb("supply", "release", "hpc-1", code=1).err
    assert os.listdir(borrower.cluster.home / "supplies" / "hpc" / "wishes") == []
