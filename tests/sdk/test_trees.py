"""Trees of any depth, walked and removed without recursion and without passing over anything."""

import errno
import os
from pathlib import Path

import pytest
from ebbtide import regular, trees

DEPTH = 1_100


def deep(root: Path, levels: int, name: str = "d") -> None:
    """Directories in each other, with a file in the last."""
    current = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=current)
        below = os.open(name, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=current))
    os.close(current)


def test_a_walk_sees_what_is_there_in_order(tmp_path: Path) -> None:
    for path in ("b/2", "b/1", "a/3/4"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "b" / "away").symlink_to("/")
    found = [(folder.path, folder.files, folder.folders) for folder in trees.walk(tmp_path)]
    assert found == [
        ("", [], ["a", "b"]),
        ("a", [], ["3"]),
        ("a/3", ["4"], []),
        ("b", ["1", "2", "away"], []),
    ]


def test_a_walk_leaves_out_what_is_taken_out(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    seen = []
    for folder in trees.walk(tmp_path):
        seen.append(folder.path)
        folder.folders[:] = [name for name in folder.folders if name != "a"]
    assert seen == ["", "c"]


def test_depth_is_no_matter(tmp_path: Path) -> None:
    deep(tmp_path, DEPTH)
    assert sum(len(folder.files) for folder in trees.walk(tmp_path)) == 1
    trees.remove(tmp_path / "d")  # what pytest cannot


def test_what_is_deeper_than_any_path_is_an_error_and_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    deep(tmp_path / "root", 2_100)
    with pytest.raises(OSError, match="too long") as caught:
        list(trees.walk(tmp_path / "root"))
    assert caught.value.errno == errno.ENAMETOOLONG
    trees.remove(tmp_path / "root")
    assert list(tmp_path.iterdir()) == []


def test_a_removal_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").touch()
    (tmp_path / "root" / "in").mkdir(parents=True)
    (tmp_path / "root" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "root" / "in" / "link").symlink_to(tmp_path / "other")
    os.mkfifo(tmp_path / "root" / "pipe")
    trees.remove(tmp_path / "root")
    assert not (tmp_path / "root").exists()
    assert (tmp_path / "other" / "precious").exists()
    (tmp_path / "root").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="Not a directory"):
        trees.remove(tmp_path / "root")
    assert (tmp_path / "other" / "precious").exists()


def test_a_walk_is_bounded(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / str(number)).touch()
    with pytest.raises(OSError, match="more entries"):
        list(trees.walk(tmp_path, entries=9))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.ESTALE], ids=["EMFILE", "EIO", "ESTALE"])
def test_no_error_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    fail_to_open(monkeypatch, "b", code)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - which one is what is asked
        list(trees.walk(tmp_path, changing=True))
    assert caught.value.errno == code


def test_a_directory_that_is_moved_meanwhile_ends_the_walk(tmp_path: Path) -> None:
    (tmp_path / "root" / "a" / "b").mkdir(parents=True)
    walking = trees.walk(tmp_path / "root")
    assert [next(walking).path for _ in range(3)] == ["", "a", "a/b"]
    (tmp_path / "root" / "a" / "b").rename(tmp_path / "b")
    with pytest.raises(OSError, match="moved") as caught:
        next(walking)
    assert caught.value.errno == errno.ESTALE


def fail_to_open(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    real = os.open

    def broken(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == name:
            raise OSError(code, os.strerror(code))
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", broken)


class TestRegularFiles:
    def test_nothing_else_is_read(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link").symlink_to("/etc/passwd")
        for name in ("pipe", "link", ""):
            with pytest.raises(OSError):  # noqa: PT011 - each kind has an error of its own
                regular.read_regular(tmp_path / name, 100)
        with pytest.raises(OSError, match="not a regular file"):
            regular.read_regular("/dev/zero", 100)

    def test_not_more_than_the_limit_is_read(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"0123456789")
        assert regular.read_regular(tmp_path / "file", 10) == b"0123456789"
        with pytest.raises(OSError, match="more than 9 bytes"):
            regular.read_regular(tmp_path / "file", 9)
        os.truncate(tmp_path / "file", 2 << 30)
        with pytest.raises(OSError, match="more than"):
            regular.read_regular(tmp_path / "file", 10)
