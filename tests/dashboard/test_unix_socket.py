"""The UNIX socket for a proxy: who may connect, whose it has to be, and what becomes of one that was left behind."""

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_machine.place import NotTrusted
from ebbtide_web.access import unix_socket
from ebbtide_web.access.unix_socket import NoSocketError, listen_at


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        yield Path(folder) / "web.sock"


def left_behind(path: Path) -> None:
    """A socket whose process was killed."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        return asking.connect_ex(str(path)) == 0


def test_only_this_account_may_connect_or_a_group_if_it_is_named(path):
    made = listen_at(path)
    assert path.lstat().st_mode & 0o777 == 0o600
    assert answers(path)
    made.remove()
    made.socket.close()
    group = os.getgroups()[-1] if os.getgroups() else os.getgid()
    made = listen_at(path, group)
    assert (path.lstat().st_mode & 0o777, path.lstat().st_gid) == (0o660, group)
    made.remove()
    made.socket.close()
    assert list(path.parent.iterdir()) == [], "nothing is left, the lock neither"


def test_before_it_may_be_entered_by_its_own_only_nobody_can_connect(path, monkeypatch):
    seen = []
    chmod = os.chmod
    monkeypatch.setattr(os, "chmod", lambda *given: (seen.append(answers(path)), chmod(*given)))
    made = listen_at(path)
    assert seen == [False]
    made.remove()
    made.socket.close()


def test_the_socket_of_a_dashboard_that_was_killed_is_replaced(path):
    left_behind(path)
    assert path.exists()
    made = listen_at(path)
    assert answers(path)
    made.remove()
    made.socket.close()
    assert not path.exists()


def test_a_socket_at_which_somebody_listens_is_left_alone(path):
    first = listen_at(path)
    with pytest.raises(NoSocketError, match="a process listens there already"):
        listen_at(path)
    assert answers(path)
    first.remove()
    first.socket.close()


def test_one_who_listens_but_takes_nobody_is_left_alone(path, monkeypatch):
    monkeypatch.setattr(unix_socket, "ASKED_S", 0.1)
    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as waiting:
        full.bind(str(path))
        full.listen(0)
        waiting.connect(str(path))
        with pytest.raises(NoSocketError, match="it is not known whether the socket there is in use"):
            listen_at(path)
        assert path.exists()


@pytest.mark.parametrize("make", [lambda path: path.write_text("mine"), lambda path: path.symlink_to("/etc/passwd")])
def test_whatever_is_no_socket_is_left_alone(path, make):
    make(path)
    with pytest.raises(NoSocketError, match="no socket: it is left alone"):
        listen_at(path)
    assert os.path.lexists(path)


def test_a_socket_of_another_account_is_left_alone(path, monkeypatch):
    left_behind(path)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    monkeypatch.setattr(unix_socket, "check_folder", lambda folder: None)
    with pytest.raises(NoSocketError, match=f"there is a socket of uid {uid}"):
        listen_at(path)
    assert path.exists()


def test_in_a_folder_that_others_can_change_there_is_none(path):
    path.parent.chmod(0o777)
    with pytest.raises(NotTrusted, match="can be written by others"):
        listen_at(path)
    path.parent.chmod(0o700)
    with pytest.raises(NotTrusted):
        listen_at(Path("/tmp/ebb-web.sock"))


def test_a_path_that_is_too_long_is_refused_by_its_length(path):
    with pytest.raises(NoSocketError, match="more than 107 bytes"):
        listen_at(path.with_name("x" * 100))


def test_what_was_put_in_its_place_is_not_removed(path):
    made = listen_at(path)
    path.unlink()
    path.write_text("somebody else's")
    made.remove()
    assert path.read_text() == "somebody else's"
    made.socket.close()


def test_of_many_that_start_at_once_over_a_dead_one_a_single_one_listens(path):
    for _ in range(20):
        left_behind(path)
        made, refused = [], []

        def start():
            try:
                made.append(listen_at(path))  # noqa: B023
            except NoSocketError as error:
                refused.append(error)  # noqa: B023

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(made), len(refused)) == (1, 7)
        assert answers(path)
        made[0].remove()
        made[0].socket.close()
        assert list(path.parent.iterdir()) == []
