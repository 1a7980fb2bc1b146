"""Translate ``#SBATCH`` lines into options of ``ebb submit``."""

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ebbtide_cli.submitting.directives import Directive
from ebbtide_cli.submitting.slurm import values
from ebbtide_cli.submitting.slurm.lines import SbatchOption, read_lines
from ebbtide_cli.submitting.slurm.reading import SbatchReading
from ebbtide_cli.submitting.slurm.shape import Shape, shape_of
from ebbtide_cli.values import parse_array

DEFAULT_NOTICE_S: Final = 60
"""Seconds before the end that sbatch assumes if --signal gives none."""

MAIL: Final = {
    "BEGIN": ("started",),
    "END": ("ended",),
    "FAIL": ("failed",),
    "REQUEUE": ("suspended",),
    "ALL": ("started", "suspended", "ended"),
    "TIME_LIMIT": ("ended",),
}
NO_MAIL: Final = ("NONE", "STAGE_OUT", "INVALID_DEPEND", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50")
MODEL: Final = re.compile(r"(a|h|b|v|p|t|l|k|gh|gb|rtx|gtx|titan)_?-?\d+\w*|rtx\w*|titan\w*", re.IGNORECASE)
"""Features that name a GPU's model, as far as the features of clusters are known."""
DEPENDENCY: Final = re.compile(r"(after(?:ok|notok|any))((?::\d+(?:_\d+)?)+)")
BEGIN: Final = re.compile(r"now\+(\d{1,9})(?:(second|minute|hour|day|week)s?)?")
SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
CLOCK: Final = {"midnight": "00:00", "noon": "12:00", "elevenses": "11:00", "fika": "15:00", "teatime": "16:00"}

Words = Iterator[str]


@dataclass(frozen=True, slots=True)
class Translated:
    """The lines as options of ``ebb submit``, and notes on them for stderr."""

    directives: list[Directive]
    notes: list[str]


def translate(name: str, script: str) -> Translated:
    """Translate the ``#SBATCH`` lines of the script ``name``.

    `Failure` names the line of an option that is refused, and why. Of several equal options of sbatch the last one
    wins, as it does in sbatch.
    """
    lines = SbatchReading(read_lines(name, script))
    if "time" in lines.asked and re.search(r"^[^#]*\bscontrol\s+requeue\b", script, re.MULTILINE):
        # In Slurm, each run has the whole time; here, one limit counts for all runs together.
        lines.note("time", "not used: the script requeues itself, and only a preemption ends its runs here")
        del lines.asked["time"]
    for one in lines.asked.values():
        if one.option.refused:
            raise one.failure(one.option.refused)
        if one.option.ignored not in ("", "-"):
            lines.notes.append(one.note(f"not used: {one.option.ignored}"))
    shape = shape_of(lines)
    directives = [*_resources(name, lines, shape)]
    for option, words_of in TRANSLATIONS.items():
        if option in lines.asked:
            words = tuple(_words(lines, lines.asked[option], words_of))
            directives.append(Directive(lines.asked[option].where, words))
    directives.append(Directive(name, tuple(_environment(lines, shape))))
    return Translated([directive for directive in directives if directive.words], lines.notes)


def _words(lines: SbatchReading, asked: SbatchOption, words_of: "Callable[[SbatchReading, str], Words]") -> Words:
    try:
        yield from words_of(lines, asked.value)
    except ValueError as error:
        raise asked.failure(str(error)) from None


def _resources(name: str, lines: SbatchReading, shape: Shape) -> Iterator[Directive]:
    """Yield the options for nodes, GPUs, CPUs and memory, each with the place of the line that asks for it."""

    def where(*names: str) -> str:
        return next((lines.asked[option].where for option in names if option in lines.asked), name)

    if shape.most_nodes > 1:
        nodes = f"1-{shape.most_nodes}" if shape.most_nodes > shape.nodes else str(shape.nodes)
        yield Directive(where("nodes", "ntasks", "gpus"), ("--nodes", nodes))
    if shape.gpus_by and shape.gpus:
        yield Directive(shape.gpus_by.where, ("--gpus", str(shape.gpus)))
        if shape.model:
            yield Directive(shape.gpus_by.where, ("--gpu-type", shape.model))
    else:
        yield Directive(name, ("--cpu-only",))
    if shape.cpus:
        yield Directive(
            where("cpus-per-task", "cpus-per-gpu", "ntasks-per-node", "ntasks"), ("--cpus", str(shape.cpus))
        )
    if shape.mem_bytes:
        mebibytes = -(-shape.mem_bytes // 2**20)
        yield Directive(where("mem", "mem-per-cpu", "mem-per-gpu"), ("--mem", f"{mebibytes}MiB"))


def _same(option: str) -> "Callable[[SbatchReading, str], Words]":
    """Translate an option of the same meaning under another name."""
    return lambda lines, text: iter((option, text))


def _flag(*words: str) -> "Callable[[SbatchReading, str], Words]":
    return lambda lines, text: iter(words)


def _time(lines: SbatchReading, text: str) -> Words:
    seconds = values.minutes_or_more(text)
    if seconds is not None:
        yield from ("--time", f"{seconds}s")


def _partition(lines: SbatchReading, text: str) -> Words:
    first, comma, _ = text.partition(",")
    if comma:
        lines.note("partition", f"a job is in one pool: {first}")
    yield from ("--pool", first)


def _output(lines: SbatchReading, text: str) -> Words:
    """Translate the log's file name: ``%j %A %a %x %N`` are the same."""
    if text != "/dev/null":
        yield from ("--output", _file_name(text))


def _error(lines: SbatchReading, text: str) -> Words:
    """Say that a log is one file for both streams, unless that is what is asked for."""
    if text != lines.text("output"):
        lines.note("error", "not used: stderr goes where stdout goes")
    yield from ()


def _file_name(text: str) -> str:
    def meant(found: re.Match[str]) -> str:
        match found[1]:
            case "%" | "j" | "A" | "a" | "x" | "N":
                return f"%{found[1]}"
            case "J":
                return "%j"
            case "u":
                return os.environ.get("USER", str(os.getuid()))
        raise ValueError(f"%{found[1]} is not known in file names: there are %j %A %a %x %N %u")

    return re.sub(r"%\d*(.)", meant, text)


def _signal(lines: SbatchReading, text: str) -> Words:
    """Translate ``[B:]NAME[@SECONDS]``: the seconds are the grace period, and B means the script alone."""
    found = re.fullmatch(r"(?:([BRbr]+):)?(\w+)(?:@(\d{1,5}))?", text)
    if found is None:
        raise ValueError(f"{text!r} is not a signal: write USR1@120 or B:USR1@120")
    yield from ("--signal", _signal_name(found[2]), "--grace", f"{int(found[3] or DEFAULT_NOTICE_S)}s")
    if found[1] and "B" in found[1].upper():
        yield from ("--signal-target", "leader")


def _signal_name(text: str) -> str:
    try:
        return signal.Signals(int(text)).name.removeprefix("SIG") if text.isdecimal() else text
    except ValueError:
        raise ValueError(f"there is no signal {text}") from None


def _dependency(lines: SbatchReading, text: str) -> Words:
    """Translate ``afterok:12:13,afterany:14``, item by item; there is no *any of them*."""
    if text == "singleton":
        raise ValueError("jobs of one name may run together here: one after the other is an array with %1")
    if "?" in text:
        raise ValueError("a job waits for all of its dependencies, not for any of them")
    for item in text.split(","):
        if not DEPENDENCY.fullmatch(item):
            raise ValueError(f"{item!r}: there are afterok, afternotok and afterany, each with numbers of jobs")
        yield from ("--after", item.replace("_", "."))


def _begin(lines: SbatchReading, text: str) -> Words:
    """Translate ``now+1hour``, ``16:00``, ``2026-11-23T09:00``, ``tomorrow``."""
    if found := BEGIN.fullmatch(text):
        yield from ("--begin", f"+{int(found[1]) * SECONDS[found[2] or 'second']}s")
    elif text == "tomorrow":
        yield from ("--begin", time.strftime("%Y-%m-%dT00:00", time.localtime(time.time() + 86_400)))
    elif text not in ("now", "today"):
        yield from ("--begin", CLOCK.get(text, text))


def _constraint(lines: SbatchReading, text: str) -> Words:
    """Translate features: a GPU's model becomes a GPU type, any other the label ``feature`` of a node."""
    if re.search(r"[\[\]*()&,]", text):
        raise ValueError("only one feature, or one of several (a|b), can be asked for: see ebb submit --select")
    features = text.split("|")
    if all(MODEL.fullmatch(feature) for feature in features):
        for feature in features:
            yield from ("--gpu-type", feature)
    else:
        yield from ("--select", f"feature={text}")


def _each_host(option: str) -> "Callable[[SbatchReading, str], Words]":
    def words(lines: SbatchReading, text: str) -> Words:
        for host in values.hosts(text):
            yield from (option, host)

    return words


def _mail(lines: SbatchReading, text: str) -> Words:
    """Translate ``--mail-type=END,FAIL`` with ``--mail-user``, without which no address is known here."""
    events: dict[str, None] = {}
    for kind in text.upper().split(","):
        if kind not in NO_MAIL and kind not in MAIL and kind != "ARRAY_TASKS":
            raise ValueError(f"{kind!r} is not known: there are {', '.join(MAIL)} and NONE")
        events |= dict.fromkeys(MAIL.get(kind, ()))
    if "ended" in events:
        events.pop("failed", None)
    address = lines.text("mail-user")
    if events and not address:
        lines.note("mail-type", "not used without --mail-user")
    elif events:
        yield from ("--notify", f"{','.join(events)}=mailto:{address}")


def _open_mode(lines: SbatchReading, text: str) -> Words:
    if text.startswith("t"):
        lines.note("open-mode", "not used: each attempt of a job writes behind the one before")
    yield from ()


def _array(lines: SbatchReading, text: str) -> Words:
    parse_array(text)
    yield from ("--array", text)


TRANSLATIONS: Final = {
    "job-name": _same("--name"),
    "chdir": _same("--workdir"),
    "partition": _partition,
    "time": _time,
    "output": _output,
    "error": _error,
    "signal": _signal,
    "array": _array,
    "dependency": _dependency,
    "begin": _begin,
    "constraint": _constraint,
    "nodelist": _each_host("--on"),
    "exclude": _each_host("--exclude"),
    "mail-type": _mail,
    "open-mode": _open_mode,
    "no-requeue": _flag("--suspend", "none"),
    "hold": _flag("--hold"),
    "wait": _flag("--wait"),
    "test-only": _flag("--dry-run"),
}
"""The translation by option of sbatch; resources and the environment are combined from several options elsewhere."""


def _environment(lines: SbatchReading, shape: Shape) -> Words:
    """Yield the variables that --export passes on, and those of Slurm's that only these lines can say."""
    wanted = lines.text("export") or "ALL"
    for item in re.split(r",(?=[A-Za-z_])", wanted):
        if item.upper() == "ALL":
            yield "--env-all"
        elif item.upper() not in ("NONE", "NIL") and ("=" in item or item in os.environ):
            yield from ("--env", item)
    variables = {
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_SUBMIT_HOST": socket.gethostname(),
        "SLURM_NTASKS": str(shape.tasks or ""),
        "SLURM_NTASKS_PER_NODE": lines.text("ntasks-per-node"),
        "SLURM_CPUS_PER_TASK": lines.text("cpus-per-task"),
        "SLURM_GPUS_PER_TASK": lines.text("gpus-per-task"),
        "SLURM_JOB_ACCOUNT": lines.text("account"),
    }
    for variable, value in variables.items():
        if value:
            yield from ("--env", f"{variable}={value}")
