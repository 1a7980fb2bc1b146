"""``ebb rm``: remove finished jobs."""

import click

from ebbtide_cli.api import functions
from ebbtide_cli.commands.verb import examples, ids_argument, json_option, master_option
from ebbtide_cli.errors import FAILED, OK, Failure, Unreachable
from ebbtide_cli.masters.connection import connected
from ebbtide_cli.terminal.output import complain, print_json
from ebbtide_cli.terminal.text import plural


@click.command(epilog=examples("ebb rm 17", "ebb rm 17 18", "ebb rm @~1"))
@ids_argument
@json_option
@master_option
def command(job_ids: tuple[str, ...], as_json: bool, master: str | None) -> int:
    """Remove finished jobs or arrays, with their logs and checkpoints, and their function if Python submitted one.

    Files in EBB_OUTPUT_DIR stay, and so do the sums of 'ebb usage'. A node that is away removes its part when it is
    back. Refused while an unfinished job was submitted with --after the job, and for a requeued job as long as the new
    one exists.
    """
    facts, code = [], OK
    for job_id in dict.fromkeys(job_ids):
        try:
            with connected(master) as stub:
                gone = functions.remove(stub, job_id)
        except Unreachable:
            raise
        except Failure as failure:
            complain(str(failure))
            code = FAILED
            continue
        facts.append({"id": job_id, "jobs": gone})
        if not as_json:
            tasks = "" if gone == [job_id] else f", {plural(len(gone), 'task')}"
            print(f"job {job_id} is removed{tasks}")
    if as_json:
        print_json(facts)
    return code
