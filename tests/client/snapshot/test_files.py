"""What belongs to a snapshot, and that the same files are the same archive."""

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import zlib

import pytest
from ebbtide_cli.errors import Failure
from ebbtide_cli.snapshot.files import list_files
from ebbtide_cli.snapshot.packing import archive, check_size, compressed, take


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory that files can be put into, far from any repository."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    root = tmp_path / "project"
    root.mkdir()

    def put(**files):
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    root_put = put
    root_put.root = root
    return root_put


def paths(root):
    return [entry.path for entry in list_files(root)]


def git(root, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


def quiet(done, total):
    pass


PROJECT = {
    "train.py": "x", "src/model.py": "x", "src/.gitignore": "*.tmp\n!keep.tmp\n", "src/a.tmp": "x", "src/keep.tmp": "x",
    ".gitignore": "/out/\n*.log\n", "out/big": "x", "src/out/small": "x", "run.log": "x", ".ebbignore": "data/\n",
    "data/set": "x",
}  # fmt: skip
KEPT = [".ebbignore", ".gitignore", "src/.gitignore", "src/keep.tmp", "src/model.py", "src/out/small", "train.py"]


@pytest.mark.parametrize("repository", [False, True])
def test_what_is_ignored_is_left_out_in_a_repository_and_outside_of_one(folder, repository):
    root = folder(**PROJECT)
    if repository:
        git(root, "init")
    assert paths(root) == KEPT


def test_tracked_files_are_kept_even_if_they_are_ignored_and_removed_ones_are_not_missed(folder):
    root = folder(**PROJECT)
    git(root, "init")
    git(root, "add", "-f", "run.log", "train.py")
    (root / "train.py").unlink()
    assert "run.log" in paths(root)
    assert "train.py" not in paths(root)


@pytest.mark.parametrize("place", ["a link", "a link to nothing", "a file"])
def test_of_a_tracked_folder_that_something_else_has_replaced_nothing_is_taken(folder, tmp_path, place):
    root = folder(**{"train.py": "x", "data/README": "x", "data/deep/set": "x"})
    git(root, "init")
    git(root, "add", ".")
    (root / "data").rename(tmp_path / "data")
    if place == "a file":
        (root / "data").write_text("moved\n")
    else:
        (root / "data").symlink_to(tmp_path / ("data" if place == "a link" else "nothing"))
    assert paths(root) == ["data", "train.py"]


def test_a_repository_inside_belongs_to_it_without_what_it_ignores(folder):
    root = folder(**{"train.py": "x", "lib/a.py": "x", "lib/.gitignore": "b.py", "lib/b.py": "x"})
    git(root, "init")
    git(root / "lib", "init")
    assert paths(root) == ["lib/.gitignore", "lib/a.py", "train.py"]


def test_a_submodule_that_is_not_initialised_is_an_empty_folder(folder):
    root = folder(**{"train.py": "x", "lib/a.py": "x"})
    for repository in (root / "lib", root):
        git(repository, "init")
        git(repository, "add", ".")
        git(repository, "commit", "-m", "x")
    shutil.rmtree(root / "lib")
    (root / "lib").mkdir()
    assert paths(root) == ["train.py"]


def test_of_a_directory_that_its_repository_ignores_everything_is_taken(folder):
    root = folder(**{".gitignore": "scratch/", "scratch/try.py": "x"})
    git(root, "init")
    assert paths(root / "scratch") == ["try.py"]


def test_links_stay_links_and_nothing_behind_them_is_read(folder, tmp_path):
    root = folder(**{"train.py": "x"})
    (root / "data").symlink_to("/datasets/large")
    (root / "here").symlink_to("train.py")
    assert [(entry.path, entry.link) for entry in list_files(root)] == [
        ("data", "/datasets/large"), ("here", "train.py"), ("train.py", None)
    ]  # fmt: skip


def test_what_is_neither_file_nor_link_is_refused(folder):
    root = folder(**{"train.py": "x"})
    os.mkfifo(root / "pipe")
    with pytest.raises(Failure, match="--snapshot: pipe is neither a file nor a link"):
        list_files(root)


def test_too_much_is_refused_with_the_largest_named(folder):
    root = folder(**{"small": "x", "large": "x" * 2000, "larger": "x" * 3000})
    with pytest.raises(Failure) as caught:
        check_size(list_files(root), 4000)
    assert "4.9KiB are over the limit of 3.9KiB; the largest are larger (2.9KiB), large (2.0KiB), small" in str(
        caught.value
    )


def test_the_archive_does_not_depend_on_times_order_and_owners(folder):
    root = folder(**{"b": "2", "a": "1"})
    before = take(root, list_files(root), quiet)
    os.utime(root / "a", (1, 1))
    os.chmod(root / "a", 0o600)
    assert take(root, list_files(root), quiet) == before
    os.chmod(root / "a", 0o700)
    assert take(root, list_files(root), quiet) != before


def test_what_is_sent_is_the_archive_that_was_promised(folder):
    root = folder(**{"a": "1" * 100_000, "d/é" + "x" * 120: "2", "empty": ""})
    (root / "link").symlink_to("a")
    (root / os.fsdecode(b"odd-\xff")).write_text("odd")
    entries = list_files(root)
    sent = zlib.decompress(b"".join(compressed(root, entries, quiet)), 31)
    taken = take(root, entries, quiet)
    assert (hashlib.sha256(sent).hexdigest(), len(sent)) == (taken.digest, taken.bytes)
    with tarfile.open(fileobj=io.BytesIO(sent)) as content:
        names = content.getnames()
        assert [os.fsencode(name) for name in names] == [os.fsencode(entry.path) for entry in entries]
        assert content.getmember("link").linkname == "a"


def test_a_file_that_becomes_shorter_while_it_is_read_is_named(folder, monkeypatch):
    root = folder(**{"a": "1" * 1000})
    blocks = archive(root, list_files(root))
    next(blocks)
    os.truncate(root / "a", 0)
    with pytest.raises(Failure, match="a became shorter while it was read"):
        list(blocks)
