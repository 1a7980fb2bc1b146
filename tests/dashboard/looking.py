"""What tests ask of every page in a browser: no complaints, nothing too wide, nothing that cannot be reached."""

from typing import Any

WAIT_MS = 120_000
WIDE, NARROW = (1440, 900), (390, 844)
SIZES = (WIDE, (1024, 768), NARROW)

_BURSTS = """() => {
    const found = [], wide = innerWidth, all = document.documentElement.scrollWidth;
    if (all > wide) found.push(`the page is ${all} wide`);
    const ends = (one) => one.getBoundingClientRect().right;
    const cuts = (one) => getComputedStyle(one).overflowX !== "visible" && ends(one) <= wide + 1;
    const named = (one) => `${one.tagName.toLowerCase()}#${one.id}.${one.className}`;
    for (const one of document.querySelectorAll("header *, main *, dialog *")) {
        if (!one.getBoundingClientRect().width || ends(one) <= wide + 1) continue;
        let above = one.parentElement;
        while (above !== document.body && !cuts(above)) above = above.parentElement;
        if (above === document.body) found.push(`${named(one)} ends at ${Math.round(ends(one))}`);
    }
    for (const one of document.querySelectorAll("header, h1, .cell, .card, .next li, .node-head")) {
        const high = one.getBoundingClientRect().height;
        if (high > 450) found.push(`${named(one)} is ${Math.round(high)} high`);
    }
    return found.slice(0, 8);
}"""
_CONTROLS = """() => {
    const all = [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")];
    const seen = (one) => one.checkVisibility() && one.getBoundingClientRect().width > 1 && !one.matches(".skip");
    const label = (one) => one.getAttribute("aria-label") || one.labels?.[0]?.textContent;
    const name = (one) => (label(one) || one.textContent || one.placeholder || "").replace(/[0-9.,:]+/g, "").trim();
    return all.filter(seen).map((one) => [one, `${one.tagName.toLowerCase()} ${name(one)}`]);
}"""
_NAMES = f"() => ({_CONTROLS})().map(([, name]) => name)"
_OUT_OF_REACH = f"""() => ({_CONTROLS})().filter(([one]) => {{
    one.scrollIntoView({{ block: "center", inline: "center" }});
    const box = one.getBoundingClientRect(), x = box.left + box.width / 2;
    const y = box.top < 0 ? Math.min(box.bottom, innerHeight) / 2 : box.top + Math.min(box.height / 2, 20);
    const there = document.elementFromPoint(x, y);
    return x < 0 || x > innerWidth || !there || !(one.contains(there) || there.contains(one));
}}).map(([, name]) => name)"""


WORDS_STAY = """
const soon = setTimeout;
window.setTimeout = (run, ms, ...more) => soon(run, ms === 6000 ? 600000 : ms, ...more);
"""
"""What a page says of a verb goes away after 6 s, and a busy machine may look later."""


def watched(page: Any) -> list[str]:
    """Whatever the browser complains about from now on, and whatever a page asks of others than its own host."""
    found: list[str] = []
    page.set_default_timeout(WAIT_MS)
    page.on("console", lambda said: found.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.append(str(error)))

    def refuse(dialog: Any) -> None:
        found.append(f"a script has run: {dialog.message}")
        dialog.dismiss()

    page.on("dialog", refuse)
    page.add_init_script(WORDS_STAY)
    page.on("request", lambda request: found.append(request.url) if not is_own(request.url) else None)
    return found


def is_own(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "https://localhost:", "data:"))


def bursts(page: Any) -> list[str]:
    """What is wider than the page, or higher than anything of it should be, on a screen and on a telephone."""
    found = []
    for width, height in (WIDE, NARROW):
        page.set_viewport_size({"width": width, "height": height})
        found += [f"at {width}: {words}" for words in page.evaluate(_BURSTS)]
    return found


def controls(page: Any, size: tuple[int, int]) -> set[str]:
    """What can be pressed, chosen or typed into at this size, by its element and its name without numbers."""
    page.set_viewport_size({"width": size[0], "height": size[1]})
    return set(page.evaluate(_NAMES))


def out_of_reach(page: Any) -> list[str]:
    """Controls that cannot be scrolled to, or that something else covers."""
    names: list[str] = page.evaluate(_OUT_OF_REACH)
    return names


def serious(page: Any) -> list[str]:
    """What axe-core calls serious or critical on this page, as it is now."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        f"{each['id']}: {each['nodes'][0]['target']} {each['nodes'][0]['html'][:120]}"
        for each in Axe().run(page).response["violations"]
        if each["impact"] in ("serious", "critical")
    ]
