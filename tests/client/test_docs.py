"""`ebb docs`: the page that is meant is opened, or shown as text."""

import webbrowser
from pathlib import Path

import pytest
from ebbtide_cli.documentation import Documentation

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser was asked to open. There is a display."""
    asked: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", lambda url: asked.append(url) or True)
    return asked


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Documentation:
    """A documentation of a few pages, which was built as a site."""
    for name in ("index", "how-to/index", "how-to/drill", "reference/commands/index", "reference/commands/drill"):
        for folder, suffix in (("docs", "md"), ("site", "html")):
            page = tmp_path / folder / f"{name}.{suffix}"
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(f"# The page {name}\n\n<!-- run -->\n```bash\nebb ls\n```\n")
    found = Documentation(tmp_path / "docs", tmp_path / "site")
    monkeypatch.setattr(Documentation, "here", lambda: found)
    return found


@pytest.mark.parametrize(
    ("named", "page"),
    [
        ((), "index"),
        (("how-to",), "how-to/index"),
        (("drill",), "how-to/drill"),
        (("how-to/drill",), "how-to/drill"),
        (("commands/drill",), "reference/commands/drill"),
        (("commands",), "reference/commands/index"),
    ],
)
def test_the_page_that_is_named_is_opened(ebb, here, opened, named, page):
    result = ebb("docs", *named)
    assert opened == [(here.site / f"{page}.html").as_uri()]
    assert (result.code, result.out) == (0, f"{opened[0]}\n")


@pytest.mark.parametrize("how", ["without a display", "without a site", "asked for"])
def test_a_page_is_shown_as_text_where_it_cannot_be_opened(ebb, here, opened, monkeypatch, how):
    if how == "without a display":
        for name in DISPLAYS:
            monkeypatch.delenv(name, raising=False)
    if how == "without a site":
        monkeypatch.setattr(Documentation, "here", lambda: Documentation(here.pages, None))
    result = ebb("docs", "drill", *(["--text"] if how == "asked for" else []))
    assert (result.code, opened) == (0, [])
    assert result.out == "# The page how-to/drill\n\n```bash\nebb ls\n```\n"


def test_where_no_browser_can_be_started_the_page_is_shown_as_text(ebb, here, opened, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert ebb("docs").out.startswith("# The page index\n")


def test_the_list_has_every_page_once_by_the_shortest_name_that_means_it(ebb, here):
    rows = [line.split(maxsplit=1) for line in ebb("docs", "--list").out.splitlines()]
    assert rows == [
        ["index", "The page index"],
        ["how-to", "The page how-to/index"],
        ["drill", "The page how-to/drill"],
        ["commands", "The page reference/commands/index"],
        ["commands/drill", "The page reference/commands/drill"],
    ]


def test_a_page_that_there_is_not_is_refused_with_the_one_that_may_be_meant(ebb, here):
    result = ebb("docs", "dril")
    assert (result.code, result.err) == (2, "ebb: docs: there is no page 'dril': did you mean 'drill'?\n")
    result = ebb("docs", "x" * 100)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "'ebb docs --list' lists all" in result.err


def test_the_pages_of_this_version_are_found(ebb, monkeypatch):
    for name in DISPLAYS:
        monkeypatch.delenv(name, raising=False)
    assert ebb("docs", "first-hour").out.startswith("# Your first suspended script\n")
    assert ebb("docs").out.startswith("# Ebbtide\n")
