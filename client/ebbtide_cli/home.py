"""Where a cluster of this machine keeps its state (``EBB_HOME``), and who of it is alive."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide_protos.place import NotTrusted, check_file
from ebbtide_protos.process import Identity


@dataclass(frozen=True, slots=True)
class Home:
    """The paths below one ``EBB_HOME``."""

    root: Path

    @classmethod
    def current(cls) -> "Home":
        """The directory that ``EBB_HOME`` names, or the default one; always absolute."""
        named = os.environ.get("EBB_HOME")
        return cls(Path(named).absolute() if named else Path.home() / ".local/state/ebbtide")

    @property
    def master_record(self) -> Path:
        """What the master writes about itself while it serves."""
        return self.root / "master.json"

    @property
    def token(self) -> Path:
        """What proves the account that the master of this home runs as."""
        return self.root / "token"

    @property
    def authority(self) -> Path:
        """The certificate of the authority of this home's master, if it speaks TLS."""
        return self.root / "tls" / "ca.pem"

    @property
    def master_log(self) -> Path:
        """Where a master started by ``ebb up`` logs."""
        return self.root / "master.log"

    @property
    def settings_record(self) -> Path:
        """With what ``ebb up`` started the cluster."""
        return self.root / "up.json"

    @property
    def quiesced_record(self) -> Path:
        """Which master was told to start nothing more, by an ``ebb down`` that has not finished."""
        return self.root / "quiesced.json"

    def agent_record(self, node: str) -> Path:
        """What the agent of ``node`` writes about itself."""
        return self.root / "nodes" / node / "agent.json"

    def joined(self, node: str) -> str:
        """Where ``node`` attaches to the master of another machine's cluster; empty if it has not joined any."""
        record = read_record(self.root / "nodes" / node / "tls" / "joined.json") or {}
        return str(record.get("address", ""))

    def agent_log(self, node: str) -> Path:
        """Where an agent started by ``ebb up`` logs."""
        return self.root / "nodes" / node / "agent.log"

    def master(self) -> Identity | None:
        """The master that runs here."""
        return _living(self.master_record)

    def agent(self, node: str) -> Identity | None:
        """The agent of ``node`` that runs here."""
        return _living(self.agent_record(node))

    def agents(self) -> dict[str, Identity]:
        """All agents that run here, by node."""
        records = sorted(self.root.glob("nodes/*/agent.json"))
        return {path.parent.name: process for path in records if (process := _living(path))}

    def supervisors(self) -> Iterator[Identity]:
        """The processes here that supervise an attempt."""
        for path in sorted(self.root.glob("nodes/*/attempts/*/supervisor.json")):
            if process := _living(path):
                yield process


def read_record(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if there is none (records are renamed into place, so half a one is none)."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Put a JSON object in place in one step."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(record))
    fresh.replace(path)


def _living(path: Path) -> Identity | None:
    """The process that a record names, if it runs and nobody but this account and root can have said so."""
    try:
        check_file(path)
        process = Identity.from_json(read_record(path) or {})
        return process if process.is_alive() else None
    except (NotTrusted, OSError, KeyError, TypeError, ValueError):
        return None
