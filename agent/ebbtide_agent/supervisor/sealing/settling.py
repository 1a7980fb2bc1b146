"""Seal an attempt's checkpoint directory when none of its processes is left; this runs in a helper process.

If the helper process hangs or has no time, or the node dies, what the attempt wrote stays as it is, and the job's next
attempt seals it before it looks for the checkpoint to resume from, on whichever node. A note says what is known of it:
one on this node, and one beside the attempt's directory if its last save may have been cut short.
"""

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from ebbtide import checkpoints, manifests, regular
from ebbtide.checkpoints import Checkpoint

from ebbtide_agent import slurm
from ebbtide_agent.contract.intent import AttemptOnNode
from ebbtide_agent.jsonfile import read_json, write_json
from ebbtide_agent.slurm.variables import steps_dir
from ebbtide_agent.supervisor.sealing import evidence
from ebbtide_agent.supervisor.sealing.evidence import CheckpointContents, StopConduct
from ebbtide_agent.supervisor.status import PublishedCheckpoint, WireCheckpointed

# The largest note beside an attempt's directory that is read, in bytes.
_NOTE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LeftFiles:
    """What the process that saw an attempt end knows of the files that the attempt left."""

    attempt: int
    complete: bool = False  # no process of the attempt was killed
    doubtful: bool = False  # the attempt failed when it was asked to stop: its last files may have been cut short
    cut_short: tuple[str, ...] = ()  # the files that it was writing when it was killed

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Raises LookupError, TypeError or ValueError."""
        complete, doubtful = content["complete"] is True, content["doubtful"] is True
        return cls(int(content["attempt"]), complete, doubtful, tuple(map(str, content["cut_short"])))


@dataclass(frozen=True, slots=True)
class SavedState:
    """The attempt's checkpoint, and whether it saved after it was asked to stop.

    `unsealed` says that what it wrote could not be looked at or sealed, so that the job's next attempt has to.
    """

    checkpoint: PublishedCheckpoint | None = None
    checkpointed: WireCheckpointed = WireCheckpointed.UNKNOWN
    unsealed: bool = False

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Raises LookupError, TypeError or ValueError."""
        found = content["checkpoint"]
        published = None if found is None else PublishedCheckpoint(**found)
        return cls(published, WireCheckpointed(content["checkpointed"]), content["unsealed"] is True)


def settle(
    attempt: AttemptOnNode,
    remains: LeftFiles,
    before: CheckpointContents | None,
    conduct: StopConduct,
    ends_steps: bool,
) -> dict[str, Any]:
    """Seal what the script wrote without the SDK, and return the JSON of `SavedState`.

    With `ends_steps`, first tell the attempt's other nodes that no `srun` will ask them for anything more.
    """
    if ends_steps:
        _end_steps(steps_dir(attempt.job_dir, attempt.attempt))
    sealed, unsealed = None, False
    if attempt.node_rank == 0:  # all nodes of the attempt share the directory, and one of them seals it
        try:
            sealed = seal(attempt.job_dir, attempt.job_id, remains, before, vouched=conduct.vouches)
        except OSError as error:  # e.g. the disk is full: the next attempt tries it again
            unsealed = True
            _log_not_sealed(attempt.job_id, attempt.attempt, error)
    cut = frozenset(remains.cut_short)
    over = sealed is not None and sealed.cut_short and checkpoints.any_complete(attempt.job_dir, attempt.attempt)
    judged = evidence.judge(attempt.checkpoint_dir, before, sealed, conduct, cut_short=cut, passed_over=over)
    return asdict(SavedState(None if over else _published(sealed), judged, unsealed))


def settle_lost(job_dir: str, job_id: str, node_rank: int, remains: dict[str, Any]) -> dict[str, Any]:
    """Seal what an attempt wrote whose exit status is lost, and return the JSON of `SavedState`."""
    directory, left = Path(job_dir), LeftFiles.from_json(remains)
    if node_rank == 0:
        _end_steps(steps_dir(directory, left.attempt))
        seal(directory, job_id, left, None)
    newest = checkpoints.newest_valid(directory, before_attempt=left.attempt + 1)
    if newest is None or newest.attempt != left.attempt:
        return asdict(SavedState())
    return asdict(SavedState(PublishedCheckpoint(newest.step or 0, newest.bytes, str(newest.path), True)))


def _log_not_sealed(job_id: str, attempt: int, reason: Exception) -> None:
    with suppress(OSError):  # this process has the agent's own stderr, which may be gone
        sys.stderr.write(f"event=not-sealed job={job_id} attempt={attempt} reason={str(reason)!r}\n")


def _end_steps(folder: Path) -> None:
    """Remove what the script asked other nodes for, with its environment, and tell them that nothing more comes."""
    with suppress(OSError):
        for step in (*folder.glob("*.json"), *folder.glob(".*")):
            step.unlink(missing_ok=True)
    with suppress(OSError):
        (folder / slurm.END).touch()


def seal(
    job_dir: Path,
    job_id: str,
    remains: LeftFiles,
    before: CheckpointContents | None,
    *,
    vouched: bool = False,
    skips_unreadable: bool = False,
) -> Checkpoint | None:
    """Make a checkpoint of what the attempt wrote without the SDK. Raises OSError.

    What speaks against its last save is noted first, for whoever has to do this again on another node. The note stays
    where nothing is whole, so that it never becomes a checkpoint. Where the job publishes its checkpoints, what else it
    wrote, such as a log, counts like a save that was cut short, unless it said that it has saved (`vouched`). Whether
    it publishes is seen in what its earlier attempts left; `skips_unreadable` passes over what cannot be read there.
    """
    directory, note_beside = job_dir / f"attempt-{remains.attempt}", _note_beside(job_dir, remains.attempt)
    cut = frozenset(remains.cut_short)
    doubtful = remains.doubtful and (before is None or CheckpointContents.of(directory) != before)
    cut_short = bool(cut) or doubtful
    if cut_short:
        _write(note_beside, replace(remains, doubtful=doubtful))
    if evidence.nothing_is_whole(directory, cut):
        return None
    secondary = cut_short or (
        not vouched and checkpoints.newest_is_published(job_dir, remains.attempt, skips_unreadable=skips_unreadable)
    )
    sealed = checkpoints.seal(
        directory,
        job_id=job_id,
        attempt=remains.attempt,
        complete=remains.complete and not secondary,
        cut_short=secondary,
    )
    with suppress(OSError):
        note_beside.unlink()
    return sealed


def seal_earlier(attempt: AttemptOnNode, noted: list[LeftFiles], *, skips_unreadable: bool) -> list[int]:
    """Seal what the job's earlier attempts left unsealed, on whichever node; `noted` is what is known of it here.

    Call it on the attempt's first node, when it is certain that no earlier attempt runs. Return the numbers of the
    noted attempts for which that is done. Raises OSError that names a file for what cannot be sealed for a reason that
    may pass, such as a full disk, unless `skips_unreadable`. Files that their owner keeps to themself, such as those of
    a container's root, are not waited for.
    """
    known = {left.attempt: left for left in noted}
    left_over = checkpoints.unsealed(attempt.job_dir, attempt.attempt, skips_unreadable=skips_unreadable)
    failed = set()
    for number in left_over:
        try:
            remains = known.get(number) or _noted_beside(attempt.job_dir, number)
            seal(attempt.job_dir, attempt.job_id, remains, None, skips_unreadable=skips_unreadable)
        except OSError as error:
            named = error.filename if isinstance(error.filename, str) else ""
            reason = manifests.unreadable(attempt.job_dir / f"attempt-{number}" / named, error)
            if isinstance(reason, OSError) and not _is_lasting(reason) and not skips_unreadable:
                raise reason from error
            _log_not_sealed(attempt.job_id, number, reason)
            failed.add(number)
    return [number for number in known if number not in failed]


def _is_lasting(error: OSError) -> bool:
    """Whether it is a file that this account can read on no node; a group that it lacks may be missing only here."""
    if error.errno not in (errno.EACCES, errno.EPERM):
        return False
    try:
        status = os.lstat(error.filename)
    except OSError:
        return False
    return status.st_uid != os.geteuid() and not status.st_mode & 0o044


def _noted_beside(job_dir: Path, number: int) -> LeftFiles:
    """Return what is noted beside the attempt's directory; without a note the attempt's end was not seen."""
    try:
        content = regular.read_regular(_note_beside(job_dir, number), _NOTE_BYTES)
        return replace(LeftFiles.from_json(json.loads(content)), attempt=number)
    except FileNotFoundError:
        return LeftFiles(number)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return LeftFiles(number, doubtful=True)


def _write(note_beside: Path, remains: LeftFiles) -> None:
    with suppress(OSError), open(regular.create(note_beside), "w") as file:  # on a full disk it is there, and empty
        json.dump(asdict(remains), file)
        file.flush()
        os.fsync(file.fileno())


def _note_beside(job_dir: Path, number: int) -> Path:
    return job_dir / f".attempt-{number}-unsealed"


def note(attempt: AttemptOnNode, remains: LeftFiles) -> None:
    """Leave a note that has the job's next attempt seal what this one left. Raises OSError."""
    if attempt.node_rank == 0:
        path = _note(attempt, remains.attempt)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_json(path, asdict(remains))


def noted(attempt: AttemptOnNode) -> Iterator[LeftFiles]:
    """Yield what earlier attempts of the job left unsealed on this node, the oldest first. Raises OSError."""
    prefix = f"{attempt.job_id}."
    folder = _note(attempt, 0).parent
    names = [path.name.removeprefix(prefix) for path in folder.iterdir()] if regular.is_folder(folder) else []
    for number in sorted(int(name) for name in names if name.isdigit() and int(name) < attempt.attempt):
        with suppress(OSError, ValueError, LookupError, TypeError):
            yield LeftFiles.from_json(read_json(_note(attempt, number)) or {})


def drop(attempt: AttemptOnNode, number: int) -> None:
    """Remove the note of the job's attempt with that number, which is sealed."""
    with suppress(OSError):
        _note(attempt, number).unlink()


def _note(attempt: AttemptOnNode, number: int) -> Path:
    return Path(attempt.node_dir, "unsealed", f"{attempt.job_id}.{number}")


def _published(found: Checkpoint | None) -> PublishedCheckpoint | None:
    return None if found is None else PublishedCheckpoint(found.step, found.bytes, str(found.path), True)
