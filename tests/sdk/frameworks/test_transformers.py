"""The real Hugging Face Trainer, suspended and resumed: the final weights are those of an undisturbed run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sdk.frameworks.running import logged, run

MODULES = ("transformers.trainer", "transformers.models.bert.modeling_bert", "ebbtide.integrations.transformers")


@pytest.mark.slow
def test_a_trainer_that_is_suspended_ends_with_the_weights_of_one_that_is_not(tmp_path: Path):
    undisturbed, suspended = run("hugging_face.py", tmp_path, [], ["TERM=2", "TERM=8", "TERM=12"], modules=MODULES)
    assert undisturbed.codes == [0], undisturbed.log
    assert (suspended.codes, suspended.steps) == ([85, 85, 0], [None, 2, 8]), suspended.log
    assert suspended.said("digest") == undisturbed.said("digest") != []
    assert suspended.said("evaluations") == ["2"]
    assert logged(tmp_path / "job-1", "train/loss") == list(range(1, 13))
    checkpoints = [f"checkpoint-{step}" for step in (2, 4, 8, 12)]
    kept = [name for name in checkpoints if (tmp_path / "job-1" / "output" / name).exists()]
    assert kept == ["checkpoint-4", "checkpoint-8", "checkpoint-12"]  # what the Trainer's own schedule says


@pytest.mark.slow
def test_a_trainer_leaves_an_epochs_evaluation_done_and_goes_on_from_its_own_saves_when_killed(tmp_path: Path):
    undisturbed, at_epochs_end, killed = run("hugging_face.py", tmp_path, [], ["TERM=6"], ["KILL=7"], modules=MODULES)
    assert (at_epochs_end.codes, at_epochs_end.steps) == ([85, 0], [None, 6]), at_epochs_end.log
    assert (killed.codes, killed.steps) == ([-9, 0], [None, 4]), killed.log
    for job in (at_epochs_end, killed):
        assert job.said("digest") == undisturbed.said("digest") != []
        assert job.said("evaluations") == ["2"]
    for number in range(3):
        assert logged(tmp_path / f"job-{number}", "train/loss") == list(range(1, 13))


@pytest.mark.slow
def test_a_trainer_that_saves_the_best_leaves_after_an_evaluation_that_is_no_better_and_keeps_the_best(tmp_path: Path):
    jobs = ([], ["TERM=4"], ["TERM=6"])
    undisturbed, no_better, better = run("hugging_face_best.py", tmp_path, *jobs, modules=MODULES)
    assert undisturbed.codes == [0], undisturbed.log
    assert (no_better.codes, no_better.steps) == ([85, 0], [None, 4]), no_better.log
    assert (better.codes, better.steps) == ([85, 0], [None, 6]), better.log
    for number, job in enumerate((undisturbed, no_better, better)):
        assert job.said("best") == ["checkpoint-6"]
        assert job.said("digest") == undisturbed.said("digest") != []
        saved = sorted(path.name for path in (tmp_path / f"job-{number}" / "output").glob("checkpoint-*"))
        assert saved == ["checkpoint-2", "checkpoint-6"]  # what the Trainer's own schedule says


def saved(folder: Path) -> list[str]:
    """The checkpoints that the Trainer itself has, each of which can be loaded."""
    found = sorted((folder / "output").glob("checkpoint-*"))
    assert all((path / "optimizer.pt").stat().st_size for path in found)
    return [path.name for path in found]


@pytest.mark.slow
def test_a_trainer_on_a_disk_that_is_nearly_full_publishes_what_it_can_link(tmp_path: Path):
    [undisturbed] = run("hugging_face_linked.py", tmp_path, [], modules=MODULES)
    assert undisturbed.codes == [0], undisturbed.log
    assert saved(tmp_path / "job-0") == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


@pytest.mark.slow
@pytest.mark.parametrize("evaluates", ["epoch", "no"])
def test_a_trainer_that_is_asked_when_its_own_save_was_due_keeps_that_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluates: str
):
    monkeypatch.setenv("EVALUATES", evaluates)
    undisturbed, asked = run("hugging_face_linked.py", tmp_path, [], ["TERM=2"], modules=MODULES)
    assert (asked.codes, asked.steps) == ([85, 0], [None, 2]), asked.log
    assert saved(tmp_path / "job-1") == saved(tmp_path / "job-0") == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert asked.said("digest") == undisturbed.said("digest") != []
    assert asked.said("evaluations") == undisturbed.said("evaluations") == ["3" if evaluates == "epoch" else "0"]


@pytest.mark.slow
def test_a_trainer_that_is_killed_while_it_saves_a_step_again_goes_on_from_the_first_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DIES_IN_SAVE", "2")
    [killed] = run("hugging_face_linked.py", tmp_path, ["TERM=2"], modules=MODULES)
    assert (killed.codes, killed.steps) == ([-9, 0], [None, 2]), killed.log


@pytest.mark.slow
@pytest.mark.parametrize("option", ["save_only_model", "enable_jit_checkpoint"])
def test_arguments_with_which_nothing_could_be_resumed_are_refused_by_name(tmp_path: Path, option: str):
    program = f"""
from ebbtide.integrations.transformers import SuspendCallback
from torch.nn import Linear
from transformers import Trainer, TrainingArguments
Trainer(Linear(1, 1), TrainingArguments("out", use_cpu=True, {option}=True), callbacks=[SuspendCallback()])
"""
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1
    assert f"ValueError: {option}: " in result.stderr


SHARED = """
import sys
from pathlib import Path
from ebbtide.integrations.transformers import LARGE_BYTES, _part, _take

output = Path(sys.argv[1])
saved, draft = output / "checkpoint-7", output / "draft"
(saved / "inner").mkdir(parents=True)
(saved / "model.safetensors").write_bytes(b"a" * LARGE_BYTES)
(saved / "inner" / "optimizer.pt").write_bytes(b"b" * LARGE_BYTES)
(saved / "trainer_state.json").write_text("{}")
_take(saved, draft, False)
same = lambda name: (saved / name).samefile(draft / name)
assert [same("model.safetensors"), same("inner/optimizer.pt"), same("trainer_state.json")] == [True, True, False]
_part(output, 8)
assert same("model.safetensors")  # the Trainer is past it, and does not write it again
_part(output, 7)
assert [same("model.safetensors"), same("inner/optimizer.pt")] == [False, False]
with open(saved / "model.safetensors", "wb") as again:
    again.write(b"c")
assert (draft / "model.safetensors").read_bytes() == b"a" * LARGE_BYTES
"""


@pytest.mark.slow
def test_what_the_trainer_saves_is_there_once_and_is_not_changed_when_it_saves_that_step_again(tmp_path: Path):
    subprocess.run([sys.executable, "-c", SHARED, str(tmp_path)], check=True)
