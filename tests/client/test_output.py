"""What reaches a terminal is aligned, fits, and cannot command it."""

import re

import pytest
from ebbtide_cli.output import table_lines
from ebbtide_cli.text import format_count, one_line, printable
from hypothesis import given
from hypothesis import strategies as st


def lay_out(titles, rows, width=None, colour=False):
    return list(table_lines(titles, rows, width, colour=colour))


def test_columns_are_aligned():
    assert lay_out(("ID", "NAME"), [("17", "a"), ("1", "longer")]) == ["ID  NAME", "17  a", "1   longer"]


def test_wide_characters_take_two_columns():
    assert lay_out(("A", "B"), [("訓練", "x"), ("ab", "y")]) == ["A     B", "訓練  x", "ab    y"]


def test_a_table_is_cut_to_the_terminal_and_complete_elsewhere():
    row = ("17", "n" * 50, "r" * 50)
    assert lay_out(("ID", "NAME", "REASON"), [row])[1].endswith("r" * 50)
    for line in lay_out(("ID", "NAME", "REASON"), [row], width=40):
        assert len(line) <= 40
    assert "…" in lay_out(("ID", "NAME", "REASON"), [row], width=40)[1]


def test_states_are_coloured_only_where_colours_are_welcome():
    assert lay_out(("STATE",), [("RUNNING",)], colour=True)[1] == "\x1b[32mRUNNING\x1b[0m"
    assert lay_out(("STATE",), [("RUNNING",)])[1] == "RUNNING"


@pytest.mark.parametrize("text", ["a\x1b[31mb", "a\u202eb", "a\u2066b", "a\x00b", "a\x9bb", "a\u200bb", "a\x7fb"])
def test_control_and_bidirectional_characters_are_dropped(text):
    assert re.fullmatch(r"a(\[31m)?b", printable(text))


@given(st.text())
def test_no_text_can_break_out_of_its_line(text):
    assert printable(text).isprintable()
    assert len(one_line(text)) <= 600


def test_white_space_of_any_kind_becomes_a_space():
    assert printable("a\nb\tc\u2028d") == "a b c d"


@pytest.mark.parametrize(("count", "written"), [(4, "4"), (0.25, "1/4"), (1 / 3, "1/3"), (2.5, "2.5"), (0, "0")])
def test_counts_are_written_as_people_write_them(count, written):
    assert format_count(count) == written
