"""Durations, sizes and GPU counts as users write them."""

from fractions import Fraction

import pytest
from ebbtide_cli.values import (
    MAX_NODES,
    GpuRange,
    format_duration,
    format_size,
    parse_cpus,
    parse_gpus,
    parse_nodes,
    parse_setting,
)
from ebbtide_core.model import limits
from ebbtide_protos.quantities import parse_duration, parse_size
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("3m", 180), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("1d2h3m4s", 93784), ("0s", 0)],
)
def test_a_duration_is_counts_with_units(text, seconds):
    assert parse_duration(text) == seconds


def test_a_duration_may_have_a_fraction():
    assert parse_duration("1.5h") == 5400
    assert parse_duration("0.5s") == 0.5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "3 m",
        "-3m",
        "m",
        "3w",
        "3M",
        "NaN",
        "nans",
        "inf",
        "1e3s",
        "30m1h",
        "1h1h",
        "٣m",
        "1.s",
        "9" * 40 + "s",
    ],
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match=r"write 90s|longer than 32"):
        parse_duration(text)


@given(st.integers(0, 10**9))
def test_a_written_duration_reads_back_as_itself(seconds):
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.floats(0, 1e9))
def test_a_written_duration_is_right_to_the_second_or_to_a_tenth(seconds):
    tolerance = 0.0501 if seconds < 9.95 else 0.5
    assert abs(parse_duration(format_duration(seconds)) - seconds) <= tolerance


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("10GiB", 10 * 2**30),
        ("512MiB", 512 * 2**20),
        ("80GB", 80 * 10**9),
        ("80gb", 80 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("1TiB", 2**40),
        ("7B", 7),
        ("0.1KiB", 102),
    ],
)
def test_a_size_is_a_number_with_a_unit(text, count):
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "10", "10G", "-1GiB", "NaNGiB", "inf", "1e3GiB", "10 GiB x", "9" * 40 + "GiB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=r"write 10GiB|longer than 32"):
        parse_size(text)


@given(st.integers(0, 2**53))
def test_a_written_size_is_right_to_two_digits(count):
    assert abs(parse_size(format_size(count)) - count) <= 0.05 * count


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("1", 1, 1),
        ("4096", 4096, 4096),
        ("1-4", 1, 4),
        ("1/4", Fraction(1, 4), Fraction(1, 4)),
        ("1/4-2", Fraction(1, 4), 2),
        ("1/4-1/2", Fraction(1, 4), Fraction(1, 2)),
        ("1/1", 1, 1),
    ],
)
def test_a_number_of_gpus_is_exact(text, low, high):
    assert parse_gpus(text) == GpuRange(Fraction(low), Fraction(high))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("0", "--cpu-only"),
        ("0-4", "--cpu-only"),
        ("0/4", "--cpu-only"),
        ("-1", "write 2, 1-4"),
        ("NaN", "write 2, 1-4"),
        ("1e400", "write 2, 1-4"),
        ("abc", "write 2, 1-4"),
        ("0.5", "write 2, 1-4"),
        ("", "write 2, 1-4"),
        ("2/4", "write 1/n"),
        ("1/0", "write 1/n"),
        ("1/17", "write 1/n"),
        ("4-1", "write 1-4"),
        ("4097", "limit of 4096"),
        ("1-99999999999", "limit of 4096"),
        ("9" * 5000, "longer than 32"),
    ],
)
def test_what_is_no_number_of_gpus_is_refused_with_a_hint(text, hint):
    with pytest.raises(ValueError, match=hint):
        parse_gpus(text)


@given(st.integers(1, 16), st.integers(1, 4096))
def test_a_written_range_of_gpus_reads_back_as_itself(denominator, high):
    wanted = GpuRange(Fraction(1, denominator), Fraction(high))
    assert parse_gpus(str(wanted)) == wanted


@pytest.mark.parametrize("text", ["0", "0.0", "-1", "NaN", "inf", "1e3", ""])
def test_what_is_no_number_of_cpus_is_refused(text):
    with pytest.raises(ValueError, match="write 4 or"):
        parse_cpus(text)


def test_a_setting_keeps_everything_behind_its_first_equals_sign():
    assert parse_setting("s=a=b") == ("s", "a=b")
    with pytest.raises(ValueError, match="KEY=VALUE"):
        parse_setting("s")


@pytest.mark.parametrize(("text", "nodes"), [("1", (1, 1)), ("2", (2, 2)), ("1-3", (1, 3)), ("4096", (4096, 4096))])
def test_a_number_of_nodes_is_exact_or_begins_at_one(text, nodes):
    assert parse_nodes(text) == nodes


@pytest.mark.parametrize("text", ["", "0", "-1", "0-2", "3-2", "2-3", "1-", "1.5", "4097", "1-4097", "a"])
def test_what_is_no_number_of_nodes_is_refused(text):
    with pytest.raises(ValueError, match="write"):
        parse_nodes(text)


def test_the_limit_of_nodes_is_the_cores():
    assert limits.MAX_NODES == MAX_NODES
