"""`ebb submit --snapshot`: the archive is at the master before the job is."""

import hashlib
import zlib
from contextlib import contextmanager

import pytest
from ebbtide_cli.errors import Failure
from ebbtide_cli.masters.connection import connected
from ebbtide_cli.masters.finding import find_master
from ebbtide_cli.masters.grpc_calls import stub_at
from ebbtide_cli.snapshot import sending
from ebbtide_cli.snapshot.files import Entry


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(folder)
    return folder


def test_it_is_sent_once_and_named_in_the_job(ebb, master, project):
    for _ in range(2):
        assert ebb("submit", "--snapshot", "--", "python", "train.py").code == 0
    assert len(master.sent("UploadSnapshot")) == 1
    [(digest, sent)] = master.snapshots.items()
    content = zlib.decompress(sent, 31)
    assert hashlib.sha256(content).hexdigest() == digest
    snapshot = master.sent("Submit")[0].spec.snapshot
    assert (snapshot.digest, snapshot.bytes) == (digest, len(content))


def test_a_master_that_goes_away_meanwhile_gets_it_when_it_is_back(ebb, master, project):
    master.mute = 2
    assert ebb("submit", "--snapshot", "--", "python", "train.py").code == 0
    assert len(master.snapshots) == 1


def test_a_dry_run_sends_nothing(ebb, master, project):
    assert ebb("submit", "--snapshot", "--dry-run", "--", "python", "train.py").code == 0
    assert not master.snapshots


def test_a_limit_is_kept_to_before_anything_is_sent(ebb, master, project):
    (project / "large").write_bytes(bytes(3000))
    result = ebb("submit", "--snapshot", "--snapshot-limit", "2KiB", "--", "true")
    assert (result.code, "the largest are large (2.9KiB), train.py" in result.err) == (2, True)
    assert not master.requests
    assert ebb("submit", "--snapshot", "--snapshot-limit", "2TiB", "--", "true").code == 2


@contextmanager
def by_the_library(master):
    """As a master at a port is talked to."""
    with stub_at(find_master(master)) as stub:
        yield stub


@pytest.mark.parametrize("way", [connected, by_the_library])
def test_a_file_that_vanishes_while_it_is_sent_is_named_and_nothing_is_kept(master, project, monkeypatch, caplog, way):
    snapshot = sending.take_snapshot(project, 2**20)
    monkeypatch.setattr(sending, "connected", way)
    monkeypatch.setattr(sending, "list_files", lambda root: [Entry("gone.py", 3), Entry("train.py", 15)])
    with pytest.raises(Failure, match=r"--snapshot: gone.py: No such file or directory"):
        sending.send_snapshot(None, project, snapshot)
    assert len(master.sent("UploadSnapshot")) == 1
    assert (master.snapshots, caplog.messages) == ({}, [])
