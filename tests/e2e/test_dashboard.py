"""`ebb dashboard`, and the dashboard that `ebb up` keeps: links, and how it ends."""

import json
import signal
import socket
import ssl
import time
import urllib.request
from http.client import RemoteDisconnected
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest
from ebbtide_master.tls.authority import Authority, create

from tests.e2e.cluster import Cluster, alive, wait_for


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"accept": "text/html"}), timeout=10) as reply:
            return int(reply.status)
    except HTTPError as error:
        return error.code


def log_in(link: str) -> int:
    """Log in as the page of the link does."""
    base, _, code = link.partition("/login#code=")
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(base))
    headers = {"content-type": "application/json", "origin": origin}
    asked = urllib.request.Request(f"{base}/login/code", json.dumps({"code": code}).encode(), headers)
    with urllib.request.urlopen(asked, timeout=10) as reply:
        return int(reply.status)


def log_of(cluster: Cluster) -> str:
    return (cluster.home / "dashboard.log").read_text()


def opens_without_telling_who_lists_processes(cluster: Cluster) -> None:
    """The browser's command line, which every account can read, names a page that only this account can."""
    browser, asked = cluster.home / "browser", cluster.home / "asked"
    browser.write_text(f'#!/bin/sh\necho "$@" > {asked}.part && mv {asked}.part {asked}\n')
    browser.chmod(0o755)
    cluster.environment["BROWSER"] = f"{browser} %s"
    link = cluster.ebb("dashboard").out.splitlines()[0]
    words = wait_for("the browser is opened", lambda: asked.exists() and asked.read_text().strip())
    assert link.partition("#")[2] not in words
    page = Path(urlsplit(words).path)
    assert (page.stat().st_mode & 0o777, link in page.read_text()) == (0o600, True)


def test_up_keeps_a_dashboard_which_a_link_leads_to_and_down_ends(idle_cluster: Cluster) -> None:
    cluster = idle_cluster
    started = cluster.facts("up", "--gpus", "2xA100-40GB", "--dashboard")
    assert started["started"] == ["master", "agent", "dashboard"]
    first, second = (cluster.facts("dashboard", "--link")["url"] for _ in range(2))
    assert first != second
    assert status_of(first) == 200
    dashboard = cluster.daemon("dashboard")
    assert cluster.facts("up")["started"] == [], "it is remembered, and runs"
    assert log_in(first) == 200
    log = wait_for("the login is logged", lambda: "logged in by a link" in (text := log_of(cluster)) and text)
    assert first.partition("code=")[2] not in log
    opens_without_telling_who_lists_processes(cluster)
    cluster.kill(dashboard)
    assert cluster.facts("up")["started"] == ["dashboard"], "up starts again what has died"
    again = cluster.daemon("dashboard")
    stopped = cluster.facts("down", "--now")["stopped"]
    assert stopped[0] == "dashboard"
    wait_for("the dashboard is gone", lambda: not alive(again))
    cluster.ebb("dashboard", "--link", code=3)


def test_in_the_foreground_it_prints_a_link_and_ends_its_sessions(cluster: Cluster) -> None:
    running = cluster.start("dashboard", "--no-open", "--json")
    try:
        assert running.stdout is not None
        url = json.loads(running.stdout.readline())["url"]
        assert status_of(url) == 200
        assert urlsplit(url).hostname == "127.0.0.1"
        assert not (cluster.home / "dashboard-links").stat().st_mode & 0o077
        assert json.loads((cluster.home / "dashboard.json").read_text())["master"] == f"unix:{cluster.home.resolve()}"
        other = cluster.ebb("dashboard", "--no-open").out.split("\n")[0]
        assert urlsplit(other).port == urlsplit(url).port, "a dashboard that runs is not started twice"
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0
    finally:
        running.kill()
        running.communicate()
    assert not (cluster.home / "dashboard.json").exists()


def test_a_port_that_is_taken_is_told_in_one_line(cluster: Cluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = cluster.ebb("dashboard", "--no-open", "--port", port, code=2)
    assert refused.err == f"ebb: dashboard: --port {port}: Address already in use\n"


@pytest.mark.parametrize("options", [("--no-open",), ("--link",)])
def test_without_a_cluster_it_says_what_to_do(idle_cluster: Cluster, options: tuple[str, ...]) -> None:
    refused = idle_cluster.ebb("dashboard", *options, code=3)
    assert "ebb up" in refused.err
    assert refused.err.count("\n") == 1


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for localhost with that of its authority, and its key."""
    pem, secret = create(time.time())
    own, private = Authority(pem, secret).server(("localhost",), time.time())
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_text(own + pem)
    key.write_text(private)
    key.chmod(0o600)
    return cert, key


def test_a_shared_one_speaks_tls_under_its_name_only(cluster: Cluster, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    options = ("--shared", "localhost", "--cert", str(cert), "--key", str(key))
    running = cluster.start("dashboard", "--no-open", "--json", *options)
    try:
        assert running.stdout is not None
        url = json.loads(running.stdout.readline())["url"]
        port = urlsplit(url).port
        assert url.startswith(f"https://localhost:{port}/login#code=")
        trusting = ssl.create_default_context(cafile=str(cert))
        with urllib.request.urlopen(url, context=trusting, timeout=10) as reply:
            assert reply.headers["strict-transport-security"]
        with pytest.raises(RemoteDisconnected):
            urllib.request.urlopen(f"http://localhost:{port}/login", timeout=10)
        trusting.check_hostname = False
        with pytest.raises(HTTPError) as refused:
            urllib.request.urlopen(f"https://127.0.0.1:{port}/login", context=trusting, timeout=10)
        assert refused.value.code == 421
        refused.value.close()
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=20)


def test_a_shared_one_without_tls_is_refused(cluster: Cluster, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    shared = ("dashboard", "--no-open", "--shared", "localhost")
    assert "served with TLS only" in cluster.ebb(*shared, code=2).err
    assert "served with TLS only" in cluster.ebb(*shared, "--cert", str(cert), code=2).err
    assert "do not belong together" in cluster.ebb(*shared, "--cert", str(key), "--key", str(key), code=2).err
    assert "No such file" in cluster.ebb(*shared, "--cert", str(cert), "--key", "/none", code=2).err
    key.chmod(0o644)
    assert "others can read it" in cluster.ebb(*shared, "--cert", str(cert), "--key", str(key), code=2).err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--socket", "{home}/web.sock"), "--socket needs --shared"),
        (("--group", "root"), "--group: it is for --socket"),
        (("--shared", "localhost", "--socket", "{home}/web.sock", "--cert", "x"), "it is the proxy that has the"),
        (("--shared", "localhost", "--socket", "{home}/web.sock", "--group", "no-such"), "there is no group 'no-such'"),
        (("--shared", "local host", "--socket", "{home}/web.sock"), "'local host' is not the name of a host"),
        (("--shared", "localhost", "--socket", "/tmp/web.sock"), "--socket /tmp/web.sock: /tmp can be written by"),
        (("--shared", "localhost", "--socket", "{home}/none/web.sock"), "No such file or directory"),
        (("--shared", "localhost", "--socket", "{home}/" + "x" * 120), "more than 107 bytes"),
        (("--base-path", "ebb"), "--base-path: 'ebb' is not a path such as /ebb"),
        (("--base-path", "/a/../b"), "--base-path: '/a/../b' is not a path"),
        (("--base-path", "/" + "a" * 200), "200 at most"),
        (("--base-path", "/a b"), "is not a path such as /ebb"),
        (("--base-path", "//evil.example"), "is not a path such as /ebb"),
    ],
)
def test_a_proxy_that_makes_no_sense_is_refused_in_one_line(
    shared_cluster: Cluster, options: tuple[str, ...], words: str
) -> None:
    given = [option.replace("{home}", str(shared_cluster.home)) for option in options]
    refused = shared_cluster.ebb("dashboard", "--no-open", *given, code=2)
    assert words in refused.err
    assert refused.err.count("\n") == 1
    assert not (shared_cluster.home / "web.sock").exists()


def test_a_socket_is_there_while_the_dashboard_serves_and_one_that_was_killed_is_followed(
    shared_cluster: Cluster,
) -> None:
    cluster, path = shared_cluster, shared_cluster.home / "web.sock"
    command = ("dashboard", "--no-open", "--json", "--shared", "lab.example", "--socket", str(path), "--base-path", "/")
    for ends in (signal.SIGKILL, signal.SIGTERM):
        running = cluster.start(*command)
        try:
            assert running.stdout is not None
            url = json.loads(running.stdout.readline())["url"]
            assert url.startswith("https://lab.example/login#code=")
            assert (path.is_socket(), path.stat().st_mode & 0o777) == (True, 0o600)
            assert "a process listens there already" in cluster.ebb(*command, code=2).err
            assert cluster.facts("dashboard", "--link")["url"].startswith("https://lab.example/login#code=")
        finally:
            running.send_signal(ends)
            running.communicate(timeout=20)
        assert path.exists() == (ends == signal.SIGKILL)


def test_below_a_path_of_its_own_port_a_link_logs_in(shared_cluster: Cluster) -> None:
    running = shared_cluster.start("dashboard", "--no-open", "--json", "--base-path", "/ebb")
    try:
        assert running.stdout is not None
        url = json.loads(running.stdout.readline())["url"]
        assert urlsplit(url).path == "/ebb/login"
        assert (status_of(url), log_in(url)) == (200, 200)
        again = shared_cluster.facts("dashboard", "--link")["url"]
        assert again.partition("#")[0] == url.partition("#")[0]
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=20)


def test_a_second_one_says_that_it_is_the_first_that_down_ends_and_a_link_leads_to(shared_cluster: Cluster) -> None:
    command = ("dashboard", "--no-open", "--json")
    first = shared_cluster.start(*command)
    second = None
    try:
        assert first.stdout is not None
        address = json.loads(first.stdout.readline())["url"].partition("/login")[0]
        second = shared_cluster.start(*command, "--base-path", "/second")
        assert second.stdout is not None
        assert urlsplit(json.loads(second.stdout.readline())["url"]).path == "/second/login"
        assert shared_cluster.facts("dashboard", "--link")["url"].startswith(f"{address}/login#")
        second.send_signal(signal.SIGINT)
        words = second.communicate(timeout=20)[1]
        assert f"another one runs in EBB_HOME {shared_cluster.home} already, at {address}: " in words
        assert shared_cluster.facts("dashboard", "--link")["url"].startswith(f"{address}/login#")
    finally:
        for running in filter(None, (first, second)):
            running.send_signal(signal.SIGINT)
            running.communicate(timeout=20)


def test_without_its_libraries_it_says_which_extra_brings_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ebbtide_cli.errors import Failure
    from ebbtide_cli.verbs import dashboard

    monkeypatch.setattr(dashboard, "find_spec", lambda name: None if name == "starlette" else object())
    with pytest.raises(Failure, match=r"the dashboard needs starlette: pip install 'ebbtide\[dashboard\]'"):
        dashboard.check_libraries("dashboard")
