"""The real Lightning Trainer, suspended and resumed: the final weights are those of an undisturbed run."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ebbtide import jobs

from tests.sdk.frameworks.running import logged, run

MODULES = ("pytorch_lightning", "ebbtide.integrations.lightning")


@pytest.mark.slow
def test_a_lightning_trainer_that_is_suspended_ends_with_the_weights_of_one_that_is_not(tmp_path: Path):
    # Batch 12 is the last one of an epoch, with validation due, and 24 is the last one of all.
    undisturbed, suspended = run("lightning_fit.py", tmp_path, [], ["TERM=3", "TERM=12", "TERM=24"], modules=MODULES)
    assert undisturbed.codes == [0], undisturbed.log
    assert (suspended.codes, suspended.steps) == ([85, 85, 0], [None, 2, 7]), suspended.log
    assert suspended.said("digest") == undisturbed.said("digest") != []
    assert suspended.said("validated after") == undisturbed.said("validated after")
    assert suspended.said("over after") == undisturbed.said("over after")
    assert logged(tmp_path / "job-1", "loss") == list(range(12))


@pytest.mark.slow
def test_a_lightning_trainer_may_be_suspended_or_killed_anywhere(tmp_path: Path):
    undisturbed, suspended, killed = run(
        "lightning_fit.py", tmp_path, [], ["TERM=5", "TERM=9", "TERM=20"], ["KILL=11"], modules=MODULES
    )
    assert (suspended.codes, suspended.steps) == ([85, 85, 85, 0], [None, 4, 5, 10]), suspended.log
    assert (killed.codes, killed.steps) == ([-9, 0], [None, 4]), killed.log
    for job in (suspended, killed):
        assert job.said("digest") == undisturbed.said("digest") != []
    for number in range(3):
        assert logged(tmp_path / f"job-{number}", "loss") == list(range(12))


@pytest.mark.slow
def test_a_lightning_trainer_that_is_killed_after_an_epochs_last_step_makes_up_for_what_was_due_there(tmp_path: Path):
    # Step 6 ends the first epoch, with validation due, and step 7 is batch 14.
    undisturbed, before, after = run("lightning_fit.py", tmp_path, [], ["KILL=13"], ["KILL=15"], modules=MODULES)
    assert undisturbed.said("validated after") == ["3", "6", "9", "12"], undisturbed.log
    assert (before.codes, before.steps) == ([-9, 0], [None, 4]), before.log
    assert before.said("validated after") == ["3", "6", "6", "9", "12"]
    assert before.said("over after") == ["6", "6", "12"]
    assert (after.codes, after.steps) == ([-9, 0], [None, 7]), after.log
    assert after.said("validated after") == undisturbed.said("validated after")
    for job in (before, after):
        assert job.said("digest") == undisturbed.said("digest") != []


@pytest.mark.slow
def test_where_each_step_ends_an_epoch_a_checkpoint_waits_for_one_step_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_job
):
    from ebbtide.integrations.lightning import FILE, SuspendCallback

    monkeypatch.setattr(jobs, "_job", make_job())
    trainer = SimpleNamespace(is_last_batch=True, enable_validation=False, val_check_batch=None)
    trainer.save_checkpoint = lambda path, weights_only: path.write_text("weights")
    callback = SuspendCallback(every=1)
    for step in (1, 2, 3, 4):
        trainer.global_step = step
        callback.on_train_batch_end(trainer, None, None, None, 0)
    saved = sorted((tmp_path / "7" / "attempt-1").glob(f"*/{FILE}"))
    assert [path.parent.name for path in saved] == ["step-000000000002", "step-000000000004"]


@pytest.mark.slow
def test_the_callback_is_one_of_the_lightning_that_the_script_uses():
    program = """
import sys, types
parent, module = types.ModuleType("lightning"), types.ModuleType("lightning.pytorch")
module.Callback = type("Callback", (), {})
sys.modules |= {"lightning": parent, "lightning.pytorch": module}
from ebbtide.integrations.lightning import SuspendCallback
assert issubclass(SuspendCallback, module.Callback)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
