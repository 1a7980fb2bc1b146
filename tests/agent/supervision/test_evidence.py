"""What can be said of a checkpoint directory from outside."""

import os
from contextlib import ExitStack

import pytest
from ebbtide_agent.supervisor.evidence import Contents, being_written, judge
from ebbtide_agent.supervisor.status import Checkpointed

NOTHING = frozenset[str]()


def test_what_is_open_for_writing_below_the_directory_is_being_written_unless_it_is_only_appended_to(tmp_path):
    folder, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    (folder / "sub").mkdir(parents=True)
    elsewhere.mkdir()
    (folder / "read").write_text("x")
    files = {"sub/new": "w", "both": "w+", "read": "r", "log": "a"}
    with ExitStack() as opened:
        for name, mode in files.items():
            opened.enter_context((folder / name).open(mode))
        opened.enter_context((elsewhere / "new").open("w"))
        (tmp_path / "link").symlink_to(folder)
        assert being_written(folder, [os.getpid()]) == {"sub/new", "both"}
        assert being_written((tmp_path / "link").resolve(), [os.getpid()]) == {"sub/new", "both"}
    assert being_written(folder, [os.getpid()]) == NOTHING


def test_a_process_that_is_gone_writes_nothing(tmp_path):
    assert being_written(tmp_path, [2**22 + 1]) == NOTHING


@pytest.mark.parametrize(
    ("cut_short", "handled", "verdict"),
    [
        ({"state"}, True, Checkpointed.NO),
        (set(), True, Checkpointed.UNKNOWN),
        (set(), False, Checkpointed.NO),
    ],
)
def test_without_a_sealed_checkpoint_what_was_cut_short_and_who_had_no_handler_saved_nothing(
    tmp_path, cut_short, handled, verdict
):
    before = Contents.of(tmp_path)
    (tmp_path / "state").write_text("1")
    found = judge(tmp_path, before, None, cut_short=frozenset(cut_short), handled=handled, uses_sdk=False)
    assert found is verdict
