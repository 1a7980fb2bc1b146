"""The checklist of a release: each item fails for its reason, and says it in a line."""

import subprocess
from pathlib import Path

import pytest

from scripts import release
from scripts.release import Item, Unfit


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A committed tree that has only what the first items look at."""
    for path in release.VERSIONS.values():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text('"""A version."""\n\nVERSION = "1.2.3"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["click", "ebbtide-sdk==1.2.3"]\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - 2026-12-01\n\n- A change.\n")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "A tree"]):
        name = ["-c", "user.name=Ann", "-c", "user.email=ann@lab.example"]
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True)
    return tmp_path


def test_a_tree_that_is_fit_says_what_it_has(tree: Path) -> None:
    assert release.versions(tree) == "1.2.3"
    assert release.changelog(tree) == "2026-12-01"
    assert release.clean(tree) == release.git(tree, "rev-parse", "--short", "HEAD").strip()
    assert int(release.commit_time(tree)) > 1_700_000_000


@pytest.mark.parametrize("path", release.VERSIONS.values())
def test_a_version_that_differs_is_named_beside_the_others(tree: Path, path: str) -> None:
    (tree / path).write_text('VERSION = "1.2.4"\n')
    with pytest.raises(Unfit, match=r"^ebbtide: 1\.2\.\d, ebbtide-sdk: 1\.2\.\d, the SDK .* requires: 1\.2\.3$"):
        release.versions(tree)


@pytest.mark.parametrize(("needs", "said"), [("ebbtide-sdk==1.2.2", "1.2.2"), ("click", "nothing")])
def test_so_is_another_sdk_that_the_commands_require(tree: Path, needs: str, said: str) -> None:
    (tree / "pyproject.toml").write_text(f'[project]\ndependencies = ["{needs}"]\n')
    with pytest.raises(Unfit, match=f"requires: {said}$"):
        release.versions(tree)


def test_a_changelog_without_the_version_or_without_its_date_is_not_ready(tree: Path) -> None:
    log = tree / "CHANGELOG.md"
    log.write_text("## [1.2.3] - unreleased\n")
    with pytest.raises(Unfit, match=r"says 'unreleased' of 1\.2\.3: it needs a date"):
        release.changelog(tree)
    log.write_text("## [1.2.30] - 2026-12-01\n## [1x2.3] - 2026-12-01\n")
    with pytest.raises(Unfit, match=r"has no section \[1\.2\.3\]"):
        release.changelog(tree)


def test_what_is_not_committed_is_named(tree: Path) -> None:
    (tree / "new.py").touch()
    with pytest.raises(Unfit, match=r"not committed: new\.py$"):
        release.clean(tree)
    (tree / "CHANGELOG.md").write_text("")
    with pytest.raises(Unfit, match=r"not committed: CHANGELOG\.md and 1 more$"):
        release.clean(tree)


def test_a_folder_without_a_repository_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    with pytest.raises(Unfit, match=r"git log: .*not a git repository"):
        release.commit_time(tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "7")
    assert release.commit_time(tmp_path) == "7"


def test_generated_files_that_are_stale_are_told_by_their_script(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "GENERATED", ("one.py", "two.py"))
    (tree / "one.py").write_text("import sys; assert sys.argv[1:] == ['--check']")
    (tree / "two.py").write_text("import sys; sys.exit('a page is not what the help says')")
    with pytest.raises(Unfit, match=r"^a page is not what the help says$"):
        release.generated(tree)
    (tree / "two.py").write_text("")
    assert release.generated(tree) == "one, two"


def test_metadata_is_not_called_valid_where_nothing_can_check_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release.shutil, "which", lambda name, path: None)
    with pytest.raises(Unfit, match="pip install twine"):
        release.metadata(tmp_path)


def test_each_item_has_a_line_and_one_that_fails_stops_no_other(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> str:
        raise Unfit("for a reason")

    items = [Item("one", lambda: "1"), Item("two", fails), Item("three", lambda: "3")]
    monkeypatch.setattr(release, "checklist", lambda tree, folder: iter(items))
    assert release.check(tree) is False
    assert capsys.readouterr().out == "✓ one: 1\n✗ two: for a reason\n✓ three: 3\n"
    del items[1]
    assert release.check(tree) is True


def test_the_checklist_has_all_that_a_release_needs(tree: Path) -> None:
    names = " ".join(item.name for item in release.checklist(tree, tree))
    for word in ("versions", "changelog", "clean", "generated", "reproducible", "both wheels", "metadata"):
        assert word in names
