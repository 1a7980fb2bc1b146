"""Two hundred hostile texts at every place of every page, in Chromium: none is obeyed, and none bursts the layout."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from ebbtide_protos.quantities import printable
from ebbtide_web.access.sessions import Links
from ebbtide_web.board.picture import natural
from ebbtide_web.pages import array as array_page
from ebbtide_web.pages.node import MOST_MARKS
from ebbtide_web.pages.nodes import PAGE

from tests.dashboard import hostile_cluster
from tests.dashboard.hostile import CORPUS
from tests.dashboard.looking import NARROW, WIDE, bursts, serious, watched
from tests.drawing import share_of, some_of

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).resolve().parents[2]
SHOWN = sorted({printable(text) for text in CORPUS})
MADE = """document.querySelectorAll(`main :is(
    script, iframe, img, object, embed, link, style, base, meta, math, template,
    [onclick], [onerror], [onload], [onmouseover], [onfocus], [ontoggle], [style*=display]
), main form[action]`).length"""
MISSING = """([place, texts]) => {
    const shown = [...document.querySelectorAll(place)].map((one) => one.textContent).join("\\n");
    return texts.filter((text) => !shown.includes(text));
}"""
UNSEEN = r"""(document.body.innerText + document.title).match(
    /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff]/g)"""
SEEN_IN_THE_LOG = """() => {
    const one = document.querySelector(".ln.at").getBoundingClientRect();
    const box = document.getElementById("log").getBoundingClientRect();
    return one.top >= box.top && one.bottom <= box.bottom;
}"""


@dataclass
class HostileCluster:
    """Where it is, and how to go on to its next turn."""

    url: str
    link: Callable[[], str]
    take: Callable[[int], None]


@pytest.fixture(scope="module")
def hostile() -> Iterator[HostileCluster]:
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        command = [sys.executable, "-m", "tests.dashboard.hostile_cluster", folder]
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, text=True)
        assert child.stdin is not None
        assert child.stdout is not None
        feed = child.stdin
        url = f"http://127.0.0.1:{int(child.stdout.readline())}"
        links = Links(Path(folder) / "links")
        try:
            yield HostileCluster(
                url, lambda: f"{url}/login#code={links.make()}", lambda turn: print(turn, file=feed, flush=True)
            )
        finally:
            child.stdin.close()
            assert child.wait(30) == 0
            child.stdout.close()


@pytest.fixture
def page(hostile: HostileCluster, browser: Any) -> Iterator[Any]:
    """A page that is logged in as somebody with a hostile name; whatever the browser complains about is a failure."""
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.complaints = watched(page)
    page.goto(hostile.link())
    page.wait_for_selector("#tiles .tile")
    yield page
    assert page.complaints == []
    context.close()


def check(page: Any) -> None:
    """Nothing on it has become more than text, and nothing is too wide or too high."""
    assert page.evaluate(MADE) == 0
    assert page.evaluate(UNSEEN) is None, "nothing turns around what follows, or hides"
    assert bursts(page) == []
    page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})


def without_refusals(complaints: list[str]) -> list[str]:
    """The browser tells of each answer that is a refusal; these were asked for."""
    return [words for words in complaints if not words.startswith("Failed to load resource: the server responded")]


def test_the_cluster_shows_hostile_texts_as_text_on_cards_and_on_the_map(hostile, page):
    missing = set(SHOWN)
    for turn in range(hostile_cluster.MAP):
        hostile.take(turn)
        page.wait_for_selector(f"#notices :text('turn-{turn}')")
        assert page.locator("article.card").count() == hostile_cluster.CARDS
        missing &= set(page.evaluate(MISSING, ["#nodes", SHOWN]))
        check(page)
    assert sorted(missing) == []
    assert page.evaluate(MISSING, ["#notices", SHOWN]) == []
    hostile.take(hostile_cluster.MAP)
    page.wait_for_selector("canvas.map")
    page.get_by_text("The same as a table").click()
    page.wait_for_selector("#table tbody tr")
    assert page.evaluate(MISSING, ["#table", SHOWN]) == []
    check(page)
    page.get_by_role("button", name="<img src=x onerror=alert(1)>", exact=True).click()
    page.wait_for_selector("dialog .gpu-details")
    assert page.evaluate(MISSING, ["dialog", SHOWN]) == []
    check(page)


def test_the_queue_shows_hostile_texts_as_text_in_rows_and_filters(hostile, page):
    missing = set(SHOWN)
    over = sum(hostile_cluster.is_over(number) for number in range(len(CORPUS)))
    for show, rows in (("unfinished", len(CORPUS) - over), ("finished", over)):
        page.goto(f"{hostile.url}/queue?show={show}")
        page.wait_for_function("(rows) => document.querySelectorAll('tbody tr').length === rows", arg=rows)
        missing &= set(page.evaluate(MISSING, ["#rows", SHOWN]))
        check(page)
    assert sorted(missing) == []


def test_the_nodes_show_hostile_texts_as_text_in_rows(hostile, page):
    hostile.take(hostile_cluster.MAP)
    missing, names = set(SHOWN), sorted(set(CORPUS), key=natural)
    for number, start in enumerate(range(0, len(names), PAGE)):
        page.goto(f"{hostile.url}/nodes?page={number}")
        rows = len(set(map(printable, names[start : start + PAGE])))
        page.wait_for_function("(rows) => document.querySelectorAll('tbody tr').length === rows", arg=rows)
        missing &= set(page.evaluate(MISSING, ["#rows", SHOWN]))
        check(page)
    assert sorted(missing) == []


def test_one_node_shows_hostile_texts_as_text_and_so_does_the_dialog_that_drains_it(hostile, page):
    page.goto(f"{hostile.url}/nodes/n1")
    page.wait_for_selector("#gpus .gpu-details")
    page.wait_for_selector("#story li")
    of_jobs = sorted({printable(text) for text in CORPUS[: hostile_cluster.NODE_JOBS]})
    of_strays = sorted({printable(text) for text in CORPUS[:MOST_MARKS]})
    for place, texts in (("#gpus", SHOWN), ("#story", SHOWN), ("#jobs", of_jobs), ("#strays", of_strays)):
        assert page.evaluate(MISSING, [place, texts]) == []
    check(page)
    page.get_by_role("button", name="Drain", exact=True).click()
    page.wait_for_selector("dialog .outcome-list li")
    assert page.evaluate(MISSING, ["dialog", of_jobs]) == []
    check(page)
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    page.wait_for_selector("#said p")
    check(page)
    page.complaints[:] = without_refusals(page.complaints)


def test_the_events_show_hostile_texts_as_text(hostile, page):
    page.goto(f"{hostile.url}/events")
    page.wait_for_selector(".story li")
    assert page.evaluate(MISSING, ["#events", SHOWN]) == []
    check(page)


def test_the_usage_shows_hostile_texts_as_text(hostile, page):
    page.goto(f"{hostile.url}/usage")
    page.wait_for_selector("#rows tbody tr")
    users = sorted({printable(text) for text in CORPUS[: hostile_cluster.USERS]})
    foreign = sorted({printable(text) for text in CORPUS[: hostile_cluster.FOREIGN]})
    for place, texts in (("#rows", users), ("#gpu-time", foreign), ("#problems", SHOWN)):
        assert page.evaluate(MISSING, [place, texts]) == []
    check(page)


@pytest.mark.parametrize("by", ["gpu", "job", "pool", "node"])
def test_the_timeline_shows_hostile_texts_as_text(hostile, page, by):
    page.goto(f"{hostile.url}/timeline?by={by}")
    page.wait_for_selector("#lanes canvas")
    page.get_by_text("The same as a table").click()
    page.wait_for_selector("#table tbody tr")
    assert page.evaluate(MISSING, ["#table", SHOWN]) == []
    page.locator("#lanes canvas").focus()
    for _ in range(share_of(len(CORPUS))):
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
    assert page.inner_text("#words") != ""
    check(page)


def test_what_if_shows_hostile_texts_as_text_in_a_result_and_in_the_reason_why_there_is_none(hostile, page):
    page.goto(f"{hostile.url}/whatif?policy=tide")
    page.wait_for_selector(".what-if-table")
    assert page.evaluate(MISSING, ["#result", SHOWN]) == []
    check(page)
    page.goto(f"{hostile.url}/whatif?policy=fifo")
    page.wait_for_selector("#result .problem")
    assert page.evaluate(MISSING, ["#result", [printable(CORPUS[1])]]) == []
    check(page)
    fields = ("policy", "since", "until", "nodes", "o.s", "o.p", "o.fallback")
    for text in some_of(CORPUS[::7]):
        page.goto(f"{hostile.url}/whatif?{urlencode(dict.fromkeys(fields, text[:200]))}")
        page.wait_for_selector("#result p")
        check(page)


def test_admin_shows_hostile_texts_as_text(hostile, page):
    page.goto(f"{hostile.url}/admin")
    page.wait_for_selector("#agents tbody tr")
    page.get_by_text("All settings").first.click()
    for place in ("#problems", "#settings", "#pools", "#quotas", "#users", "#tokens", "#agents"):
        assert page.evaluate(MISSING, [place, SHOWN]) == [], place
    check(page)
    page.get_by_role("button", name="Revoke", exact=False).first.click()
    page.wait_for_selector("dialog")
    check(page)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="New token").click()
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    page.wait_for_selector("dialog .token-text")
    check(page)


def test_filters_of_an_address_that_are_hostile_are_only_looked_for(hostile, page):
    names = ("q", "user", "state", "pool", "class", "sort", "show", "page")
    for text in some_of(CORPUS[::7]):
        page.goto(f"{hostile.url}/queue?{urlencode(dict.fromkeys(names, text[:200]))}")
        page.wait_for_selector("#rows :text('No job is like that.')")
        check(page)
        page.goto(f"{hostile.url}/nodes?{urlencode(dict.fromkeys(names, text[:200]))}")
        page.wait_for_selector("#rows :text('No node is like that.'), #rows tbody tr")
        check(page)
        fields = ("about", "kind", "job", "node", "since", "until")
        page.goto(f"{hostile.url}/events?{urlencode(dict.fromkeys(fields, text[:200]))}")
        page.wait_for_selector(".story li")
        check(page)


def test_a_job_shows_hostile_texts_as_text_wherever_somebody_may_write_one(hostile, page):
    for number in some_of(range(1, hostile_cluster.JOBS + 1)):
        page.goto(f"{hostile.url}/jobs/{number}")
        page.wait_for_selector("#log .ln:text('the last line')")
        page.wait_for_selector("#story li")
        for place in ("#request", "#run", "#story", "#state"):
            assert page.evaluate(MISSING, [place, SHOWN]) == []
        name, _, pool, goes, _, user = map(printable, hostile_cluster.single(number))
        assert page.evaluate(MISSING, ["#name", [name]]) == []
        assert page.evaluate(MISSING, ["#facts", [user, pool, goes]]) == []
        assert page.evaluate(MISSING, ["#log", ["<script>alert(1)</script>", "<i>30%</i>"]]) == []
        if hostile_cluster.waits(number):
            page.wait_for_selector("#why .nodes-table")
        check(page)
        suspend = page.get_by_role("button", name="Suspend")
        if suspend.is_enabled():
            suspend.click()
            page.wait_for_selector("#said p")
            check(page)
    page.complaints[:] = without_refusals(page.complaints)


def test_of_a_log_without_end_the_last_lines_are_kept_found_and_jumped_to(hostile, page):
    page.goto(f"{hostile.url}/jobs/{hostile_cluster.FLOOD}")
    last = f"line {hostile_cluster.FLOOD_LINES - 1}"
    page.wait_for_function("(last) => document.getElementById('log').textContent.endsWith(last)", arg=last)
    log = page.get_by_role("log")
    kept = log.locator(".ln")
    assert 2800 <= kept.count() <= 3200
    reported = kept.all_text_contents()
    first = hostile_cluster.FLOOD_LINES - len(reported)
    wanted = [f"line {number}" for number in range(first, hostile_cluster.FLOOD_LINES)]
    wanted[-500] = "Traceback (most recent call last):"
    assert reported == wanted, "none is lost or shown twice where a block or a chunk ends"
    at_the_end = "(one) => one.scrollHeight - one.scrollTop - one.clientHeight < 3"
    page.wait_for_function(f"() => ({at_the_end})(document.getElementById('log'))")
    page.get_by_role("button", name="Traceback").click()
    page.wait_for_selector(".ln.at:text('Traceback')")
    page.wait_for_function(SEEN_IN_THE_LOG)
    page.get_by_label("Find in the log").fill("line 1999")
    page.wait_for_selector("text=10 found")
    page.keyboard.press("Enter")
    page.wait_for_selector(".ln.at.hit")


def test_an_array_shows_hostile_texts_as_text(hostile, page):
    page.goto(f"{hostile.url}/jobs/{hostile_cluster.ARRAY}")
    page.wait_for_selector("#tasks tbody tr")
    first = sorted({printable(text) for text in CORPUS[: array_page.PAGE]})
    assert page.evaluate(MISSING, ["#tasks", first]) == []
    check(page)


def test_the_page_of_an_array_shows_hostile_texts_as_text(hostile, page):
    missing, pages = set(SHOWN), -(-len(CORPUS) // array_page.PAGE)
    for number in range(pages):
        page.goto(f"{hostile.url}/arrays/{hostile_cluster.ARRAY}?page={number}")
        page.wait_for_selector("#tasks-table tbody tr")
        missing &= set(page.evaluate(MISSING, ["#tasks-table", SHOWN]))
        check(page)
    assert sorted(missing) == []
    names = sorted({printable(text) for text in CORPUS[:100]})
    assert page.evaluate(MISSING, ["#plot", names]) == []


def test_words_of_a_refusal_are_only_text(hostile, page):
    for number in some_of(range(0, len(CORPUS), 4)):
        page.goto(f"{hostile.url}/jobs/{hostile_cluster.REFUSED + number}")
        assert page.evaluate(MISSING, ["main", [printable(CORPUS[number])]]) == []
        check(page)
    page.complaints[:] = without_refusals(page.complaints)


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_the_map(hostile, page, theme):
    hostile.take(hostile_cluster.MAP)
    plain = page.context.browser.new_context(bypass_csp=True, reduced_motion="reduce", color_scheme=theme)
    plain.add_cookies(page.context.cookies())
    one = plain.new_page()
    problems = []
    for width, height in (WIDE, NARROW):
        one.set_viewport_size({"width": width, "height": height})
        one.goto(f"{hostile.url}/")
        one.wait_for_selector("canvas.map")
        one.get_by_text("The same as a table").click()
        one.wait_for_selector("#table tbody tr")
        problems += [f"at {width}: {words}" for words in serious(one)]
    plain.close()
    assert "\n".join(problems) == ""
