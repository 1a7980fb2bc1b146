"""Sealed files: whole or not there, and read only if no other account could have written them."""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ebbtide import sealed
from ebbtide.sealed import NotSealed, Sealed

KILLED = """
import os, signal, sys
from pathlib import Path
from ebbtide import sealed
step, calls = int(sys.argv[2]), 0
def counted(event, arguments):
    global calls
    if event in ("open", "os.rename"):
        calls += 1
        if calls == step:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(counted)
sealed.write(Path(sys.argv[1]), "result", {"kind": "value"}, b"new" * 100_000)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "sealed"
    made.mkdir(mode=0o700)
    return made


def test_what_was_sealed_is_read_again(folder: Path) -> None:
    content = bytes(range(256)) + b"\n\n"
    sealed.write(folder, "result", {"kind": "value", "words": "é\n"}, content)
    assert sealed.read(folder, "result") == Sealed({"kind": "value", "words": "é\n"}, content)
    assert (folder / "result").stat().st_mode & 0o777 == 0o600
    assert os.listdir(folder) == ["result"]


def test_a_later_one_takes_the_place_of_an_earlier_one(folder: Path) -> None:
    sealed.write(folder, "result", {}, b"1")
    sealed.write(folder, "result", {}, b"2")
    assert sealed.read(folder, "result").content == b"2"


@pytest.mark.parametrize("place", [0, 20, 90, -1])
def test_a_flipped_byte_is_noticed_wherever_it_is(folder: Path, place: int) -> None:
    sealed.write(folder, "result", {"kind": "value"}, b"content")
    content = bytearray((folder / "result").read_bytes())
    content[place] ^= 1
    (folder / "result").write_bytes(content)
    with pytest.raises(NotSealed, match="is not whole"):
        sealed.read(folder, "result")


def test_half_a_file_is_noticed(folder: Path) -> None:
    sealed.write(folder, "result", {}, b"content" * 100)
    os.truncate(folder / "result", 300)
    with pytest.raises(NotSealed, match="is not whole"):
        sealed.read(folder, "result")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_writer_that_is_killed_leaves_the_old_file_or_none(folder: Path, step: int) -> None:
    """At the opening of the directory and of the draft, and just before the rename."""
    sealed.write(folder, "result", {}, b"old")
    done = subprocess.run([sys.executable, "-c", KILLED, folder, str(step)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert sealed.read(folder, "result").content == b"old"


def test_a_file_that_others_can_write_is_not_read(folder: Path) -> None:
    sealed.write(folder, "result", {}, b"")
    (folder / "result").chmod(0o620)
    with pytest.raises(NotSealed, match=r"result: can be written by others: chmod go-w"):
        sealed.read(folder, "result")


def test_nothing_is_read_from_or_written_to_a_folder_that_others_can_write(folder: Path) -> None:
    sealed.write(folder, "result", {}, b"")
    folder.chmod(0o777)
    for act in (lambda: sealed.read(folder, "result"), lambda: sealed.write(folder, "other", {}, b"")):
        with pytest.raises(NotSealed, match="can be written by others"):
            act()
    assert os.listdir(folder) == ["result"]


@pytest.mark.root
@pytest.mark.parametrize("of_another", ["result", "."])
def test_a_file_of_another_account_is_not_read(folder: Path, of_another: str) -> None:
    sealed.write(folder, "result", {}, b"")
    os.chown(folder / of_another, 65534, 65534)
    with pytest.raises(NotSealed, match="belongs to uid 65534, and this is uid 0"):
        sealed.read(folder, "result")


def test_a_link_or_a_pipe_in_the_place_of_the_file_is_not_followed(folder: Path, tmp_path: Path) -> None:
    sealed.write(folder, "other", {}, b"")
    (folder / "link").symlink_to("other")
    os.mkfifo(folder / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=r"symbolic links|not a regular file"):
            sealed.read(folder, name)
    (tmp_path / "elsewhere").symlink_to(folder)
    with pytest.raises(NotSealed, match="is no directory"):
        sealed.read(tmp_path / "elsewhere", "other")


def test_a_file_that_is_too_large_is_not_read_into_memory(folder: Path) -> None:
    sealed.write(folder, "result", {}, b"")
    os.truncate(folder / "result", 2**40)
    with pytest.raises(NotSealed, match="over the limit of 268435456"):
        sealed.read(folder, "result")


def test_a_part_of_a_file_is_read_if_its_digest_matches(folder: Path) -> None:
    (folder / "inputs").write_bytes(b"onetwothree")
    digest = hashlib.sha256(b"two").hexdigest()
    assert sealed.read_part(folder, "inputs", 3, 3, digest) == b"two"
    with pytest.raises(NotSealed, match="bytes 0 to 3 have changed"):
        sealed.read_part(folder, "inputs", 0, 3, digest)
