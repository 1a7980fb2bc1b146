"""`ebb deploy` to hosts that an SSH server on loopback stands for."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.docs.test_examples_of_help import EXAMPLES
from tests.e2e.cluster import REPOSITORY, Cluster, processes_of, wait_for
from tests.ports import free_ports
from tests.sshd import GONE, Hosts, a_bundle, some_hosts, with_places

pytestmark = [pytest.mark.sshd, pytest.mark.timeout(300)]

SECONDS = 240.0


@dataclass(frozen=True)
class Lab:
    """A master, hosts that may become nodes of its cluster, and what to install there."""

    cluster: Cluster
    hosts: Hosts
    bundle: Path

    def deploy(self, *names: str, code: int = 0) -> dict[str, dict[str, Any]]:
        """What `ebb deploy ssh` says of each host."""
        return self.facts(*self.words(*names), code=code)

    def words(self, *names: str) -> tuple[str, ...]:
        """The arguments of `ebb deploy` for these hosts."""
        agent = ("--agent", "--gpus 1xRTX4090 --min-uid 0")
        return ("ssh", *names, "--bundle", str(self.bundle), *agent, *with_places(self.hosts))

    def facts(self, *words: str, code: int = 0) -> dict[str, dict[str, Any]]:
        """What `ebb deploy … --json` says of each host."""
        done = self.cluster.ebb("deploy", *words, "--json", code=code, seconds=SECONDS)
        return {report["host"]: report for report in json.loads(done.out)}

    def close(self) -> None:
        """End the agents of all hosts."""
        for name in self.hosts.names:
            for process in self.agents(name):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.terminate()
        wait_for("the agents are gone", lambda: not any(map(self.agents, self.hosts.names)))

    def agents(self, name: str) -> list[psutil.Process]:
        """The processes of a host's agent."""
        return list(processes_of(self.hosts.home(name)))


@contextlib.contextmanager
def a_lab(*names: str, config: str = "") -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder, some_hosts(*names) as hosts:
        cluster = Cluster(Path(folder) / "login")
        (cluster.home / "ebbtide.toml").write_text(config)
        cluster.ebb("master", "init", "--host", "localhost", "--port", str(free_ports(2)[0]))
        cluster.up("none", "--node", "login")
        lab = Lab(cluster, hosts, a_bundle(Path(folder)))
        try:
            yield lab
        finally:
            lab.close()
            cluster.close()


def test_one_command_makes_three_hosts_nodes_and_a_second_run_changes_nothing() -> None:
    with a_lab("ws1", "ws2", "ws3") as lab:
        names = ("ws1", "ws2", "ws3")
        planned = lab.facts(*lab.words(*names), "--dry-run")
        assert [planned[name]["result"] for name in names] == ["planned"] * 3
        assert planned["ws1"]["changes"] == ["send", "install", "join", "start"]
        assert [list(lab.hosts.directory(name).iterdir()) for name in names] == [[], [], []]

        done = lab.deploy(*names)
        for name in names:
            report = done[name]
            assert (report["result"], report["reason"]) == ("up", None)
            assert report["changes"] == ["send", "install", "join", "start"]
            assert report["kept_by"] == "background"
            assert {finding["check"] for finding in report["doctor"]} >= {"GPUs", "clock"}
        assert lab.cluster.nodes_up() == {"login", *names}

        before = {name: lab.hosts.record(name) for name in names}
        again = lab.cluster.ebb("deploy", *lab.words(*names), seconds=SECONDS).out
        assert again.count("nothing to change; doctor: no problem") == 3
        assert {name: lab.hosts.record(name) for name in names} == before


def test_a_host_that_fails_is_named_with_the_reason_and_the_others_are_done() -> None:
    with a_lab("ws1", "ws2") as lab:
        (lab.hosts.directory("ws2") / ".local").write_text("a file where a directory has to be\n")
        done = lab.deploy("ws1", "ws2", GONE, code=1)
        assert done["ws1"]["result"] == "up"
        assert (done["ws2"]["result"], done["ws2"]["step"]) == ("failed", "install")
        assert "Not a directory" in done["ws2"]["reason"]
        assert (done[GONE]["result"], done[GONE]["step"]) == ("failed", "connect")
        assert "Connection refused" in done[GONE]["reason"]

        (lab.hosts.directory("ws2") / ".local").unlink()
        assert lab.deploy("ws2")["ws2"]["changes"] == ["send", "install", "join", "start"]


def adapted(line: str, lab: Lab) -> list[str]:
    """An example of the help, with what there is here in place of what it names."""
    line = re.sub(r"ebbtide-\S+\.tar\.gz", str(lab.bundle), line).replace("anna@ws2:2222", "ws2")
    line = line.replace("hosts.txt", str(lab.bundle.with_name("hosts.txt")))
    if "deploy ssh" in line:
        line = (
            line.replace("--agent '", "--agent '--gpus none ") if "--agent" in line else f"{line} --agent '--gpus none'"
        )
    return [*shlex.split(line)[1:], *with_places(lab.hosts)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_examples_of_the_help_do_what_they_say() -> None:
    with a_lab("ws1", "ws2", "ws3", config="[pools.a100]\n") as lab:
        lab.bundle.with_name("hosts.txt").write_text("ws1\n")
        in_turn = ["ssh", "upgrade", "remove"]
        lines = [example.line for example in EXAMPLES if example.command.split()[0] == "deploy"]
        lines.sort(key=lambda line: in_turn.index(line.split()[2]))
        for line in dict.fromkeys(lines):
            lab.cluster.ebb(*adapted(line, lab), seconds=SECONDS)
        assert lab.cluster.nodes_up() == {"login", "ws1", "ws3"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_make_bundle_wrote_is_deployed_and_runs_a_job_and_is_removed(tmp_path: Path) -> None:
    made = subprocess.run(
        [REPOSITORY / "scripts/make_bundle.sh", tmp_path],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    with a_lab("ws1") as lab:
        lab = replace(lab, bundle=Path(made.stdout.strip().splitlines()[-1]))
        assert lab.deploy("ws1")["ws1"]["result"] == "up"
        (agent,) = (process for process in lab.agents("ws1") if "agent" in process.cmdline())
        assert agent.cmdline()[0].startswith(str(lab.hosts.directory("ws1") / ".local/opt/ebbtide-builds"))
        lab.cluster.ebb("submit", "--wait", "--on", "ws1", "--no-snapshot", "--", "true")
        removed = lab.facts("remove", "ws1", *with_places(lab.hosts))["ws1"]
        assert removed["changes"] == ["drain", "remove", "forget"]
        assert lab.cluster.nodes_up() == {"login"}
        assert list((lab.hosts.directory("ws1") / ".local/opt").iterdir()) == []
