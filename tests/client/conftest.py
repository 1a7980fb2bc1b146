"""Runs `ebb` in this process against a scripted master, or in one of its own where that is the point."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_cli.main import main

from tests.client.runs import Ebb, Result, start_ebb
from tests.client.scripted_master import ScriptedMaster, serving
from tests.json_schema import check_json


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty EBB_HOME, and no master named by the environment."""
    monkeypatch.setenv("EBB_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("EBB_MASTER", raising=False)
    monkeypatch.delenv("EBB_DEBUG", raising=False)
    return tmp_path


@pytest.fixture
def master(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedMaster]:
    """A scripted master that `ebb` finds through EBB_MASTER."""
    scripted = ScriptedMaster()
    with serving(scripted) as address:
        monkeypatch.setenv("EBB_MASTER", address)
        yield scripted


@pytest.fixture
def ebb(home: Path, capfd: pytest.CaptureFixture[str]) -> Ebb:
    """Run `ebb` with arguments in this process."""

    def run(*arguments: str) -> Result:
        capfd.readouterr()
        code = main(arguments)
        sys.stdout.flush()
        result = Result(code, *capfd.readouterr())
        check_json(arguments, result.out)
        return result

    return run


@pytest.fixture
def ebb_process(home: Path) -> Ebb:
    """Run `ebb` with arguments in a process of its own."""

    def run(*arguments: str) -> Result:
        with start_ebb(*arguments) as process:
            out, err = process.communicate(timeout=60)
        return Result(process.returncode, out, err)

    return run
