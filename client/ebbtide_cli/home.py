"""Where a cluster of this machine keeps its state (``EBB_HOME``), and which of its processes are alive."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ebbtide_machine.place import NotTrusted, check_file
from ebbtide_machine.process import Identity, boot_id


class Home(NamedTuple):
    """The paths below one ``EBB_HOME``."""

    root: Path

    @classmethod
    def current(cls) -> "Home":
        """Return the directory that ``EBB_HOME`` names, or the default one; always absolute."""
        named = os.environ.get("EBB_HOME")
        return cls(Path(named).absolute() if named else Path.home() / ".local/state/ebbtide")

    @property
    def master_record(self) -> Path:
        """The file that the master writes about itself while it serves."""
        return self.root / "master.json"

    @property
    def token(self) -> Path:
        """The file with the token of the account that the master of this home runs as."""
        return self.root / "token"

    @property
    def authority(self) -> Path:
        """The certificate of the authority of this home's master, if it speaks TLS."""
        return self.root / "tls" / "ca.pem"

    @property
    def master_log(self) -> Path:
        """The log of a master that ``ebb up`` started."""
        return self.root / "master.log"

    @property
    def dashboard_record(self) -> Path:
        """The file that a dashboard writes about itself while it serves."""
        return self.root / "dashboard.json"

    @property
    def dashboard_log(self) -> Path:
        """The log of a dashboard that ``ebb up`` started."""
        return self.root / "dashboard.log"

    @property
    def dashboard_links(self) -> Path:
        """The directory with the links that log in to the dashboard and were not used yet."""
        return self.root / "dashboard-links"

    @property
    def settings_record(self) -> Path:
        """The file with the options with which ``ebb up`` started the cluster."""
        return self.root / "up.json"

    @property
    def quiesced_record(self) -> Path:
        """The file that names a master which may start nothing more, because an ``ebb down`` has not finished."""
        return self.root / "quiesced.json"

    def agent_record(self, node: str) -> Path:
        """Return the path of the file that the agent of ``node`` writes about itself."""
        return self.root / "nodes" / node / "agent.json"

    def joined(self, node: str) -> str:
        """Return the address at which ``node`` joined a cluster; empty if it has joined none at an address."""
        return self._joining(node)[0]

    def elsewhere(self, node: str) -> str:
        """Return the address at which ``node`` joined another cluster than this home's; empty if it is of this one.

        All masters of one cluster share its authority, so a home with that leads the cluster only if its master serves
        or died while it did. Where a standby or nothing but a copy of the authority is, the cluster is another home's.
        """
        address, ca = self._joining(node)
        try:
            own = self.authority.read_text()
        except (OSError, ValueError):
            own = ""
        return address if not own or ca != own or not self.master_record.exists() else ""

    def _joining(self, node: str) -> tuple[str, str]:
        """Return the address that ``node`` joined, and the certificate of that cluster's authority."""
        record = read_record(self.root / "nodes" / node / "tls" / "joined.json") or {}
        return str(record.get("address", "")), str(record.get("ca", ""))

    def agent_log(self, node: str) -> Path:
        """Return the path of the log of an agent that ``ebb up`` started."""
        return self.root / "nodes" / node / "agent.log"

    def master(self) -> Identity | None:
        """Return the master that runs in this home; None if none does."""
        return _living(self.master_record)

    def dashboard(self) -> Identity | None:
        """Return the dashboard that runs in this home; None if none does."""
        return _living(self.dashboard_record)

    def agent(self, node: str) -> Identity | None:
        """Return the agent of ``node`` that runs in this home; None if none does."""
        return _living(self.agent_record(node))

    def agents(self) -> dict[str, Identity]:
        """Return the agents that run in this home, by node."""
        records = sorted(self.root.glob("nodes/*/agent.json"))
        return {path.parent.name: process for path in records if (process := _living(path))}

    def own_agents(self) -> dict[str, Identity]:
        """Return the agents of this home's own cluster, by node."""
        return {node: process for node, process in self.agents().items() if not self.elsewhere(node)}

    def note_end(self, node: str, until: float | None) -> None:
        """Leave a notice for the agent of ``node``: this machine is gone at Unix time ``until``; None: take it back."""
        notice = self.root / "nodes" / node / "notice.json"
        if until is None:
            notice.unlink(missing_ok=True)
        else:
            write_record(notice, {"until": until, "boot_id": boot_id()})

    def supervisors(self) -> Iterator[Identity]:
        """Yield the supervisors of this home that are alive."""
        return (process for _, process in self._supervisors())

    def own_supervisors(self) -> Iterator[Identity]:
        """Yield those of this home's own cluster that are alive."""
        return (process for node, process in self._supervisors() if not self.elsewhere(node))

    def _supervisors(self) -> Iterator[tuple[str, Identity]]:
        for path in sorted(self.root.glob("nodes/*/attempts/*/supervisor.json")):
            if process := _living(path):
                yield path.parents[2].name, process


def read_record(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if there is none. Records are renamed into place, so an incomplete one is not valid."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON object and rename it into place."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(record))
    fresh.replace(path)


def _living(path: Path) -> Identity | None:
    """Return the process that a record names, if it is alive and only this account or root can have written that."""
    try:
        check_file(path)
        process = Identity.from_json(read_record(path) or {})
        return process if process.is_alive() else None
    except (NotTrusted, OSError, KeyError, TypeError, ValueError):
        return None
