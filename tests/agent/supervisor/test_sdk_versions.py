"""Jobs whose own environment has another version of the SDK than the node."""

import logging
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ebbtide.version import CONTRACT, VERSION

from tests.agent.supervisor.node import python

REPOSITORY = Path(__file__).resolve().parents[3]
BEFORE_VERSIONS = "94d509c"
"""A version in which neither the SDK nor the supervisor names one."""
TRAINS = """
import sys, time
import ebbtide
print(ebbtide.__file__, flush=True)
job = ebbtide.job()
state = job.load_checkpoint()
step = state.step if state else 0
while True:
    step += 1
    job.report(step=step, total=1000)
    if job.should_suspend():
        job.suspend(lambda folder: (folder / "state").write_text("x"), step)
    time.sleep(0.01)
"""


def older(folder: Path) -> tuple[str, str]:
    command = ["git", "archive", BEFORE_VERSIONS, "sdk"]
    archive = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    return str(folder / "sdk"), ""


def newer(folder: Path) -> tuple[str, str]:
    """The SDK as it is, with other numbers, and one message more than this supervisor knows."""
    package = folder / "ebbtide"
    package.mkdir()
    for path in (REPOSITORY / "sdk" / "ebbtide").glob("*.py"):
        text = path.read_text()
        if path.name == "version.py":
            text = text.replace(f'"{VERSION}"', '"9.0.0"').replace(f"CONTRACT: Final = {CONTRACT}", "CONTRACT = 99")
        if path.name == "jobs.py":
            text = text.replace(
                '{"kind": "asked"', '{"kind": "of tomorrow"})\n        channel.send(self._socket, {"kind": "asked"'
            )
        (package / path.name).write_text(text)
    return str(folder), f"version=9.0.0 contract=99 ours={CONTRACT}"


@pytest.mark.parametrize("sdk", [pytest.param(older, marks=pytest.mark.history), newer])
async def test_a_job_with_another_sdk_than_the_nodes_reports_saves_and_leaves(
    agent, tmp_path: Path, caplog: pytest.LogCaptureFixture, sdk: Callable[[Path], tuple[str, str]]
) -> None:
    path, logged = sdk(tmp_path)
    caplog.set_level(logging.INFO, "ebbtide_agent")
    async with agent() as node:
        await node.launch(python(TRAINS), env={"PATH": "/bin", "PYTHONPATH": path})
        await node.until(lambda: node.status().progress.step > 3)
        status = await node.stop()
        assert node.log().startswith(path), node.log()
        assert (status.exit.exit_code, status.exit.acknowledged, status.exit.killed) == (85, True, False)
        assert status.checkpoint.step == status.progress.step
    said = [record.getMessage() for record in caplog.records if "event=sdk" in record.getMessage()]
    assert said == ([f"event=sdk job=1 attempt=1 {logged}"] if logged else [])
