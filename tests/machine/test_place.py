"""What is believed of a disk: only what nobody else could have put there."""

import os
import pwd
from pathlib import Path

import pytest
from ebbtide_machine.place import NotTrusted, check_file, check_folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "above" / "home"
    path.mkdir(parents=True)
    path.chmod(0o700)
    return path


def test_what_is_this_accounts_and_roots_alone_is_believed(home: Path) -> None:
    record = home / "record"
    record.write_text("{}")
    record.chmod(0o644)
    check_folder(home)
    check_file(record)
    (home.parent / "link").symlink_to("./home/../home")
    check_folder(home.parent / "link")
    check_file(home.parent / "link" / "record")


def test_where_others_can_write_nothing_is_believed(home: Path) -> None:
    for place, mode in ((home, 0o702), (home, 0o1777), (home.parent, 0o707)):
        before = place.stat().st_mode & 0o7777
        place.chmod(mode)
        with pytest.raises(NotTrusted, match=f"{place} can be written by others"):
            check_folder(home)
        place.chmod(before)
    home.parent.chmod(0o1777)  # as /tmp has it
    check_folder(home)


def test_a_directory_of_a_group_is_believed_only_if_nobody_else_is_in_it(home: Path) -> None:
    account = pwd.getpwuid(os.geteuid())
    groups = [gid for gid in os.getgroups() if gid != account.pw_gid] if os.geteuid() else [65534]
    home.chmod(0o770)
    for gid in groups:
        os.chown(home, -1, gid)
        with pytest.raises(NotTrusted, match="can be written by others"):
            check_folder(home)


def test_a_file_that_others_can_write_or_that_is_none_is_not_believed(home: Path) -> None:
    record = home / "record"
    record.write_text("{}")
    record.chmod(0o646)
    with pytest.raises(NotTrusted, match="can be written by others"):
        check_file(record)
    (home / "link").symlink_to(record)
    os.mkfifo(home / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(NotTrusted, match="is no regular file"):
            check_file(home / name)


def test_links_in_a_circle_end(home: Path) -> None:
    (home / "a").symlink_to(home / "b")
    (home / "b").symlink_to(home / "a")
    with pytest.raises(NotTrusted, match="too many links"):
        check_folder(home / "a")


@pytest.mark.root
def test_what_another_account_owns_is_not_believed(home: Path) -> None:
    record, link = home / "record", home.parent / "link"
    record.write_text("{}")
    link.symlink_to(home)
    for place, path in ((record, record), (home, record), (home.parent, record)):
        os.chown(place, 4711, 4711)
        with pytest.raises(NotTrusted, match=f"{place} belongs to uid 4711"):
            check_file(path)
        os.chown(place, 0, 0)
    os.lchown(link, 4711, 4711)
    with pytest.raises(NotTrusted, match=f"{link} belongs to uid 4711"):
        check_folder(link)
