"""A dashboard below a path of a host that has more: at its own port, and at a UNIX socket behind a proxy with TLS."""

import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ebbtide_master.tls.authority import Authority, create
from ebbtide_web.access import sessions
from ebbtide_web.serve import Proxied

from tests.dashboard.looking import watched
from tests.dashboard.proxy import Proxy
from tests.dashboard.stage import a_stage
from tests.dashboard.test_access import a_job
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import a_home

STEPS = Path(__file__).with_name("steps.py")
LINKS = """() => [...document.querySelectorAll("a[href], link[href], script[src], form[action]")]
    .map((one) => one.getAttribute("href") ?? one.getAttribute("src") ?? one.getAttribute("action"))"""


@pytest.fixture
def behind() -> Iterator[Proxied]:
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        yield Proxied(("lab.example", "www.lab.example"), Path(folder) / "web.sock")


# --- without a browser ---


async def test_all_is_below_the_path_and_what_is_outside_says_so(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch, "/ebb") as stage:
        assert stage.listening.url == f"http://127.0.0.1:{stage.port}/ebb"
        ann = await stage.logged_in("ann")
        job = await a_job(stage)
        for path in ("/", "/queue", f"/jobs/{job}"):
            text = (await ann.page(path)).body.decode()
            assert 'name="base" content="/ebb"' in text
            text = text.replace('content="/ebb"', "")
            assert text.count('="/') == text.count('="/ebb/') > 5, "each address of the page is below the path"
        root = await ann.page("")
        assert (root.status, root.headers["location"]) == (303, "/ebb/")
        assert (await ann.get("/static/app.js")).status == 200
        stream = await ann.stream("/stream/queue")
        await stream.until(lambda name, data: f"row:{job}" in data["cells"])
        stream.close()
        ann.base = ""
        for path in ("/", "/queue", "/login", "/ebbx", "/ebbx/queue"):
            outside = await ann.get(path)
            assert outside.status == 404
            assert "this dashboard is below /ebb/" in outside.json["error"]


async def test_no_answer_leads_to_an_address_that_a_proxy_has_not_got(tmp_path, monkeypatch, behind):
    async with a_stage(tmp_path, monkeypatch, "/ebb", behind) as stage:
        ann = await stage.logged_in("ann")
        for path in ("", "/", "/queue/", "/jobs/1/", "/static", "/static/", "/login", "/login/"):
            reply = await ann.page(path)
            assert reply.headers.get("location", "/ebb/").startswith("/ebb/"), path


async def test_the_cookie_is_for_the_path_and_for_tls_only(tmp_path, monkeypatch, behind):
    async with a_stage(tmp_path, monkeypatch, "/ebb", behind) as stage:
        visitor = stage.visitor()
        reply = await visitor.log_in("token", stage.tokens["ann"])
        cookie = reply.headers["set-cookie"]
        name, *attributes = cookie.split("; ")
        assert name.startswith("__Secure-ebbtide=")
        assert {"path=/ebb", "secure", "httponly", "samesite=strict"} <= {one.casefold() for one in attributes}
        gone = (await visitor.post("/logout")).headers["set-cookie"].casefold()
        assert "path=/ebb" in gone
        assert "secure" in gone.split("; "), "a browser would not take it otherwise"


async def test_behind_a_proxy_only_its_names_are_served_and_its_pages_may_change_anything(
    tmp_path, monkeypatch, behind
):
    async with a_stage(tmp_path, monkeypatch, shared=behind) as stage:
        assert stage.listening.url == "https://lab.example"
        job, ann = await a_job(stage), await stage.logged_in("ann")
        for host in ("lab.example", "lab.example:443", "WWW.lab.example"):
            name = host.removesuffix(":443")
            assert (await ann.post(f"/jobs/{job}/hold", host=host, origin=f"https://{name}")).status == 200
            assert (await ann.post(f"/jobs/{job}/release", host=host, origin=f"https://{name}:443")).status == 200
        for host in ("evil.example", "127.0.0.1", "lab.example:80", "lab.example:8443", "localhost:443"):
            assert (await ann.get("/", host=host)).status == 421, host
        for origin in ("http://lab.example", "https://www.lab.example", "https://evil.example", "lab.example", "null"):
            assert (await ann.post(f"/jobs/{job}/hold", origin=origin)).status == 403, origin
        assert (await ann.get("/", x_forwarded_host="evil.example", x_forwarded_proto="http")).status == 200


async def test_what_a_proxy_may_not_hold_back_says_so_and_tls_is_for_the_proxy_to_demand(tmp_path, monkeypatch, behind):
    async with a_stage(tmp_path, monkeypatch, shared=behind) as stage:
        ann = await stage.logged_in("ann")
        _, writer, status, headers = await ann.send("GET", "/stream/cluster")
        writer.close()
        assert (status, headers["x-accel-buffering"]) == (200, "no")
        assert "strict-transport-security" not in headers, "it would hold for all that the host serves"


async def test_failed_logins_are_counted_by_the_address_that_the_proxy_adds(tmp_path, monkeypatch, behind):
    async with a_stage(tmp_path, monkeypatch, shared=behind) as stage:
        for _ in range(sessions.FAILURES):
            wrong = await stage.visitor().post("/login/token", {"token": "wrong"}, x_forwarded_for="10.0.0.1, 10.0.0.9")
            assert wrong.status == 401
        right = {"token": stage.tokens["ann"]}
        for made_up in ("10.0.0.9", "10.0.0.2, 10.0.0.9"):
            assert (await stage.visitor().post("/login/token", right, x_forwarded_for=made_up)).status == 429
        assert (await stage.visitor().post("/login/token", right, x_forwarded_for="10.0.0.9, 10.0.0.1")).status == 200


async def test_at_a_port_of_its_own_no_forwarded_address_is_believed(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        for n in range(sessions.FAILURES):
            await stage.visitor().post("/login/token", {"token": "wrong"}, x_forwarded_for=f"10.0.0.{n}")
        right = {"token": stage.tokens["ann"]}
        assert (await stage.visitor().post("/login/token", right, x_forwarded_for="10.0.0.99")).status == 429


async def test_the_socket_is_gone_before_the_dashboard_is(tmp_path, monkeypatch, behind):
    async with a_stage(tmp_path, monkeypatch, shared=behind) as stage:
        ann = await stage.logged_in("ann")
        stream = await ann.stream("/stream/cluster")
        await stream.next()
        assert behind.socket.is_socket()
    assert list(behind.socket.parent.iterdir()) == []
    assert (await stream.ends())[-1] == "over"
    stream.close()


# --- with one ---


@dataclass
class Behind:
    """A cluster whose dashboard is at a socket, and the proxy before it."""

    cluster: Cluster
    proxy: Proxy
    socket: Path
    link: str
    dashboard: Any

    def at(self, path: str) -> str:
        return f"https://localhost:{self.proxy.port}{path}"


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Behind]:
    pem, secret = create(time.time())
    certificate, private = Authority(pem, secret).server(("localhost",), time.time())
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_text(certificate)
    key.write_text(private)
    with a_home() as cluster:
        cluster.up("2xA100-40GB")
        socket = cluster.home / "web.sock"
        with Proxy(cert, key, socket, "/ebb").running() as proxy:
            port = ("--port", str(proxy.port), "--base-path", "/ebb/")
            command = ("dashboard", "--no-open", "--json", "--shared", "localhost", "--socket", str(socket), *port)
            running = cluster.start(*command)
            try:
                assert running.stdout is not None
                yield Behind(cluster, proxy, socket, json.loads(running.stdout.readline())["url"], running)
            finally:
                running.send_signal(signal.SIGINT)
                running.communicate(timeout=30)


@pytest.mark.browser
@pytest.mark.timeout(300)
def test_through_a_real_proxy_pages_links_streams_and_changes_work_and_nothing_is_asked_for_outside(proxied, browser):
    cluster, proxy = proxied.cluster, proxied.proxy
    job = cluster.submit("--gpus", "1", "--name", "below", "--", sys.executable, str(STEPS), "100000", "0.05")
    cluster.wait_for_step(job, 2)
    context = browser.new_context(reduced_motion="reduce", ignore_https_errors=True)
    page = context.new_page()
    complaints = watched(page)
    page.goto(proxied.at("/ebb"))
    page.wait_for_url(proxied.at("/ebb/login"))
    assert proxied.link.startswith(proxied.at("/ebb/login#code="))
    page.goto(proxied.link)
    page.reload()  # an address that differs in its fragment only is no new page
    page.wait_for_selector("article.card :text('below')")
    (cookie,) = context.cookies()
    assert (cookie["name"], cookie["path"]) == ("__Secure-ebbtide", "/ebb")
    assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")
    page.wait_for_selector("#live[data-state=live]")
    for wanted, ready in (("Queue", "tbody tr"), (f"{job} below", ".state-panel")):
        page.get_by_role("link", name=wanted).first.click()
        page.wait_for_selector(ready)
        assert [link for link in page.evaluate(LINKS) if not link.startswith(("/ebb/", "#", "./"))] == []
    assert page.url == proxied.at(f"/ebb/jobs/{job}")
    page.wait_for_selector("#log .ln:text('step')")
    href = page.get_by_role("link", name="Download").get_attribute("href")
    file = "(href) => fetch(href).then((reply) => reply.text())"  # Chromium keeps no file of a host that it mistrusts
    assert "step 1\n" in page.evaluate(file, href)
    page.get_by_role("button", name="Suspend").click()
    page.wait_for_selector(".state-line .state >> text=Suspended")
    page.locator("details.who summary").click()
    proxy.slow["/ebb/logout"] = 0.5  # the page's streams are over before the answer to the request comes
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(proxied.at("/ebb/login"))
    assert context.cookies() == []
    assert proxy.outside == []
    assert [words for words in complaints if "401" not in words] == []
    context.close()
    assert proxied.socket.lstat().st_mode & 0o777 == 0o600
    proxied.dashboard.send_signal(signal.SIGINT)
    assert proxied.dashboard.wait(20) == 0
    assert [path.name for path in proxied.socket.parent.iterdir() if "web.sock" in path.name] == []
