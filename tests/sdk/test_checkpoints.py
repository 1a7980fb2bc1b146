"""Checkpoints on disk: what a crash, a flipped bit, a full disk or a late process can and cannot do to them."""

import errno
import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ebbtide import checkpoints, manifests
from ebbtide.checkpoints import InvalidCheckpoint


def writing(text: str) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / "shards").mkdir()
        (directory / "shards" / "0.bin").write_bytes(text.encode() * 100)
        (directory / "state.txt").write_text(text)

    return write


def publish(job_dir: Path, attempt: int, step: int, text: str = "weights") -> checkpoints.Checkpoint:
    return checkpoints.publish(job_dir / f"attempt-{attempt}", step, writing(text), job_id="7", attempt=attempt)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_published_checkpoint_verifies_and_says_what_it_is(tmp_path: Path) -> None:
    published = publish(tmp_path, attempt=3, step=12)
    assert published.path == tmp_path / "attempt-3" / "step-000000000012"
    assert checkpoints.verify(published.path) == published
    assert (published.step, published.attempt, published.complete) == (12, 3, True)
    assert published.bytes == 707
    manifest = json.loads((published.path / "MANIFEST.json").read_text())
    assert [file["path"] for file in manifest["files"]] == ["state.txt", "shards/0.bin"]
    assert (manifest["format"], manifest["job_id"], manifest["sealed_by"]) == (1, "7", "sdk")


def test_the_newest_checkpoint_is_of_the_last_attempt_and_there_of_the_highest_step(tmp_path: Path) -> None:
    for attempt, step in [(1, 900), (2, 100), (2, 1_000), (10, 50)]:
        publish(tmp_path, attempt, step)
    newest = checkpoints.newest_valid(tmp_path)
    assert newest is not None
    assert (newest.attempt, newest.step) == (10, 50)
    before = checkpoints.newest_valid(tmp_path, before_attempt=10)
    assert before is not None
    assert (before.attempt, before.step) == (2, 1_000)


def test_what_a_stale_attempt_publishes_late_replaces_nothing_of_a_newer_one(tmp_path: Path) -> None:
    newer = publish(tmp_path, 2, 10, "newer")
    publish(tmp_path, 1, 10, "stale")
    publish(tmp_path, 1, 9_000, "stale")
    assert checkpoints.newest_valid(tmp_path) == newer
    assert checkpoints.verify(newer.path) == newer
    assert newer.path not in checkpoints.retain(tmp_path)


def test_a_job_without_a_directory_has_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoints.newest_valid(tmp_path / "none") is None
    assert not list(checkpoints._candidates(tmp_path / "none"))
    assert checkpoints.retain(tmp_path / "none") == []


@pytest.mark.parametrize("victim", ["state.txt", "shards/0.bin", "MANIFEST.json"])
@pytest.mark.parametrize("mask", [1, 16, 0x57])  # 0x57 makes an "e" of a "2", and so of 1200 bytes infinitely many
def test_after_a_byte_flipped_anywhere_the_previous_checkpoint_is_used(tmp_path: Path, victim: str, mask: int) -> None:
    older = publish(tmp_path, 1, 10)
    newer = publish(tmp_path, 1, 20)
    data = (newer.path / victim).read_bytes()
    for offset in range(0, len(data), 1 if mask == 0x57 and victim == "MANIFEST.json" else 7):
        (newer.path / victim).write_bytes(data[:offset] + bytes([data[offset] ^ mask]) + data[offset + 1 :])
        found = checkpoints.newest_valid(tmp_path)
        # A manifest may still say the same, as after a flip in a blank, or in the name of its own digest.
        assert found == older or (found == newer and victim == "MANIFEST.json"), (offset, found)
    (newer.path / victim).write_bytes(data)
    assert checkpoints.newest_valid(tmp_path) == newer


def test_a_manifest_without_a_digest_of_its_own_is_an_older_one_and_valid(tmp_path: Path) -> None:
    published = publish(tmp_path, 1, 10)
    manifest = json.loads((published.path / "MANIFEST.json").read_text())
    del manifest["manifest_sha256"]
    (published.path / "MANIFEST.json").write_text(json.dumps(manifest))
    assert checkpoints.verify(published.path) == published


def test_a_manifest_with_numbers_that_no_file_has_is_invalid(tmp_path: Path) -> None:
    path = publish(tmp_path, 1, 10).path
    (path / "MANIFEST.json").write_text('{"format": 1, "files": [{"path": "state.txt", "sha256": "", "bytes": 1e999}]}')
    with pytest.raises(InvalidCheckpoint, match="not a manifest"):
        checkpoints.verify(path)


def test_each_kind_of_damage_is_named(tmp_path: Path) -> None:
    path = publish(tmp_path, 1, 10).path
    (path / "state.txt").write_text("short")
    with pytest.raises(InvalidCheckpoint, match=r"state\.txt: 5 bytes, 7 in MANIFEST"):
        checkpoints.verify(path)
    (path / "state.txt").unlink()
    with pytest.raises(InvalidCheckpoint, match=r"state\.txt: missing"):
        checkpoints.verify(path)
    (path / "state.txt").symlink_to(path / "shards" / "0.bin")
    with pytest.raises(InvalidCheckpoint, match=r"state\.txt: not a regular file"):
        checkpoints.verify(path)
    (path / "MANIFEST.json").write_text('{"format": 1')
    with pytest.raises(InvalidCheckpoint, match="not a manifest"):
        checkpoints.verify(path)
    (path / "MANIFEST.json").unlink()
    with pytest.raises(InvalidCheckpoint, match=r"no MANIFEST\.json"):
        checkpoints.verify(path)
    assert list(checkpoints._candidates(tmp_path)), "what is damaged had been published all the same"


@pytest.mark.parametrize("name", ["../other/state.txt", "/etc/passwd", "state.txt\0"])
def test_a_manifest_cannot_point_outside_its_checkpoint(tmp_path: Path, name: str) -> None:
    path = publish(tmp_path, 1, 10).path
    manifest = json.loads((path / "MANIFEST.json").read_text())
    manifest["files"][0]["path"] = name
    del manifest["manifest_sha256"]
    (path / "MANIFEST.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidCheckpoint, match="leaves the checkpoint"):
        checkpoints.verify(path)


@pytest.mark.parametrize(
    "rest",
    [
        {"links": {"a": "/etc"}},
        {"links": {"a": "//etc"}},
        {"links": {"a": "../other"}},
        {"links": {"a": "."}},
        {"links": {"a": "b/../.."}},
        {"links": {"a/b": "../../other"}},
        {"links": {"/tmp/a": "b"}},
        {"links": {"../a": "b"}},
        {"links": {"": "b"}},
        {"links": {"a": "shards", "a/b": "c"}},
        {"links": {"shards": "a"}},
        {"links": {"state.txt": "shards/0.bin"}},
        {"links": {"a": "shards"}, "folders": ["a/b"]},
        {"links": {"a": "shards"}, "folders": ["a"]},
        {"folders": ["../a"]},
        {"folders": ["/tmp/a"]},
        {"folders": [""]},
    ],
    ids=str,
)
def test_no_link_and_no_folder_of_a_manifest_leads_out_of_its_checkpoint(
    tmp_path: Path, rest: dict[str, object]
) -> None:
    path = publish(tmp_path, 1, 10).path
    manifest = json.loads((path / "MANIFEST.json").read_text())
    del manifest["manifest_sha256"]
    (path / "MANIFEST.json").write_text(json.dumps(manifest | rest))
    with pytest.raises(InvalidCheckpoint, match="leaves the checkpoint"):
        checkpoints.verify(path)


@pytest.mark.parametrize("rest", [{"links": ["a"]}, {"links": 7}, {"folders": 7}], ids=str)
def test_a_manifest_with_links_or_folders_that_are_none_is_invalid(tmp_path: Path, rest: dict[str, object]) -> None:
    path = publish(tmp_path, 1, 10).path
    manifest = json.loads((path / "MANIFEST.json").read_text())
    del manifest["manifest_sha256"]
    (path / "MANIFEST.json").write_text(json.dumps(manifest | rest))
    with pytest.raises(InvalidCheckpoint, match="not a manifest"):
        checkpoints.verify(path)


def test_a_save_that_fails_publishes_nothing_and_leaves_no_litter(tmp_path: Path) -> None:
    older = publish(tmp_path, 1, 10)

    def full(directory: Path) -> None:
        (directory / "half").write_bytes(b"x" * 1000)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkpoints.publish(tmp_path / "attempt-1", 20, full, job_id="7", attempt=1)
    assert checkpoints.newest_valid(tmp_path) == older
    assert os.listdir(tmp_path / "attempt-1") == [older.path.name]


def test_everything_is_on_disk_before_its_name_is_and_the_name_before_the_save_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut could take away: what was not synced before it."""
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor: int) -> None:
        calls.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def note_rename(source: Path, target: Path) -> None:
        calls.append(("rename", str(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    published = publish(tmp_path, 1, 10).path
    at = calls.index(("rename", str(published)))
    synced = [path for call, path in calls[:at] if call == "fsync"]
    draft = next(path for path in synced if path.endswith("state.txt")).removesuffix("/state.txt")
    inside = {str(path.relative_to(published)) for path in published.rglob("*")} | {"."}
    assert {os.path.relpath(path, draft) for path in synced if path.startswith(draft)} == inside
    assert synced[-1] == draft, "with the manifest's name in it"
    assert ("fsync", str(published.parent)) in calls[at:]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.ESTALE], ids=["EMFILE", "EIO", "ESTALE"])
def test_a_checkpoint_is_not_published_without_a_directory_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    good = publish(tmp_path, 1, 10)
    fail_to_list(monkeypatch, "shards", code)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - which one is what is asked
        publish(tmp_path, 1, 20)
    assert caught.value.errno == code
    (tmp_path / "attempt-2").mkdir()
    writing("by itself")(tmp_path / "attempt-2")
    with pytest.raises(OSError):  # noqa: PT011
        checkpoints.seal(tmp_path / "attempt-2", job_id="7", attempt=2, complete=True)
    monkeypatch.undo()
    assert checkpoints.retain(tmp_path, keep=1) == []
    assert checkpoints.newest_valid(tmp_path) == good


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES])
@pytest.mark.parametrize("name", ["state.txt", "MANIFEST.json"])
def test_a_checkpoint_that_cannot_be_read_for_a_moment_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, name: str
) -> None:
    older = publish(tmp_path, 1, 10)
    newer = publish(tmp_path, 1, 20)
    fail_to_list(monkeypatch, f"step-000000000020/{name}", code)
    with pytest.raises(OSError, match=name) as caught:
        checkpoints.newest_valid(tmp_path)
    assert caught.value.errno == code
    assert checkpoints.newest_valid(tmp_path, skips_unreadable=True) == older
    assert checkpoints.retain(tmp_path, keep=1) == []
    monkeypatch.undo()
    assert checkpoints.newest_valid(tmp_path) == newer


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_sealed_checkpoint_at_which_nobody_can_look_for_a_moment_is_not_taken_for_unsealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "attempt-2").mkdir()
    writing("by itself")(tmp_path / "attempt-2")
    sealed = checkpoints.seal(tmp_path / "attempt-2", job_id="7", attempt=2, complete=True)
    fail_to_look(monkeypatch, "attempt-2/MANIFEST.json", code)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - which one is what is asked
        checkpoints.newest_valid(tmp_path)
    assert caught.value.errno == code
    with pytest.raises(OSError):  # noqa: PT011
        checkpoints.unsealed(tmp_path, 3)
    with pytest.raises(OSError):  # noqa: PT011
        checkpoints.seal(tmp_path / "attempt-2", job_id="7", attempt=2, complete=False, cut_short=True)
    monkeypatch.undo()
    assert checkpoints.newest_valid(tmp_path) == sealed
    assert checkpoints.unsealed(tmp_path, 3) == []


def test_a_directory_at_which_nobody_can_look_for_a_moment_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attempt-2").mkdir()
    writing("by itself")(tmp_path / "attempt-2")
    fail_to_look(monkeypatch, "attempt-2", errno.ESTALE)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - which one is what is asked
        checkpoints.seal(tmp_path / "attempt-2", job_id="7", attempt=2, complete=True)
    assert caught.value.errno == errno.ESTALE


def fail_to_look(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """The system cannot say what is at a path that ends like this; Python is one from 3.14 on."""
    real_stat = os.stat

    def broken_stat(
        path: str | Path | int, *, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> os.stat_result:
        if str(path).endswith(name):
            raise OSError(code, os.strerror(code))
        return real_stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", broken_stat)
    monkeypatch.setattr(Path, "exists", os.path.exists)
    monkeypatch.setattr(Path, "is_dir", os.path.isdir)


def fail_to_list(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """However a directory of this name is opened or listed, the system refuses."""
    real_open, real_scandir = os.open, os.scandir

    def broken_open(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if str(path).endswith(name):
            raise OSError(code, os.strerror(code))
        return real_open(path, flags, mode, dir_fd=dir_fd)

    def broken_scandir(path: str | Path | int) -> object:
        if str(path).endswith(name):
            raise OSError(code, os.strerror(code))
        return real_scandir(path)

    monkeypatch.setattr(os, "open", broken_open)
    monkeypatch.setattr(os, "scandir", broken_scandir)


@pytest.mark.parametrize("kind", ["pipe", "sparse", "link", "socket"])
def test_what_is_no_manifest_holds_nobody_up(tmp_path: Path, kind: str) -> None:
    good = publish(tmp_path, 1, 10)
    bad = publish(tmp_path, 1, 20).path / "MANIFEST.json"
    bad.unlink()
    if kind == "pipe":
        os.mkfifo(bad)
    elif kind == "sparse":
        bad.touch()
        os.truncate(bad, 2 << 30)
    elif kind == "link":
        bad.symlink_to("/dev/zero")
    else:
        os.mknod(bad, 0o600 | stat.S_IFSOCK)
    assert checkpoints.newest_valid(tmp_path) == good
    with pytest.raises(InvalidCheckpoint, match="cannot be read"):
        checkpoints.verify(bad.parent)


def test_a_pipe_in_the_place_of_a_draft_does_not_hold_up_the_seal(tmp_path: Path) -> None:
    (tmp_path / "attempt-1").mkdir()
    writing("by itself")(tmp_path / "attempt-1")
    os.mkfifo(tmp_path / "attempt-1" / ".MANIFEST.json")
    assert checkpoints.seal(tmp_path / "attempt-1", job_id="7", attempt=1, complete=True) is not None


def test_a_checkpoint_may_be_as_deep_as_a_path_is_long(tmp_path: Path) -> None:
    def write(directory: Path) -> None:
        below = directory / "/".join(["d"] * 1_100)
        subprocess.run(["mkdir", "-p", below], check=True)
        (below / "weights").write_text("weights")

    published = checkpoints.publish(tmp_path / "attempt-1", 1, write, job_id="7", attempt=1)
    assert checkpoints.newest_valid(tmp_path) == published
    for step in (2, 3):
        publish(tmp_path, 1, step)
    assert checkpoints.retain(tmp_path, keep=2) == [published.path]
    assert not published.path.exists()


def test_a_checkpoint_of_more_files_than_can_be_read_again_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = publish(tmp_path, 1, 10)
    monkeypatch.setattr(manifests, "MANIFEST_BYTES", 2_000)

    def write(directory: Path) -> None:
        for number in range(20):
            (directory / str(number)).touch()

    with pytest.raises(OSError, match="20 files are too many for a checkpoint") as caught:
        checkpoints.publish(tmp_path / "attempt-1", 20, write, job_id="7", attempt=1)
    assert caught.value.errno == errno.EFBIG
    assert os.listdir(tmp_path / "attempt-1") == [older.path.name]
    (tmp_path / "attempt-2").mkdir()
    write(tmp_path / "attempt-2")
    with pytest.raises(OSError, match="20 files are too many for a checkpoint"):
        checkpoints.seal(tmp_path / "attempt-2", job_id="7", attempt=2, complete=True)
    assert checkpoints.newest_valid(tmp_path) == older


@pytest.mark.parametrize("by_itself", [False, True])
def test_links_and_empty_folders_do_not_count_toward_what_a_checkpoint_may_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_itself: bool
) -> None:
    monkeypatch.setattr(manifests, "MANIFEST_BYTES", 2_000)

    def write(directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        for number in range(100):
            (directory / f"link-{number}").symlink_to("weights")
            (directory / f"folder-{number}").mkdir()
        (directory / "weights").write_text("weights")

    attempt_dir = tmp_path / "attempt-1"
    if by_itself:
        write(attempt_dir)
        saved = checkpoints.seal(attempt_dir, job_id="7", attempt=1, complete=True)
    else:
        saved = checkpoints.publish(attempt_dir, 1, write, job_id="7", attempt=1)
    assert saved is not None
    assert checkpoints.newest_valid(tmp_path) == saved


def test_the_room_that_a_manifest_needs_at_least_is_never_more_than_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = publish(tmp_path, 1, 10)
    monkeypatch.setattr(manifests, "MANIFEST_BYTES", (published.path / "MANIFEST.json").stat().st_size)
    manifests.check_room((file.path, file.bytes) for file in checkpoints.listed(published.path))


def test_a_copy_syncs_a_folder_once_however_many_links_are_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(directory: Path) -> None:
        writing("weights")(directory)
        for number in range(100):
            (directory / "shards" / f"link-{number}").symlink_to("0.bin")

    published = checkpoints.publish(tmp_path / "attempt-1", 10, write, job_id="7", attempt=1)
    copy_without_links(published.path)
    calls, fsync = list[str](), os.fsync

    def note_fsync(descriptor: int) -> None:
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_fsync)
    checkpoints.publish_copy(published.path)
    assert len(calls) == len(set(calls)) == 7  # three files, two folders, and the two above
    assert (published.path / "shards" / "link-99").read_bytes() == b"weights" * 100
    assert checkpoints.newest_valid(tmp_path) == published


@pytest.mark.parametrize("by_itself", [False, True])
def test_a_link_in_the_place_of_the_manifest_is_not_in_a_checkpoint_or_its_copy(
    tmp_path: Path, by_itself: bool
) -> None:
    def write(directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        (directory / "weights").write_text("weights")
        (directory / "MANIFEST.json").symlink_to("gone")

    attempt_dir = tmp_path / "attempt-1"
    if by_itself:
        write(attempt_dir)
        saved = checkpoints.seal(attempt_dir, job_id="7", attempt=1, complete=True)
    else:
        saved = checkpoints.publish(attempt_dir, 1, write, job_id="7", attempt=1)
    assert saved is not None
    copy_without_links(saved.path)
    assert checkpoints.publish_copy(saved.path) == saved


def copy_without_links(path: Path) -> None:
    """Make the copy of a checkpoint as it is before it is published."""
    subprocess.run(["cp", "-a", path, checkpoints.copy_of(path)], check=True)
    for copied in checkpoints.copy_of(path).rglob("*"):
        if copied.is_symlink():
            copied.unlink()


def test_a_save_must_write_something_and_leave_the_manifest_to_us(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="wrote no file"):
        checkpoints.publish(tmp_path / "attempt-1", 1, lambda directory: None, job_id="7", attempt=1)
    with pytest.raises(ValueError, match="MANIFEST"):
        checkpoints.publish(
            tmp_path / "attempt-1", 1, lambda d: (d / "MANIFEST.json").write_text("{}"), job_id="7", attempt=1
        )
    with pytest.raises(ValueError, match="negative"):
        checkpoints.publish(tmp_path / "attempt-1", -1, writing("x"), job_id="7", attempt=1)
    assert not list(checkpoints._candidates(tmp_path))


def test_the_same_step_saved_again_replaces_nothing_and_is_the_newest(tmp_path: Path) -> None:
    publish(tmp_path, 1, 10, "first")
    for text in ["second", "third"]:
        publish(tmp_path, 1, 10, text)
        newest = checkpoints.newest_valid(tmp_path)
        assert newest is not None
        assert newest.step == 10
        assert (newest.path / "state.txt").read_text() == text
    checkpoints.retain(tmp_path, keep=1)
    publish(tmp_path, 1, 10, "fourth")
    newest = checkpoints.newest_valid(tmp_path)
    assert newest is not None
    assert (newest.path / "state.txt").read_text() == "fourth"


def test_retain_keeps_the_newest_two_over_all_attempts(tmp_path: Path) -> None:
    paths = [publish(tmp_path, attempt, step).path for attempt, step in [(1, 10), (1, 20), (2, 30), (3, 40)]]
    assert sorted(checkpoints.retain(tmp_path)) == paths[:2]
    assert [path.exists() for path in paths] == [False, False, True, True]
    assert checkpoints.retain(tmp_path) == []


def test_retain_leaves_published_checkpoints_beside_which_the_script_has_a_manifest_of_its_own(tmp_path: Path) -> None:
    paths = [publish(tmp_path, 1, step).path for step in [10, 20, 30]]
    (tmp_path / "attempt-1" / "MANIFEST.json").write_text('["mine"]')
    assert checkpoints.retain(tmp_path) == paths[:1]
    assert sorted(os.listdir(tmp_path / "attempt-1")) == ["MANIFEST.json", *(path.name for path in paths[1:])]


def test_retain_removes_nothing_before_enough_newer_ones_verify(tmp_path: Path) -> None:
    paths = [publish(tmp_path, 1, step).path for step in [10, 20, 30]]
    flip_a_bit(paths[2] / "state.txt")
    assert checkpoints.retain(tmp_path) == []
    flip_a_bit(paths[1] / "state.txt")
    flip_a_bit(paths[0] / "state.txt")
    assert checkpoints.retain(tmp_path, keep=1) == []
    good = publish(tmp_path, 1, 40).path
    assert sorted(checkpoints.retain(tmp_path, keep=1)) == paths
    assert os.listdir(tmp_path / "attempt-1") == [good.name]


def test_retain_checks_sizes_even_of_what_the_caller_trusts(tmp_path: Path) -> None:
    paths = [publish(tmp_path, 1, step).path for step in [10, 20, 30]]
    (paths[2] / "state.txt").write_text("cut")
    assert checkpoints.retain(tmp_path, trusted=paths) == []
    good = publish(tmp_path, 1, 40).path
    assert checkpoints.retain(tmp_path, trusted=[*paths, good]) == [paths[0]]


def test_unfinished_saves_and_copies_are_removed_unless_their_process_lives(tmp_path: Path) -> None:
    kept = [publish(tmp_path, 1, 10).path, publish(tmp_path, 2, 20).path]
    with subprocess.Popen(["true"]) as ended:
        pass
    of_earlier_attempt = tmp_path / "attempt-1" / f".step-000000000011-{os.getpid()}-00c0ffee"
    of_dead_process = tmp_path / "attempt-2" / f".step-000000000021-{ended.pid}-00c0ffee"
    running = tmp_path / "attempt-2" / f".step-000000000021-{os.getpid()}-00c0ffee"
    removals = [tmp_path / ".attempt-0-12345678", tmp_path / "attempt-2" / ".step-000000000019.1-12345678"]
    copies = [tmp_path / ".attempt-0-copy", tmp_path / "attempt-1" / ".step-000000000011.1-copy"]
    for draft in (of_earlier_attempt, of_dead_process, running, *removals, *copies):
        draft.mkdir()
        (draft / "half").write_text("half")
    checkpoints.remove_drafts(tmp_path / "attempt-2")
    assert [path.name for path in sorted(tmp_path.glob("**/.*"))] == [running.name]
    assert all(path.exists() for path in kept)
    checkpoints.remove_drafts(tmp_path / "none" / "attempt-1")


def test_what_a_script_wrote_by_itself_is_sealed_after_it_ended(tmp_path: Path) -> None:
    attempt_dir = tmp_path / "attempt-2"
    attempt_dir.mkdir()
    (attempt_dir / "last.ckpt").write_bytes(b"state")
    (attempt_dir / "latest").symlink_to("last.ckpt")
    sealed = checkpoints.seal(attempt_dir, job_id="7", attempt=2, complete=False)
    assert sealed == checkpoints.Checkpoint(attempt_dir, None, 2, 5, False)
    assert checkpoints.seal(attempt_dir, job_id="7", attempt=2, complete=True) == sealed, "the first word stands"
    assert checkpoints.newest_valid(tmp_path) == sealed
    manifest = json.loads((attempt_dir / "MANIFEST.json").read_text())
    assert (manifest["sealed_by"], manifest["complete"]) == ("supervisor", "unknown")


def sealed(job_dir: Path, attempt: int, *, complete: bool = True, cut_short: bool = False) -> Path:
    folder = job_dir / f"attempt-{attempt}"
    folder.mkdir()
    (folder / "last.ckpt").write_bytes(b"state")
    checkpoints.seal(folder, job_id="7", attempt=attempt, complete=complete, cut_short=cut_short)
    return folder


def test_a_save_that_was_cut_short_is_passed_over_for_a_complete_one_only(tmp_path: Path) -> None:
    def newest() -> Path:
        found = checkpoints.newest_valid(tmp_path)
        assert found is not None
        return found.path

    unknown = sealed(tmp_path, 1, complete=False)
    assert newest() == unknown
    cut_short = sealed(tmp_path, 2, complete=False, cut_short=True)
    assert newest() == cut_short, "who knows what the one before is worth"
    complete = sealed(tmp_path, 3)
    sealed(tmp_path, 4, complete=False, cut_short=True)
    assert newest() == complete
    unknown = sealed(tmp_path, 5, complete=False)
    assert newest() == unknown, "nothing speaks against it"


def test_a_save_that_was_cut_short_does_not_push_out_an_older_one(tmp_path: Path) -> None:
    publish(tmp_path, 1, 10)
    sealed(tmp_path, 2, complete=False, cut_short=True)
    publish(tmp_path, 3, 30)
    assert checkpoints.retain(tmp_path) == []
    publish(tmp_path, 4, 40)
    assert checkpoints.retain(tmp_path) == [tmp_path / "attempt-2", tmp_path / "attempt-1" / "step-000000000010"]


def test_sealed_and_published_attempts_stand_in_one_order(tmp_path: Path) -> None:
    publish(tmp_path, 1, 10)
    (tmp_path / "attempt-2").mkdir()
    (tmp_path / "attempt-2" / "last.ckpt").write_bytes(b"state")
    checkpoints.seal(tmp_path / "attempt-2", job_id="7", attempt=2, complete=True)
    publish(tmp_path, 3, 30)
    assert checkpoints.retain(tmp_path) == [tmp_path / "attempt-1" / "step-000000000010"]
    publish(tmp_path, 4, 40)
    assert checkpoints.retain(tmp_path) == [tmp_path / "attempt-2"]
    assert not (tmp_path / "attempt-2").exists()


def test_there_is_nothing_to_seal_where_nothing_or_only_a_draft_was_written(tmp_path: Path) -> None:
    attempt_dir = tmp_path / "attempt-1"
    assert checkpoints.seal(attempt_dir, job_id="7", attempt=1, complete=True) is None
    draft = attempt_dir / ".step-000000000011-4711-00"
    draft.mkdir(parents=True)
    (draft / "half").write_text("half")
    assert checkpoints.seal(attempt_dir, job_id="7", attempt=1, complete=False) is None
    assert not list(checkpoints._candidates(tmp_path))


def test_seal_leaves_published_checkpoints_and_foreign_manifests_alone(tmp_path: Path) -> None:
    publish(tmp_path, 1, 10)
    (tmp_path / "attempt-1" / "notes.txt").write_text("the script's own")
    assert checkpoints.seal(tmp_path / "attempt-1", job_id="7", attempt=1, complete=True) is None
    (tmp_path / "attempt-2").mkdir()
    (tmp_path / "attempt-2" / "MANIFEST.json").write_text('["mine"]')
    assert checkpoints.seal(tmp_path / "attempt-2", job_id="7", attempt=2, complete=True) is None
    assert (tmp_path / "attempt-2" / "MANIFEST.json").read_text() == '["mine"]'
