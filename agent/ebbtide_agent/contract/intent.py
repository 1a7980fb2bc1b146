"""What a supervisor is asked to run, as it travels to it and lies in intent.json."""

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import Enum, StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Self

from ebbtide_agent import network
from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.network import Network


class SignalTarget(StrEnum):
    """Which processes get the stop signal."""

    AUTO = "auto"
    LEADER = "leader"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class AllocatedGpu:
    """One GPU of the allocation, and how much of it."""

    uuid: str
    numerator: int
    denominator: int
    mem_bytes: int


@dataclass(frozen=True, slots=True)
class LogRule:
    """A pattern that is looked for in what the attempt prints; the fields of the wire's LogRule."""

    pattern: str
    action: str  # such as LOG_ACTION_NOTIFY


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One attempt of a job on this node.

    A field that is named like one of the wire's JobSpec, or Launch, is that one (`ebbtide_agent.attempts.translation`).
    """

    job_id: str
    attempt: int
    cluster_id: str
    command: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]
    gpus: tuple[AllocatedGpu, ...]
    gpu_mem_bytes: int  # that the job asked for on each GPU; 0: it did not ask
    cpus: float
    grace_s: float
    signal: str  # name of the stop signal
    signal_target: SignalTarget = SignalTarget.AUTO  # older agents left it out
    ddp: bool
    needs_checkpoint: bool
    node_rank: int
    num_nodes: int
    world_size: int  # 0: this node's processes are all
    master_addr: str  # empty: this node is alone
    node_dir: str
    job_checkpoint_dir: str
    fake_gpu_dir: str  # empty: the GPUs are real
    master_port: int = 0  # where the ranks meet; 0: this node chooses
    network: Network = network.ANY
    resume_args: tuple[str, ...] = ()  # appended to the command when the attempt resumes
    warm: bool = True  # its processes may be held ready before the attempt begins
    ranks_before: int = 0  # of the nodes before this one; 0: each of them launches as many processes as this one
    meets: bool = False  # it is, or another time may be, on several nodes
    swaps: bool = False  # the driver moves it to host memory and back
    sharing: str = ""  # how it shares its GPU with others; empty: it does not
    sharing_env: Mapping[str, str] = field(default_factory=dict)  # what that takes
    limited_by: str = ""  # what keeps it to its part of the GPU's memory; empty: nothing
    log_rules: tuple[LogRule, ...] = ()
    output: str = ""  # file that what it prints is appended to; empty: none
    prefix_ranks: bool = False  # each line of it begins with the rank that printed it
    idle_limit_s: float | None = None  # it is ended when nobody has used it for so long
    failover_after_s: float | None = None  # it ends itself when the master was not heard for so long
    leased_at: float = 0.0  # when was sent what the master acknowledged last before the launch (CLOCK_BOOTTIME)
    script: str = ""  # text of what is run in place of `command[0]`, its name; empty: the command is run as it is
    python_env: str = ""  # a Python environment's directory, without which it cannot start here; empty: it needs none
    slurm: bool = False  # it finds what a script for Slurm expects
    scripts: Mapping[str, str] = field(default_factory=dict)  # digests at submit of files that the command runs
    node_names: tuple[str, ...] = ()  # of all its nodes, by rank, if it does and has several
    log_bytes: int = 0  # of this node's disk that what it prints may take; 0: no limit
    account: Account | None = None  # as which its processes run; None: the agent's own
    sdk: bool = True  # `import ebbtide` finds the agent's where none is installed
    session: bool = False  # its first process owns a terminal that others attach to
    mem_bytes: int = 0  # of host memory that it may use; 0: it did not ask
    stdin: bool = False  # its process reads what comes to the attempt's input socket

    @property
    def processes(self) -> int:
        """How many processes are launched on this node."""
        return max(1, len(self.gpus)) if self.ddp else 1

    @property
    def rank_files(self) -> bool:
        """Whether each process prints into a file of its own."""
        return self.ddp and (self.processes > 1 or self.prefix_ranks)

    @property
    def first_rank(self) -> int:
        """Rank of this node's first process."""
        return self.ranks_before if self.ddp and self.ranks_before else self.node_rank * self.processes

    @property
    def job_dir(self) -> Path:
        """What is the job's from attempt to attempt; the user's own."""
        return Path(self.job_checkpoint_dir)

    @property
    def checkpoint_dir(self) -> Path:
        """The attempt's own checkpoint directory."""
        return Path(self.job_checkpoint_dir, f"attempt-{self.attempt}")

    @property
    def output_dir(self) -> Path:
        """Where the job keeps what it goes on writing from attempt to attempt."""
        return Path(self.job_checkpoint_dir, "output")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Raises TypeError or ValueError if the content is not an intent.

        What a newer version noted beside is passed over: the node may have gone back to this one.
        """
        record: Any = cls
        intent: Self = _reader(record)(content)
        return intent


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """What makes a value of type ``kind`` of its JSON."""
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
