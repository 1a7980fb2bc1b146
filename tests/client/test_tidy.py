"""`ebb logs --tidy`: progress bars as they were at last."""

import pytest
from ebbtide_cli.logs.tidy import TidyLines

from tests.client.scripted_master import make_job

BAR = b"\r  0%|    | 0/2\r 50%|##  | 1/2\r100%|####| 2/2\n"


@pytest.mark.parametrize(
    ("printed", "tidied"),
    [
        (b"loss 1\nloss 2\n", b"loss 1\nloss 2\n"),
        (BAR, b"100%|####| 2/2\n"),
        (b"one\r\ntwo\r\n", b"one\ntwo\n"),
        (b"early\rlate\r\n", b"late\n"),
        (b"early\rlate", b"late\n"),
        (b"\n\n", b"\n\n"),
        (b"", b""),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_of_a_line_that_is_written_over_the_last_is_left_however_it_arrives(printed, tidied, size):
    tidy = TidyLines()
    pieces = [tidy.feed(printed[at : at + size]) for at in range(0, len(printed), size)]
    assert b"".join([*pieces, tidy.end()]) == tidied


def test_a_bar_that_runs_for_ever_is_not_kept_in_memory():
    tidy = TidyLines()
    for _ in range(1000):
        tidy.feed(b"\r 50%|##  | 1/2")
    assert len(tidy._line) < 100


def test_the_verb_tidies_each_attempt_if_it_is_asked_to(ebb, master):
    master.add(make_job(state="RUNNING"))
    master.logs = [(1, BAR), (1, b"half\rwhole"), (2, b"again\n")]
    tidied = ebb("logs", "--tidy", "17")
    assert tidied.out == "100%|####| 2/2\nwhole\nagain\n"
