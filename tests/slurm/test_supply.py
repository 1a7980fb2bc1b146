"""Nodes are borrowed from Slurm as jobs wait, and given back when nobody needs them."""

import os
import time

import pytest

from tests.e2e.cluster import wait_for
from tests.slurm.borrower import Borrower

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]


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
    assert borrower.kill_pilot(loan["id"])
    wait_for(f"it runs elsewhere: {borrower.said()}", lambda: borrower.cluster.show(job)["attempt"] == 2, 120)
    borrower.cluster.wait_for_state(job, "RUNNING", seconds=60)


def test_an_end_that_slurm_moves_forward_reaches_the_jobs(borrower: Borrower) -> None:
    borrower.serve()
    job = borrower.submit()
    borrower.cluster.wait_for_state(job, "RUNNING", seconds=60)
    [loan] = borrower.supply()["loans"]
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 90.0))
    borrower.slurm.command("scontrol", "update", f"jobid={loan['job']}", f"EndTime={end}")
    wait_for(f"it runs elsewhere: {borrower.said()}", lambda: borrower.cluster.show(job)["attempt"] == 2, 150)
    borrower.cluster.wait_for_state(job, "RUNNING", seconds=60)
    [left, _] = borrower.cluster.show(job)["attempts"]
    assert left["nodes"] == [loan["id"]]
    assert "the lender has moved its end" in borrower.said()


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
