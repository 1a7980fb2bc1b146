"""Defines the request of a job, `JobSpec`, and refuses what no job may ask for."""

import math
import re
from collections.abc import Mapping
from dataclasses import field
from fractions import Fraction
from unicodedata import category

from ebbtide_core.model import limits, notice_rules, output_name, workdir_snapshot
from ebbtide_core.model.asha import Asha
from ebbtide_core.model.constraints import NO_NEEDS, Needs, check_needs
from ebbtide_core.model.dependency import Dependency
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.log_rules import MAX_RULES, LogRule, checked
from ebbtide_core.model.notice_rules import NoticeRule
from ebbtide_core.model.spec_error import SpecError as SpecError
from ebbtide_core.model.types import WHOLE, ExitZero, JobClass, JobKind, LaunchMode, SignalTarget, SuspendMode, gpus
from ebbtide_core.model.workdir_snapshot import SnapshotRef

RESUME_PLACEHOLDERS = ("checkpoint", "output")
"""Placeholders that are written ``{checkpoint}`` and ``{output}``. Other braces, as in ``${variable}`` or ``{a:1}``,
are the script's own."""

_ONCE = "means another attempt, and standard input, which is piped or redirected here, cannot be read a second time"
_WITHOUT_STDIN = "add </dev/null to do without standard input"

STOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")


@frozen(kw_only=True)
class JobSpec:
    """A job as its user submitted it.

    ``gpus_min`` and ``gpus_max`` are in parts (`WHOLE` is one GPU), equal for a rigid job; ``gpu_mem_bytes`` is per
    GPU, 0 meaning its share of each GPU's memory; ``cpus`` and ``mem_bytes`` are per node. A job that is larger than
    any node is put on ``max_nodes`` nodes at most; with ``spread`` so is a job for which no node has room at the time.
    With ``nodes`` above 1 a job always has exactly so many nodes, and equally many GPUs of each. ``env`` is the job's
    whole environment: it inherits nothing else.
    ``group`` names the jobs that share one demand, with ``weight``, under fair share; by default each job is its own.
    With ``time_auto`` it runs by reservations, from the history of its script (see `ebbtide_core.reserving`).
    ``resume_args`` are appended to the command of attempts that resume; `RESUME_PLACEHOLDERS` stand for paths.
    With ``move_checkpoints`` its newest checkpoint is copied to nodes that cannot read it (see
    `ebbtide_core.resources.checkpoint_location`). With ``idle_ok`` it never counts as idle (see
    `ebbtide_core.lifecycle.idling`).
    ``log_rules`` apply to its output before the administrator's (see `ebbtide_core.model.log_rules`). Its output is
    also appended to the file ``output`` (see `ebbtide_core.model.output_name`); with ``prefix_ranks`` each line names
    the rank that printed it. ``snapshot`` is its working directory on every node, if it has one.
    ``script`` is the text of a script that runs in place of ``command[0]``, which is then its name; empty: ``command``
    runs as it is. ``python_env`` is the directory of a Python environment, without which it cannot start on a node.
    With ``slurm`` it finds what a script for Slurm expects: the variables and ``srun``.
    ``scripts`` are the digests at submit of the files that ``command`` runs, by their names in it.
    ``pool`` names the pool that it goes to; empty: the default for its kind of job.
    With ``asha`` a task is compared with the others of its array, and goes on while it is among the best.
    It starts once its dependencies ``after`` are met, and not before the Unix time ``begin_at``.
    ``work_s`` is the work that the submitter declares, in seconds on one GPU, None if it is not known.
    ``needs`` are its constraints on nodes and their GPUs.
    ``idle_limit_s``: a session that no user uses and that computes nothing for so long is ended; None: never.
    ``failover_after_s``: it ends itself when the master was not heard for so long, and goes on elsewhere; None: never
    (see `ebbtide_core.nodes.silence`).
    With ``stdin`` the command reads what its submitter sends while it runs, which can be read once: there is no second
    attempt.
    """

    command: tuple[str, ...]
    workdir: str
    name: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    gpus_min: int = WHOLE
    gpus_max: int = WHOLE
    gpu_mem_bytes: int = 0
    cpus: float = 0.0
    mem_bytes: int = 0
    job_class: JobClass = JobClass.BEST_EFFORT
    priority: int = limits.DEFAULT_PRIORITY
    grace_s: float = limits.DEFAULT_GRACE_S
    time_limit_s: float | None = None
    suspend: SuspendMode = SuspendMode.CHECKPOINT
    launch: LaunchMode = LaunchMode.SINGLE
    retries: int = 0
    exit_zero: ExitZero = ExitZero.SUSPENDED
    signal: str = "SIGTERM"
    signal_target: SignalTarget = SignalTarget.AUTO
    weight: float = 1.0
    group: str = ""
    max_nodes: int = 1
    nodes: int = 1
    work_s: float | None = None
    time_auto: bool = False
    resume_args: tuple[str, ...] = ()
    warm: bool = True
    sdk: bool = True
    spread: bool = False
    move_checkpoints: bool = False
    idle_ok: bool = False
    log_rules: tuple[LogRule, ...] = ()
    output: str = ""
    prefix_ranks: bool = False
    snapshot: SnapshotRef | None = None
    notify: tuple[NoticeRule, ...] = ()
    script: str = ""
    python_env: str = ""
    slurm: bool = False
    scripts: Mapping[str, str] = field(default_factory=dict)
    pool: str = ""
    needs: Needs = NO_NEEDS
    after: tuple[Dependency, ...] = ()
    begin_at: float = 0.0
    asha: Asha | None = None
    kind: JobKind = JobKind.BATCH
    idle_limit_s: float | None = None
    failover_after_s: float | None = None
    stdin: bool = False

    @property
    def elastic(self) -> bool:
        """Whether the job's GPU count may vary."""
        return self.gpus_max > self.gpus_min

    @property
    def most_nodes(self) -> int:
        """The number of nodes that the job has at most."""
        return max(self.nodes, self.max_nodes)


def validate(spec: JobSpec) -> None:
    """Raise `SpecError` for the first fault of ``spec``."""
    _check_name(spec.name)
    _check_command(spec.command)
    _check_resume_args(spec.command, spec.resume_args)
    _check_env(spec.env)
    _check_text("script", spec.script, limits.MAX_SCRIPT_BYTES)
    _check_scripts(spec.scripts)
    _check_text("--workdir", spec.workdir, limits.MAX_PATH_BYTES)
    _check_text("--venv", spec.python_env, limits.MAX_PATH_BYTES)
    if not spec.workdir.startswith("/"):
        raise SpecError("--workdir", f"{spec.workdir!r} is not an absolute path")
    _check_number("--nodes", spec.nodes, 1, limits.MAX_NODES)
    check_gpu_range(spec.gpus_min, spec.gpus_max, spec.nodes)
    if spec.launch is LaunchMode.DDP and spec.gpus_max < WHOLE:  # a job that may grow to whole GPUs is allowed
        raise SpecError("--launch ddp", "needs at least one whole GPU: it starts one process per GPU")
    _check_number("--gpu-mem", spec.gpu_mem_bytes, 0, limits.MAX_MEM_BYTES)
    _check_number("--cpus", spec.cpus, 0, limits.MAX_CPUS)
    _check_number("--mem", spec.mem_bytes, 0, limits.MAX_MEM_BYTES)
    check_standing(spec.priority, spec.weight)
    _check_number("--grace", spec.grace_s, 0, limits.MAX_GRACE_S, "s")
    _check_number("--retries", spec.retries, 0, limits.MAX_RETRIES)
    _check_text("--group", spec.group, limits.MAX_NAME_LENGTH)
    _check_number("--nodes", spec.max_nodes, 1, limits.MAX_NODES)
    if spec.spread and spec.nodes > 1:
        raise SpecError("--nodes", f"is either {spec.nodes} exactly or {spec.max_nodes} at most, not both")
    if spec.work_s is not None:
        _check_number("work", spec.work_s, 0, limits.MAX_WORK_S, "s")
    if spec.time_limit_s is not None:
        _check_number("--time", spec.time_limit_s, 1, limits.MAX_TIME_LIMIT_S, "s")
    _check_number("--begin", spec.begin_at, 0, limits.MAX_BEGIN)
    if len(spec.after) > limits.MAX_DEPENDENCIES:
        raise SpecError("--after", f"{len(spec.after)} jobs are over the limit of {limits.MAX_DEPENDENCIES}")
    if spec.asha is not None:
        _check_asha(spec.asha, spec.suspend)
    if spec.suspend is SuspendMode.SWAP:
        _check_swap(spec)
    _check_surroundings(spec)
    if spec.time_auto and spec.suspend is SuspendMode.NONE:
        raise SpecError(
            "--time auto", "needs a job that can be suspended at the end of a reservation: drop --suspend none"
        )
    if spec.needs is not NO_NEEDS:
        check_needs(spec.needs, spec.gpus_max)
    _check_kind(spec)
    _check_failover(spec)
    _check_stdin(spec)
    if spec.signal not in STOP_SIGNALS:
        raise SpecError("--signal", f"{spec.signal!r} is none of {', '.join(STOP_SIGNALS)}")


def _check_asha(asha: Asha, suspend: SuspendMode) -> None:
    if fault := asha.fault():
        raise SpecError("--asha", fault)
    _check_text("--asha metric", asha.metric, limits.MAX_METRIC_NAME)
    if suspend is not SuspendMode.CHECKPOINT:
        raise SpecError("--asha", f"pauses tasks, which need --suspend checkpoint for that, not {suspend.value}")


def _check_swap(spec: JobSpec) -> None:
    """Refuse jobs that the driver cannot move to host memory, or not to another number of GPUs."""
    if not 0 < spec.gpus_min == spec.gpus_max <= WHOLE:
        raise SpecError("--suspend swap", "needs a job on one GPU or a share of one, neither more nor a range")
    if spec.launch is LaunchMode.DDP:
        raise SpecError("--suspend swap", "needs a job of one process: drop --launch ddp")


def _check_surroundings(spec: JobSpec) -> None:
    """Check the job's output, its snapshot of a working directory, and its notices."""
    _check_printing(spec)
    if spec.snapshot is not None:
        _check_snapshot(spec.snapshot)
    _check_notify(spec.notify)


def _check_notify(rules: tuple[NoticeRule, ...]) -> None:
    if len(rules) > notice_rules.MAX_RULES:
        raise SpecError("--notify", f"{len(rules)} rules are over the limit of {notice_rules.MAX_RULES}")
    for rule in rules:
        try:
            notice_rules.check_target(rule.target)
        except ValueError as error:
            raise SpecError("--notify", str(error)) from None


def _check_snapshot(snapshot: SnapshotRef) -> None:
    try:
        workdir_snapshot.check(snapshot)
    except ValueError as error:
        raise SpecError("--snapshot", str(error)) from None


def _check_printing(spec: JobSpec) -> None:
    _check_text("--output", spec.output, limits.MAX_PATH_BYTES)
    try:
        output_name.check(spec.output)
    except ValueError as error:
        raise SpecError("--output", str(error)) from None
    if len(spec.log_rules) > MAX_RULES:
        raise SpecError("--on-log", f"{len(spec.log_rules)} rules are over the limit of {MAX_RULES}")
    for rule in spec.log_rules:
        try:
            checked(rule)
        except ValueError as error:
            raise SpecError("--on-log", str(error)) from None


def _check_kind(spec: JobSpec) -> None:
    """Check that a session is one process on one node, never suspended: no checkpoint has what its user typed."""
    if spec.idle_limit_s is not None:
        _check_number("--idle", spec.idle_limit_s, limits.MIN_IDLE_S, limits.MAX_TIME_LIMIT_S, "s")
    if spec.kind is JobKind.BATCH:
        return
    if not spec.kind.is_session:
        return
    if spec.suspend is not SuspendMode.NONE:
        raise SpecError("--suspend", f"a {spec.kind.value} cannot step aside: it has to be none")
    if spec.most_nodes > 1 or spec.launch is LaunchMode.DDP:
        raise SpecError("--nodes", f"a {spec.kind.value} is one process on one node")


def _check_failover(spec: JobSpec) -> None:
    if spec.failover_after_s is None:
        return
    shortest = spec.grace_s + limits.LEASE_MARGIN_S
    if not shortest < spec.failover_after_s <= limits.MAX_TIME_LIMIT_S:
        raise SpecError(
            "--failover-after",
            f"{spec.failover_after_s:g}s is not between {shortest:g}s, the grace period and "
            f"{limits.LEASE_MARGIN_S:g}s more, and {limits.MAX_TIME_LIMIT_S:g}s",
        )
    if spec.kind.is_session:
        raise SpecError("--failover-after", f"a {spec.kind.value} cannot go on elsewhere")


def _check_stdin(spec: JobSpec) -> None:
    """Check that a job with standard input is one process with one attempt, because input can be read only once."""
    if not spec.stdin:
        return
    if spec.kind.is_session:
        raise SpecError("stdin", f"a {spec.kind.value} is not given standard input")
    if spec.suspend is not SuspendMode.NONE:
        raise SpecError("--suspend", f"{spec.suspend.value} {_ONCE}: it has to be none, or {_WITHOUT_STDIN}")
    if spec.retries:
        raise SpecError("--retries", f"{spec.retries} {_ONCE}: drop it, or {_WITHOUT_STDIN}")
    if spec.failover_after_s is not None:
        raise SpecError("--failover-after", f"{spec.failover_after_s:g}s {_ONCE}: drop it, or {_WITHOUT_STDIN}")
    if spec.most_nodes > 1:
        raise SpecError("--nodes", f"{spec.most_nodes} cannot share standard input: drop it, or {_WITHOUT_STDIN}")
    if spec.launch is LaunchMode.DDP:
        raise SpecError("--launch ddp", f"has processes that cannot share standard input: drop it, or {_WITHOUT_STDIN}")


def text_size(spec: JobSpec) -> int:
    """Return roughly the bytes of memory that the command and the script take: nearly all of a large job."""
    return sum(map(len, spec.command)) + limits.BYTES_PER_ARGUMENT * len(spec.command) + len(spec.script)


def check_standing(priority: int, weight: float) -> None:
    """Raise `SpecError` unless a job may have ``priority`` and ``weight``."""
    _check_number("--priority", priority, limits.MIN_PRIORITY, limits.MAX_PRIORITY)
    _check_number("--weight", weight, limits.MIN_WEIGHT, limits.MAX_WEIGHT)


def check_gpu_range(low: int, high: int, nodes: int = 1) -> None:
    """Raise `SpecError` unless a job may have from ``low`` to ``high`` parts of GPUs on exactly ``nodes`` nodes."""
    if low < 0 or high < low:
        raise SpecError("--gpus", f"{gpus(low)}-{gpus(high)} is not a range of GPU counts")
    if high == 0:
        return
    if low == 0:
        raise SpecError("--gpus", "an elastic job needs more than 0 GPUs at least")
    for share in (low, high):
        _check_share(share)
    if high > limits.MAX_GPUS * WHOLE:
        raise SpecError("--gpus", f"{gpus(high)} is more than the limit of {limits.MAX_GPUS}")
    if nodes > 1 and low != high:
        raise SpecError(
            "--gpus",
            f"a job on {nodes} nodes needs one number of GPUs, not a range; with --nodes 1-{nodes} it may have one",
        )
    if high % (nodes * WHOLE) and nodes > 1:
        raise SpecError("--gpus", f"{gpus(high)} GPUs cannot be divided equally among {nodes} nodes")


def _check_share(share: int) -> None:
    count = Fraction(share, WHOLE)
    whole = count.denominator == 1
    unit_fraction = count.numerator == 1 and count.denominator <= 16
    if not whole and not unit_fraction:
        raise SpecError("--gpus", f"{count} is neither a whole number of GPUs nor 1/n of one (n at most 16)")


def _check_command(command: tuple[str, ...]) -> None:
    if not command or not command[0]:
        raise SpecError("command", "is empty: write it after --")
    if len(command) > limits.MAX_ARGUMENTS:
        raise SpecError("command", f"{len(command)} arguments are over the limit of {limits.MAX_ARGUMENTS}")
    for index, argument in enumerate(command):
        size = _check_text(f"argument {index}", argument, None)
        if size > limits.MAX_ARGUMENT_BYTES:
            raise SpecError(f"argument {index}", f"{size} bytes are over the limit of {limits.MAX_ARGUMENT_BYTES}")
    total = sum(len(argument.encode()) + 1 for argument in command)
    if total > limits.MAX_COMMAND_BYTES:
        raise SpecError("command", f"{total} bytes are over the limit of {limits.MAX_COMMAND_BYTES}")


def _check_resume_args(command: tuple[str, ...], resume_args: tuple[str, ...]) -> None:
    for argument in resume_args:
        _check_text("--resume-args", argument, limits.MAX_ARGUMENT_BYTES)
        for name in re.findall(r"(?<!\$)\{(\w*)\}", argument):
            if name not in RESUME_PLACEHOLDERS:
                known = " and ".join(f"{{{known}}}" for known in RESUME_PLACEHOLDERS)
                raise SpecError("--resume-args", f"{{{name[:40]}}} is not known: there are {known}")
    total = sum(len(argument.encode()) + 1 for argument in (*command, *resume_args))
    if total > limits.MAX_COMMAND_BYTES:
        raise SpecError(
            "--resume-args", f"{total} bytes with the command are over the limit of {limits.MAX_COMMAND_BYTES}"
        )


def _check_env(env: Mapping[str, str]) -> None:
    for key, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            raise SpecError("--env", f"{key[:40]!r} is not a variable name (letters, digits and _)")
        if _check_text(f"--env {key[:40]}", value, None) + len(key) > limits.MAX_ARGUMENT_BYTES:
            raise SpecError(f"--env {key[:40]}", f"is over the limit of {limits.MAX_ARGUMENT_BYTES} bytes")
    total = sum(len(key) + len(value.encode()) + 2 for key, value in env.items())
    if total > limits.MAX_ENV_BYTES:
        raise SpecError("--env", f"{total} bytes in all are over the limit of {limits.MAX_ENV_BYTES}")


def _check_scripts(scripts: Mapping[str, str]) -> None:
    if len(scripts) > limits.MAX_SCRIPTS:
        raise SpecError("scripts", f"{len(scripts)} are over the limit of {limits.MAX_SCRIPTS}")
    for name, digest in scripts.items():
        _check_text("scripts", name, limits.MAX_PATH_BYTES)
        _check_text("scripts", digest, limits.MAX_NAME_LENGTH)


def _check_text(field: str, text: str, limit: int | None) -> int:
    """Refuse text that no process, file name or terminal can carry, or over ``limit`` bytes; return its bytes."""
    if "\0" in text:
        raise SpecError(field, "contains a NUL character")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise SpecError(field, "is not valid Unicode") from None
    if limit is not None and size > limit:
        raise SpecError(field, f"{size} bytes are over the limit of {limit}")
    return size


def _check_name(name: str) -> None:
    """Refuse a name that would spoil every listing; an empty name is no name."""
    _check_text("--name", name, limits.MAX_NAME_LENGTH)
    if name and not name.strip():
        raise SpecError("--name", "is blank")
    if any(category(letter) in ("Cc", "Zl", "Zp") for letter in name):
        raise SpecError("--name", "contains a line break or another control character")


def _check_number(field: str, value: float, low: float, high: float, unit: str = "") -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise SpecError(field, f"{value}{unit} is not between {low:g}{unit} and {high:g}{unit}")
