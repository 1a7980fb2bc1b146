"""Where Slurm tracks processes by their parents, what escapes outlives its job there, and is waited for."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.cluster import alive, processes_of, wait_for
from tests.slurm.borrower import Borrower
from tests.slurm.lent import Loans
from tests.slurm.rig import FIRST, SECOND

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]
BY_PARENTS = pytest.mark.parametrize("slurm", [{"tracking": "linuxproc"}], ids=["linuxproc"], indirect=True)
ESCAPES = (sys.executable, str(Path(__file__).parent / "escapes.py"))


def noted(path: Path, **wanted: Any) -> list[dict[str, Any]]:
    """What the processes of the job have noted, as far as it is wanted."""
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [line for line in lines if wanted.items() <= line.items()]


def processes(path: Path) -> dict[str, psutil.Process]:
    """The newest process of each kind that has noted something."""
    return {line["what"]: psutil.Process(line["pid"]) for line in noted(path)}


@BY_PARENTS
def test_nothing_of_a_job_starts_elsewhere_while_what_slurm_has_lost_sight_of_lives(borrower: Borrower) -> None:
    notes = borrower.folder / "notes"
    borrower.serve()
    job = borrower.submit("--retries", "3", command=(*ESCAPES, str(notes)))
    borrower.cluster.wait_for_state(job, "RUNNING", seconds=60)
    wait_for("both have begun", lambda: {"lives", "escaped"} <= {line["what"] for line in noted(notes)})
    there = processes(notes)
    [loan] = borrower.supply()["loans"]
    try:
        assert borrower.kill_pilot(loan["id"])
        wait_for("Slurm takes it for over", lambda: borrower.supply()["loans"][0]["phase"] == "ended", 120)
        borrower.cluster.wait_for_state(job, "UNREACHABLE", seconds=120)
        assert alive(there["escaped"]), "it was to outlive the job of Slurm"
        other = borrower.submit()
        borrower.cluster.wait_for_state(other, "RUNNING", seconds=120)  # there is room, and nothing else waits for it
        borrower.cluster.ebb("cancel", "--wait", other)
        shown = borrower.cluster.show(job)
        assert (shown["state"], shown["attempt"]) == ("UNREACHABLE", 1), borrower.said()
        assert alive(there["escaped"])
        assert not noted(notes, attempt=2)
    finally:
        end(borrower)
    borrower.cluster.ebb("node", "confirm-dead", loan["id"], "--yes")
    wait_for(f"it goes on: {borrower.said()}", lambda: noted(notes, attempt=2), 120)
    end(borrower)


def end(borrower: Borrower) -> None:
    """Kill what Slurm does not: all processes of loans."""
    for process in processes_of(borrower.folder / "loans"):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@BY_PARENTS
def test_a_loan_is_left_only_when_what_has_escaped_is_gone_too(loans: Loans) -> None:
    notes = loans.witnesses / "notes"
    loan = loans.lend(slurm=("-w", FIRST))
    loans.node_of(loan)
    job = loans.cluster.submit("--gpus", "1", "--grace", "2s", "--retries", "0", "--", *ESCAPES, str(notes))
    wait_for("both have begun", lambda: {"lives", "escaped"} <= {line["what"] for line in noted(notes)})
    loans.node_of(loans.lend(slurm=("-w", SECOND)))
    loans.slurm.batch("sleep 5", "-p", "high", "-w", FIRST, "--gres=gpu:4")
    loans.ended(loan)
    wait_for(f"it goes on: {loans.cluster.show(job)}", lambda: noted(notes, attempt=2), 90)
    last, first = noted(notes, attempt=1)[-1], noted(notes, attempt=2)[0]
    assert noted(notes, what="saved", attempt=1)
    assert last["at"] < first["at"]
    assert loans.cluster.show(job)["attempt"] == 2
