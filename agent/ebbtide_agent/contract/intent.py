"""Defines the intent that the agent sends to a supervisor and that is kept in intent.json."""

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum, StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Self

from ebbtide_agent import network
from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.network import Network
from ebbtide_agent.records import as_json


class StopSignalTarget(StrEnum):
    """Which processes get the stop signal."""

    AUTO = "auto"
    LEADER = "leader"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class AllocatedGpu:
    """A GPU of the allocation, with the attempt's share and memory on it."""

    uuid: str
    numerator: int
    denominator: int
    mem_bytes: int


@dataclass(frozen=True, slots=True)
class LogPattern:
    """A pattern that is looked for in the attempt's output; the fields are those of the wire's LogRule."""

    pattern: str
    action: str  # such as LOG_ACTION_NOTIFY


@dataclass(frozen=True, kw_only=True)
class AttemptOnNode:
    """Which attempt of which job it is, on which of its nodes; where its files lie, and whose they are."""

    __slots__ = ()

    job_id: str
    attempt: int  # counts from 1
    cluster_id: str  # job ids come again in another cluster
    node_rank: int  # this node's number among the attempt's nodes; 0: the first
    num_nodes: int
    node_names: tuple[str, ...] = ()  # of all its nodes, by rank, if `slurm` is set and it has several
    node_dir: str  # the agent's own directory on this node
    job_checkpoint_dir: str  # the job's directory under the checkpoint root; all its nodes share it
    account: Account | None = None  # that its processes run as; None: the agent's own

    @property
    def job_dir(self) -> Path:
        """The directory that the job keeps across attempts; it belongs to the user."""
        return Path(self.job_checkpoint_dir)

    @property
    def checkpoint_dir(self) -> Path:
        """The attempt's own checkpoint directory."""
        return Path(self.job_checkpoint_dir, f"attempt-{self.attempt}")

    @property
    def output_dir(self) -> Path:
        """The directory for output that the job keeps across attempts."""
        return Path(self.job_checkpoint_dir, "output")


@dataclass(frozen=True, kw_only=True)
class JobProgram:
    """What is run, and what its processes find when they start."""

    __slots__ = ()

    command: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]  # the user's variables; the job contract's are added to them
    script: str = ""  # text that is run in place of `command[0]`, its name; empty: the command is run as it is
    scripts: Mapping[str, str] = field(default_factory=dict)  # digests at submit of files that the command runs
    resume_args: tuple[str, ...] = ()  # appended to the command when the attempt resumes
    needs_checkpoint: bool  # the job has made progress, and must not begin anew
    python_env: str = ""  # directory of the Python environment that it needs to start here; empty: it needs none
    slurm: bool = False  # it gets the variables and commands that a script for Slurm expects
    sdk: bool = True  # `import ebbtide` finds the agent's SDK if none is installed
    warm: bool = True  # standby processes may be used for it
    session: bool = False  # its first process owns a terminal that clients attach to
    stdin: bool = False  # its process reads the data that comes to the attempt's input socket


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """How many processes there are on all nodes, and where they meet."""

    __slots__ = ()

    ddp: bool  # one process for each GPU, with torch.distributed's environment
    meets: bool = False  # the job is on several nodes in this attempt, or may be in another one
    world_size: int  # 0: the job has only this node's processes
    ranks_before: int = 0  # ranks on the nodes before this one; 0: each node has as many processes as this one
    master_addr: str  # empty: the job has only this node
    master_port: int = 0  # for the ranks' rendezvous; 0: this node chooses
    network: Network = network.ANY


@dataclass(frozen=True, kw_only=True)
class NodeShare:
    """What the attempt has of this node, and how it shares a GPU with others."""

    __slots__ = ()

    gpus: tuple[AllocatedGpu, ...]
    gpu_mem_bytes: int  # the job's request on each GPU; 0: none
    cpus: float  # 0: it requested none
    mem_bytes: int = 0  # host memory that it may use; 0: it requested none
    swaps: bool = False  # the driver moves its GPU memory to host memory and back
    sharing: str = ""  # the way in which it shares its GPU; empty: it does not
    sharing_env: Mapping[str, str] = field(default_factory=dict)  # variables that this sharing needs
    limited_by: str = ""  # what enforces its part of the GPU's memory; empty: nothing
    fake_gpu_dir: str  # empty: the GPUs are real


@dataclass(frozen=True, kw_only=True)
class LeavingTerms:
    """How the attempt is stopped, and when it ends by itself."""

    __slots__ = ()

    grace_s: float  # between the stop signal and SIGKILL
    signal: str  # name of the stop signal; empty: SIGTERM
    signal_target: StopSignalTarget = StopSignalTarget.AUTO  # the default is for intents of older agents
    idle_limit_s: float | None = None  # it is ended after it was unused for this long
    failover_after_s: float | None = None  # it ends itself after the master was not heard for this long
    leased_at: float = 0.0  # send time of the last message that the master acknowledged before launch (CLOCK_BOOTTIME)


@dataclass(frozen=True, kw_only=True)
class OutputTerms:
    """What is done with the attempt's output."""

    __slots__ = ()

    output: str = ""  # file to which the output is appended; empty: none
    prefix_ranks: bool = False  # each line of the output begins with the rank that printed it
    log_rules: tuple[LogPattern, ...] = ()
    log_bytes: int = 0  # disk space that its output may take on this node; 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent(AttemptOnNode, JobProgram, RankLayout, NodeShare, LeavingTerms, OutputTerms):
    """The order to run one attempt of a job on this node, put together of parts; a function that needs one takes that.

    A field with the name of a field in the wire's JobSpec or Launch is a copy of it
    (`ebbtide_agent.attempts.translation`). Parts have empty slots, because Python lets a class inherit from one class
    with slots at most.
    """

    @property
    def processes(self) -> int:
        """The number of processes that are launched on this node."""
        return max(1, len(self.gpus)) if self.ddp else 1

    def gpus_of(self, local_rank: int) -> tuple[AllocatedGpu, ...]:
        """Return the GPUs of one of this node's processes: one GPU for each rank of a `ddp` job, else all."""
        return self.gpus[local_rank : local_rank + 1] if self.ddp else self.gpus

    @property
    def rank_files(self) -> bool:
        """Whether each process prints into a file of its own."""
        return self.ddp and (self.processes > 1 or self.prefix_ranks)

    @property
    def first_rank(self) -> int:
        """The rank of this node's first process."""
        return self.ranks_before if self.ddp and self.ranks_before else self.node_rank * self.processes

    def to_json(self) -> dict[str, Any]:
        content: dict[str, Any] = as_json(self)
        return content

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read an intent. Raises TypeError or ValueError if the content is not one.

        Unknown fields are ignored, because a newer version may have written it before the node went back to this one.
        """
        record: Any = cls
        intent: Self = _reader(record)(content)
        return intent


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return the function that makes a value of type ``kind`` from its JSON."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        inner = _reader(arguments[0])
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        item = _reader(arguments[0])
        return lambda value: tuple(map(item, value))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if is_dataclass(kind):
        record: Any = kind
        hints = typing.get_type_hints(record)
        known = [(field.name, _reader(hints[field.name])) for field in fields(record)]
        return lambda content: record(**{name: read(content[name]) for name, read in known if name in content})
    return lambda value: value
