"""The compiled core and the interpreted one are the same: tests pass on both, and logs have the same bytes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts" / "compile_core.py"
ORIGINS = """
import importlib, runpy, sys
listed = runpy.run_path(sys.argv[1])["COMPILED"]
for path in listed:
    print(importlib.import_module(path.removesuffix(".py").replace("/", ".")).__file__)
"""
AMISS = """
from ebbtide_core.model.settings import Fitting
from ebbtide_core.model.types import Allocation, JobId, NodeAllocation, NodeId
from ebbtide_core.resources.books import Books
import traceback
try:
    Books({}, set(), [], Fitting.BEST).occupy(JobId("1"), Allocation((NodeAllocation(NodeId("nowhere"), ()),)))
except KeyError:
    traceback.print_exc()  # as logging and EBB_DEBUG do
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.programs("cc")]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages and their compiled modules; unoptimised, which is as right and sooner there."""
    folder = tmp_path_factory.mktemp("compiled")
    subprocess.run([sys.executable, SCRIPT, folder, "--opt-level", "0"], check=True)
    return folder


def python(*arguments: str | Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python in the repository with ``path``, if given, before all others on the path of modules."""
    environment = os.environ | ({} if path is None else {"PYTHONPATH": str(path)})
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [sys.executable, *arguments], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )


def test_every_module_of_the_list_runs_compiled(compiled: Path) -> None:
    ran = python("-c", ORIGINS, SCRIPT, path=compiled)
    assert ran.returncode == 0, ran.stderr
    files = [Path(line) for line in ran.stdout.splitlines()]
    assert files
    assert all(file.is_relative_to(compiled) and file.suffix == ".so" for file in files), ran.stdout


def test_ebb_says_which_core_it_runs(compiled: Path) -> None:
    assert python("-m", "ebbtide_cli.main", "--version").stdout.endswith(" (pure Python core)\n")
    assert python("-m", "ebbtide_cli.main", "--version", path=compiled).stdout.endswith(" (compiled core)\n")


def test_simulations_leave_the_same_logs_and_the_same_state(compiled: Path, tmp_path: Path) -> None:
    written: list[dict[str, bytes]] = []
    for name, path in (("pure", None), ("compiled", compiled)):
        folder = tmp_path / name
        folder.mkdir()
        ran = python("-m", "tests.compiled.runs", folder, path=path)
        assert ran.returncode == 0, ran.stderr
        written.append({file.name: file.read_bytes() for file in sorted(folder.iterdir())})
    assert len(written[0]) > 20
    assert written[0].keys() == written[1].keys()
    assert [name for name, content in written[0].items() if content != written[1][name]] == []


def test_a_traceback_names_file_line_and_function(compiled: Path) -> None:
    shown = python("-c", AMISS, path=compiled).stderr
    assert "KeyError: 'nowhere'" in shown
    found = re.search(r'File "ebbtide_core/resources/books.py", line (\d+), in occupy', shown)
    assert found is not None, shown
    lines = (compiled / "ebbtide_core" / "resources" / "books.py").read_text().splitlines()
    assert lines[int(found[1]) - 1].strip() == "node = nodes[piece.node]"


def test_the_tests_of_core_and_simulator_pass(compiled: Path) -> None:
    chosen = "not slow and not traces and not replaces"
    ran = python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen, "tests/core", "tests/simulator", path=compiled
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-5000:]
