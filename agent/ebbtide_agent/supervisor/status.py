"""Hold what is known of an attempt, in the JSON shape of the wire's AttemptStatus, so that nothing translates it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ebbtide_machine.process import Identity

from ebbtide_agent.records import as_json
from ebbtide_agent.supervisor.clues import WireClue


class Phase(StrEnum):
    """How far the attempt is."""

    LAUNCHING = "ATTEMPT_PHASE_LAUNCHING"
    RUNNING = "ATTEMPT_PHASE_RUNNING"
    EXITED = "ATTEMPT_PHASE_EXITED"
    SWAPPED = "ATTEMPT_PHASE_SWAPPED"
    REFUSED = "ATTEMPT_PHASE_REFUSED"


class WireRefusalCause(StrEnum):
    """Why an attempt was refused, which tells whether it could start on another node."""

    NODE = "REFUSAL_CAUSE_UNSPECIFIED"
    BAD_JOB = "REFUSAL_CAUSE_BAD_JOB"
    NO_CHECKPOINT = "REFUSAL_CAUSE_NO_CHECKPOINT"
    NO_PATH = "REFUSAL_CAUSE_NO_PATH"
    NO_ACCOUNT = "REFUSAL_CAUSE_NO_ACCOUNT"


class WireCheckpointed(StrEnum):
    """Whether the attempt wrote a checkpoint after it was asked to stop."""

    UNKNOWN = "CHECKPOINTED_UNKNOWN"
    YES = "CHECKPOINTED_YES"
    NO = "CHECKPOINTED_NO"


class Refused(Exception):
    """The attempt does not start; the message says why in one line."""

    def __init__(self, reason: str, cause: WireRefusalCause = WireRefusalCause.NODE) -> None:
        super().__init__(reason)
        self.cause = cause


@contextmanager
def refusing(what_failed: str) -> Iterator[None]:
    """Turn an OSError before the start into this node's refusal to start the attempt."""
    try:
        yield
    except OSError as error:
        raise Refused(f"{what_failed}: {error}") from error


@dataclass(slots=True)
class Exit:
    """How the attempt ended; the fields are those of the wire's ExitRecord."""

    exit_code: int = 0
    signal: int = 0
    ended_at: float = 0.0
    stop_requested: bool = False
    delivered: bool = False
    caught: bool = False
    acknowledged: bool = False
    asked: bool = False
    killed: bool = False
    checkpointed: WireCheckpointed = WireCheckpointed.UNKNOWN
    checkpoint_s: float = 0.0
    failed_rank: int = 0
    stop_requested_at: float = 0.0
    swap_failure: str = ""
    out_of_memory: bool = False
    fenced: bool = False
    memory_failure: str = ""
    input_failure: str = ""
    clues: list[WireClue] = field(default_factory=list)

    def set_return_code(self, returncode: int) -> None:
        """Set the exit code, or for a negative `returncode` the number of the signal that ended the process."""
        self.exit_code, self.signal = (returncode, 0) if returncode >= 0 else (0, -returncode)


@dataclass(slots=True)
class Progress:
    """The fields of the wire's Progress."""

    step: int
    total: int | None = None
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    diverged: list[str] = field(default_factory=list)


@dataclass(slots=True)
class PublishedCheckpoint:
    """The fields of the wire's Checkpoint; `step` is None if the script counts no steps."""

    step: int | None
    bytes: int
    path: str
    verified: bool


@dataclass(slots=True)
class Start:
    """The fields of the wire's StartRecord."""

    warm: bool = False
    job_at: float = 0.0
    loaded_at: float = 0.0
    stepped_at: float = 0.0
    first_step: int = 0
    earlier_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sdk:
    """The versions of the job's SDK, and of the job contract that it speaks."""

    version: str
    contract: int


@dataclass(slots=True)
class MatchedLine:
    """The fields of the wire's LogMatch."""

    pattern: str
    action: str
    line: str
    gpus: list[str]


@dataclass(slots=True)
class Status:
    """The fields of the wire's AttemptStatus, and three more for the agent."""

    job_id: str
    attempt: int
    supervisor: Identity
    phase: Phase = Phase.LAUNCHING
    pid: int = 0
    started_at: float = 0.0
    resumed_step: int | None = None
    progress: Progress | None = None
    checkpoint: PublishedCheckpoint | None = None
    exit: Exit | None = None
    lost: bool = False
    refusal: str = ""
    refusal_cause: WireRefusalCause = WireRefusalCause.NODE
    swaps: int = 0
    swapped_bytes: int = 0
    swap_s: float = 0.0
    swap_note: str = ""
    master_port: int = 0
    start: Start | None = None
    edited: tuple[str, ...] = ()
    told: bool = False  # whether `AttemptDir.record_imports` has what its script had imported by its first step
    sdk: Sdk | None = None  # as its first rank has named it
    log_matches: list[MatchedLine] = field(default_factory=list)
    leased: bool = False

    def refuse(self, refusal: Refused) -> None:
        self.phase = Phase.REFUSED
        self.refusal, self.refusal_cause = str(refusal), refusal.cause

    def to_json(self) -> dict[str, Any]:
        """Return the status without what is zero or empty, as the wire's own messages leave that out."""
        content: dict[str, Any] = as_json(self, sparse=True)
        return content
