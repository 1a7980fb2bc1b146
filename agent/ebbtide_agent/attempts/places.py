"""Where a node keeps what belongs to its attempts, and to their jobs."""

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
        # Processes are recognised by these paths, so there must be one way only to write them.
        self.node_dir = self.node_dir.resolve()
        self.checkpoint_root = self.checkpoint_root.resolve()

    def attempt(self, job_id: str, attempt: int) -> AttemptDir:
        """Where the attempt's directory is, whether it exists or not."""
        return AttemptDir.of(self.node_dir, job_id, attempt)

    def job(self, job_id: str) -> Path:
        """Where the job's checkpoints are."""
        return self.checkpoint_root / self.cluster_id / job_id

    @property
    def workdirs_of_accounts(self) -> Path:
        """Those that jobs of other accounts were submitted with; no name of a job begins as this does."""
        return self.job(f".workdirs-{self.node_dir.name}")
