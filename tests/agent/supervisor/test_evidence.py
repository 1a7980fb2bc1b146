"""What can be said of a checkpoint directory from outside."""

import os
from contextlib import ExitStack

import pytest
from ebbtide import checkpoints
from ebbtide_agent.supervisor.sealing.evidence import CheckpointContents, StopConduct, being_written, judge
from ebbtide_agent.supervisor.status import WireCheckpointed

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
        ({"state"}, True, WireCheckpointed.NO),
        (set(), True, WireCheckpointed.UNKNOWN),
        (set(), False, WireCheckpointed.NO),
    ],
)
def test_without_a_sealed_checkpoint_what_was_cut_short_and_who_had_no_handler_saved_nothing(
    tmp_path, cut_short, handled, verdict
):
    before = CheckpointContents.of(tmp_path)
    (tmp_path / "state").write_text("1")
    found = judge(tmp_path, before, None, StopConduct(handled), cut_short=frozenset(cut_short))
    assert found is verdict


@pytest.mark.parametrize(
    ("conduct", "verdict"),
    [
        (StopConduct(handled=True), WireCheckpointed.UNKNOWN),
        (StopConduct(handled=True, publishes=True), WireCheckpointed.NO),
        (StopConduct(handled=True, failed=True), WireCheckpointed.NO),
        (StopConduct(handled=True, publishes=True, vouches=True), WireCheckpointed.YES),
        (StopConduct(handled=False), WireCheckpointed.NO),
    ],
    ids=lambda value: None if isinstance(value, WireCheckpointed) else str(value),
)
def test_where_nothing_new_lies_in_the_directory_the_conduct_of_the_job_says_what_is_certain(
    tmp_path, conduct, verdict
):
    assert judge(tmp_path, CheckpointContents.of(tmp_path), None, conduct) is verdict


@pytest.mark.parametrize(
    ("complete", "passed_over", "verdict"),
    [
        (True, False, WireCheckpointed.YES),
        (False, False, WireCheckpointed.UNKNOWN),
        (False, True, WireCheckpointed.NO),
    ],
)
def test_what_was_written_counts_for_what_the_next_attempt_will_make_of_it(tmp_path, complete, passed_over, verdict):
    before = CheckpointContents.of(tmp_path)
    (tmp_path / "state").write_text("1")
    sealed = checkpoints.seal(tmp_path, job_id="1", attempt=1, complete=complete, cut_short=not complete)
    assert judge(tmp_path, before, sealed, StopConduct(handled=True, failed=True), passed_over=passed_over) is verdict
