"""The recipes on two ranks, one of which is asked to stop: both leave at the same step, and both go on."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from ebbtide import checkpoints

from tests.ports import free_port
from tests.sdk.frameworks.running import ENVIRONMENT, HERE, logged

DEADLINE_S = 100.0


def run(script: str, folder: Path, attempt: int, asked: str = "") -> tuple[list[int], list[str]]:
    """One attempt on two ranks, of which rank 1 sends itself what is asked: exit codes, and what they printed."""
    folder.mkdir(exist_ok=True)
    found = checkpoints.newest_valid(folder)
    port = str(free_port())
    variables = {name: value for name, value in os.environ.items() if not name.startswith("EBB_")} | ENVIRONMENT
    variables |= {"EBB_JOB_ID": "7", "EBB_ATTEMPT": str(attempt), "EBB_OUTPUT_DIR": str(folder / "output")}
    variables |= {"EBB_CHECKPOINT_DIR": str(folder / f"attempt-{attempt}")}
    variables |= {"EBB_RESUME_DIR": str(found.path) if found else ""}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    variables |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
    with ExitStack() as stack:
        ranks = []
        for rank in ("0", "1"):
            command = [sys.executable, str(HERE / script), *([asked] if asked and rank == "1" else [])]
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=variables | {"RANK": rank, "LOCAL_RANK": rank},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            ranks.append(stack.enter_context(process))
            stack.callback(process.kill)
        texts = [process.communicate(timeout=DEADLINE_S)[0] for process in ranks]
        return [process.returncode for process in ranks], texts


def digests(texts: list[str]) -> set[str]:
    return {digest for text in texts for digest in re.findall(r"^digest (\w+)$", text, re.MULTILINE)}


@pytest.mark.slow
@pytest.mark.timeout(400)  # three times two processes that import a framework, on as few cores as there are
@pytest.mark.parametrize(
    ("script", "tag"), [("hugging_face.py", "train/loss"), ("lightning_fit.py", "loss"), ("accelerate_loop.py", "")]
)
def test_two_ranks_leave_together_and_end_with_the_same_weights(tmp_path: Path, script: str, tag: str):
    codes, peace = run(script, tmp_path / "peace", 1)
    assert codes == [0, 0], peace
    codes, texts = run(script, tmp_path / "job", 1, "TERM=2")
    assert codes == [85, 85], texts
    codes, texts = run(script, tmp_path / "job", 2)
    assert codes == [0, 0], texts
    assert digests(texts) == digests(peace)
    assert len(digests(texts)) == 1
    if tag:
        assert logged(tmp_path / "job", tag) == logged(tmp_path / "peace", tag) != []


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_save_under_lightning_that_fails_on_the_rank_that_writes_is_raised_on_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DISK", "full")
    codes, texts = run("lightning_fit.py", tmp_path / "job", 1)
    assert codes == [1, 1], texts
    assert "OSError: [Errno 28] No space left on device" in texts[0]
    assert "CheckpointFailed: rank 0: OSError(28, 'No space left on device')" in texts[1]
