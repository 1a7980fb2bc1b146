"""Words that reach a terminal cannot command it."""

import re

import pytest
from ebbtide_cli.terminal.text import format_count, one_line, printable
from hypothesis import given
from hypothesis import strategies as st


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
