"""`make bench`: a part is measured in a process of its own, and what it started is gone, also after Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.docs.pages import REPOSITORY

BENCH = [sys.executable, str(REPOSITORY / "benchmarks" / "bench.py"), "--only", "command", "--into"]
pytestmark = pytest.mark.slow


def left_in(folder: Path) -> list[str]:
    """The processes whose temporary files are in that folder."""
    processes = psutil.process_iter(["pid", "cmdline", "environ"])
    return [
        f"{process.info['pid']} {process.info['cmdline']}"
        for process in processes
        if (process.info["environ"] or {}).get("TMPDIR") == str(folder)
    ]


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="ebb-bench-") as folder:
        yield {**os.environ, "TMPDIR": folder}


@pytest.mark.timeout(600)
def test_a_part_is_measured_written_and_drawn(tmp_path: Path, environment: dict[str, str]) -> None:
    done = subprocess.run([*BENCH, str(tmp_path)], env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: the mark is missed, which depends on the machine
    values = json.loads((tmp_path / "values.json").read_text())["values"]
    assert {"ebb submit: CPU", "ebb --version: wall"} <= {value["name"] for value in values}
    assert "| ebb submit: CPU |" in (tmp_path / "table.md").read_text()
    assert {path.name for path in tmp_path.glob("*.png")} == {"command.png", "marks.png"}
    assert left_in(Path(environment["TMPDIR"])) == []


@pytest.mark.timeout(600)
def test_ctrl_c_ends_it_and_nothing_is_left(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = Path(environment["TMPDIR"])
    with subprocess.Popen([*BENCH, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True) as bench:
        while not any(folder.glob("ebb-*/master.json")):
            assert bench.poll() is None
        bench.send_signal(signal.SIGINT)
        out, _ = bench.communicate()
    assert bench.returncode == 130
    assert "interrupted" in out
    assert left_in(folder) == []
    assert [path.name for path in folder.iterdir()] == []
