"""Takes pictures of the pages of a running dashboard with Chromium, light and dark, at three widths.

    ebb up --dashboard
    python scripts/pictures_of_dashboard.py --out pictures --job 2 --waiting 4 --array 5 --node gpu1

``--token`` takes them as another user sees the pages, who may have no permission for some.

Each problem that the browser sees on the way (an error, a violation of the pages' own policy) is printed, and makes the
exit code 1.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

WIDTHS = {"wide": (1440, 900), "middle": (1024, 768), "narrow": (390, 844)}
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def link() -> str:
    """A link that logs in to the dashboard of EBB_HOME."""
    command = [sys.executable, "-m", "ebbtide_cli.main", "dashboard", "--link", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return str(json.loads(done.stdout)["url"])


def overflow(page: Page) -> list[str]:
    """What is wider than the page, or than its own box without being meant to scroll."""
    found: list[str] = page.evaluate(
        """() => {
            const wide = [], all = document.documentElement.scrollWidth;
            if (all > innerWidth) wide.push(`the page is ${all} wide`);
            for (const one of document.querySelectorAll("main *, header *")) {
                const box = one.getBoundingClientRect();
                if (box.width && box.right > innerWidth + 1 && !one.closest(".scroll, .lines, .tabs, dialog"))
                    wide.push(`${one.tagName.toLowerCase()}.${one.className} ends at ${Math.round(box.right)}`);
            }
            return wide.slice(0, 5);
        }"""
    )
    return found


class Pictures:
    """One browser that is logged in, and what it complained about."""

    def __init__(self, browser: Browser, out: Path, token: str | None) -> None:
        self.out, self.problems = out, list[str]()
        first = link()
        self.base = first.partition("/login")[0]
        self.context = browser.new_context(color_scheme="light", reduced_motion="reduce")
        page = self.context.new_page()
        page.goto(first if token is None else f"{self.base}/login")
        if token is not None:
            page.fill("#token", token)
            page.click("#by-token button")
        page.wait_for_url(f"{self.base}/")
        page.close()

    def take(self, name: str, path: str, ready: str, prepare: Any = None, full: bool = True) -> None:
        """Take all pictures of one page, once ``ready`` can be seen on it."""
        for theme in ("light", "dark"):
            for size, (width, height) in WIDTHS.items():
                page = self.context.new_page()
                page.emulate_media(color_scheme=theme)
                page.set_viewport_size({"width": width, "height": height})
                where = f"{name} {theme} {size}"
                page.on("console", lambda said: self._note(where, said.type, said.text))  # noqa: B023
                page.on("pageerror", lambda error: self.problems.append(f"{where}: {error}"))  # noqa: B023
                page.goto(f"{self.base}{path}")
                page.wait_for_selector(ready)
                if prepare is not None:
                    prepare(page)
                page.wait_for_timeout(1200)  # the first readings
                self.problems += [f"{where}: {words}" for words in overflow(page)]
                page.screenshot(path=self.out / f"{name}-{theme}-{size}.png", full_page=full)
                page.close()

    def _note(self, where: str, kind: str, text: str) -> None:
        refused = where.startswith(("missing", "admin")) and ("404" in text or "403" in text)
        if kind in ("error", "warning") and not refused:
            self.problems.append(f"{where}: {text}")


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--job", help="a job that has run")
    parser.add_argument("--waiting", help="a job that waits")
    parser.add_argument("--array", help="an array")
    parser.add_argument("--node", help="a node")
    parser.add_argument("--token", help="of the user who looks (default: whoever runs the dashboard)")
    parser.add_argument("--only", help="only pictures whose name begins so")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        pictures = Pictures(browser, given.out, given.token)
        wanted: list[tuple[Any, ...]] = [
            ("cluster", "/", "#tiles .tile"),
            ("queue", "/queue", "#rows tbody tr, #rows .empty"),
            ("job", f"/jobs/{given.job}", ".state-panel"),
            ("waiting", f"/jobs/{given.waiting}", "#why .big"),
            (
                "cancel",
                f"/jobs/{given.job}",
                ".state-panel",
                lambda page: page.click("[data-verb=cancel]:not([aria-disabled=true]), [data-verb=requeue]"),
                False,
            ),
            ("missing", "/jobs/987654", ".empty"),
            ("array", f"/arrays/{given.array}", "#tasks-table tbody tr"),
            ("nodes", "/nodes", "#rows tbody tr, #rows .empty"),
            ("node", f"/nodes/{given.node}", ".gpu-details"),
            (
                "drain",
                f"/nodes/{given.node}",
                ".gpu-details",
                lambda page: page.click("[data-verb=drain]"),
                False,
            ),
            ("events", "/events", ".story li"),
            ("timeline", "/timeline?window=hour", "#lanes canvas, #empty .empty"),
            ("timeline-of-jobs", "/timeline?window=hour&by=job", "#lanes canvas, #empty .empty"),
            ("timeline-of-pools", "/timeline?window=hour&by=pool", "#lanes canvas, #empty .empty"),
            ("timeline-of-nodes", "/timeline?window=hour&by=node", "#lanes canvas, #empty .empty"),
            ("usage", "/usage", "#rows tbody tr, #empty .empty"),
            ("whatif", "/whatif?policy=fifo", ".what-if-table, #result .problem"),
            (
                "whatif-of-several",
                "/whatif?policy=fifo&policy=fitgpp&o.s=2&policy=tide",
                ".what-if-table th:nth-child(5), #result .problem",
            ),
            ("admin", "/admin", "#agents tbody tr, #agents p, .empty"),
        ]
        for name, *rest in wanted:
            if (not given.only or name.startswith(given.only)) and not rest[0].endswith("/None"):
                pictures.take(name, *rest)
        browser.close()
    for problem in pictures.problems:
        print(problem)
    return 1 if pictures.problems else 0


if __name__ == "__main__":
    sys.exit(main())
