"""Describes the node that is examined, and what the master says of it."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Subject:
    """One node, as its admin runs it or is about to."""

    home: Path
    node: str
    gpus: str = "auto"  # as `ebb agent --gpus` takes it
    checkpoint_root: Path | None = None  # None: home/checkpoints
    ports: str = ""  # FIRST-LAST that ranks may meet on; "": the default
    agent_pid: int = 0  # of the agent that runs here; 0: none does
    supervisors: tuple[int, ...] = ()  # pids; their descendants belong to jobs
    clock_ahead_s: float | None = None  # how far it is ahead of the master's; None: there is no master to ask
    clock_doubt_s: float = 0.0  # how much of that the message to the master may have taken
    other_roots: dict[str, str] = field(default_factory=dict)  # checkpoint root's id by node, of the other nodes

    @property
    def root(self) -> Path:
        """Directory in which checkpoints lie."""
        return self.checkpoint_root or self.home / "checkpoints"

    def to_json(self) -> dict[str, Any]:
        root = None if self.checkpoint_root is None else str(self.checkpoint_root)
        return asdict(self) | {"home": str(self.home), "checkpoint_root": root}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Parse what `to_json` returned."""
        root = content["checkpoint_root"]
        paths = {"home": Path(content["home"]), "checkpoint_root": None if root is None else Path(root)}
        return cls(**(content | paths | {"supervisors": tuple(content["supervisors"])}))
