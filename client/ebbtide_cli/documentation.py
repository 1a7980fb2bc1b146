"""Find the documentation that is on this machine: the pages as text, and the site that was built of them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_core.model.spelling import did_you_mean
from ebbtide_protos.quantities import abbreviated
from ebbtide_protos.version import VERSION

from ebbtide_cli.errors import USAGE, Failure

PARTS: Final = ("tutorial", "how-to", "reference", "explanation")
"""The parts in the order in which they are read: of several pages of a name, that of the first part is meant."""
START: Final = "index"


@dataclass(frozen=True, slots=True)
class Documentation:
    """The pages below ``pages``, and in ``site`` the same as a site; None if no site was built."""

    pages: Path
    site: Path | None

    @classmethod
    def here(cls) -> "Documentation":
        """Return what is installed beside this module, or is in the repository. Raises `Failure` if nothing is."""
        package = Path(__file__).resolve().parent
        repository = package.parents[1]
        places = ((package / "docs", package / "site"), (repository / "docs", repository / "dist" / "docs" / VERSION))
        for pages, site in places:
            if (pages / f"{START}.md").is_file():
                return cls(pages, site if (site / f"{START}.html").is_file() else None)
        raise Failure("docs: the pages are not installed: they are in the folder docs of the source")

    def names(self) -> dict[str, Path]:
        """Return the pages, each by all of its names, such as ``backup`` and ``how-to/backup``; the shortest first."""
        found: dict[str, Path] = {}
        for page in sorted(self.pages.rglob("*.md"), key=self._order):
            place = page.relative_to(self.pages).with_suffix("").parts
            place = place[:-1] if place[-1] == START and place[:-1] else place
            for first in reversed(range(len(place))):
                found.setdefault("/".join(place[first:]), page)
        return found

    def find(self, name: str) -> Path:
        """Return the page of that name. Raises `Failure` if there is none."""
        names = self.names()
        if name not in names:
            instead = did_you_mean(name, names) or ": 'ebb docs --list' lists all"
            raise Failure(f"docs: there is no page {abbreviated(name)!r}{instead}", USAGE)
        return names[name]

    def as_site(self, page: Path) -> Path | None:
        """Return the file of the site that shows ``page``; None if no site was built."""
        return self.site and self.site / page.relative_to(self.pages).with_suffix(".html")

    def _order(self, page: Path) -> tuple[int, int, bool, str]:
        place = page.relative_to(self.pages)
        part = place.parts[0]
        return (PARTS.index(part) if part in PARTS else -1, len(place.parts), page.stem != START, place.as_posix())


def title(page: Path) -> str:
    """Return the title of a page."""
    return page.read_text("utf-8").partition("\n")[0].removeprefix("# ").replace("`", "")


def readable(page: Path) -> str:
    """Return the text of a page without what is only for tests of it."""
    return re.sub(r"^<!-- .*? -->\n+", "", page.read_text("utf-8").rstrip(), flags=re.MULTILINE)
