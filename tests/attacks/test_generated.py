"""A slice of `make attacks`: whatever one user makes, others' jobs go on, no GPU is lost, and stops end in time."""

import random

import pytest

from tests.attacks.siege import a_siege

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(900)]


def test_what_an_attacker_makes_stops_nobody_elses_job_loses_no_gpu_and_holds_up_no_stop():
    seed = random.randrange(2**32)
    with a_siege(seed) as siege:
        for _ in range(3):
            siege.round()
        while siege.tally.cases <= 100 and not siege.tally.wrong:  # some are stopped before they begin
            siege.round()
        assert siege.tally.wrong == [], f"python -m tests.attacks --seed {seed}"
