"""The real Lightning Trainer, suspended and resumed: the final weights are those of an undisturbed run."""

import subprocess
import sys
from pathlib import Path

import pytest

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
