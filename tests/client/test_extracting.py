"""What comes from a node is unpacked below the destination, whatever it says."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from ebbtide_cli.channels.extracting import NotAnArchive, unpack


def archive(*members: tuple[str, object], cut: int | None = None) -> io.BytesIO:
    """Members by name: bytes are a file's, None is a directory, a string is where a link leads."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
                continue
            member.type = tarfile.DIRTYPE if content is None else tarfile.SYMTYPE
            member.mode = 0o755
            member.linkname = content or ""
            tar.addfile(member)
    return io.BytesIO(out.getvalue()[:cut])


def take(source: io.BytesIO, *targets: Path):
    return unpack(source, targets, lambda done: None)


def test_a_file_and_a_tree_go_to_their_own_places(tmp_path):
    source = archive(("0", b"one"), ("1", None), ("1/a", None), ("1/a/b\nc", b"two"), ("1/link", "a"))
    done = take(source, tmp_path / "file", tmp_path / "tree")
    assert (tmp_path / "file").read_bytes() == b"one"
    assert (tmp_path / "tree/a/b\nc").read_bytes() == b"two"
    assert os.readlink(tmp_path / "tree/link") == "a"
    assert (done.files, done.bytes, done.left_out) == (2, 6, [])


def test_a_python_whose_tarfile_has_no_filters_unpacks_as_well(tmp_path, monkeypatch):
    """Debian 12's 3.11.2 has none: `ebb cp` crashed there over tarfile.FilterError."""
    for name in [name for name in vars(tarfile) if "Filter" in name or name.endswith("_filter")]:
        monkeypatch.delattr(tarfile, name)
    with pytest.raises(NotAnArchive):
        take(io.BytesIO(b"no archive"), tmp_path / "tree")
    done = take(archive(("0", None), ("0/a", b"one"), ("0/up", "../..")), tmp_path / "tree")
    assert ((tmp_path / "tree/a").read_bytes(), done.files, len(done.left_out)) == (b"one", 1, 1)


def test_names_and_links_that_lead_out_are_left_out_and_named(tmp_path):
    home = tmp_path / "home"
    source = archive(
        ("0", None), ("0/../escaped", b"x"), ("0/abs", "/etc/passwd"), ("0/up", "../.."), ("0/ok", b"y")
    )  # fmt: skip
    home.mkdir()
    done = take(source, home / "tree")
    assert [line.partition(": ")[2] for line in done.left_out] == [
        "would lie outside the destination", *["a link that leads out of what is copied"] * 2
    ]  # fmt: skip
    assert sorted(path.name for path in home.rglob("*")) == ["ok", "tree"]


def test_nothing_is_written_through_a_link_that_was_there_before(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/sub").symlink_to(tmp_path / "outside")
    done = take(archive(("0", None), ("0/sub/file", b"x")), tmp_path / "tree")
    assert len(done.left_out) == 1
    assert list((tmp_path / "outside").iterdir()) == []


def test_of_an_archive_that_is_cut_short_no_half_file_is_left(tmp_path):
    with pytest.raises(NotAnArchive, match="cut short"):
        take(archive(("0", bytes(100_000)), cut=50_000), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_tree_that_nobody_asked_for_is_refused(tmp_path):
    for name in ("1", "x", "../0"):
        with pytest.raises(NotAnArchive, match="was not asked for"):
            take(archive((name, b"x")), tmp_path / "file")
