"""A job begins in the directory as it was at submit, and what it prints is where people look for it."""

import os
import subprocess
from pathlib import Path

from tests.e2e.cluster import EBB, Cluster

TRAIN = "import sys\nprint('version 1')\nprint('half\\rwhole')\nprint('CUDA out of memory')\nsys.exit(1)\n"


def submit(cluster: Cluster, folder: Path, *arguments: str) -> str:
    """Submit from that directory; the job's id."""
    done = subprocess.run(
        [*EBB, "submit", *arguments], env=cluster.environment, cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_job_runs_what_was_there_at_submit_and_is_not_retried_in_vain(cluster: Cluster, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(TRAIN)
    (project / ".ebbignore").write_text("data/\n")
    (project / "data").mkdir()
    (project / "data" / "large").write_text("x")
    (project / "libs").symlink_to("data")
    options = ("--hold", "--snapshot", "--retries", "5", "--output", "logs/%x-%j.out", "--name", "first")
    job = submit(cluster, project, *options, "--", "python", "train.py")
    (project / "train.py").write_text("print('version 2')\n")
    cluster.ebb("release", job)
    shown = cluster.wait_for_state(job, "FAILED")
    assert shown["reason"] == "out of GPU memory (40 GiB): 'CUDA out of memory', not to be tried again"
    assert shown["attempt"] == 1
    assert cluster.ebb("logs", "--tidy", job).out == "version 1\nwhole\nCUDA out of memory\n"
    assert (project / "logs" / f"first-{job}.out").read_text().endswith("CUDA out of memory\n")
    place = cluster.home / "nodes" / cluster.node_name() / "workdirs" / job
    assert sorted(path.name for path in place.iterdir()) == [".ebbignore", "libs", "train.py"]
    assert os.readlink(place / "libs") == "data"
    again = submit(cluster, project, "--snapshot", "--", "python", "train.py")
    assert cluster.ebb("wait", again).out == f"job {again} COMPLETED (completed)\n"
    assert cluster.show(again)["snapshot"]["digest"] != shown["snapshot"]["digest"]


def test_a_script_that_is_no_shell_script_is_that_of_the_snapshot(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("#!/usr/bin/env python3\n#EBB --cpu-only\nprint('version 1')\n")
    job = submit(cluster, tmp_path, "--hold", "--snapshot", "train.py")
    (tmp_path / "train.py").unlink()
    cluster.ebb("release", job)
    assert cluster.ebb("wait", job).out == f"job {job} COMPLETED (completed)\n"
    assert cluster.log(job) == "version 1\n"
