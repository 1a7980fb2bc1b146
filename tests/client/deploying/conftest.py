"""A scripted master whose nodes are hosts behind an SSH server, with an `ebb` that costs nothing installed there."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from ebbtide_protos.v1 import client_pb2, user_pb2

from tests.client.runs import Ebb, Result
from tests.client.scripted_master import ScriptedMaster, serving
from tests.sshd import PYTHON, Hosts, a_bundle, some_hosts, with_places

CA = "-----BEGIN CERTIFICATE-----\nof the cluster\n-----END CERTIFICATE-----\n"
SECRET = "c2VjcmV0"
NAMES = ("ws1", "ws2", "ws3")
INSTALL = r"""#!/bin/sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=$1/ebbtide-{version}
mkdir -p "$target/bin"
cp "$here/ebb" "$target/bin/ebb"
chmod 755 "$target/bin/ebb"
ln -s ebbtide-{version} "$1/ebbtide"
"""
AN_EBB = r"""#!/bin/sh
# Stands in for `ebb` on a host: it joins, holds the node's lock as an agent does, and says what a doctor would.
set -eu
own=$EBB_HOME/nodes/$(echo "$*" | sed 's/.*--\(name\|node\) \([^ ]*\).*/\2/')
mkdir -p "$own/tls"
case "$1 $2" in
    "agent join")
        cat > "$own/invitation"
        cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2> /dev/null | tr '\0' '\n' > "$own/seen" || true
        printf '%s' '{"address": "login:7078", "ca": "@CA@", "certificate": "", "key": ""}' > "$own/tls/joined.json"
        ;;
    "agent "*)
        exec 8>> "$own/agent.lock"
        flock -w 1 8 || { echo "an agent already runs" >&2; exit 1; }
        [ ! -e "$HOME/refuses" ] || { cat "$HOME/refuses" >&2; exit 2; }
        echo $$ > "$own/agent.lock"
        trap 'kill $child; rm "$own/agent.json"; exit 0' TERM
        sleep 600 8>&- &
        child=$!
        echo "$*" > "$own/agent.json.new"
        mv "$own/agent.json.new" "$own/agent.json"
        wait
        ;;
    "doctor "*)
        cat "$HOME/doctor" 2> /dev/null || echo '[{"check": "GPUs", "level": "ok", "text": "one", "advice": ""}]'
        ;;
esac
""".replace("@CA@", CA.replace("\n", "\\n"))


class MasterOfHosts(ScriptedMaster):
    """Lists a host as a node from when its agent ran, unless it is among those that it ``refuses``."""

    def __init__(self, hosts: Hosts) -> None:
        super().__init__()
        self.hosts = hosts
        self.role = "admin"
        self.refuses = set[str]()
        self.listed = set[str]()
        self.drained = set[str]()
        self.jobs_on = dict[str, list[str]]()
        self.keeps = dict[str, list[str]]()

    def WhoAmI(self, request: user_pb2.WhoAmIRequest, context: grpc.ServicerContext) -> user_pb2.Identity:
        return user_pb2.Identity(user=user_pb2.User(name="ada", role=self.role), now=time.time())

    def InviteNode(self, request: client_pb2.InviteNodeRequest, context: grpc.ServicerContext) -> Any:
        self._note("InviteNode", request, context)
        self.refuses.discard(request.node)
        return client_pb2.InviteNodeReply(address="login:7077", secret=SECRET, ca=CA, expires=time.time() + 600)

    def ListNodes(self, request: client_pb2.ListNodesRequest, context: grpc.ServicerContext) -> Any:
        up = self.agents() - self.refuses
        self.listed |= up
        nodes = [self._node(name, "up" if name in up else "down") for name in sorted(self.listed)]
        return client_pb2.ListNodesReply(nodes=nodes)

    def DrainNode(self, request: client_pb2.DrainNodeRequest, context: grpc.ServicerContext) -> client_pb2.NodeReply:
        self._note("DrainNode", request, context)
        self.drained.add(request.node)
        jobs = [client_pb2.NodeJob(job_id=job) for job in self.jobs_on.get(request.node, ())]
        keeps = self.keeps.get(request.node, ())
        return client_pb2.NodeReply(node=self._node(request.node, "drained"), jobs=jobs, keeps=keeps)

    def RevokeNode(self, request: client_pb2.RevokeNodeRequest, context: grpc.ServicerContext) -> Any:
        self._note("RevokeNode", request, context)
        return client_pb2.RevokeNodeReply()

    def RemoveNode(self, request: client_pb2.NodeRequest, context: grpc.ServicerContext) -> client_pb2.RemoveNodeReply:
        self._note("RemoveNode", request, context)
        self.listed.discard(request.node)
        self.drained.discard(request.node)
        return client_pb2.RemoveNodeReply()

    def agents(self) -> set[str]:
        """The nodes whose agents run."""
        records = (self.hosts.home(name).glob("nodes/*/agent.json") for name in self.hosts.names)
        return {path.parent.name for found in records for path in found}

    def agent(self, name: str) -> str:
        """The arguments of the agent that runs on a host; empty if none does."""
        path = self.hosts.home(name) / "nodes" / name / "agent.json"
        return path.read_text().strip() if path.exists() else ""

    def _node(self, name: str, state: str) -> client_pb2.Node:
        return client_pb2.Node(name=name, state=state, last_seen=time.time())


@dataclass(frozen=True)
class Lab:
    """Hosts, the master that they shall be nodes of, and `ebb`."""

    hosts: Hosts
    master: MasterOfHosts
    ebb: Ebb
    folder: Path

    def bundle(self, install: str = INSTALL, version: str = "0.1.0", python: str = PYTHON) -> Path:
        """A bundle that installs `AN_EBB`."""
        folder = self.folder / f"bundle-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        return a_bundle(folder, install, version, AN_EBB, python)

    def deploy(self, verb: str, *words: str) -> Result:
        """Run `ebb deploy`."""
        return self.ebb("deploy", verb, *words, *with_places(self.hosts))

    def reports(self, verb: str, *words: str, code: int = 0) -> dict[str, Any]:
        """What `ebb deploy … --json` says of each host."""
        result = self.deploy(verb, *words, "--json")
        assert result.code == code, result
        return {report["host"]: report for report in json.loads(result.out)}


@pytest.fixture
def lab(
    home: Path, ebb: Ebb, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    """Three hosts without anything, and one that does not answer."""
    folder = tmp_path_factory.mktemp("bundles")
    (home / "ca.pem").write_text(CA)
    monkeypatch.setenv("EBB_CA", str(home / "ca.pem"))
    with some_hosts(*NAMES) as hosts, serving(master := MasterOfHosts(hosts)) as address:
        monkeypatch.setenv("EBB_MASTER", address)
        try:
            yield Lab(hosts, master, ebb, folder)
        finally:
            for name in NAMES:
                end_agent(hosts, name)


def end_agent(hosts: Hosts, name: str) -> None:
    """End the agents of a host."""
    for path in hosts.home(name).glob("nodes/*/agent.json"):
        with suppress(psutil.NoSuchProcess):  # it ends by itself once its child is gone
            process = psutil.Process(int(path.with_name("agent.lock").read_text()))
            for child in process.children():
                child.kill()
            process.terminate()
            psutil.wait_procs([process], 10)
