"""``ebb ls``: list the queue."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.commands.verb import argument_type, examples, json_option, master_option
from ebbtide_cli.describing.facts import (
    CHECKPOINTED,
    CLASSES,
    FINISHED,
    KINDS,
    counts_words,
    indices_words,
    job_facts,
    state_of,
)
from ebbtide_cli.describing.jobs import done, gpus_words, left, node_words, progress_words, times_words
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import print_json

if TYPE_CHECKING:
    from ebbtide_cli.terminal.text import Cell

TITLES = ("ID", "NAME", "USER", "STATE", "GPUS", "PROGRESS", "CLASS", "WAITED/RAN", "NODE", "REASON")
DEFAULT_POOL = "default"
POOL_AT = TITLES.index("CLASS")
"""Where the column of the pool goes, if a job is in another pool than the default.

If a listed job has left its GPUs, a column before the reason says whether it saved.
"""
ELASTIC = ("NAME", "NODE", "REASON")
STATES = {name.removeprefix("JOB_STATE_").lower(): number for name, number in job_pb2.JobState.items() if number}
SPARE = ("POOL", "CLASS", "USER", "WAITED/RAN", "NODE", "GPUS", "PROGRESS")


def parse_state(text: str) -> "job_pb2.JobState.ValueType":
    """Return the state of this name, in letters of any case. Raises ValueError, with the one that was meant."""
    state = STATES.get(text.lower())
    if state is None:
        from ebbtide_core.model.spelling import none_of  # most states are right

        raise ValueError(none_of(text, STATES))
    return state


STATE = argument_type("state", parse_state)


def listing(
    *,
    finished_too: bool,
    mine: bool,
    of_user: str | None,
    states: "Sequence[job_pb2.JobState.ValueType]",
    limit: int | None,
    folded: bool,
) -> client_pb2.ListJobsRequest:
    """Return the request for a listing. `Failure` for options that exclude each other."""
    if mine and of_user is not None:
        raise Failure("ls: --mine: not together with --user", USAGE)
    return client_pb2.ListJobsRequest(
        all=finished_too or any(state in FINISHED for state in states),
        folded=folded,
        of_user=of_user or "",
        mine=mine,
        states=states,
        limit=limit or 0,
    )


@click.command(
    epilog=examples(
        "ebb ls", "ebb ls --mine --all --limit 20", "ebb ls --state failed --user ada", "ebb ls --all --json"
    )
)
@click.option("-a", "--all", "finished_too", is_flag=True, help="Show finished jobs, too.")
@click.option("--mine", is_flag=True, help="Show only your own jobs.")
@click.option("--user", "of_user", metavar="NAME", help="Show only this user's jobs.")
@click.option(
    "--state",
    "states",
    metavar="STATE",
    type=STATE,
    multiple=True,
    help="Show only jobs in this state, e.g. running or failed.",
)
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 2**31 - 1), help="Show only the N jobs that were submitted last."
)
@click.option("--tasks", is_flag=True, help="Show each task of an array (--json always does).")
@json_option
@master_option
def command(
    finished_too: bool,
    mine: bool,
    of_user: str | None,
    states: "tuple[job_pb2.JobState.ValueType, ...]",
    limit: int | None,
    tasks: bool,
    as_json: bool,
    master: str | None,
) -> None:
    """List jobs with their progress; an array is one line, and is listed if any of its tasks matches.

    --state with a state of finished jobs includes them without --all.
    """
    request = listing(
        finished_too=finished_too,
        mine=mine,
        of_user=of_user,
        states=states,
        limit=limit,
        folded=not (tasks or as_json),
    )
    with connected(master) as stub:
        jobs = ask(stub.ListJobs, request).jobs
    if as_json:
        print_json([job_facts(job) for job in jobs])
    elif jobs:
        from ebbtide_cli.terminal.drawing import print_list

        pools = any(job.pool not in ("", DEFAULT_POOL) for job in jobs)
        titles = (*TITLES[:POOL_AT], "POOL", *TITLES[POOL_AT:]) if pools else TITLES
        saved = any(left(job) is not None for job in jobs)
        titles = (*titles[:-1], "SAVED", titles[-1]) if saved else titles
        print_list(
            titles,
            [_row(job, pools=pools, saved=saved) for job in jobs],
            elastic=ELASTIC,
            spare=[name for name in SPARE if name in titles],
        )
    else:
        which = " like that" if mine or of_user or states else ""
        print(f"No jobs{which}." if request.all else f"No unfinished jobs{which} ('ebb ls --all' shows finished ones).")


def _row(job: client_pb2.Job, *, pools: bool, saved: bool) -> "tuple[Cell, ...]":
    if job.HasField("tasks"):
        return _array_row(job, pools=pools, saved=saved)
    newest = left(job)
    lost = f"{newest.lost}; " if newest is not None and newest.lost else ""
    return (
        job.job_id,
        job.spec.name,
        job.user,
        state_of(job),
        gpus_words(job),
        (progress_words(job), done(job)),
        *((job.pool,) if pools else ()),
        CLASSES[job.spec.job_class] if KINDS[job.spec.kind] == "batch" else KINDS[job.spec.kind],
        times_words(job),
        node_words(job),
        *((CHECKPOINTED[newest.checkpointed] if newest is not None else "-",) if saved else ()),
        lost + job.reason,
    )


def _array_row(job: client_pb2.Job, *, pools: bool, saved: bool) -> "tuple[Cell, ...]":
    """Return an array's row, with the number of tasks in each state in place of a reason."""
    return (
        job.job_id,
        f"{job.spec.name} {indices_words(job.tasks)}",
        job.user,
        state_of(job),
        gpus_words(job),
        ("-", None),
        *((job.pool,) if pools else ()),
        CLASSES[job.spec.job_class],
        times_words(job),
        "-",
        *(("-",) if saved else ()),
        counts_words(job.tasks),
    )
