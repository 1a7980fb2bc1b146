"""The directory of a master's socket: who may have been in it before a master listens there."""

import stat
from pathlib import Path

import pytest
from ebbtide_machine import place
from ebbtide_machine.place import NotTrusted
from ebbtide_protos import home_socket


def mode_of(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def run_of(home: Path, mode: int) -> Path:
    """The directory, as a master that was there before has left it, and somebody has changed it."""
    with home_socket.made(home):
        pass
    (home / "run").chmod(mode)
    return home / "run"


@pytest.mark.parametrize("mode", [0o2750, 0o2700, 0o711, 0o755])
def test_a_directory_that_others_could_only_enter_is_closed_before_a_master_listens_there(tmp_path: Path, mode: int):
    run = run_of(tmp_path, mode)
    with home_socket.made(tmp_path):
        assert mode_of(run) == 0o700


def test_a_master_starts_again_though_kubernetes_has_opened_its_directory_to_the_group_of_its_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = run_of(tmp_path, 0o2770)  # what a mount with an fsGroup makes of 0700
    monkeypatch.setattr(place, "_is_personal", lambda gid: True)
    with home_socket.made(tmp_path):
        assert mode_of(run) == 0o700


def test_where_a_group_could_have_put_something_no_master_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = run_of(tmp_path, 0o2770)
    monkeypatch.setattr(place, "_is_personal", lambda gid: False)
    with pytest.raises(NotTrusted, match="can be written by others"), home_socket.made(tmp_path):
        pass
    assert mode_of(run) == 0o2770
