"""Pilots that Slurm starts by hand, the jobs on their nodes, and what these jobs say of how they were treated."""

import json
import sys
from pathlib import Path

from tests.e2e.cluster import ANY_ACCOUNT, Cluster, wait_for
from tests.e2e.day.test_nothing_is_lost import check_progress
from tests.slurm.rig import NODES, Slurm

COMPUTING = Path(__file__).parents[1] / "e2e" / "day" / "computing.py"


class Loans:
    """A cluster without GPUs of its own, and the Slurm that lends it some."""

    def __init__(self, cluster: Cluster, slurm: Slurm) -> None:
        self.cluster, self.slurm = cluster, slurm
        self.witnesses = cluster.home / "witnesses"
        self.witnesses.mkdir()

    def lend(self, *pilot: str, gpus: int = 2, slurm: tuple[str, ...] = (), shows: str = "4xA100-40GB") -> str:
        """Have Slurm start a pilot whose driver shows these GPUs; return the id of its job there."""
        words = [sys.executable, "-m", "ebbtide_cli.main", "agent", "pilot", "--gpus", shows, *ANY_ACCOUNT]
        script = f"export EBB_HOME={self.cluster.home}\ncd {Path.cwd()}\nsrun --overlap {' '.join([*words, *pilot])}"
        output = self.slurm.folder / "pilot-%j.txt"
        options = ["-p", "low", "-t", "10", "--no-requeue", "-c", "2", "--mem", "1000", "-o", str(output), *slurm]
        return self.slurm.batch(script, f"--gres=gpu:{gpus}", *options)

    def node_of(self, loan: str) -> str:
        """The name of the node that a pilot runs; waits until it is up."""
        named = {f"{node}-{loan}" for node in NODES}
        wait_for(f"a node of {loan} is up: {self.said(loan)}", lambda: self.cluster.nodes_up() & named, 60)
        return next(iter(self.cluster.nodes_up() & named))

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
