"""Knows the directories in which a node keeps the files of its attempts and their jobs."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide import regular

from ebbtide_agent.contract.attempt_dir import AttemptDir, attempts_dir, lock_path

_OF_JOBS: Final = ("attempts", "locks", "workdirs", "unsealed")
"""What is in the node's directory by the ids of jobs, which another cluster gives to other jobs."""


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

    def make(self) -> None:
        """Make the directories that no attempt makes. Raises OSError."""
        attempts_dir(self.node_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_path(self.node_dir, "").parent.mkdir(mode=0o700, exist_ok=True)

    def set_aside(self) -> Path | None:
        """Move what jobs have left to a new directory, and return that; None if nothing is left.

        Raises OSError, and may be repeated then: what was moved before stays where it is.
        """
        folders = [folder for name in _OF_JOBS if regular.is_folder(folder := self.node_dir / name)]
        if not any(any(folder.iterdir()) for folder in folders):
            return None
        aside = Path(tempfile.mkdtemp(prefix=f"left-{self.cluster_id}-", dir=self.node_dir))
        for folder in folders:
            folder.rename(aside / folder.name)
        self.make()
        return aside

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
