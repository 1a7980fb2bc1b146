"""Draw which job was on which GPU when, as text: a row for each GPU, time from left to right."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ebbtide_protos.v1 import client_pb2
from rich.text import Text

RUNNING, LEAVING, IDLE = "█", "▒", "·"
STYLES = ("green", "cyan", "red", "magenta", "yellow", "blue", "bright_green", "bright_cyan")


@dataclass(frozen=True, slots=True)
class GpuSpan:
    """A job's time on a GPU, from ``begin`` to ``end`` (Unix seconds); it was asked to leave at ``asked``."""

    job: str
    gpu: str
    begin: float
    asked: float | None
    end: float


def spans(job: client_pb2.Job, now: float) -> Iterator[GpuSpan]:
    """Yield every stay of ``job`` on a GPU."""
    asked = [suspension.requested for suspension in job.suspensions]
    for attempt in job.attempts:
        if not attempt.HasField("start_time"):
            continue
        end = attempt.end_time if attempt.HasField("end_time") else now
        leaving = next((time for time in asked if attempt.start_time <= time <= end), None)
        for node in attempt.allocation:
            for gpu in node.gpus:
                yield GpuSpan(job.spec.name, gpu.uuid, attempt.start_time, leaving, end)


def lane(gpu: str, found: Sequence[GpuSpan], begin: float, end: float, width: int, styles: dict[str, str]) -> Text:
    """Draw one GPU's row of ``width`` cells between the times ``begin`` and ``end``."""
    cells = [_cell(gpu, found, begin + (end - begin) * (cell + 0.5) / width, styles) for cell in range(width)]
    return Text.assemble(*((mark * len(list(same)), style) for (mark, style), same in groupby(cells)))


def _cell(gpu: str, found: Sequence[GpuSpan], time: float, styles: dict[str, str]) -> tuple[str, str]:
    """Return the mark and the style of one GPU at one time."""
    span = next((span for span in found if span.gpu == gpu and span.begin <= time < span.end), None)
    if span is None:
        return IDLE, "bright_black"
    leaving = span.asked is not None and time >= span.asked
    return LEAVING if leaving else RUNNING, styles[span.job]


def styles_for(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each job; it stays the same as long as the order of the jobs does."""
    return {name: STYLES[index % len(STYLES)] for index, name in enumerate(names)}


def timeline(jobs: Sequence[client_pb2.Job], gpus: Sequence[str], now: float, width: int) -> Text:
    """Draw the rows of all GPUs with a legend; ``gpus`` are UUIDs in the order of their index."""
    found = [span for job in jobs for span in spans(job, now)]
    begin = min((span.begin for span in found), default=now)
    end = max([begin + 1.0, *(span.end for span in found)])
    styles = styles_for([job.spec.name for job in jobs])
    picture = Text()
    for index, gpu in enumerate(gpus):
        picture.append(f"GPU {index} ").append_text(lane(gpu, found, begin, end, width, styles)).append("\n")
    picture.append(f"      0 s{' ' * max(1, width - 8)}{end - begin:.0f} s\n", "bright_black")
    picture.append("      ")
    for job in jobs:
        picture.append(f"{RUNNING} {job.spec.name}  ", styles[job.spec.name])
    return picture.append(f"{LEAVING} saving, about to leave", "bright_black")
