"""An agent inside a job of Slurm: it takes what Slurm gave it, and is gone when Slurm wants that back."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import ANY_ACCOUNT, Cluster, wait_for
from tests.e2e.conftest import a_home
from tests.e2e.day.test_nothing_is_lost import check_progress
from tests.slurm.rig import GRACE_S, Slurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]
COMPUTING = Path(__file__).parents[1] / "e2e" / "day" / "computing.py"


class Loans:
    """A cluster without GPUs of its own, and the Slurm that lends it some."""

    def __init__(self, cluster: Cluster, slurm: Slurm) -> None:
        self.cluster, self.slurm = cluster, slurm
        self.witnesses = cluster.home / "witnesses"
        self.witnesses.mkdir()

    def lend(self, *pilot: str, gpus: int = 2, slurm: tuple[str, ...] = ()) -> str:
        """Have Slurm start a pilot; return the id of its job there."""
        words = [sys.executable, "-m", "ebbtide_cli.main", "agent", "pilot", "--gpus", "4xA100-40GB", *ANY_ACCOUNT]
        script = f"export EBB_HOME={self.cluster.home}\ncd {Path.cwd()}\nsrun --overlap {' '.join([*words, *pilot])}"
        output = self.slurm.folder / "pilot-%j.txt"
        options = ["-p", "low", "-t", "10", "--no-requeue", "-c", "2", "--mem", "1000", "-o", str(output), *slurm]
        return self.slurm.batch(script, f"--gres=gpu:{gpus}", *options)

    def node_of(self, loan: str) -> str:
        """The name of the node that a pilot runs; waits until it is up."""
        named = [f"sn1-{loan}", f"sn2-{loan}"]
        wait_for(f"a node of {loan} is up: {self.said(loan)}", lambda: self.cluster.nodes_up() & {*named})
        return next(iter(self.cluster.nodes_up() & {*named}))

    def said(self, loan: str) -> str:
        """What the pilot printed."""
        path = self.slurm.folder / f"pilot-{loan}.txt"
        return path.read_text() if path.exists() else "nothing"

    def ended(self, loan: str, seconds: float = 60.0) -> None:
        """Wait until Slurm has its job back."""
        wait_for(f"loan {loan} is over: {self.said(loan)}", lambda: self.slurm.is_over(loan), seconds)

    def compute(self, steps: int = 10**6, *options: str, how: str = "sdk") -> str:
        """Submit a job that counts, and that a failure ends."""
        words = [str(COMPUTING), str(self.witnesses), str(steps), "0.05", str(10**6), how, "0"]
        return self.cluster.submit(
            "--gpus", "1", "--grace", "5s", "--retries", "0", *options, "--", sys.executable, *words
        )

    def lines(self, job: str) -> list[dict[str, object]]:
        """What a job wrote down."""
        path = self.witnesses / f"{job}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_steps(self, job: str, number: int, attempt: int = 1, seconds: float = 30.0) -> None:
        """Wait until an attempt has made so many steps."""

        def made() -> bool:
            return sum(line["what"] == "step" and line["attempt"] == attempt for line in self.lines(job)) >= number

        wait_for(f"job {job} makes {number} steps: {self.cluster.show(job)}", made, seconds)

    def went_on(self, job: str) -> None:
        """Wait until a job computes elsewhere, in its second attempt, from where it was."""
        self.wait_for_steps(job, 5, attempt=2, seconds=90.0)
        facts = self.cluster.show(job)
        assert (facts["state"], facts["attempt"]) == ("RUNNING", 2), facts
        check_progress(job, self.lines(job))

    def state_of_node(self, name: str) -> str:
        """What the master says of a node."""
        return {node["name"]: node["state"] for node in self.cluster.facts("nodes", "--all")}.get(name, "unknown")


@pytest.fixture
def loans(slurm: Slurm) -> Iterator[Loans]:
    with a_home() as cluster:
        cluster.up_for_people()
        yield Loans(cluster, slurm)
        slurm.try_command("scancel", "--user", "root")
        wait_for("Slurm has all jobs back", lambda: not slurm.command("squeue", "-h").strip())


def test_a_pilot_offers_what_slurm_gave_it_until_its_job_there_ends(loans: Loans) -> None:
    first, second = loans.lend(slurm=("-w", "sn1")), loans.lend(gpus=1, slurm=("-w", "sn1"))
    names = [loans.node_of(first), loans.node_of(second)]
    nodes = {node["name"]: node for node in loans.cluster.facts("nodes") if node["name"] in names}
    assert [len(nodes[name]["gpus"]) for name in names] == [2, 1]
    indexes = [{gpu["index"] for gpu in nodes[name]["gpus"]} for name in names]
    assert not indexes[0] & indexes[1]
    for node in nodes.values():
        assert (node["cpus"], node["mem_bytes"]) == (2.0, 1000 << 20)
        assert node["loan"]["owner"] == "root"
        assert 500.0 < node["loan"]["until"] - time.time() < 600.0


def test_jobs_save_and_go_on_elsewhere_when_slurm_preempts_their_loan(loans: Loans) -> None:
    loan = loans.lend(slurm=("-w", "sn1"))
    loans.node_of(loan)
    jobs = [loans.compute(), loans.compute(how="plain")]
    for job in jobs:
        loans.wait_for_steps(job, 5)
    loans.node_of(loans.lend(slurm=("-w", "sn2")))
    urgent = loans.slurm.batch("sleep 5", "-p", "high", "-w", "sn1", "--gres=gpu:4")
    loans.ended(loan)
    wait_for("Slurm starts the urgent job", lambda: loans.slurm.state(urgent) == "RUNNING", GRACE_S / 2)
    for job in jobs:
        loans.went_on(job)
    assert "event=leaving why=asked" in loans.said(loan)


def test_jobs_have_left_when_the_time_of_their_loan_is_over(loans: Loans) -> None:
    loan = loans.lend(slurm=("-w", "sn1", "-t", "1"))
    loans.node_of(loan)
    jobs = [loans.compute(), loans.compute(how="plain")]
    for job in jobs:
        loans.wait_for_steps(job, 5)
    loans.node_of(loans.lend(slurm=("-w", "sn2")))
    for job in jobs:
        loans.went_on(job)
    loans.ended(loan, 90.0)
    wait_for("the node has ended", lambda: loans.state_of_node(f"sn1-{loan}") == "ended")


def test_jobs_save_by_themselves_when_the_master_is_away(loans: Loans) -> None:
    loan = loans.lend(slurm=("-w", "sn1"))
    loans.node_of(loan)
    jobs = [loans.compute(), loans.compute(how="plain")]
    for job in jobs:
        loans.wait_for_steps(job, 5)
    loans.cluster.kill(loans.cluster.daemon("master"))
    loans.slurm.batch("sleep 5", "-p", "high", "-w", "sn1", "--gres=gpu:4")
    loans.ended(loan)
    for job in jobs:
        assert [line["what"] for line in loans.lines(job)][-2:] == ["saved", "leaves"], loans.said(loan)


def test_a_node_is_given_back_when_nobody_needs_it_and_after_scancel(loans: Loans) -> None:
    idle, busy = loans.lend("--idle", "3s"), loans.lend("--idle", "3s", "--label", "kind=busy")
    loans.node_of(idle), loans.node_of(busy)
    job = loans.compute(10**6, "--select", "kind=busy")
    loans.wait_for_steps(job, 1)
    loans.ended(idle)
    assert "event=leaving why=idle" in loans.said(idle)
    assert loans.slurm.state(busy) == "RUNNING"
    loans.slurm.command("scancel", busy)
    loans.ended(busy)
    wait_for(
        f"the job has left: {loans.said(busy)} {loans.cluster.show(job)}",
        lambda: loans.cluster.show(job)["state"] in ("SUSPENDED", "QUEUED"),
    )
    assert [line["what"] for line in loans.lines(job)][-2:] == ["saved", "leaves"]


def test_a_pilot_that_slurm_would_not_warn_refuses_to_start(loans: Loans) -> None:
    script = f"export EBB_HOME={loans.cluster.home}; {sys.executable} -m ebbtide_cli.main agent pilot"
    output = loans.slurm.folder / "batch.txt"
    job = loans.slurm.batch(f"cd {Path.cwd()}; {script}", "-o", str(output))
    loans.ended(job)
    says = f"Slurm kills a batch script without a warning: write 'srun ebb agent pilot' in job {job}"
    assert output.read_text() == f"ebb: agent pilot: {says}\n"
