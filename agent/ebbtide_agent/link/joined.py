"""What a node keeps of having joined a cluster: whom it trusts, and what proves who it is. No one else may read it."""

from dataclasses import asdict, dataclass
from pathlib import Path

from ebbtide_agent.jsonfile import read_json, write_json
from ebbtide_agent.link.endpoint import Endpoint, parse_endpoint


@dataclass(frozen=True, slots=True)
class Joined:
    """``address``: host:port of the master for agents, empty for the master of the same home; the rest is PEM."""

    address: str
    ca: str
    certificate: str
    key: str

    @property
    def own(self) -> str:
        """Key and certificate."""
        return self.key + self.certificate

    @property
    def endpoint(self) -> Endpoint:
        """Where the master was when the node joined. Raises ValueError if that was in the same home."""
        return parse_endpoint(self.address)


def load(node_dir: Path) -> Joined | None:
    """What is kept in the node's directory; None if the node has not joined. Raises ValueError, OSError."""
    path = _file(node_dir)
    match read_json(path):
        case None:
            return None
        case {"address": str(address), "ca": str(ca), "certificate": str(certificate), "key": str(key)}:
            return Joined(address, ca, certificate, key)
        case _:
            raise ValueError(f"{path} is damaged: join again ('ebb agent join')")


def store(node_dir: Path, joined: Joined) -> None:
    """Keep it, all or nothing, durably. Raises OSError."""
    path = _file(node_dir)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(path, asdict(joined))


def _file(node_dir: Path) -> Path:
    return node_dir / "tls" / "joined.json"
