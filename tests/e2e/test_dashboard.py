"""`ebb dashboard`, and the dashboard that `ebb up` keeps: links, and how it ends."""

import json
import signal
import socket
import urllib.request
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest

from tests.e2e.cluster import Cluster, alive, wait_for


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"accept": "text/html"}), timeout=10) as reply:
            return int(reply.status)
    except HTTPError as error:
        return error.code


def test_up_keeps_a_dashboard_which_a_link_leads_to_and_down_ends(idle_cluster: Cluster) -> None:
    cluster = idle_cluster
    started = cluster.facts("up", "--gpus", "2xA100-40GB", "--dashboard")
    assert started["started"] == ["master", "agent", "dashboard"]
    first, second = (cluster.facts("dashboard", "--link")["url"] for _ in range(2))
    assert first != second
    assert status_of(first) == 200
    dashboard = cluster.daemon("dashboard")
    assert cluster.facts("up")["started"] == [], "it is remembered, and runs"
    cluster.kill(dashboard)
    assert cluster.facts("up")["started"] == ["dashboard"], "up starts again what has died"
    assert first not in (cluster.home / "dashboard.log").read_text()
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


def test_without_its_libraries_it_says_which_extra_brings_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ebbtide_cli.errors import Failure
    from ebbtide_cli.verbs import dashboard

    monkeypatch.setattr(dashboard, "find_spec", lambda name: None if name == "starlette" else object())
    with pytest.raises(Failure, match=r"the dashboard needs starlette: pip install 'ebbtide\[dashboard\]'"):
        dashboard.command.callback(None, True, False, False, False, None)  # type: ignore[misc]
