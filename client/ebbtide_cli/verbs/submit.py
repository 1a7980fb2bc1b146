"""``ebb submit``: queue a job."""

import sys
from contextlib import nullcontext
from typing import Any

import click
from ebbtide_core.model.choices import JobClass, SuspendMode
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.commands.completing import files
from ebbtide_cli.commands.verb import examples, json_option, master_option
from ebbtide_cli.describing.facts import CLASSES, SUSPEND_MODES, job_facts
from ebbtide_cli.describing.jobs import exit_status, finished, summary
from ebbtide_cli.errors import OK, OURS, Failure, code_is_of_job
from ebbtide_cli.submitting.command import SubmitCommand
from ebbtide_cli.submitting.job import job_options, submit_request
from ebbtide_cli.submitting.sending import send
from ebbtide_cli.submitting.sweep import params_of, print_sweep
from ebbtide_cli.terminal.output import complain, print_json
from ebbtide_cli.terminal.text import format_time
from ebbtide_cli.values import format_size
from ebbtide_cli.watching import wait_for


@click.command(
    cls=SubmitCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] [--]",
    epilog=examples(
        "ebb submit -- python train.py",
        "ebb submit train.sh --lr 3e-4",
        "ebb submit --gpus 1-4 --gpu-mem 10GiB --name resnet -- python train.py --lr 3e-4",
        "ebb submit --venv .venv -- python train.py",
        "ebb submit --nodes 2 --gpus 8 --launch ddp -- python train.py",
        "ebb submit --array 0-9%2 -- python train.py",
        "ebb submit --after ok:@ --begin 18:00 -- python evaluate.py",
        "ebb submit --snapshot -- python train.py",
        "ebb submit --param lr=.1,.01 --param bs=32,64 -- python train.py --lr {lr} --batch-size {bs}",
        "ebb submit --nodes 1-3 --gpus 1-4 --launch ddp -- python train.py",
        "ebb submit --gpu-type a100 --gpu-type h100 --select zone=east -- python train.py",
        "ebb submit --require-path /data/imagenet --exclude ws3 -- python train.py",
        "ebb submit --move-checkpoints -- python train.py",
        "ebb submit --failover-after 30m -- python train.py",
        "ebb submit --te --gpus 1/4 --time 2h --env WANDB_API_KEY -- python probe.py",
        "ebb submit --no-warm -- python train.py",
        "ebb submit --array 0-63%8 --asha min-steps=100,max-steps=6400 -- python train.py",
        "ebb submit --signal USR1 --signal-target all -- bash slurm_job.sh",
        "ebb submit --resume-args '--resume_from_checkpoint {checkpoint}' -- python train.py",
        "ebb submit --output logs/%x-%j.out --gpus 2 --launch ddp --prefix-ranks -- python train.py",
        "ebb submit --on-log 'NCCL WARN.*unhandled=exclude-node' --retries 2 -- python train.py",
        "ebb submit --notify failed,held=team --notify ended=mailto:ada@example.org -- python train.py",
        "ebb submit --suspend swap --gpu-mem 10GiB --mem 8GiB -- python no_checkpoints.py",
    ),
)
@click.argument("argv", metavar="CMD...", nargs=-1, type=click.UNPROCESSED, shell_complete=files)
@job_options
@click.option("--hold", is_flag=True, help="Queue the job, but do not start it before 'ebb release'.")
@click.option("--wait", is_flag=True, help="Wait until the job has ended, and exit with its exit code.")
@click.option("--dry-run", is_flag=True, help="Check everything, but queue no job.")
@json_option
@master_option
def command(hold: bool, wait: bool, dry_run: bool, as_json: bool, master: str | None, **given: Any) -> int:
    """Queue a job and print its id. Options stand before the command.

    A script that is given without -- may have options in #EBB or #SBATCH lines, and runs as it is now.
    """
    follows = wait and not dry_run
    with code_is_of_job() if follows else nullcontext():
        request = submit_request(master, given, hold=hold, dry_run=dry_run)
        job_id = _submit(master, request, as_json)
        return _wait(master, job_id, as_json) if follows else OK


def _submit(master: str | None, request: client_pb2.SubmitRequest, as_json: bool) -> str:
    """Queue the job and print its id."""
    reply = send(master, request)
    try:
        _tell(request, reply, as_json)
    except BrokenPipeError:
        raise
    except OSError as error:
        if not reply.job_id:
            raise
        raise Failure(f"job {reply.job_id} is queued, but that cannot be printed: {error.strerror}") from None
    return reply.job_id


def _tell(request: client_pb2.SubmitRequest, reply: client_pb2.SubmitReply, as_json: bool) -> None:
    """Print the id of the job that was queued, and what its user may want to know of it."""
    for warning in reply.warnings:
        complain(f"warning: {warning}")
    job_class = CLASSES[request.spec.job_class]
    if request.spec.begin_at and not as_json:
        complain(f"not before {format_time(request.spec.begin_at)}")
    if as_json:
        memory = {"gpu_mem_bytes": reply.gpu_mem_bytes or None, "gpu_mem_from": reply.gpu_mem_from or None}
        gates = {"begin_time": request.spec.begin_at or None, "tasks": len(request.tasks) or None}
        facts = {"id": reply.job_id or None, "warnings": list(reply.warnings), "class": job_class}
        print_json(facts | memory | gates | {"params": params_of(request.tasks)})
        return
    if reply.gpu_mem_from:
        complain(f"{format_size(reply.gpu_mem_bytes)} of GPU memory, {reply.gpu_mem_from}; --gpu-mem asks for another")
    if request.dry_run:
        print_sweep(request.tasks)
    print(reply.job_id or "Nothing queued: the job would be accepted.", flush=True)
    preemptible = SUSPEND_MODES[request.spec.suspend] != SuspendMode.NONE.value
    if job_class == JobClass.BEST_EFFORT.value and preemptible and sys.stderr.isatty():  # for people, not for scripts
        one = f"{reply.job_id}.{request.tasks[0].index}" if request.tasks else reply.job_id
        untried = "not proved yet that it can" + (f": ebb drill {one}, once it runs" if reply.job_id else "")
        complain(f"best-effort: it may be suspended for other jobs, and resumes by itself; {untried}")


def _wait(master: str | None, job_id: str, as_json: bool) -> int:
    """Follow the job to its end; return its exit code."""
    job = wait_for(master, [job_id], finished, drawn=not as_json)[0]
    if as_json:
        print_json(job_facts(job))
    for name in dict.fromkeys(name for attempt in job.attempts for name in attempt.edited):
        complain(f"warning: {name} was edited after the submit, before a start")
    status = exit_status(job, OURS)
    if status:
        complain(summary(job))
    return status
