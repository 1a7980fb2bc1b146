"""`ebb usage` adds up to the second: by GPU, by job, and against what the jobs saw themselves."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.day.evidence import Entry, Evidence
from tests.e2e.day.sharing import pieces

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]  # a day takes two minutes
TO_THE_SECOND = 1.0
START_AND_END_S = 3.0
"""What may lie between the room and the computing of an attempt, on a busy machine: its process starts and imports, its
end is noticed and told. Where master or agent were away meanwhile, for so long in addition."""


@dataclass(frozen=True)
class Attempt:
    """The room of one attempt, from the log, in GPUs; ``freed`` is the end of the account if it was not freed."""

    job: str
    number: int
    gpus: dict[str, float]
    placed: float
    freed: float

    @property
    def gpu_s(self) -> float:
        """GPU-seconds."""
        return (self.freed - self.placed) * sum(self.gpus.values())


def attempts(log: list[Entry], end: float) -> Iterator[Attempt]:
    """All of the day."""
    open_: dict[tuple[str, int], Entry] = {}
    for entry in log:
        if entry.kind == "AttemptPlaced":
            open_[entry.job, entry.fact["attempt"]] = entry
        elif entry.kind in ("AttemptFreed", "AttemptRefused") or (
            entry.kind == "AttemptExited" and entry.fact["freed"]
        ):
            yield _attempt(open_.pop((entry.job, entry.fact["attempt"])), entry.at)
    for entry in open_.values():
        yield _attempt(entry, end)


def _attempt(placed: Entry, freed: float) -> Attempt:
    gpus = {gpu: share for _, gpu, share in pieces(placed.fact["allocation"])}
    return Attempt(placed.job, placed.fact["attempt"], gpus, placed.at, freed)


def test_every_gpu_second_is_accounted_for(day: Evidence) -> None:
    usage = day.usage
    assert usage["problems"] == []
    since: dict[str, float] = {}
    for entry in day.log:
        if entry.kind == "NodeRegistered":
            since |= {gpu["gpu"]: since.get(gpu["gpu"], entry.at) for gpu in entry.fact["gpus"]}
    wall = sum(usage["until"] - at for at in since.values())
    parts = {part: usage["gpus"][f"{part}_gpu_s"] for part in ("allocated", "idle", "foreign", "unavailable")}
    allocated = sum(attempt.gpu_s for attempt in attempts(day.log, usage["until"]))
    print(f"{len(since)} GPUs for {wall:.1f} GPU-seconds: {parts}; from the log: {allocated:.1f} allocated")
    assert len(since) == 8
    assert sum(parts.values()) == pytest.approx(wall, abs=TO_THE_SECOND)
    assert parts["allocated"] == pytest.approx(allocated, abs=TO_THE_SECOND)
    assert parts["foreign"] > 0
    assert parts["unavailable"] > 0


def test_every_job_is_charged_what_its_attempts_had(day: Evidence) -> None:
    accounts = {account["job"]: account["allocated_gpu_s"] for account in day.usage["accounts"]}
    had = dict.fromkeys(day.jobs, 0.0)
    for attempt in attempts(day.log, day.usage["until"]):
        had[attempt.job] += attempt.gpu_s
    wrong = {
        id: (accounts.get(id, 0.0), gpu_s)
        for id, gpu_s in had.items()
        if abs(accounts.get(id, 0.0) - gpu_s) > TO_THE_SECOND
    }
    assert not wrong, f"charged, had: {wrong}"


def test_what_jobs_saw_themselves_lies_within_what_they_are_charged_for(day: Evidence) -> None:
    away = list(absences(day))
    gaps = []
    for attempt in attempts(day.log, day.usage["until"]):
        lines = [line for line in day.witnesses.get(attempt.job, ()) if line["attempt"] == attempt.number]
        if not lines or lines[0]["what"] != "begin":
            continue
        seen = dict.fromkeys(lines[0]["gpus"], 0.25 if lines[0]["share"] == "1/4" else 1.0)
        about = f"job {attempt.job}, attempt {attempt.number} from {day.clock(attempt.placed)}"
        assert seen == attempt.gpus, about
        assert attempt.placed <= lines[0]["at"], about
        assert lines[-1]["at"] <= attempt.freed, about
        gap = attempt.freed - attempt.placed - (lines[-1]["at"] - lines[0]["at"])
        excused = sum(max(0.0, min(end, attempt.freed) - max(start, attempt.placed)) for start, end in away)
        gaps.append((gap - excused, gap, about))
    print(f"{len(gaps)} attempts; charged beyond what they saw: {sum(gap for _, gap, _ in gaps):.1f} s, {max(gaps)}")
    assert max(gaps)[0] <= START_AND_END_S, max(gaps)


def absences(day: Evidence) -> Iterator[tuple[float, float]]:
    """When master or agents were away: from the fault until the last node was there again."""
    for at, who in day.outages:
        back = {entry.node: entry.at for entry in reversed(day.log) if entry.kind == "NodeRegistered" and entry.at > at}
        yield at, max(back.values()) if who == "master" else back[who]
    for at, seconds in day.stops:
        yield at, at + seconds
