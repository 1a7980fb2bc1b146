"""Stores a node's authority, certificate and key of the cluster it joined, readable by the agent's account only."""

from dataclasses import asdict, dataclass
from pathlib import Path

from ebbtide_agent.jsonfile import read_json, write_json
from ebbtide_agent.link.endpoint import Endpoint, parse_endpoint


@dataclass(frozen=True, slots=True)
class Joined:
    """``address`` is host:port of the master for agents, empty for the master of the same home; the rest is PEM."""

    address: str
    ca: str
    certificate: str
    key: str

    @property
    def own(self) -> str:
        """The node's key and certificate."""
        return self.key + self.certificate

    @property
    def endpoint(self) -> Endpoint:
        """The master's endpoint when the node joined. Raises ValueError if it was the master of the same home."""
        return parse_endpoint(self.address)


def load(node_dir: Path) -> Joined | None:
    """Load what the node keeps of having joined; None if it has not joined. Raises ValueError, OSError."""
    path = _file(node_dir)
    match read_json(path):
        case None:
            return None
        case {"address": str(address), "ca": str(ca), "certificate": str(certificate), "key": str(key)}:
            return Joined(address, ca, certificate, key)
        case _:
            raise ValueError(f"{path} is damaged: join again ('ebb agent join')")


def store(node_dir: Path, joined: Joined) -> None:
    """Store it atomically and durably. Raises OSError."""
    path = _file(node_dir)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(path, asdict(joined))


def _file(node_dir: Path) -> Path:
    return node_dir / "tls" / "joined.json"
