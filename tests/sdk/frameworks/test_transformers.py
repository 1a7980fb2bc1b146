"""The real Hugging Face Trainer, suspended and resumed: the final weights are those of an undisturbed run."""

from pathlib import Path

from ebbtide import checkpoints

from tests.sdk.frameworks.running import run

MODULES = ("transformers.trainer", "transformers.models.bert.modeling_bert", "ebbtide.integrations.transformers")


def test_a_trainer_that_is_suspended_ends_with_the_weights_of_one_that_is_not(tmp_path: Path):
    undisturbed, suspended, at_epochs_end, killed = run(
        "hugging_face.py",
        tmp_path,
        [],
        ["TERM=2", "TERM=8", "TERM=12"],
        ["TERM=6"],
        ["KILL=7"],
        modules=MODULES,
    )
    assert undisturbed.codes == [0], undisturbed.log
    assert (suspended.codes, suspended.steps) == ([85, 85, 0], [None, 2, 8]), suspended.log
    assert (at_epochs_end.codes, at_epochs_end.steps) == ([85, 0], [None, 6]), at_epochs_end.log
    assert (killed.codes, killed.steps) == ([-9, 0], [None, 4]), killed.log
    for job in (suspended, at_epochs_end, killed):
        assert job.said("digest") == undisturbed.said("digest") != []
        assert job.said("evaluations") == ["2"]
    assert not (tmp_path / "job-1" / "out" / "checkpoint-2").exists()
    assert (tmp_path / "job-1" / "out" / "checkpoint-4").exists()
    assert checkpoints.newest_valid(tmp_path / "job-1") is not None
