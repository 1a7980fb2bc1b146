"""Schedules of faults, each from its seed; `make chaos` plays thousands."""

import subprocess
import sys
import time

import pytest

from tests.docs.pages import REPOSITORY

COUNT = 40


@pytest.mark.timeout(600)
def test_no_schedule_of_faults_breaks_a_promise() -> None:
    """In a process of its own: the order of sets is part of what a seed decides."""
    seed = str(int(time.time()))
    command = [sys.executable, "-m", "tests.faults.schedules", "--count", str(COUNT), "--seed", seed]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr
