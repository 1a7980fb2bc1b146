"""``ebb set``: change jobs' priority, weight or pool, and arrays' limits."""

from typing import TYPE_CHECKING, Any

import click
from ebbtide_core.model.limits import MAX_ARRAY_TASKS, MAX_GPUS, MAX_PRIORITY, MAX_WEIGHT, MIN_PRIORITY, MIN_WEIGHT
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.verb import examples, ids_argument, json_option, master_option
from ebbtide_cli.describing.facts import Facts, job_facts
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.job_requests import grant
from ebbtide_cli.masters.connection import ask
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.terminal.output import complain

if TYPE_CHECKING:
    from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub


@click.command(
    epilog=examples(
        "ebb set 17 --priority 5",
        "ebb set 17 18 --weight 2",
        "ebb set 17 --pool a100",
        "ebb set 17 --max-concurrent 4",
    )
)
@ids_argument
@click.option(
    "--priority", type=click.IntRange(MIN_PRIORITY, MAX_PRIORITY), help="Priority; a lower number is more urgent."
)
@click.option("--weight", type=click.FloatRange(MIN_WEIGHT, MAX_WEIGHT), help="Weight under fair-share and tide.")
@click.option("--pool", metavar="NAME", help="Pool to move the job to; a running job is suspended first.")
@click.option(
    "--max-concurrent",
    type=click.IntRange(0, MAX_ARRAY_TASKS),
    help="Number of the array's tasks that may run at a time; 0 for all.",
)
@click.option(
    "--max-slots",
    type=click.IntRange(0, MAX_GPUS),
    help="Number of GPUs that the array's tasks may hold at a time; 0 for no limit.",
)
@json_option
@master_option
def command(job_ids: tuple[str, ...], as_json: bool, master: str | None, **wanted: Any) -> int:
    """Give jobs another priority, weight or pool, and arrays other limits, whether they wait or run.

    The change counts from the next scheduling decision on. If it has no effect at present, a line on stderr says why
    (with --json: "effect").
    """
    if all(value is None for value in wanted.values()):
        raise Failure(
            "set: --priority, --weight, --pool, --max-concurrent or --max-slots: one of them is needed", USAGE
        )

    def send(stub: "ClientServiceStub", job_id: str) -> client_pb2.Job:
        job = ask(stub.Change, client_pb2.ChangeRequest(job_id=job_id, user=user_name(), **wanted))
        if job.effect:
            complain(job.effect)
        return job

    # Such a request has taken effect once it is recorded: there is nothing to wait for.
    return grant(master, job_ids, send, lambda job, _: True, wait=False, as_json=as_json, facts=_facts)


def _facts(job: client_pb2.Job) -> Facts:
    """Return the job, and why the change has no effect; null if it has one."""
    return job_facts(job) | {"effect": job.effect or None}
