"""Paths that a job requires on its node."""

from pathlib import Path

import pytest
from ebbtide_agent.files import required
from ebbtide_agent.helper.answer import NoAnswer


async def test_the_first_path_that_is_missing_is_named(tmp_path: Path) -> None:
    here, gone = str(tmp_path), str(tmp_path / "gone")
    assert await required.missing([here]) == ""
    assert await required.missing([here, gone]) == f"{gone} does not exist here (--require-path)"


async def test_a_mount_that_does_not_answer_is_taken_for_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(*_: object, **__: object) -> NoAnswer:
        return NoAnswer("no answer in time")

    monkeypatch.setattr(required, "ask", nobody)
    assert await required.missing(["/nfs"]) == "/nfs does not answer (--require-path)"
