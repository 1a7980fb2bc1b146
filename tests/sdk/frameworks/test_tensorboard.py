"""TensorBoard's own reader sees one run, whatever happened to the attempts that wrote it."""

from pathlib import Path

import pytest
from ebbtide import jobs
from ebbtide.integrations.tensorboard import log_dir, purge_step, summary_writer

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


def test_a_run_goes_on_below_the_output_directory_and_elsewhere_where_torch_would_put_it(
    monkeypatch: pytest.MonkeyPatch, make_job
):
    monkeypatch.setattr(jobs, "_job", make_job(attempt=2, EBB_OUTPUT_DIR="/o"))
    assert (log_dir(), purge_step(), purge_step(first=0)) == (Path("/o/tensorboard"), 1, 0)
    monkeypatch.setattr(jobs, "_job", jobs.Job(jobs.Environment()))
    assert (log_dir(), purge_step()) == (Path("runs"), None)


@pytest.mark.parametrize("variable", ["RANK", "EBB_NODE_RANK"])
def test_only_rank_0_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "1")
    writer = summary_writer()
    writer.add_scalar("loss", 1.0, 1)
    writer.close()
    assert list(tmp_path.iterdir()) == []
