"""The docs as a site: built without a warning, every link leads somewhere, and nothing comes from a network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ebbtide_protos.version import VERSION

from scripts import site
from tests.docs.pages import DOCS, REPOSITORY, links, marked_blocks
from tests.docs.test_docs import RUNNABLE

PARTS = ("tutorial", "how-to", "reference", "explanation")
LONGEST = {"tutorial": 1500, "how-to": 1500, "reference": 2000, "explanation": 4000}
"""Words that a page may have: nobody reads longer ones."""


def test_the_parts_are_in_the_order_in_which_they_are_read() -> None:
    assert tuple(Path(path).parts[0] for path, _ in links(DOCS / "index.md")) == PARTS
    folders = {path.name for path in DOCS.iterdir() if path.is_dir()} - {"figures", "__pycache__"}
    assert folders == set(PARTS)
    assert [page.name for page in DOCS.glob("*.md")] == ["index.md"]


@pytest.mark.parametrize("part", PARTS)
def test_every_page_is_listed_once_by_the_page_above_it(part: str) -> None:
    for index in (DOCS / part).rglob("index.md"):
        listed = re.findall(r"^- \[[^\]]*\]\(([^)#:\s]+)\)", index.read_text(), re.MULTILINE)
        below = [*index.parent.glob("*.md"), *index.parent.glob("*/index.md")]
        assert sorted(listed) == sorted(page.relative_to(index.parent).as_posix() for page in below if page != index), (
            index
        )


@pytest.mark.parametrize("part", LONGEST)
def test_a_page_is_short(part: str) -> None:
    for page in (DOCS / part).rglob("*.md"):
        assert len(page.read_text().split()) <= LONGEST[part], page.name


def test_every_page_with_commands_is_run() -> None:
    run = {parameter.values[0] for parameter in RUNNABLE}
    marked = {page for page in DOCS.rglob("*.md") if re.search(r"^<!-- (run|file)", page.read_text(), re.MULTILINE)}
    assert run >= marked
    assert {page for page in run if not marked_blocks(page)} == set()
    assert {"first-hour.md", "second-machine.md", "backup.md"} <= {page.name for page in marked}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_site_is_built_without_a_warning_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "scripts/site.py", tmp_path], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    built = tmp_path / VERSION
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    assert {page for page in pages if not (built / page).is_file()} == set()
    assert "data:image/svg+xml" in (built / "explanation/architecture.html").read_text()
    assert "ebbtide.Job.should_suspend" in (built / "reference/sdk.html").read_text()
    assert "should_suspend" in (built / "searchindex.js").read_text()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text('<a href="sub/page.html#here">x</a><a href="https://example.org">y</a>')
    (tmp_path / "sub/page.html").write_text('<h1 id="here">Here</h1><a href="../index.html">x</a><a href="#here">x</a>')
    (tmp_path / "style.css").write_text("p { background: url(data:x) }")
    return tmp_path


def test_a_sound_site_has_no_faults(small: Path) -> None:
    assert list(site.faults(small)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<a href="gone.html">x</a>', "new.html: a link leads to gone.html, which is not there"),
        (
            '<a href="sub/page.html#x">x</a>',
            "new.html: a link leads to sub/page.html#x, and the page has no such place",
        ),
        ('<a href="#x">x</a>', "new.html: a link leads to #x, and the page has no such place"),
        ('<script src="https://cdn.example/x.js">', "new.html: loads https://cdn.example/x.js from a network"),
        ('<link href="//fonts.example/x.css">', "new.html: loads //fonts.example/x.css from a network"),
        ('<img src="x.png">', "new.html: loads x.png, which is not there"),
    ],
)
def test_a_fault_of_a_page_is_found(small: Path, text: str, fault: str) -> None:
    (small / "new.html").write_text(text)
    assert list(site.faults(small)) == [fault]


@pytest.mark.parametrize("text", ["@import 'x.css';", "p { background: url(https://example.org/x) }"])
def test_a_style_that_may_load_something_is_found(small: Path, text: str) -> None:
    (small / "style.css").write_text(text)
    assert list(site.faults(small)) == ["style.css: may load something from a network"]


def test_versions_are_listed_by_number_the_newest_first(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0", "0.2.1"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").touch()
    assert re.findall(r'href="([\d.]+)/index.html"', site.versions_page(tmp_path)) == ["0.10.0", "0.9.0", "0.2.1"]
