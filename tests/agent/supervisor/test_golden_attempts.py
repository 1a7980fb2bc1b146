"""Directories of attempts as the version before left them: this one reads them, and goes on from there.

So does a version that an agent goes back to: of an intent it passes over what it does not know.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.agent.supervisor.node import EXITED, OVER, REFUSED

GOLDEN = sorted(path for path in Path(__file__).with_name("golden").iterdir())


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
async def test_what_attempts_of_an_older_version_came_to_is_told_and_none_starts_twice(agent, disk, golden):
    node_dir = disk / "node"
    shutil.copytree(golden, node_dir)
    for path in node_dir.glob("attempts/*/*.json"):
        path.write_text(path.read_text().replace("NODE_DIR", str(node_dir)))
    intent = node_dir / "attempts" / "1.1" / "intent.json"
    intent.write_text(json.dumps(json.loads(intent.read_text()) | {"of_a_newer_version": 1}))
    async with agent() as node:
        await node.until(lambda: node.status("1").phase in OVER and node.status("2").phase in OVER)
        ended, lost = node.status("1"), node.status("2")
        assert (ended.phase, ended.exit.exit_code, ended.lost) == (EXITED, 7, False)
        assert (lost.phase, lost.exit.exit_code, lost.lost) == (EXITED, 125, True)
        assert node.log("1") == "hello\n"
        await node.launch(["true"], job_id="1", attempt=1)
        assert node.status("1").exit.exit_code == 7
        shutil.rmtree(node_dir / "attempts" / "2.1")
    async with agent() as node:
        await node.launch(["true"], job_id="2", attempt=1)
        await node.until(lambda: node.status("2").phase in OVER)
        assert node.status("2").phase == REFUSED
        assert (await node.run(["true"], job_id="2", attempt=2)).exit.exit_code == 0
