"""Jobs whose Python is their user's own: a virtual environment in which no ebbtide is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.supervisor.node import Node

REPORTS = "import ebbtide; ebbtide.job().report(step=3, total=5); print(ebbtide.__file__)"


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With nothing installed in it."""
    folder = tmp_path_factory.mktemp("own") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


async def said(node: Node, *command: object, **options: object) -> str:
    """What the job printed, to its end."""
    await node.run([str(word) for word in command], **options)
    return node.log()


async def test_a_python_without_the_sdk_finds_the_agents_and_reports_with_it(agent, venv):
    """A ModuleNotFoundError for `import ebbtide` was what a newcomer's own environment had to say."""
    async with agent() as node:
        status = await node.run([str(venv / "bin/python"), "-c", REPORTS])
        assert (status.exit.exit_code, status.progress.step, status.progress.total) == (0, 3, 5), node.log()


async def test_so_does_one_that_a_script_activates(agent, venv):
    """Nobody can know beforehand which Python that will be."""
    async with agent() as node:
        status = await node.run(["bash", "-c", f". {venv}/bin/activate && python -c '{REPORTS}'"])
        assert (status.exit.exit_code, status.progress.step) == (0, 3), node.log()


async def test_without_it_there_is_only_what_is_installed(agent, venv):
    async with agent() as node:
        log = await said(node, venv / "bin/python", "-c", REPORTS, no_sdk=True)
        assert "ModuleNotFoundError: No module named 'ebbtide'" in log


async def test_one_that_is_installed_is_the_one(agent, venv):
    package = next((venv / "lib").glob("python3.*/site-packages")) / "ebbtide"
    package.mkdir()
    (package / "__init__.py").write_text("VERSION = 7\n")
    async with agent() as node:
        try:
            assert await said(node, venv / "bin/python", "-c", "import ebbtide; print(ebbtide.VERSION)") == "7\n"
        finally:
            shutil.rmtree(package)


async def test_what_the_user_has_on_the_path_comes_first(agent, venv, tmp_path):
    (tmp_path / "mine.py").write_text("print('mine')\n")
    async with agent() as node:
        env = {"PYTHONPATH": str(tmp_path)}
        log = await said(node, venv / "bin/python", "-c", "import mine, ebbtide; print('both')", env=env)
        assert log == "mine\nboth\n"
