"""The log on the page of a job, held against a stream that the test fills by hand."""

from collections.abc import Iterator
from typing import Any

import pytest
from ebbtide_web.answers import HERE

from tests.dashboard.looking import watched
from tests.dashboard.test_app_script import BY_HAND

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><meta name="base" content=""><body>
<span id="live"><span></span><span>connecting</span></span><div id="banner" hidden></div>
<main><div id="log-tools"></div><div id="log"></div></main>
<script type="module">import { followLog } from "/static/log.js";
window.log = followLog("/jobs/1", { attempts: [], request: { nodes: 1 } });</script>"""
WHY = "The log cannot be read now, which is tried again: node n1 is not connected"


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page with nothing but a log."""
    page = browser.new_page()
    complaints = watched(page)
    page.add_init_script(BY_HAND)
    page.route("**/*", lambda route: route.fulfill(status=200, body=PAGE, content_type="text/html"))
    of = HERE / "static"
    page.route("**/static/*.js", lambda route: route.fulfill(path=of / route.request.url.rpartition("/")[2]))
    page.goto("http://127.0.0.1:1/")
    page.wait_for_function("window.log")
    yield page
    assert complaints == []
    page.close()


def tell(page: Any, name: str, **found: Any) -> None:
    page.evaluate("([name, found]) => sources[0].tell(name, found)", [name, found])


def lines(page: Any) -> list[str]:
    return [text.strip() for text in page.locator("#log .ln").all_inner_texts()]


def print_line(page: Any, text: str) -> None:
    tell(page, "begin")
    tell(page, "log", attempt=1, gap=False, lines=[[[text, ""]]], open=None)


def test_a_log_that_cannot_be_read_says_why_until_it_can(page):
    tell(page, "away", words="node n1 is not connected")
    assert lines(page) == [WHY]
    print_line(page, "step 1")
    assert lines(page) == ["attempt 1", "step 1"]


def test_why_a_log_does_not_go_on_is_told_once_below_what_is_shown_of_it(page):
    print_line(page, "step 1")
    for _ in range(2):
        tell(page, "away", words="node n1 is not connected")
        assert lines(page) == ["attempt 1", "step 1", WHY]
    tell(page, "refused", words="node n1 does not answer", status=409)
    assert lines(page) == ["attempt 1", "step 1", "node n1 does not answer"]


def test_of_a_log_that_its_viewer_may_not_see_any_more_nothing_is_left(page):
    print_line(page, "step 1")
    tell(page, "refused", words="job 1 is ann's", status=403)
    assert lines(page) == ["job 1 is ann's"]
