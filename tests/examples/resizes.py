"""Run digits_ddp.py on so many GPUs, one number after the other; note which rows each process takes.

resizes.py FOLDER RUNS ARGUMENT…, where RUNS is a JSON object with the numbers of GPUs and the steps after which it is
suspended of each run: {"resized": [[4, 2], [10]]}

The processes are children of this one, which has imported torch once for all of them. At a resize the last rank alone
gets the signal.
"""

import importlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

from ebbtide import checkpoints

from tests.examples.attempts import EXAMPLES, HEAVY
from tests.ports import free_port


def note_rows(path: Path) -> None:
    """Write down the rows of every global batch that this process takes its share of."""
    import ebbtide.torch as ebt

    take = ebt.ResumableSampler.take

    def noting(sampler: ebt.ResumableSampler) -> Any:
        position, rows = sampler.position, take(sampler)
        with path.open("a") as file:
            file.write(json.dumps([position, rows.tolist()]) + "\n")
        return rows

    ebt.ResumableSampler.take = noting  # type: ignore[method-assign]


def ask_after(step: int) -> None:
    """SIGTERM in this step; the whole group leaves after it."""
    from ebbtide.jobs import Job

    report = Job.report

    def asking(job: Job, **facts: Any) -> None:
        report(job, **facts)
        if facts["step"] == step:
            os.kill(os.getpid(), signal.SIGTERM)

    Job.report = asking  # type: ignore[method-assign]


def run_rank(folder: Path, number: int, size: int, rank: int, port: int, stop: int, arguments: list[str]) -> int:
    """One rank of an attempt, in its own process; its exit code."""
    if rank == 0:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
    newest = checkpoints.newest_valid(folder / "7", before_attempt=number)
    own = {"EBB_JOB_ID": 7, "EBB_ATTEMPT": number, "EBB_CHECKPOINT_DIR": folder / "7" / f"attempt-{number}"}
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in (own | place).items()}
    os.environ["EBB_RESUME_DIR"] = str(newest.path if newest else "")
    sys.argv = ["digits_ddp.py", *arguments, "--losses", str(folder / "losses"), "--out", str(folder / "out.pt")]
    note_rows(folder / f"rows-{number}-{rank}")
    if rank == size - 1:
        ask_after(stop)
    try:
        runpy.run_path(str(EXAMPLES / "digits_ddp.py"), run_name="__main__")
    except SystemExit as left:
        return int(str(left.code))
    return 0


def attempt(folder: Path, number: int, size: int, stop: int, arguments: list[str]) -> None:
    """Run all ranks of an attempt to their end."""
    port = free_port()
    ranks = []
    for rank in range(size):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            code = 1
            try:
                code = run_rank(folder, number, size, rank, port, stop, arguments)
            finally:
                sys.stdout.flush()
                os._exit(code)
    ends = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
    expected = 85 if stop else 0
    assert ends == [expected] * size, (number, size, ends)


def run(folder: Path, sizes: list[int], stops: list[int], arguments: list[str]) -> None:
    """From the first step to the last, resized after these steps."""
    folder.mkdir()
    for number, (size, stop) in enumerate(zip(sizes, [*stops, 0], strict=True), start=1):
        attempt(folder, number, size, stop, arguments)


def main() -> None:
    folder, runs, *arguments = sys.argv[1:]
    for name in HEAVY:
        importlib.import_module(name)
    for name, (sizes, stops) in json.loads(runs).items():
        run(Path(folder, name), sizes, stops, arguments)


if __name__ == "__main__":
    main()
