"""The harness of the experiments: it runs all cases side by side, and tells how far it is."""

import math
from functools import partial

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
