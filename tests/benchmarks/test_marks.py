"""What a benchmark says of its marks."""

import runpy
from pathlib import Path
from typing import Any

import pytest

MARKS = runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "marks.py"))


@pytest.mark.parametrize(
    ("value", "mark", "kept", "used"),
    [
        (4.0, {"most": 5.0}, True, 0.8),
        (6.0, {"most": 5.0}, False, 1.2),
        (10.0, {"least": 5.0}, True, 0.5),
        (0.0, {"least": 5.0}, False, float("inf")),
        (0.0, {"most": 0.0}, True, 0.0),
        (1.0, {"most": 0.0}, False, float("inf")),
        (1.0, {}, None, None),
    ],
)
def test_a_value_says_whether_its_mark_is_kept_and_how_much_of_it_was_used(
    value: float, mark: dict[str, Any], kept: bool | None, used: float | None
) -> None:
    measured = MARKS["Measured"](name="x", value=value, unit="jobs", **mark)
    assert (measured.kept, measured.used) == (kept, used)
