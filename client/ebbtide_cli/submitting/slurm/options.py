"""List every option of sbatch, how it is written, and what is said about one without a counterpart here."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class ValueKind(Enum):
    """Whether an option takes a value."""

    VALUE = auto()
    NOTHING = auto()
    MAYBE = auto()  # only after a =, as in --nice=5


@dataclass(frozen=True, slots=True)
class Option:
    """An option by its long name, and what is printed where it is used; nothing if it is translated."""

    name: str
    short: str = ""
    takes: ValueKind = ValueKind.VALUE
    refused: str = ""
    ignored: str = ""


def _translated(text: str, takes: ValueKind) -> list[Option]:
    """Build options from words such as ``name`` or ``name/s``, with the short form after the slash."""
    return [Option(name, short, takes) for name, _, short in (word.partition("/") for word in text.split())]


def _quiet(text: str, takes: ValueKind = ValueKind.VALUE) -> list[Option]:
    """Build options that are ignored without a note, because no job would miss their effect."""
    return [Option(option.name, option.short, takes, ignored="-") for option in _translated(text, takes)]


def _ignored(text: str, why: str, takes: ValueKind = ValueKind.VALUE) -> list[Option]:
    return [Option(option.name, option.short, takes, ignored=why) for option in _translated(text, takes)]


def _refused(text: str, why: str, takes: ValueKind = ValueKind.VALUE) -> list[Option]:
    return [Option(option.name, option.short, takes, refused=why) for option in _translated(text, takes)]


_BINDING: Final = "processes are not bound to cores or sockets here"
_ELSEWHERE: Final = "there is no counterpart here"

OPTIONS: Final = (
    *_translated(
        "array/a begin/b chdir/D constraint/C cpus-per-gpu cpus-per-task/c dependency/d error/e exclude/x export"
        " gpus/G gpus-per-node gpus-per-task gres job-name/J mail-type mail-user mem mem-per-cpu mem-per-gpu nodelist/w"
        " nodes/N ntasks/n ntasks-per-gpu ntasks-per-node open-mode output/o partition/p signal time/t",
        ValueKind.VALUE,
    ),
    *_translated("hold/H no-requeue test-only wait/W", ValueKind.NOTHING),
    *_quiet("comment wckey time-min kill-on-invalid-dep gres-flags acctg-freq delay-boot mcs-label gid"),
    *_quiet("parsable quiet/Q verbose/v ignore-pbs requeue overcommit/O spread-job use-min-nodes", ValueKind.NOTHING),
    *_quiet("contiguous oversubscribe/s", ValueKind.NOTHING),
    *_quiet("no-kill/k get-user-env propagate", ValueKind.MAYBE),
    *_ignored("account/A", "jobs are accounted to their user"),
    *_ignored("qos/q", "what is urgent is said with --te and --priority"),
    *_ignored("priority", "priorities are from 1 to 99 here: #EBB --priority"),
    *_ignored("nice", "priorities are from 1 to 99 here: #EBB --priority", ValueKind.MAYBE),
    *_ignored("exclusive", "the job's GPUs are its own, others may use the rest of the node", ValueKind.MAYBE),
    *_ignored("cpu-bind mem-bind distribution/m hint threads-per-core cores-per-socket sockets-per-node", _BINDING),
    *_ignored("extra-node-info/B ntasks-per-core ntasks-per-socket core-spec/S thread-spec gpu-bind", _BINDING),
    *_ignored("switches network prefer profile cpu-freq tmp", _ELSEWHERE),
    *_refused("licenses/L", "licences are not counted here"),
    *_refused("deadline", "there is no latest end: --time bounds how long it runs, and 'ebb cancel' ends it"),
    *_refused("reservation", "a reservation has no name here: see 'ebb reserve-gpus'"),
    *_refused("clusters/M cluster-constraint", "a job is submitted to one cluster: ebb submit --master"),
    *_refused("wrap", "the script is the job: ebb submit -- sh -c '...'"),
    *_refused("input/i", "standard input is empty: let the script read its file"),
    *_refused("gpus-per-socket", "sockets are not known here: write --gpus-per-node"),
    *_refused("tres-per-task tres-bind", "write --cpus-per-task and --gpus-per-task"),
    *_refused("gpu-freq power", "clocks and power of GPUs are not changed here"),
    *_refused("uid", "a job runs as the user who submits it"),
    *_refused("nodefile/F", "write the nodes: --nodelist"),
    *_refused("export-file", "write the variables: --export"),
    *_refused("container container-id", "containers are started by the script itself"),
    *_refused("bb bbf", "there are no burst buffers here"),
    *_refused("reboot", "nodes are not rebooted for jobs", ValueKind.NOTHING),
)

BY_NAME: Final = {option.name: option for option in OPTIONS}
BY_LETTER: Final = {option.short: option for option in OPTIONS if option.short}
