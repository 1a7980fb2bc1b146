"""`ebb submit --snapshot`: the archive is at the master before the job is."""

import hashlib
import zlib

import pytest


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
