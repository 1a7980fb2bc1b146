"""Judge a drill: whether the job checkpointed, how long each part took, and whether its progress was kept."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ebbtide_protos.v1 import client_pb2, job_pb2

from ebbtide_cli.describing.facts import CHECKPOINTED, SUSPEND_MODES, state_of
from ebbtide_cli.describing.jobs import finished

NOTABLE_CPU_S: Final = 1.0
"""CPU seconds that a script may compute again without a mention."""
SAVED_UNSEEN: Final = "it saved, and it reports no steps that would show where it continued: see its log"
UNSEEN: Final = "nothing shows that it saved, and it reports no steps that would show where it continued: see its log"
ADVICE: Final = {
    SAVED_UNSEEN: "It is unknown whether the script continued from what it saved, because it reports no steps. To make "
    "it known, report them with ebbtide.job() ('ebb docs with-the-sdk'), or compare the lines of its log.",
    UNSEEN: "It is unknown whether the script saved by itself, because Ebbtide does not see files of its own. To "
    "make it known, save with ebbtide.job() ('ebb docs with-the-sdk'), or in a handler that writes into "
    "EBB_CHECKPOINT_DIR ('ebb docs without-the-sdk').",
}
"""For each reason why the verdict is unknown: what is unknown, why, and what the user can do about that."""


class Verdict(Enum):
    """Whether the job can be trusted to suspend."""

    TRUSTWORTHY = "trustworthy"
    NOT = "not trustworthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Steps:
    """The last step before the drill, the checkpoint's step, and the first one reported after; None if not known."""

    before: int | None
    checkpoint: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class DrillFindings:
    """All that is known after a drill. ``parts_s`` has the seconds of those parts that are known.

    ``advice`` says what is unknown, why, and what to do about that; it is empty if nothing of that kind is unknown.
    ``repeated_cpu_s`` is the CPU time in which the script's commands before its first step computed things again; it is
    given only if it is at least half of what the attempt before took.
    """

    verdict: Verdict
    because: str
    advice: str
    checkpointed: str
    why: str
    parts_s: dict[str, float]
    steps: Steps
    repeated_cpu_s: float | None
    log: dict[str, str]

    def facts(self, job: client_pb2.Job) -> dict[str, Any]:
        """Return the findings as ``--json`` prints them."""
        return {
            "id": job.job_id,
            "state": state_of(job),
            "verdict": self.verdict.value,
            "because": self.because,
            "advice": self.advice,
            "checkpointed": self.checkpointed,
            "why": self.why,
            "parts_s": self.parts_s,
            "steps": {name: getattr(self.steps, name) for name in ("before", "checkpoint", "after")},
            "repeated_cpu_s": self.repeated_cpu_s,
            "log": self.log,
        }


def came_back(job: client_pb2.Job, asked: client_pb2.Job) -> bool:
    """Whether the job runs again after the drill that ``asked`` began."""
    return _drilled(job, asked).HasField("resumed")


def is_over(job: client_pb2.Job, asked: client_pb2.Job) -> bool:
    """Whether nothing more will be learned: the job works again, or cannot report that, or something came between."""
    drilled = _drilled(job, asked)
    if finished(job) or job.held_by or len(job.suspensions) > len(asked.suspensions):
        return True
    if drilled.HasField("resumed") and job.state not in (job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_STARTING):
        return True
    return drilled.HasField("working") or (drilled.HasField("resumed") and not reports_steps(job, asked))


def reports_steps(job: client_pb2.Job, asked: client_pb2.Job) -> bool:
    """Whether the job had reported any step before the drill suspended it."""
    return asked.HasField("progress") or _drilled(job, asked).HasField("left_step")


def same_attempt(job: client_pb2.Job, asked: client_pb2.Job) -> bool:
    """Whether the same processes went on, as those of a swapped job do."""
    return job.attempt == asked.attempt and came_back(job, asked)


def find(job: client_pb2.Job, asked: client_pb2.Job, log: dict[str, str]) -> DrillFindings:
    """Judge ``job``, given its state ``asked`` when the drill began, and ``log``, its lines around the interruption."""
    steps = _steps(job, asked)
    checkpointed, why = _checkpointed(job, asked)
    verdict, because = _judge(job, asked, steps, checkpointed)
    parts_s, repeated_cpu_s = _parts(_drilled(job, asked)), _repeated_cpu_s(job, asked)
    advice = ADVICE.get(because, "")
    return DrillFindings(verdict, because, advice, checkpointed, why, parts_s, steps, repeated_cpu_s, log)


def _drilled(job: client_pb2.Job, asked: client_pb2.Job) -> client_pb2.Suspension:
    """Return the drill's suspension: the newest one at the time of the request."""
    return job.suspensions[len(asked.suspensions) - 1]


def _steps(job: client_pb2.Job, asked: client_pb2.Job) -> Steps:
    drilled = _drilled(job, asked)
    before = asked.progress.step if asked.HasField("progress") else None
    if drilled.HasField("left_step"):
        before = max(drilled.left_step, before or 0)
    later = [attempt for attempt in job.attempts if attempt.attempt > asked.attempt]
    given = later[0].resumed_step if later and later[0].HasField("resumed_step") else None
    return Steps(before, given, drilled.working_step if drilled.HasField("working") else None)


def _parts(drilled: client_pb2.Suspension) -> dict[str, float]:
    times = {
        "exit": (drilled.requested, drilled, "exited"),
        "free": (drilled.exited, drilled, "gpu_free"),
        "queue": (drilled.gpu_free, drilled, "placed"),
        "start": (drilled.placed, drilled, "resumed"),
        "first_progress": (drilled.resumed, drilled, "working"),
    }
    parts = {"save": drilled.checkpoint_s} if drilled.HasField("checkpoint_s") else {}
    for name, (since, record, field) in times.items():
        if record.HasField(field):  # type: ignore[arg-type]  # one of its optional fields
            parts[name] = max(0.0, getattr(record, field) - since)
    back = drilled.working if drilled.HasField("working") else drilled.resumed
    return parts | ({"total": back - drilled.requested} if back else {})


def _repeated_cpu_s(job: client_pb2.Job, asked: client_pb2.Job) -> float | None:
    earlier = {attempt.attempt: attempt.earlier_cpu_s for attempt in job.attempts}
    before, after = earlier.get(asked.attempt, 0.0), earlier.get(asked.attempt + 1, 0.0)
    return after if before >= NOTABLE_CPU_S and after >= before / 2 else None


def _checkpointed(job: client_pb2.Job, asked: client_pb2.Job) -> tuple[str, str]:
    drilled = _drilled(job, asked)
    if not drilled.HasField("exited"):
        return "unknown", "it has not stepped aside yet"
    if same_attempt(job, asked):
        return "unknown", f"it was not asked to save: {drilled.note or 'its processes were frozen'}"
    if SUSPEND_MODES[job.spec.suspend] == "swap" and drilled.note:
        return CHECKPOINTED[drilled.checkpointed], drilled.note
    outcome = next((each.outcome for each in job.attempts if each.attempt == asked.attempt), "")
    match CHECKPOINTED[drilled.checkpointed]:
        case "yes":
            return "yes", f"a complete checkpoint was written after it was asked; it {outcome}"
        case "no":
            return "no", f"no checkpoint was written after it was asked; it {outcome}"
        case _:
            return "unknown", f"nothing complete was written into EBB_CHECKPOINT_DIR; it {outcome}"


def _judge(job: client_pb2.Job, asked: client_pb2.Job, steps: Steps, checkpointed: str) -> tuple[Verdict, str]:
    if (broken := _broken(job, asked)) is not None:
        return broken
    if steps.before is not None and steps.after is None:
        return Verdict.NOT, "it runs again, but has reported no step since"
    if steps.before and steps.after is not None:
        if steps.after >= steps.before:
            return Verdict.TRUSTWORTHY, f"it went on at step {steps.after}; it had left off at step {steps.before}"
        again = f"{steps.before - steps.after} steps were lost" if steps.after else "it began from the beginning"
        return Verdict.NOT, f"{again}: it had left off at step {steps.before}, and went on at step {steps.after}"
    if same_attempt(job, asked):
        return Verdict.TRUSTWORTHY, "its processes went on where they were"
    if checkpointed == "no":
        return Verdict.NOT, "it saved nothing"
    if steps.before == 0:
        return Verdict.UNKNOWN, "it had done no step yet that could be lost: try again later"
    return Verdict.UNKNOWN, SAVED_UNSEEN if checkpointed == "yes" else UNSEEN


def _broken(job: client_pb2.Job, asked: client_pb2.Job) -> tuple[Verdict, str] | None:
    """Return a verdict if something kept the drill from its end; None if nothing did."""
    drilled = _drilled(job, asked)
    if drilled.HasField("working"):
        return None
    if finished(job) and not came_back(job, asked):
        return Verdict.UNKNOWN if state_of(job) == "COMPLETED" else Verdict.NOT, f"it did not come back: {job.reason}"
    if job.held_by:
        return Verdict.NOT, f"it does not come back by itself: {job.reason}"
    if not came_back(job, asked):
        return Verdict.UNKNOWN, f"it is not back in time: {state_of(job)} ({job.reason})"
    if state_of(job) in ("RUNNING", "STARTING"):
        return None
    if len(job.suspensions) > len(asked.suspensions):
        return Verdict.UNKNOWN, f"it was suspended again before it showed where it went on: {job.reason}"
    if state_of(job) == "COMPLETED" and not asked.HasField("progress"):
        return None
    return Verdict.NOT, f"it came back and ended before it showed where it went on: {job.reason}"
