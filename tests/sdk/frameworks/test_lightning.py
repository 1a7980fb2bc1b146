"""The real Lightning Trainer, suspended and resumed: the final weights are those of an undisturbed run."""

from pathlib import Path

from tests.sdk.frameworks.running import run

MODULES = ("pytorch_lightning", "ebbtide.integrations.lightning")


def test_a_lightning_trainer_that_is_suspended_ends_with_the_weights_of_one_that_is_not(tmp_path: Path):
    undisturbed, suspended, at_turns, killed = run(
        "lightning_fit.py",
        tmp_path,
        [],
        ["TERM=3", "TERM=9", "TERM=20", "TERM=24"],
        ["TERM=5", "TERM=12"],  # where validation is due, and with the end of the epoch
        ["KILL=11"],
        modules=MODULES,
    )
    assert undisturbed.codes == [0], undisturbed.log
    assert (suspended.codes, suspended.steps) == ([85, 85, 85, 0], [None, 2, 5, 10]), suspended.log
    assert (at_turns.codes, at_turns.steps) == ([85, 85, 0], [None, 4, 7]), at_turns.log
    assert (killed.codes, killed.steps) == ([-9, 0], [None, 4]), killed.log
    for job in (suspended, at_turns):
        assert job.said("validated after") == undisturbed.said("validated after")
        assert job.said("over after") == undisturbed.said("over after")
    for job in (suspended, at_turns, killed):
        assert job.said("digest") == undisturbed.said("digest") != []
