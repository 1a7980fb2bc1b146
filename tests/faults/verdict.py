"""What must hold whatever broke, told from what the jobs wrote down themselves and from what the master says."""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ebbtide import checkpoints
from ebbtide_agent.gpu import fake_state
from ebbtide_core.model.types import WHOLE
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.faults.people import People

Line = dict[str, Any]
ENDS = {"done": ("JOB_STATE_COMPLETED", 0), "fails": ("JOB_STATE_FAILED", 3)}


def lines_of(witnesses: Path, job: str) -> list[Line]:
    """What the job wrote down; a line that a kill cut short is none."""
    path = witnesses / f"{job}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def overlaps(job: str, lines: list[Line]) -> Iterator[str]:
    """Two attempts at once, one attempt twice, or an older one after a newer one."""
    begun = [0]
    for line in lines:
        attempt = line["attempt"]
        match line["what"]:
            case "overlap":
                yield f"job {job} attempt {attempt} found {line['found']} in use"
            case "begin":
                if attempt <= begun[-1]:
                    yield f"job {job} attempt {attempt} began after attempt {begun[-1]}"
                begun.append(attempt)
            case _ if attempt != begun[-1]:
                yield f"job {job} attempt {attempt} computes while attempt {begun[-1]} does"


def repeated(job: str, lines: list[Line], orphaned: Collection[str]) -> Iterator[str]:
    """An attempt that begins after another one was done, though that one's supervisor lived to tell."""
    done = 0
    for line in lines:
        if line["what"] == "begin" and done and f"{job}.{done}" not in orphaned:
            yield f"job {job} attempt {line['attempt']} began after attempt {done} was done"
        if line["what"] == "done":
            done = line["attempt"]


def lost_checkpoints(job: str, lines: list[Line], folder: Path) -> Iterator[str]:
    """An attempt that begins before what was saved, or a newest checkpoint on disk that is older."""
    saved = 0
    for line in lines:
        if line["what"] == "saved":
            if line["step"] < saved:
                yield f"job {job} saved step {line['step']} after step {saved}"
            saved = line["step"]
        elif line["what"] == "begin" and line["step"] < saved:
            yield f"job {job} attempt {line['attempt']} began with step {line['step']}: step {saved} was saved"
    newest = checkpoints.newest_valid(folder)
    if saved and (newest is None or (newest.step or 0) < saved):
        yield f"job {job}: step {saved} was saved, and {newest.step if newest else 'nothing'} is on disk"


def double_bookings(gpu_dir: Path) -> Iterator[str]:
    """GPUs of a node whose living processes were given more than the whole of it.

    Who lives is asked after all were read: one that began when another had ended is never seen beside it."""
    holders = list(fake_state.read_holders(gpu_dir / "processes"))
    given = Counter[str]()
    for holder in holders:
        share = _share_of(holder.pid) if fake_state.lives(holder) else 0
        given.update(dict.fromkeys(holder.gpus, share))
    yield from (f"GPU {gpu} is given away {parts / WHOLE:g} times" for gpu, parts in given.items() if parts > WHOLE)


def _share_of(pid: int) -> int:
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return 0
    [share] = [item.partition(b"=")[2].decode() for item in content if item.startswith(b"EBB_GPU_SHARE=")] or ["0"]
    numerator, _, denominator = share.partition("/")
    return int(numerator) * WHOLE // int(denominator or "1")


def untrue_ends(job: client_pb2.Job, lines: list[Line], people: People) -> Iterator[str]:
    """A job that is not over, or not as its last attempt was."""
    state = job_pb2.JobState.Name(job.state)
    last = lines[-1]["attempt"] if lines else 0
    said = {ENDS[line["what"]] for line in lines if line["attempt"] == last and line["what"] in ENDS}
    ended = (state, job.exit_code if job.HasField("exit_code") else None)
    if state == "JOB_STATE_CANCELLED" and job.job_id in people.cancelled:
        return
    if ended not in said:
        said_so = said or "nothing"
        yield f"job {job.job_id} is {ended} ({job.reason}): its attempt {last} of {job.attempt} said {said_so}"


def judge(
    jobs: list[client_pb2.Job], people: People, orphaned: Collection[str], witnesses: Path, checkpoints_of: Path
) -> dict[str, list[str]]:
    """What is wrong, by kind, once the faults are over and all jobs have ended.

    ``orphaned`` are the attempts, as JOB.ATTEMPT, whose supervisors were killed."""
    wrong: dict[str, list[str]] = {"jobs": list(people.twice), "attempts": [], "checkpoints": [], "ends": []}
    there = {job.spec.name: job for job in jobs}
    names = Counter(job.spec.name for job in jobs)
    wrong["jobs"] += [f"{name} is there {times} times" for name, times in names.items() if times > 1]
    for operation, id in people.ids.items():
        if operation not in there or there[operation].job_id != id:
            wrong["jobs"].append(f"{operation} was acknowledged as job {id}, and is lost")
    for job in jobs:
        lines = lines_of(witnesses, job.job_id)
        wrong["attempts"] += overlaps(job.job_id, lines)
        wrong["attempts"] += repeated(job.job_id, lines, orphaned)
        wrong["checkpoints"] += lost_checkpoints(job.job_id, lines, checkpoints_of / job.job_id)
        wrong["ends"] += untrue_ends(job, lines, people)
    return wrong
