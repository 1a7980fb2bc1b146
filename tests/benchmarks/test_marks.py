"""What benchmarks measure is beside its mark and beside what others reach, in words that are right."""

import pytest

from benchmarks.marks import Measured, from_json, quantile, table


@pytest.mark.parametrize(
    ("bounds", "kept", "used"),
    [
        ({"most": 5.0}, True, 0.8),
        ({"most": 4.0}, True, 1.0),
        ({"most": 2.0}, False, 2.0),
        ({"least": 2.0}, True, 0.5),
        ({"least": 8.0}, False, 2.0),
        ({}, None, None),
    ],
)
def test_a_mark_is_kept_up_to_itself(bounds, kept, used):
    value = Measured(name="pass", value=4.0, unit="ms", **bounds)
    assert (value.kept, value.used) == (kept, used)


def test_a_value_of_nothing_misses_a_mark_from_below():
    value = Measured(name="array", value=0.0, unit="jobs/s", least=10.0)
    assert (value.kept, value.used) == (False, float("inf"))


@pytest.mark.parametrize(("value", "kept", "used"), [(0.0, True, 0.0), (1.0, False, float("inf"))])
def test_a_mark_of_nothing_has_room_for_nothing(value, kept, used):
    value = Measured(name="launched too early", value=value, unit="jobs", most=0.0)
    assert (value.kept, value.used) == (kept, used)


def test_a_line_has_the_mark_and_the_others():
    value = Measured(name="pass", value=17.25, unit="ms", most=5.0, beside={"Slurm": 1234.5})
    assert str(value) == "pass: 17.2 ms; Slurm 1,234 ms (at most 5 ms: MISSED)"
    assert list(value.ratios) == ["0.014 × Slurm"]


def test_what_a_part_prints_is_read_back_as_it_was():
    value = Measured(name="array", value=90.0, unit="jobs/s", least=50.0, beside={"Slurm": 42.0}, shown="array")
    assert from_json(value.as_json()) == value


def test_a_table_has_a_column_for_each_of_the_others_and_leaves_a_cell_empty_where_one_is_missing():
    values = [
        Measured(name="first line", value=15.0, unit="ms", beside={"Slurm": 420.0, "HyperQueue": 5.0}),
        Measured(name="victim is back", value=37.0, unit="ms", beside={"Slurm": 6400.0}, most=50.0),
    ]
    assert table(values).splitlines() == [
        "| | Ebbtide | Slurm | HyperQueue | ratio | mark |",
        "|---|---|---|---|---|---|",
        "| first line | 15 ms | 420 ms | 5 ms | 0.0357 × Slurm, 3 × HyperQueue |  |",
        "| victim is back | 37 ms | 6,400 ms |  | 0.00578 × Slurm | at most 50 ms: met |",
    ]


def test_a_quantile_is_one_of_the_values():
    values = [float(value) for value in range(100, 0, -1)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([7.0], 0.99)) == (51.0, 100.0, 7.0)
