"""A slice of `make chaos`, with a new seed each time: what fails prints the command that does it again."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.cluster import REPOSITORY, wait_for
from tests.faults import kills, storm
from tests.processes import every_process

KILLS = 20
FAULTS = 3
LONG_S = 2.0


@pytest.fixture
def seed() -> int:
    """Printed where a test fails."""
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    return seed


def test_no_acknowledged_submit_is_lost_or_there_twice_when_the_master_is_killed(seed: int) -> None:
    print(f"again: python -m tests.faults.kills --count {KILLS} --seed {seed}")
    outcome = kills.run(KILLS, seed)
    assert outcome.kills == KILLS
    assert outcome.acknowledged > KILLS // 3
    assert (outcome.lost, outcome.duplicated) == ((), ())


@pytest.mark.timeout(300)  # its own deadlines come first
def test_nothing_is_lost_and_nothing_runs_twice_in_a_storm(seed: int) -> None:
    outcome = storm.run(FAULTS, seed, long_s=LONG_S)
    assert outcome.faults.total() == FAULTS
    assert outcome.jobs
    assert {kind: what for kind, what in outcome.wrong.items() if what} == {}


def of_folder(folder: Path) -> list[psutil.Process]:
    """Processes whose environment names it, but for the one that a test started."""
    found = []
    for process in every_process():
        try:
            environment = process.environ()
        except (psutil.Error, OSError):
            continue
        if any(str(folder) in environment.get(name, "") for name in ("EBB_HOME", "EBB_SOCKET")):
            found.append(process)
    return found


@pytest.mark.parametrize("what", [pytest.param("kills", marks=pytest.mark.slow), "storm"])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, what: str) -> None:
    command = [sys.executable, "-m", "tests.faults.chaos", "--seed", "1", "--only", what]
    environment = dict(psutil.Process().environ()) | {"TMPDIR": str(tmp_path)}
    chaos = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_for("it has started something", lambda: len(of_folder(tmp_path)) > (2 if what == "storm" else 0))
    finally:
        chaos.send_signal(signal.SIGINT)
        chaos.wait(60)
    assert chaos.returncode == 130
    assert of_folder(tmp_path) == []
    assert list(tmp_path.glob("ebb-*")) == []
