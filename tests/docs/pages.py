"""The documents as data: links, marked blocks, tables, diagrams."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md"), *REPOSITORY.glob("examples/*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARKED = re.compile(r"^<!-- (run|file)(?: when)?:? ?(.*?) ?-->\n+```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block that a comment marks.

    `<!-- run -->` runs it, `<!-- run when: COMMAND -->` once that command succeeds, `<!-- file: NAME -->` writes it to
    a file that later blocks may use.
    """

    action: str
    argument: str
    language: str
    text: str

    def commands(self) -> Iterator[tuple[str, str]]:
        """Each command with the output that the page shows for it; a block without prompts is one command."""
        if self.language != "console":
            yield self.text, ""
            return
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def marked_blocks(page: Path) -> list[Block]:
    """All marked blocks of a page, in order."""
    return [Block(*match.groups()) for match in _MARKED.finditer(page.read_text())]


def fenced(page: Path, language: str) -> list[str]:
    """The text of all fenced blocks in one language."""
    return [text for name, text in _FENCE.findall(page.read_text()) if name == language]


def code(page: Path) -> Iterator[str]:
    """Everything on a page that is set as code."""
    text = page.read_text()
    yield from (block for _, block in _FENCE.findall(text))
    yield from re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))


def links(page: Path) -> list[tuple[str, str]]:
    """Every link to something in the repository: path (empty for the page itself) and anchor."""
    found = re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", page.read_text()))
    return [(path, anchor) for path, _, anchor in (link.partition("#") for link in found if "://" not in link)]


def anchors(page: Path) -> set[str]:
    """What a link may point to on a page: its headings as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def section(page: Path, heading: str) -> str:
    """What stands below a heading of the second level."""
    _, _, below = page.read_text().partition(f"\n## {heading}\n")
    assert below, f"{page.name} has no heading {heading!r}"
    return below.partition("\n## ")[0] + "\n"


def page_with(heading: str) -> Path:
    """The page of the docs that has a heading of the second level."""
    [page] = [page for page in DOCS.rglob("*.md") if f"\n## {heading}\n" in page.read_text()]
    return page


def table(page: Path, heading: str = "") -> list[list[str]]:
    """The cells of the first table of the page, or of its section below a heading, without the table's header."""
    text = section(page, heading) if heading else page.read_text()
    rows = re.search(r"^\|.*\|\n\|[-| ]+\|\n((?:\|.*\|\n)+)", text, re.MULTILINE)
    assert rows, f"{page.name}: no table below {heading!r}"
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1].splitlines()]
