"""Decides which masters may give this node orders, by its cluster and the epochs it has seen."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.jsonfile import read_json, write_json


@dataclass(frozen=True, slots=True)
class Membership:
    """A node's cluster and the highest epoch seen of its master; an empty `cluster_id` means no cluster yet."""

    cluster_id: str = ""
    epoch: int = 0

    def admit(self, welcome: agent_pb2.Welcome, has_attempts: bool) -> "Membership":
        """Return the membership after this welcome. Raises WelcomeRefused if its master may not give orders here."""
        if not welcome.cluster_id:
            raise WelcomeRefused("the master names no cluster")
        if welcome.cluster_id == self.cluster_id:
            if welcome.epoch < self.epoch:
                raise WelcomeRefused(f"the master's epoch {welcome.epoch} is older than {self.epoch}, seen before")
            return replace(self, epoch=welcome.epoch)
        if self.cluster_id and has_attempts:
            raise WelcomeRefused(
                f"the master is of cluster {welcome.cluster_id}, and attempts of cluster {self.cluster_id} are here"
            )
        return Membership(welcome.cluster_id, welcome.epoch)


class WelcomeRefused(Exception):
    """This master may not give orders to this node; the message says why."""


def load(path: Path) -> Membership:
    """Load the membership, an empty one if there is no file. Raises ValueError if the file holds something else."""
    content = read_json(path)
    match content:
        case None:
            return Membership()
        case {"cluster_id": str(cluster_id), "epoch": int(epoch)}:
            return Membership(cluster_id, epoch)
        case _:
            raise ValueError(f"{path} does not hold a cluster_id and an epoch")


def store(path: Path, membership: Membership) -> None:
    """Store the membership durably, so that a lower epoch is refused even after a crash. Raises OSError."""
    write_json(path, asdict(membership))
