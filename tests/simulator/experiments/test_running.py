"""The harness of the experiments: it runs all cases side by side, and tells how far it is."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from ebbtide_sim.experiments.running import Run, run_all


def test_results_come_in_the_order_of_the_cases_and_progress_ends_at_the_whole() -> None:
    told: list[tuple[str, float]] = []
    runs = [Run(f"root of {number}", partial(math.sqrt, number), number + 1.0) for number in (0, 1, 4, 9)]
    assert run_all(runs, 2, lambda label, part: told.append((label, part))) == [0.0, 1.0, 2.0, 3.0]
    assert {label for label, _ in told} == {run.label for run in runs}
    assert [part for _, part in told] == sorted(part for _, part in told)
    assert told[-1][1] == pytest.approx(1.0)


def test_the_first_error_ends_the_experiment() -> None:
    runs = [Run("no root", partial(math.sqrt, -1)), Run("a root", partial(math.sqrt, 4))]
    with pytest.raises(ValueError, match=r"math domain error|nonnegative"):
        run_all(runs, 1, lambda label, part: None)


@contextmanager
def patient(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """An experiment of two cases that wait, in a process group of its own, and the pids of its cases."""
    command = [sys.executable, "-m", "tests.simulator.experiments.patient_cases", str(folder)]
    experiment = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while len(pids := [int(path.stem) for path in folder.glob("*.pid")]) < 2:
            assert time.monotonic() < until
            assert experiment.poll() is None
            time.sleep(0.01)
        yield experiment, pids
    finally:
        if experiment.poll() is None:
            os.killpg(experiment.pid, signal.SIGKILL)
        experiment.communicate()


def test_the_interrupt_that_a_terminal_sends_to_the_cases_as_well_does_not_break_their_pool(tmp_path: Path) -> None:
    with patient(tmp_path) as (experiment, pids):
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        (tmp_path / "go").touch()
        assert experiment.communicate(timeout=60)[0] == "['done', 'done']\n"


def test_an_interrupt_ends_the_experiment_and_its_cases(tmp_path: Path) -> None:
    with patient(tmp_path) as (experiment, pids):
        os.killpg(experiment.pid, signal.SIGINT)
        assert experiment.communicate(timeout=60)[0] == "interrupted\n"
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
