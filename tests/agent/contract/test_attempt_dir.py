"""The directories of an attempt."""

import stat
from pathlib import Path

import pytest
from ebbtide_agent.contract import attempt_dir
from ebbtide_agent.contract.attempt_dir import AttemptDir


def test_of_two_attempts_that_make_the_socket_directories_at_once_neither_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first ones after a boot do."""
    first, second = (AttemptDir.of(tmp_path, job, 1) for job in ("1", "2"))
    make = Path.mkdir
    others = iter([second])

    def make_later(folder: Path) -> None:
        for other in others:
            other.make_socket_dir()
        make(folder)

    monkeypatch.setattr(attempt_dir, "SOCKET_DIRS", tmp_path / "run")
    monkeypatch.setattr(Path, "mkdir", make_later)
    first.make_socket_dir()
    modes = [stat.S_IMODE(place.socket_dir.stat().st_mode) for place in (first, second)]
    assert modes == [0o755, 0o755]
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o711
