"""An agent inside a job of Slurm: it takes what Slurm gave it, and is gone when Slurm wants that back."""

import sys
import time
from pathlib import Path

import pytest
from ebbtide_agent.pilot.pilot import IDLE_S

from tests.e2e.cluster import wait_for
from tests.slurm.lent import Loans
from tests.slurm.rig import FIRST, SECOND

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_pilot_offers_what_slurm_gave_it_until_its_job_there_ends(loans: Loans) -> None:
    first, second = loans.lend(slurm=("-w", FIRST)), loans.lend(gpus=1, slurm=("-w", FIRST))
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
    loan = loans.lend(slurm=("-w", FIRST))
    loans.node_of(loan)
    jobs = [loans.compute(), loans.compute(how="plain")]
    for job in jobs:
        loans.wait_for_steps(job, 5)
    loans.node_of(loans.lend(slurm=("-w", SECOND)))
    urgent = loans.slurm.batch("sleep 5", "-p", "high", "-w", FIRST, "--gres=gpu:4")
    loans.ended(loan)
    wait_for("Slurm starts the urgent job", lambda: loans.slurm.state(urgent) not in ("PENDING", "CONFIGURING"))
    for job in jobs:
        loans.went_on(job)
    assert "event=leaving why=asked" in loans.said(loan)


def test_jobs_have_left_when_the_time_of_their_loan_is_over(loans: Loans) -> None:
    loan = loans.lend(slurm=("-w", FIRST, "-t", "1"))
    loans.node_of(loan)
    jobs = [loans.compute(), loans.compute(how="plain")]
    for job in jobs:
        loans.wait_for_steps(job, 5)
    loans.node_of(loans.lend(slurm=("-w", SECOND)))
    for job in jobs:
        loans.went_on(job)
    loans.ended(loan, 90.0)
    wait_for("the node has ended", lambda: loans.state_of_node(f"{FIRST}-{loan}") == "ended")


def test_jobs_save_by_themselves_when_the_master_is_away(loans: Loans) -> None:
    loan = loans.lend(slurm=("-w", FIRST))
    loans.node_of(loan)
    jobs = [loans.compute(), loans.compute(how="plain")]
    for job in jobs:
        loans.wait_for_steps(job, 5)
    loans.cluster.kill(loans.cluster.daemon("master"))
    loans.slurm.batch("sleep 5", "-p", "high", "-w", FIRST, "--gres=gpu:4")
    loans.ended(loan)
    for job in jobs:
        assert [line["what"] for line in loans.lines(job)][-2:] == ["saved", "leaves"], loans.said(loan)


def test_a_node_is_given_back_when_nobody_needs_it_and_after_scancel(loans: Loans) -> None:
    busy = loans.lend("--idle", "20s", "--label", "kind=busy")
    loans.node_of(busy)
    job = loans.compute(10**6, "--select", "kind=busy")
    loans.wait_for_steps(job, 1)
    idle = loans.lend("--idle", "3s")
    loans.node_of(idle)
    loans.ended(idle, 3.0 + IDLE_S)
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
