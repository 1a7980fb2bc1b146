"""A real master and real agents with fake GPUs, each agent behind a line that can go bad."""

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_machine.process import Identity
from ebbtide_protos.v1 import client_pb2

from tests.e2e.cluster import ANY_ACCOUNT
from tests.e2e.day.line import Line
from tests.faults.daemons import Daemon, NotInTime, end_all_of, published
from tests.faults.proxy import Proxy, a_line

NODES = {"left": "2xA100-40GB", "middle": "2xA100-40GB", "right": "2xRTX4090"}
READY_S = 60.0


class Node:
    """One agent, its line to the master, and what it keeps on disk."""

    def __init__(self, home: Path, name: str, gpus: str, line: Proxy) -> None:
        self.name, self.line = name, line
        self.folder = home / "nodes" / name
        options = ("--gpus", gpus, "--master", f"unix:{line.home}", "--checkpoint-root", str(home / "checkpoints"))
        self.agent = Daemon(home, f"agent-{name}", "agent", "--name", name, "--warm", "0", *ANY_ACCOUNT, *options)

    def supervisors(self) -> dict[str, Identity]:
        """Those that live now, by JOB.ATTEMPT."""
        found = {}
        for path in sorted((self.folder / "attempts").glob("*")):
            try:
                content = AttemptDir(path).supervisor()
                identity = None if content is None else Identity.from_json(content)
            except (OSError, ValueError, LookupError):
                continue  # it is just being written, or just being removed
            if identity is not None and identity.is_alive():
                found[path.name] = identity
        return found


class Field:
    """A context: everything runs when it begins, and nothing when it has ended."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home, self.seed = home, seed
        self.nodes: dict[str, Node] = {}
        self.line = Line(home)
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as closing:
            closing.callback(self.line.close)
            closing.callback(end_all_of, self.home)
            self.master = closing.enter_context(Daemon(self.home, "master", "master"))
            self.master.start()
            published(self.home, self.master)
            for number, (name, gpus) in enumerate(NODES.items()):
                proxy = closing.enter_context(a_line(self.home, name, self.seed + number))
                self.nodes[name] = node = Node(self.home, name, gpus, proxy)
                closing.enter_context(node.agent).start()
            self.wait_until_whole()
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def wait_until_whole(self) -> None:
        """Wait until all nodes are connected. Raises NotInTime."""
        deadline = time.monotonic() + READY_S
        while self.nodes_up() != set(NODES):
            if time.monotonic() > deadline:
                raise NotInTime(f"only {sorted(self.nodes_up())} are connected after {READY_S:g} s")
            time.sleep(0.05)

    def nodes_up(self) -> set[str]:
        """Names of the nodes that are connected."""
        reply = self.line.ask("ListNodes", client_pb2.ListNodesRequest())
        return {node.name for node in reply.nodes if node.state == "up"}

    def cluster_id(self) -> str:
        """Part of the checkpoints' paths."""
        return str(json.loads((self.home / "master.json").read_text())["cluster_id"])
