"""Builds the documentation as a site that needs no network, and checks its links.

python scripts/site.py dist/docs   # writes dist/docs/VERSION, and dist/docs/index.html, which lists the versions there

It fails at any warning of Sphinx, at a link to something that is not in the site, and at a page that would load
something from a network.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ebbtide_protos.version import VERSION
from sphinx.cmd.build import build_main

DOCS = Path(__file__).resolve().parents[1] / "docs"
LOADING = {
    "link": "href",
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "object": "data",
    "use": "href",
}
"""What a browser loads by itself, by the tag and the attribute that names it."""


class Page(HTMLParser):
    """The links of a page, what it loads, and the places in it that a link may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag names."""
        given = dict(attrs)
        if place := given.get("id"):
            self.places.add(place)
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        if tag in LOADING and (loaded := given.get(LOADING[tag])):
            self.loaded.append(loaded)


def faults(site: Path) -> Iterator[str]:
    """Yield each link that leads nowhere, and each thing that would be loaded from a network, with its page."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        for link in page.loaded:
            if is_elsewhere(link):
                yield f"{name}: loads {link} from a network"
            elif not link.startswith("data:") and not target_of(path, link).is_file():
                yield f"{name}: loads {link}, which is not there"
        for link in page.links:
            if is_elsewhere(link) or link.startswith("mailto:"):
                continue
            target, place = target_of(path, link), unquote(urlsplit(link).fragment)
            if not target.is_file():
                yield f"{name}: a link leads to {link}, which is not there"
            elif place and target in pages and place not in pages[target].places:
                yield f"{name}: a link leads to {link}, and the page has no such place"
    for style in site.rglob("*.css"):
        text = style.read_text("utf-8")
        if "url(http" in text or "url(//" in text or "@import" in text:
            yield f"{style.relative_to(site)}: may load something from a network"


def is_elsewhere(link: str) -> bool:
    """Whether a link leads to another machine."""
    return bool(urlsplit(link).netloc)


def target_of(page: Path, link: str) -> Path:
    """Return the file that a link of a page leads to."""
    path = unquote(urlsplit(link).path)
    return (page.parent / path).resolve() if path else page


def versions_page(folder: Path) -> str:
    """Return a page with a link to each version that is in the folder, the newest first."""
    versions = sorted((path.parent.name for path in folder.glob("*/index.html")), key=_in_order, reverse=True)
    items = "".join(f'<li><a href="{escape(version)}/index.html">{escape(version)}</a></li>' for version in versions)
    return f'<!doctype html><meta charset="utf-8"><title>Ebbtide</title><h1>Ebbtide</h1><ul>{items}</ul>\n'


def _in_order(version: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdigit() else -1, part) for part in version.split(".")]


def main() -> int:
    """Build, check, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the versions are, each in a folder")
    folder = parser.parse_args().folder
    site = folder / VERSION
    doctrees = folder / ".doctrees"
    # Nothing is left over of pages that are no more.
    shutil.rmtree(site, ignore_errors=True)
    arguments = ["--fail-on-warning", "--keep-going", "--fresh-env", "--quiet", "--doctree-dir", str(doctrees)]
    if build_main([*arguments, str(DOCS), str(site)]):
        return 1
    found = list(faults(site))
    for fault in found:
        sys.stderr.write(f"{fault}\n")
    (folder / "index.html").write_text(versions_page(folder), "utf-8")
    sys.stdout.write(f"{site / 'index.html'}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
