"""Gives users and other nodes access to the jobs of this node."""

import os
import time
from pathlib import Path

from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.accounts.accounts import Account, login_shell
from ebbtide_agent.accounts.lookup import owner_of
from ebbtide_agent.attempts.places import NodeDirectories
from ebbtide_agent.attempts.registry import Registry
from ebbtide_agent.contract.attempt_dir import AttemptDir, is_job_id
from ebbtide_agent.files.exchange import read_as_owner
from ebbtide_agent.files.snapshots import SnapshotCache
from ebbtide_agent.logs import log_window
from ebbtide_agent.logs.log_edges import LogEdge


class AttemptAccess:
    """Finds the logs, files and processes of attempts, and what is left of forgotten attempts.

    ``read_at`` is when a log was read last, by the monotonic clock.
    """

    def __init__(self, places: NodeDirectories, registry: Registry, snapshots: SnapshotCache) -> None:
        self._places = places
        self._known = registry.attempts
        self._snapshots = snapshots
        self.read_at = float("-inf")

    def place(self, job_id: str, attempt: int) -> AttemptDir:
        """Return the attempt's directory, whether it exists or not. Raises ValueError for an invalid job id."""
        if not is_job_id(job_id):
            raise ValueError(f"{job_id[:80]!r} is not a job id")
        return self._places.attempt(job_id, attempt)

    def account(self, job_id: str, attempt: int) -> Account | None:
        """Return the account with whose rights the job's files are read; None means the agent's own. Blocks.

        Raises FileNotFoundError if the job has no files here.
        """
        known = self._known.get((job_id, attempt))
        if known is not None or os.geteuid():
            return None if known is None else known.intent.account
        return owner_of(self.roots(job_id)["checkpoints"])

    def shell(self, job_id: str, attempt: int) -> str:
        """Return the login shell of the account that the attempt runs as."""
        known = self._known.get((job_id, attempt))
        account = None if known is None else known.intent.account
        return login_shell() if account is None else account.shell

    def runs(self, job_id: str, attempt: int) -> bool:
        """Return whether the attempt is running here."""
        known = self._known.get((job_id, attempt))
        return known is not None and known.runs

    def pids_of(self, job_id: str, attempt: int) -> tuple[int, ...]:
        """Return the pids of the attempt's processes without its supervisor."""
        known = self._known.get((job_id, attempt))
        return () if known is None else known.pids()

    def roots(self, job_id: str) -> dict[str, Path]:
        """Return the job's directories besides its working directory, by the names that users have for them."""
        job_dir = self._places.job(job_id)
        return {"output": job_dir / "output", "checkpoints": job_dir}

    def copied_workdir(self, job_id: str) -> Path | None:
        """Return the job's copy of the directory that it was submitted from; None if this node has none."""
        places = (self._snapshots.workdir(job_id), self._places.workdirs_of_accounts / job_id)
        return next((place for place in places if is_job_id(job_id) and place.is_dir()), None)

    async def read_log(
        self, job_id: str, attempt: int, offset: int | LogEdge, max_bytes: int, wait_s: float, rank: int | None = None
    ) -> agent_pb2.LogData:
        """Read one window of the log of an attempt, forgotten or not; wait up to `wait_s` for data if more may come.

        With `rank`, read only what that rank printed. With a `LogEdge` instead of an offset, return where the edge is.
        """
        self.read_at = time.monotonic()
        known = self._known.get((job_id, attempt))
        place = self._places.attempt(job_id, attempt)
        if not is_job_id(job_id) or (known is None and not place.path.exists()):
            return agent_pb2.LogData(error=f"attempt {attempt} of job {job_id} was never on this node")
        if known is not None and known.status.phase == agent_pb2.ATTEMPT_PHASE_REFUSED:
            return agent_pb2.LogData(end=True)
        own_files = place.has_rank_outputs() if known is None else known.intent.rank_files
        path = place.rank_output(rank) if rank is not None and own_files else place.output
        if isinstance(offset, LogEdge):
            return await log_window.find(path, offset)
        return await log_window.read(path, offset, max_bytes, wait_s, is_over=lambda: known is None or known.is_over)

    async def read_checkpoint(self, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData:
        """Answer another node's request for a job's checkpoints. Raises OSError."""
        if not is_job_id(request.job_id) or not self._places.cluster_id:
            return agent_pb2.CheckpointData(error=f"{request.job_id[:80]!r} is not a job id")
        return await read_as_owner(self._places.job(request.job_id), request)
