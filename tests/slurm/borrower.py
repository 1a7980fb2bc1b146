"""A cluster that borrows its nodes from Slurm."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.e2e.cluster import ANY_ACCOUNT, EBB, REPOSITORY, Cluster, processes_of, wait_for
from tests.ports import free_ports
from tests.slurm.rig import Slurm

SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")
FILE = """
[supply.hpc]
pool = "hpc"
max_nodes = {most}
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

    def start(self, max_nodes: int = 3) -> None:
        self.cluster.ebb("master", "init", "--host", "localhost", "--port", str(free_ports(2)[0]))
        self.write(max_nodes=max_nodes)
        (self.cluster.home / "ebbtide.toml").write_text("[pools.hpc]\n")
        self.cluster.up("none", "--node", "login")

    def write(self, more: str = '"--gres=gpu:2"', max_nodes: int = 3) -> None:
        account = ", ".join(f'"{word}"' for word in ANY_ACCOUNT)
        home, root = self.folder / "loans", self.folder / "root"
        text = FILE.format(home=home, root=root, account=account, more=more, most=max_nodes)
        (self.cluster.home / "supply.toml").write_text(text)

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

    def submit(self, *options: str, command: tuple[str, ...] = SLEEPS) -> str:
        return self.cluster.submit("--pool", "hpc", "--gpus", "2", "--grace", "2s", *options, "--", *command)

    def kill_pilot(self, id: str) -> bool:
        """kill -9 of the agent of a loan; return whether there was one. `scancel --signal=KILL` warns it before."""
        pilots = (process for process in processes_of(self.folder / "loans") if _is_pilot(process, id))
        if (pilot := next(pilots, None)) is None:
            return False
        pilot.kill()
        return True

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


def _is_pilot(process: psutil.Process, id: str) -> bool:
    """Whether this is the agent of a loan, and not the `srun` that started it, nor a process that it has forked."""
    with suppress(psutil.Error):
        words, parent = process.cmdline(), process.parent()
        is_agent = "pilot" in words and id in words and "python" in words[0]
        return is_agent and (parent is None or parent.cmdline() != words)
    return False


@contextmanager
def a_borrower(slurm: Slurm) -> Iterator[Borrower]:
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        borrower = Borrower(Path(folder), slurm)
        try:
            borrower.start()
            yield borrower
        finally:
            borrower.close()
