"""``ebb show``: print everything on one job."""

from collections.abc import Iterator, Sequence

import click
from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.commands.verb import examples, id_argument, json_option, master_option
from ebbtide_cli.describing.facts import (
    CHECKPOINTED,
    CLASSES,
    KINDS,
    LAUNCH_MODES,
    PARTS,
    SIGNAL_TARGETS,
    SUSPEND_MODES,
    after_words,
    asha_facts,
    counts_words,
    job_facts,
    needs_words,
    printed_words,
    share_of,
    state_of,
)
from ebbtide_cli.describing.jobs import finished, gpus_words, progress_words, times_words
from ebbtide_cli.describing.tasks import in_order, print_tasks
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import format_command, format_count, format_time
from ebbtide_cli.values import format_duration, format_size

ATTEMPT_TITLES = ("ATTEMPT", "PLACED", "STARTED", "ENDED", "FROM STEP", "NODE", "GPUS", "OUTCOME")
PARTS_TITLES = ("REQUESTED", *(part.replace("_", " ").upper() for part in PARTS))
SUSPENSION_TITLES = ("REQUESTED", "EXITED AFTER", "GPU FREE AFTER", "RESUMED", "CHECKPOINTED", "REASON")

Fields = Iterator[tuple[str, str]]


@click.command(
    epilog=examples(
        "ebb show 17",
        "ebb show --sort loss 17",
        "ebb show --json 17 | jq .checkpoint",
        "ebb show --json 17 | jq .rates",
    )
)
@id_argument
@click.option(
    "--sort", metavar="NAME", help="Sort an array's tasks by this metric, param or 'loss', the smallest first."
)
@click.option("--reverse", is_flag=True, help="Sort the largest first.")
@json_option
@master_option
def command(job_id: str, sort: str | None, reverse: bool, as_json: bool, master: str | None) -> None:
    """Show everything about a job or array: state, request, allocation, checkpoint, attempts, suspensions.

    Each task of an array is shown with its last reported loss and metrics.
    """
    with connected(master) as stub:
        job = ask(stub.ShowJob, client_pb2.JobRequest(job_id=job_id))
        tasks = ask(stub.ListJobs, client_pb2.ListJobsRequest(job_ids=[job_id])).jobs if job.HasField("tasks") else []
    if sort is not None or reverse:
        tasks = in_order(tasks, sort, reverse=reverse)
    if as_json:
        print_json(job_facts(job) | ({"jobs": [job_facts(task) for task in tasks]} if tasks else {}))
    elif tasks:
        _print_array(job, tasks)
    else:
        _print_job(job)


def _print_job(job: client_pb2.Job) -> None:
    from ebbtide_cli.terminal.drawing import print_columns, print_table, print_words

    print_words((f"Job {job.job_id}", job.spec.name, state_of(job)))
    print_columns(_present(_state(job)))
    print("\nRequest")
    print_columns(_present(_request(job.spec)))
    if job.attempts:
        print("\nAttempts")
        print_table(ATTEMPT_TITLES, map(_attempt_row, job.attempts))
    if job.suspensions:
        print("\nSuspensions")
        print_table(SUSPENSION_TITLES, map(_suspension_row, job.suspensions))
        print("\nWithout a step")
        print_table(PARTS_TITLES, map(_parts_row, job.suspensions))


def _print_array(job: client_pb2.Job, tasks: Sequence[client_pb2.Job]) -> None:
    from ebbtide_cli.terminal.drawing import print_columns, print_words

    print_words((f"Array {job.job_id}", job.spec.name, counts_words(job.tasks)))
    print_columns(_present(_array(job)))
    print("\nRequest")
    print_columns(_present(_request(job.spec)))
    print("\nTasks")
    print_tasks(tasks)


def _array(job: client_pb2.Job) -> Fields:
    counts = job.tasks
    yield "user", job.user
    yield "indices", counts.indices
    yield "at a time", f"{counts.max_concurrent} tasks" if counts.max_concurrent else ""
    yield "gpus at a time", str(counts.max_slots or "")
    yield "gpus held", format_count(share_of(job.gpus_allocated))
    yield "waited/ran", times_words(job)
    yield "submitted", format_time(job.submit_time)


def _state(job: client_pb2.Job) -> Fields:
    yield "reason", job.reason
    yield "held by", job.held_by
    yield "user", job.user
    yield "progress", progress_words(job)
    yield "speed", _speed(job)
    yield "rungs", ", ".join(map(_rung, job.rungs))
    yield "gpus", gpus_words(job)
    yield "pool", f"{job.pool}, soon {job.moves_to}" if job.moves_to else job.pool
    yield "gpu memory", f"{format_size(job.gpu_mem_bytes)}: {job.gpu_mem_from}" if job.gpu_mem_from else ""
    for node in job.allocation:
        gpus = ", ".join(f"{gpu.uuid} ({format_count(share_of(gpu.share))})" for gpu in node.gpus)
        yield "on node", f"{node.node}: {gpus or 'no GPU'}"
    yield "edited since", ", ".join(job.attempts[-1].edited) if job.attempts else ""
    for name, why in sorted(job.excluded_nodes.items()):
        yield "not on node", f"{name}: {why}"
    yield "sharing", _sharing(job.attempts[-1]) if job.allocation and job.attempts else ""
    yield "waited/ran", times_words(job)
    yield "array", f"{job.array}, task {job.index}" if job.array else ""
    yield "params", " ".join(f"{name}={value}" for name, value in sorted(job.params.items()))
    yield "again", "; ".join([f"{way} job {id}" for way, id in (("of", job.again_of), ("as", job.again_as)) if id])
    yield "submitted", format_time(job.submit_time)
    yield "started", format_time(job.start_time) if job.HasField("start_time") else ""
    yield "ended", format_time(job.end_time) if job.HasField("end_time") else ""
    yield "exit code", str(job.exit_code) if job.HasField("exit_code") else ""
    counts = f"preempted {job.preemptions}, resized {job.resizes}, restarted {job.restarts} times"
    yield "history", f"attempt {job.attempt}, {counts}" if job.attempt else ""
    if job.preemptible and not finished(job):
        untried = f"no: 'ebb drill {job.job_id}' tests whether it can suspend"
        yield "proved", "yes: it can suspend" if job.proved else untried
    yield "measured", _measured(job)
    yield "checkpoint", _checkpoint(job.checkpoint) if job.HasField("checkpoint") else ""


def _request(spec: job_pb2.JobSpec) -> Fields:
    yield "kind", _kind(spec)
    yield "command", format_command(spec.command)
    yield "to resume", format_command(spec.resume_args)
    yield "workdir", spec.workdir
    yield "python", spec.python_env
    yield "class", f"{CLASSES[spec.job_class]}, priority {spec.priority}"
    yield "weight", f"{spec.weight:g}" if spec.weight != 1 else ""
    yield "group", spec.group
    yield "nodes", f"1-{spec.max_nodes}" if spec.max_nodes > 1 else str(spec.nodes) if spec.nodes > 1 else ""
    yield "needs", needs_words(spec.needs)
    yield "checkpoints", "copied to nodes that cannot read them" if spec.move_checkpoints else ""
    yield "gpu memory", format_size(spec.gpu_mem_bytes) if spec.gpu_mem_bytes else ""
    yield "cpus", f"{format_count(spec.cpus)} per node" if spec.cpus else ""
    yield "memory", f"{format_size(spec.mem_bytes)} per node" if spec.mem_bytes else ""
    target = SIGNAL_TARGETS[spec.signal_target]
    to = "" if target == "auto" else f" to {target}"
    grace = format_duration(spec.grace_s)
    signal = f"{spec.signal}{to}, " if spec.signal else ""  # the signal of another user's job is not shown
    yield "suspend", f"{SUSPEND_MODES[spec.suspend]}, {signal}grace period {grace}"
    yield "launch", LAUNCH_MODES[spec.launch] + (", never held ready" if spec.cold else "")
    limit = format_duration(spec.time_limit_s) if spec.HasField("time_limit_s") else ""
    yield "time limit", "by reservations" if spec.time_auto else limit
    yield "retries", str(spec.retries) if spec.retries else ""
    yield from printed_words(spec)
    asha = asha_facts(spec.asha) if spec.HasField("asha") else {}
    yield "asha", ", ".join(f"{name} {value}" for name, value in asha.items())
    yield "after", after_words(spec.after)
    yield "not before", format_time(spec.begin_at) if spec.begin_at else ""


def _kind(spec: job_pb2.JobSpec) -> str:
    """Return the kind of an interactive job, and its idle limit; empty for a batch job."""
    idle = f", ended when unused for {format_duration(spec.idle_limit_s)}" if spec.HasField("idle_limit_s") else ""
    return "" if KINDS[spec.kind] == "batch" else KINDS[spec.kind] + idle


def _present(fields: Fields) -> Fields:
    """Keep the fields that have a value, and indent their titles."""
    return ((f"  {title}", value) for title, value in fields if value)


def _sharing(attempt: client_pb2.AttemptSummary) -> str:
    """Say how the job shares its GPU, and what limits it to its part of the memory."""
    limits = {"driver": "the driver", "mps": "MPS", "pytorch": "PyTorch's allocator"}
    limit = limits.get(attempt.limited_by, attempt.limited_by) or "nothing"
    return f"{attempt.sharing}, GPU memory limited by {limit}" if attempt.sharing else ""


def _checkpoint(checkpoint: job_pb2.Checkpoint) -> str:
    step = f"step {checkpoint.step}" if checkpoint.HasField("step") else "no step known"
    verified = "verified" if checkpoint.verified else "not verified"
    return f"{step}, {format_size(checkpoint.bytes)}, {verified}: {checkpoint.path}"


def _speed(job: client_pb2.Job) -> str:
    """Return the job's steps per second, now and on each number of GPUs that it had."""
    known = [f"{job.steps_per_s:.3g} steps/s now"] if job.HasField("steps_per_s") else []
    for rate in job.rates:
        gpus = format_count(share_of(rate.gpus))
        where = f"{gpus} GPU{'s' if share_of(rate.gpus) > 1 else ''}" if rate.gpus.numerator else "CPUs only"
        where += f" of {rate.nodes} nodes" if rate.nodes > 1 else ""
        known.append(f"{rate.steps_per_s:.3g} on {where}{'' if rate.alone else ' beside others'}")
    return ", ".join(known)


def _rung(rung: client_pb2.RungResult) -> str:
    """Format what a task had reached at a rung: ``0.5 at 100 steps``."""
    return f"{f'{rung.value:.4g}' if rung.HasField('value') else 'no number'} at {rung.steps} steps"


def _measured(job: client_pb2.Job) -> str:
    """Return how long the job took to step aside and to come back, as measured."""
    known = [f"{format_duration(job.save_s)} to step aside"] if job.HasField("save_s") else []
    known += [f"{format_duration(job.restart_cost_s)} until it is back"] if job.HasField("restart_cost_s") else []
    return ", ".join(known)


def _attempt_row(attempt: client_pb2.AttemptSummary) -> tuple[str, ...]:
    return (
        str(attempt.attempt),
        format_time(attempt.placed_time or None),
        format_time(attempt.start_time) if attempt.HasField("start_time") else "-",
        format_time(attempt.end_time) if attempt.HasField("end_time") else "-",
        str(attempt.resumed_step) if attempt.HasField("resumed_step") else "-",
        ",".join(node.node for node in attempt.allocation) or "-",
        format_count(sum(share_of(gpu.share) for node in attempt.allocation for gpu in node.gpus)),
        attempt.outcome,
    )


def _saved(suspension: client_pb2.Suspension) -> str:
    """Say whether the job wrote a checkpoint, and if so its size and how long that took."""
    known = [format_size(suspension.checkpoint_bytes)] if suspension.HasField("checkpoint_bytes") else []
    known += [format_duration(suspension.checkpoint_s)] if suspension.HasField("checkpoint_s") else []
    return ", ".join([CHECKPOINTED[suspension.checkpointed], *known])


def _parts_row(suspension: client_pb2.Suspension) -> tuple[str, ...]:
    known = suspension.parts_s
    words = [f"{known[part]:.2f}s" if part in known else "-" for part in PARTS]
    return (format_time(suspension.requested or None), *words)


def _suspension_row(suspension: client_pb2.Suspension) -> tuple[str, ...]:
    def after(field: str) -> str:
        if not suspension.HasField(field):  # type: ignore[arg-type]
            return "-"
        return format_duration(getattr(suspension, field) - suspension.requested)

    return (
        format_time(suspension.requested or None),
        after("exited"),
        after("gpu_free"),
        format_time(suspension.resumed) if suspension.HasField("resumed") else "-",
        _saved(suspension),
        "; ".join(filter(None, (suspension.reason, suspension.note, suspension.lost, suspension.hint))),
    )
