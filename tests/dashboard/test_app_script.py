"""What all pages share in the browser, held against streams that the test opens, fails and fills by hand."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from ebbtide_web.answers import HERE

from tests.dashboard.looking import watched

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><meta name="base" content=""><body>
<span id="live"><span></span><span>connecting</span></span><div id="banner" hidden></div><main></main>
<script type="module">import * as app from "/static/app.js"; window.app = app;</script>"""
BY_HAND = """
window.sources = [];
window.isHidden = false;
Object.defineProperty(document, "hidden", { get: () => window.isHidden });
window.show = (seen) => { window.isHidden = !seen; document.dispatchEvent(new Event("visibilitychange")); };
window.EventSource = class extends EventTarget {
  static CLOSED = 2;
  constructor(url) { super(); this.url = url; this.readyState = 1; sources.push(this); }
  close() { this.readyState = 2; }
  fail(state) { this.readyState = state; this.onerror(); }
  tell(name, found) { this.dispatchEvent(new MessageEvent(name, { data: JSON.stringify(found) })); }
};
window.opened = () => sources.filter((one) => one.readyState !== 2).length;
"""


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """An empty page with the script that all pages share, a clock and streams that stand still."""
    page = browser.new_page()
    complaints = watched(page)
    page.clock.install()
    page.add_init_script(BY_HAND)
    page.route("**/*", lambda route: route.fulfill(status=200, body=PAGE, content_type="text/html"))
    page.route("**/me", lambda route: route.fulfill(status=200, body=json.dumps({"user": "ann"})))
    page.route("**/static/app.js", lambda route: route.fulfill(path=HERE / "static" / "app.js"))
    page.goto("http://127.0.0.1:1/")
    page.wait_for_function("window.app")
    yield page
    assert complaints == []
    page.close()


def test_a_page_that_opens_in_the_background_has_no_stream_before_it_is_seen(page):
    page.evaluate("show(false); app.stream('/stream/x', {})")
    assert page.evaluate("sources.length") == 0
    page.evaluate("show(true)")
    assert page.evaluate("opened()") == 1


def test_a_stream_that_ends_something_when_nobody_reads_is_open_in_the_background_too(page):
    page.evaluate("show(false); app.stream('/stream/x', {}, { whileHidden: true })")
    assert page.evaluate("opened()") == 1


def test_a_page_that_was_left_while_its_stream_was_refused_has_one_stream_when_it_is_seen_again(page):
    page.evaluate("app.stream('/stream/x', {}); sources[0].fail(2); show(false)")
    page.clock.run_for(5000)
    assert page.evaluate("opened()") == 0, "it is left alone while nobody sees it"
    page.evaluate("show(true); sources.at(-1).fail(2); show(false); show(true)")
    page.clock.run_for(5000)
    page.evaluate("fetch('/me')")
    assert page.evaluate("[sources.length, opened()]") == [3, 1]


def test_a_stream_that_was_refused_is_opened_again_while_the_page_is_seen(page):
    page.evaluate("app.stream('/stream/x', {}); sources[0].fail(2)")
    page.clock.run_for(2000)
    page.wait_for_function("opened() === 1")


def test_a_page_says_that_it_is_live_only_once_something_was_heard(page):
    page.evaluate("app.stream('/stream/x', {})")
    page.clock.run_for(5000)
    assert page.inner_text("#live") == "connecting"
    page.evaluate("sources[0].tell('here', {})")
    page.clock.run_for(1000)
    assert page.inner_text("#live") == "live"


def test_a_stream_that_went_silent_counts_as_away_and_is_opened_anew(page):
    page.evaluate("app.stream('/stream/x', { told: () => {} }); sources[0].tell('told', {})")
    for _ in range(3):
        page.clock.run_for(30_000)
        page.evaluate("sources[0].tell('here', {})")
    assert page.evaluate("[sources.length, opened()]") == [1, 1]
    page.clock.run_for(50_000)
    assert "The dashboard has not answered since" in page.inner_text("#banner")
    assert re.fullmatch(r"last heard (4[5-9]|5\d) s ago", page.inner_text("#live"))
    assert page.evaluate("[sources.length, opened()]") == [2, 1]
    page.evaluate("sources[1].tell('here', {})")
    assert page.inner_text("#live") == "live"
    assert page.locator("#banner").is_hidden()


def test_what_is_made_anew_keeps_what_was_unfolded_and_the_focus(page):
    page.evaluate("""() => {
        const { h, put } = app, main = document.querySelector("main");
        const fold = (name, open) => h("details", { open }, h("summary", {}, name), "more");
        const button = (number) => h("button", { "aria-label": "GPU 0: details" }, `GPU ${number}`);
        const link = () => h("a", { href: "/" }, "a link");
        window.make = (n) => put(main, n, () => [fold("one", false), fold("two", true), button(n), link()]);
        make(1);
    }""")
    page.get_by_text("one").click()
    page.get_by_text("two").click()
    page.get_by_role("button").focus()
    page.evaluate("make(2)")
    assert page.evaluate("[...document.querySelectorAll('details')].map((one) => one.open)") == [True, False]
    assert page.evaluate("document.activeElement.textContent") == "GPU 2"
    page.get_by_role("link").focus()
    page.evaluate("make(3)")
    assert page.evaluate("document.activeElement.textContent") == "a link"


def test_words_about_time_go_on_by_themselves(page):
    page.clock.set_system_time("2026-03-01T23:00:00")
    page.evaluate("""() => {
        const at = Date.now() / 1000;
        document.querySelector("main").append(app.time(at, false), " ", app.coming(at + 7200, "in about"));
    }""")
    before = page.evaluate("new Date().toTimeString().slice(0, 5)")
    assert page.inner_text("main") == f"{before} in about 2.0 h"
    page.clock.run_for(5_400_000)
    page.wait_for_function("!document.querySelector('main').innerText.includes('2.0')")
    assert page.inner_text("main") == f"2026-03-01 {before} in about 30 min"
    page.clock.run_for(1_800_000)
    assert page.inner_text("main") == f"2026-03-01 {before} now"
