"""An archive is whole whatever becomes of the files in it."""

import errno
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from ebbtide_agent.channels import archive

FIRST = os.urandom(1_000_000)


class Pipe(io.BytesIO):
    """Lets something happen when part of the archive has been written."""

    def __init__(self, happens) -> None:
        super().__init__()
        self._happens = happens

    def write(self, data) -> int:
        if len(data) > 1000:
            self._happens()
        return super().write(data)


class Broken(io.FileIO):
    def read(self, size=-1):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "first").write_bytes(FIRST)
    (folder / "second").write_text("whole")
    return folder


def copied(runs: Path, happens=lambda: None) -> dict[str, bytes]:
    out = Pipe(happens)
    archive._send_archive([archive.ArchiveSource(runs, "0")], out)
    head, _, content = out.getvalue().partition(b"\n")
    assert json.loads(head) == {"total": len(FIRST) + len("whole")}
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}


def test_a_file_that_becomes_shorter_ends_in_zeros_and_is_named(runs, capsys):
    found = copied(runs, lambda: os.truncate(runs / "first", 10))
    kept = len(found["0/first"].rstrip(b"\0"))
    assert (len(found["0/first"]), found["0/second"]) == (len(FIRST), b"whole")
    assert 10 <= kept < len(FIRST)
    assert found["0/first"][:kept] == FIRST[:kept]
    assert capsys.readouterr().err == f"{runs}/first: its end, which is zeros in the copy: it became shorter\n"


def test_a_file_that_cannot_be_read_any_more_is_named_and_the_others_come(runs, capsys, monkeypatch):
    opened = archive._open
    monkeypatch.setattr(archive, "_open", lambda path: Broken(path) if path.name == "first" else opened(path))
    assert copied(runs) == {"0/first": bytes(len(FIRST)), "0/second": b"whole"}
    assert capsys.readouterr().err == f"{runs}/first: its end, which is zeros in the copy: Input/output error\n"
