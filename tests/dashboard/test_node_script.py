"""The buttons on the page of a node, held against a stream that the test fills by hand."""

from collections.abc import Iterator
from typing import Any

import pytest
from ebbtide_protos.v1 import client_pb2
from ebbtide_web.answers import HERE
from ebbtide_web.pages.node import node_facts

from tests.dashboard.looking import watched
from tests.dashboard.test_app_script import BY_HAND

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><meta name="base" content=""><meta name="role" content="operator"><body>
<span id="live"><span></span><span>connecting</span></span><div id="banner" hidden></div>
<main id="node" data-name="n1"><p id="facts"></p><div id="actions"></div><div id="state"></div><div id="strays"></div>
<div id="jobs"></div><div id="gpus"></div><div id="story"></div></main>
<script type="module" src="/static/node.js"></script>"""


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """The page of a node of which nothing is known yet."""
    page, static = browser.new_page(), HERE / "static"
    complaints = watched(page)
    page.add_init_script(BY_HAND)
    page.route("**/*", lambda route: route.fulfill(status=200, body=PAGE, content_type="text/html"))
    page.route("**/events/older?**", lambda route: route.fulfill(status=200, body='{"events": []}'))
    page.route("**/static/*.js", lambda route: route.fulfill(path=static / route.request.url.rpartition("/")[2]))
    page.goto("http://127.0.0.1:1/")
    page.wait_for_function("sources.length === 1")
    yield page
    assert complaints == []
    page.close()


@pytest.mark.parametrize(("state", "is_offered"), [("up", False), ("draining", False), ("down", True), ("ended", True)])
def test_a_node_that_is_silent_or_has_ended_can_be_removed_and_confirmed_dead(page, state, is_offered):
    found = node_facts(client_pb2.NodeReply(node=client_pb2.Node(name="n1", state=state, last_seen=1.0)))
    page.evaluate("(found) => sources[0].tell('node', found)", found)
    for name in ("Remove", "Confirm dead"):
        assert page.get_by_role("button", name=name).is_enabled() == is_offered
