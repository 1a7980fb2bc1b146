"""Knows the directories in which a node keeps the files of its attempts and their jobs."""

from dataclasses import dataclass
from pathlib import Path

from ebbtide_agent.contract.attempt_dir import AttemptDir


@dataclass(slots=True)
class NodeDirectories:
    """The directories of one node. `cluster_id` is part of the checkpoints' paths, and empty until the node joins."""

    node_dir: Path
    checkpoint_root: Path
    cluster_id: str = ""

    def __post_init__(self) -> None:
        # Processes are recognised by these paths, so each must have one spelling only.
        self.node_dir = self.node_dir.resolve()
        self.checkpoint_root = self.checkpoint_root.resolve()

    def attempt(self, job_id: str, attempt: int) -> AttemptDir:
        """Return the attempt's directory, whether it exists or not."""
        return AttemptDir.of(self.node_dir, job_id, attempt)

    def job(self, job_id: str) -> Path:
        """Return the directory of the job's checkpoints."""
        return self.checkpoint_root / self.cluster_id / job_id

    @property
    def workdirs_of_accounts(self) -> Path:
        """The parent of the working directories of jobs of other accounts; its name cannot be a job id."""
        return self.job(f".workdirs-{self.node_dir.name}")
