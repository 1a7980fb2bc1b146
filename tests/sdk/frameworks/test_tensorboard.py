"""TensorBoard's own reader sees one run, whatever happened to the attempts that wrote it."""

from pathlib import Path

from tests.sdk.frameworks.running import logged, run


def test_no_step_appears_twice_in_tensorboard_after_a_suspension_or_a_kill(tmp_path: Path):
    jobs = [[], ["TERM=6"], ["KILL=11"], ["KILL=3"]]
    undisturbed, suspended, killed, from_scratch = run(
        "logs_to_tensorboard.py", tmp_path, *jobs, modules=("torch.utils.tensorboard",)
    )
    assert undisturbed.codes == [0], undisturbed.log
    assert (suspended.codes, suspended.steps) == ([85, 0], [None, 6]), suspended.log
    assert (killed.codes, killed.steps) == ([-9, 0], [None, 8]), killed.log
    assert (from_scratch.codes, from_scratch.steps) == ([-9, 0], [None, None]), from_scratch.log
    for number in range(len(jobs)):
        assert logged(tmp_path / f"job-{number}", "loss") == list(range(1, 21))
