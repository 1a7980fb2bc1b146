"""A node that sends more than was asked for: `ebb cp` makes and writes nothing outside its destination."""

import errno
import io
import os
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from ebbtide_cli.channels.extracting import Unpacked, unpack
from hypothesis import example, given, settings
from hypothesis import strategies as st

Member = tuple[str, str, str]
"""Name, type and what it leads to."""
KINDS = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "fifo": tarfile.FIFOTYPE,
    "device": tarfile.CHRTYPE,
}


def archive(*members: Member) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, leads_to in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = KINDS[kind], leads_to, 0o6777
            member.size = 4 if kind == "file" else 0
            tar.addfile(member, io.BytesIO(b"evil") if kind == "file" else None)
    out.seek(0)
    return out


def taken(folder: Path, *members: Member) -> Unpacked:
    """Unpacked into `home/tree`; nothing else below the folder may have changed, nor may a link lead out."""
    home = folder / "home"
    home.mkdir()
    (folder / "victim").mkdir()
    (folder / "victim/file").write_text("mine")
    (home / "beside").write_text("mine")
    done = Unpacked()
    with suppress(OSError):  # a file where a directory is to be
        done = unpack(archive(*members), [home / "tree"], lambda _: None)
    outside = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_relative_to(home / "tree")}
    assert outside == {"home", "home/beside", "victim", "victim/file"}
    assert {(folder / "victim/file").read_text(), (home / "beside").read_text()} == {"mine"}
    for path in [home / "tree", *(home / "tree").rglob("*")]:
        if path.is_symlink():
            if is_a_loop(path):  # it leads nowhere, and what realpath answers then depends on how it is written
                continue
            assert Path(os.path.realpath(path)).is_relative_to(home / "tree"), path
        elif path.exists():
            assert path.lstat().st_mode & 0o6022 == 0 or path.is_dir()
    return done


def is_a_loop(link: Path) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


@pytest.mark.parametrize(
    "members",
    [
        [("0", "directory", ""), ("0/../../victim/made", "directory", "")],
        [("0", "directory", ""), ("0/..", "directory", ""), ("0//etc", "directory", "")],
        [("0", "link", "beside"), ("0", "file", "")],
        [("0", "hard link", "beside"), ("0", "file", "")],
        [("0", "directory", ""), ("0/a", "link", "../beside"), ("0/a", "file", "")],
        [("0/a", "link", "."), ("0/a/b", "link", ".."), ("0/a/b/beside", "file", "")],
        [("0/d", "directory", ""), ("0/d/b", "link", ".."), ("0/d/a", "link", "b/.."), ("0/d/a/beside", "file", "")],
        [("0/a", "hard link", "0/../../victim/file"), ("0/a", "file", "")],
        [("0/a", "fifo", ""), ("0/b", "device", "")],
    ],
    ids=[
        "a directory above", "dots and an empty name", "a link as the destination", "a second name of a neighbour",
        "a link and a file in its place", "a link below a link", "links that climb together", "a second name",
        "special files",
    ],
)  # fmt: skip
def test_a_malicious_node_makes_and_writes_nothing_outside_the_destination(
    tmp_path: Path, members: list[Member]
) -> None:
    assert taken(tmp_path, *members).left_out


PARTS = st.sampled_from(["a", "b", "..", ".", "", "beside", "victim", "file"])
PATHS = st.lists(PARTS, max_size=5).map("/".join)
MEMBERS = st.lists(st.tuples(PATHS.map("0/".__add__) | st.just("0"), st.sampled_from(sorted(KINDS)), PATHS), max_size=8)


@settings(deadline=None)
@example(members=[("0/a", "link", "a//a")])
@given(members=MEMBERS)
def test_no_archive_leaves_its_destination(tmp_path_factory: pytest.TempPathFactory, members: list[Member]) -> None:
    taken(tmp_path_factory.mktemp("copies"), *members)
