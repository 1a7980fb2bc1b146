"""``ebb submit``: queue a job."""

import os
import sys
import time
from typing import Final

import click
from ebbtide_core import limits
from ebbtide_core.model import ExitZero, JobClass, LaunchMode, SignalTarget, SuspendMode, parts
from ebbtide_core.spec import JobSpec
from ebbtide_protos.spec import spec_to_message
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.connection import RETRY_S, ask, connected
from ebbtide_cli.errors import INTERRUPTED, OURS, USAGE, Failure, Unreachable
from ebbtide_cli.facts import CLASSES, SUSPEND_MODES, job_facts
from ebbtide_cli.jobs import exit_status, finished, summary
from ebbtide_cli.output import complain, print_json
from ebbtide_cli.submission import (
    check,
    default_name,
    job_environment,
    resume_arguments,
    stop_signal,
    user_name,
    working_directory,
)
from ebbtide_cli.values import GpuRange, format_size, parse_duration
from ebbtide_cli.verb import CPUS, DURATION, GPUS, NODES, SIZE, argument_type, examples, json_option, master_option
from ebbtide_cli.watching import wait_for

AUTO: Final = "auto"
TIME: Final = argument_type("time", lambda text: AUTO if text == AUTO else parse_duration(text))
RESUBMIT_S: Final = 10.0
"""How long the same submit is repeated when the master goes away before it answered."""

NO_GPU: Final = GpuRange.exactly(0)


@click.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
    epilog=examples(
        "ebb submit -- python train.py",
        "ebb submit --gpus 1-4 --gpu-mem 10GiB --name resnet -- python train.py --lr 3e-4",
        "ebb submit --nodes 2 --gpus 8 --launch ddp -- python train.py",
        "ebb submit --nodes 1-3 --gpus 1-4 --launch ddp -- python train.py",
        "ebb submit --move-checkpoints -- python train.py",
        "ebb submit --te --gpus 1/4 --time 2h --env WANDB_API_KEY -- python probe.py",
        "ebb submit --no-warm -- python train.py",
        "ebb submit --signal USR1 --signal-target all -- bash slurm_job.sh",
        "ebb submit --resume-args '--resume_from_checkpoint {checkpoint}' -- python train.py",
        "ebb submit --suspend swap --gpu-mem 10GiB --mem 8GiB -- python no_checkpoints.py",
    ),
)
@click.argument("argv", metavar="CMD...", nargs=-1, type=click.UNPROCESSED)
@click.option("--name", help="What lists call it (default: the script's name).")
@click.option("--gpus", metavar="N|N-M|1/n|1/n-M", type=GPUS, help="GPUs in all, or a range (default: 1 per node).")
@click.option(
    "--nodes",
    metavar="N|1-M",
    type=NODES,
    default="1",
    help="Exactly so many nodes, each with the same number of the GPUs; all of them start, or none (default: 1). With "
    "1-M, one node if it has room, else GPUs wherever they are free, on M nodes or fewer.",
)
@click.option("--cpu-only", is_flag=True, help="No GPU at all.")
@click.option(
    "--gpu-mem",
    metavar="SIZE",
    type=SIZE,
    help="Memory of each GPU (default: what earlier runs used of a shared one, else its share).",
)
@click.option("--cpus", metavar="N", type=CPUS, default=None, help="CPUs per node.")
@click.option("--mem", metavar="SIZE", type=SIZE, help="Host memory per node, e.g. 16GiB.")
@click.option("--te/--be", "urgent", help="Trial-and-error: start now. Best-effort (default): may be preempted.")
@click.option(
    "--priority",
    type=click.IntRange(limits.MIN_PRIORITY, limits.MAX_PRIORITY),
    default=limits.DEFAULT_PRIORITY,
    show_default=True,
    help="Lower is more urgent.",
)
@click.option("--weight", type=float, default=1.0, help="Of its demand under fair-share (default: 1).")
@click.option("--group", metavar="NAME", default="", help="Whose jobs have one share under fair-share.")
@click.option("--grace", metavar="TIME", type=DURATION, help="To checkpoint after the stop signal (default: 3m).")
@click.option("--time", "time_limit", metavar="TIME|auto", type=TIME,
              help="Limit of running time, e.g. 2h; auto: reservations by what earlier runs took.")  # fmt: skip
@click.option(
    "--suspend",
    type=click.Choice([mode.value for mode in SuspendMode]),
    default="checkpoint",
    help="How it steps aside: it checkpoints (default); the driver swaps its GPU memory to host memory, for a script "
    "that cannot save; or it never does and is not preempted.",
)
@click.option(
    "--launch",
    type=click.Choice([mode.value for mode in LaunchMode]),
    default="single",
    help="One process (default), or one per GPU with torch.distributed's environment.",
)
@click.option(
    "--move-checkpoints",
    is_flag=True,
    help="Where it cannot read its checkpoint, copy it there first (default: wait for a node that can).",
)
@click.option("--retries", type=click.IntRange(0, limits.MAX_RETRIES), default=0, help="Starts again after failures.")
@click.option("--env", "variables", metavar="K=V|K", multiple=True, help="Set a variable, or copy it from here.")
@click.option("--workdir", metavar="DIR", help="Working directory (default: this one).")
@click.option(
    "--exit0",
    type=click.Choice([reading.value for reading in ExitZero]),
    default="suspended",
    help="What exit 0 after a stop signal means if nothing else tells (default: suspended).",
)
@click.option("--signal", metavar="NAME", default="SIGTERM", show_default=True, help="Sent to make it stop.")
@click.option(
    "--signal-target",
    type=click.Choice([target.value for target in SignalTarget]),
    default="auto",
    help="Who gets it: the topmost processes that handle it (default), what was launched, or every process.",
)
@click.option(
    "--resume-args",
    metavar="ARGS",
    default="",
    help="Appended to the command when it resumes, e.g. '--from {checkpoint}'; {output} stands for EBB_OUTPUT_DIR.",
)
@click.option(
    "--warm/--no-warm",
    default=True,
    help="Have its next process's imports done before it resumes, where that changes nothing else (default: yes).",
)
@click.option("--hold", is_flag=True, help="Queue it, but do not start it before 'ebb release'.")
@click.option("--wait", is_flag=True, help="Wait for its end and return its exit code.")
@click.option("--dry-run", is_flag=True, help="Check everything, queue nothing.")
@json_option
@master_option
def command(
    argv: tuple[str, ...],
    name: str | None,
    gpus: GpuRange | None,
    nodes: tuple[int, int],
    cpu_only: bool,
    gpu_mem: int | None,
    cpus: float | None,
    mem: int | None,
    urgent: bool,
    priority: int,
    weight: float,
    group: str,
    grace: float | None,
    time_limit: float | str | None,
    suspend: str,
    launch: str,
    move_checkpoints: bool,
    retries: int,
    variables: tuple[str, ...],
    workdir: str | None,
    exit0: str,
    signal: str,
    signal_target: str,
    resume_args: str,
    warm: bool,
    hold: bool,
    wait: bool,
    dry_run: bool,
    as_json: bool,
    master: str | None,
) -> int:
    """Queue a job; print its id. Options stand before the command."""
    wanted = _wanted(gpus, cpu_only, nodes[0])
    spec = check(
        JobSpec(
            command=argv,
            workdir=working_directory(workdir),
            name=default_name(argv) if name is None else name,
            env=job_environment(os.environ, variables),
            gpus_min=parts(wanted.low),
            gpus_max=parts(wanted.high),
            nodes=nodes[0],
            max_nodes=nodes[1],
            spread=nodes[0] < nodes[1],
            gpu_mem_bytes=gpu_mem or 0,
            cpus=cpus or 0.0,
            mem_bytes=mem or 0,
            job_class=JobClass.TRIAL_AND_ERROR if urgent else JobClass.BEST_EFFORT,
            priority=priority,
            weight=weight,
            group=group,
            grace_s=limits.DEFAULT_GRACE_S if grace is None else grace,
            time_limit_s=time_limit if isinstance(time_limit, float) else None,
            time_auto=time_limit == AUTO,
            suspend=SuspendMode(suspend),
            launch=LaunchMode(launch),
            move_checkpoints=move_checkpoints,
            retries=retries,
            exit_zero=ExitZero(exit0),
            signal=stop_signal(signal),
            signal_target=SignalTarget(signal_target),
            resume_args=resume_arguments(resume_args),
            warm=warm,
        )
    )
    request = client_pb2.SubmitRequest(
        spec=spec_to_message(spec), hold=hold, operation_id=os.urandom(16).hex(), dry_run=dry_run, user=user_name()
    )
    return _queue(master, request, as_json, wait and not dry_run)


def _wanted(gpus: GpuRange | None, cpu_only: bool, nodes: int) -> GpuRange:
    """The GPUs that are asked for: by default one of each node."""
    if cpu_only and gpus:
        raise Failure("submit: --cpu-only: not together with --gpus", USAGE)
    return NO_GPU if cpu_only else gpus or GpuRange.exactly(nodes)


def _queue(master: str | None, request: client_pb2.SubmitRequest, as_json: bool, wait: bool) -> int:
    """Submit it, and ``wait`` for its end; the exit code."""
    if not wait:
        _submit(master, request, as_json)
        return 0
    try:
        return _wait(master, _submit(master, request, as_json), as_json)
    except Failure as failure:
        # With --wait the exit code is the job's; whatever is not must not look like one.
        failure.code = failure.code if failure.code in (USAGE, INTERRUPTED) else OURS
        raise


def _submit(master: str | None, request: client_pb2.SubmitRequest, as_json: bool) -> str:
    """Queue it and print its id."""
    reply = _send(master, request)
    for warning in reply.warnings:
        complain(f"warning: {warning}")
    job_class = CLASSES[request.spec.job_class]
    if as_json:
        memory = {"gpu_mem_bytes": reply.gpu_mem_bytes or None, "gpu_mem_from": reply.gpu_mem_from or None}
        print_json({"id": reply.job_id or None, "warnings": list(reply.warnings), "class": job_class, **memory})
        return reply.job_id
    if reply.gpu_mem_from:
        complain(f"{format_size(reply.gpu_mem_bytes)} of GPU memory, {reply.gpu_mem_from}; --gpu-mem asks for another")
    print(reply.job_id or "Nothing queued: the job would be accepted.", flush=True)
    preemptible = SUSPEND_MODES[request.spec.suspend] != SuspendMode.NONE.value
    if job_class == JobClass.BEST_EFFORT.value and preemptible and sys.stderr.isatty():  # for people, not for scripts
        untried = "not proved yet that it can" + (f": ebb drill {reply.job_id}, once it runs" if reply.job_id else "")
        complain(f"best-effort: may have to save and step aside for others, and comes back by itself; {untried}")
    return reply.job_id


def _send(master: str | None, request: client_pb2.SubmitRequest) -> client_pb2.SubmitReply:
    """Send it, and send it again if the master goes away before it answers: one operation id is one job."""
    give_up, sent = time.monotonic() + RESUBMIT_S, False
    while True:
        try:
            with connected(master) as stub:
                sent = True
                return ask(stub.Submit, request)
        except Unreachable as error:
            if not sent:
                raise
            if time.monotonic() > give_up:
                raise Unreachable(f"{error.message}; see 'ebb ls' whether the job was queued") from None
        time.sleep(RETRY_S)


def _wait(master: str | None, job_id: str, as_json: bool) -> int:
    """Follow the job to its end; return its exit code."""
    job = wait_for(master, [job_id], finished, drawn=not as_json)[0]
    if as_json:
        print_json(job_facts(job))
    status = exit_status(job, OURS)
    if status:
        complain(summary(job))
    return status
