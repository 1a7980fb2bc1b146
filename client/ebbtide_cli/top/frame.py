"""Draw one frame of ``ebb top``: lines that fit the terminal, from what the master knows."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ebbtide_protos.v1 import agent_pb2, client_pb2
from rich.text import Text

from ebbtide_cli.describing.facts import share_of, state_of
from ebbtide_cli.describing.jobs import gpus_words, node_words, progress_words
from ebbtide_cli.terminal.rich_drawing import STYLES
from ebbtide_cli.terminal.text import GAP, format_count, plural, printable
from ebbtide_cli.top.feed import WAITING, Picture
from ebbtide_cli.values import format_duration, format_size

JOB_STYLES: Final = ("green", "cyan", "magenta", "yellow", "blue", "bright_green", "bright_cyan", "bright_magenta")
FOREIGN: Final = "red"
FULL, OTHER, STRANGE, FREE = "█", "▒", "▓", "·"
BAR: Final = (16, 40)
"""Columns of a bar, at least and at most."""
ELASTIC: Final = 8
"""Columns that are left of words that may be cut."""
GIB: Final = 2**30
ROWS: Final = {"GPUS": 4, "RUNNING": 4, "WAITING": 3}
"""Rows that each part keeps, its title included, on a terminal that is too low for all of them."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. An elastic one is cut to the remaining width; one with a high rank is left out early."""

    title: str
    cells: list[Text]
    right: bool = False
    elastic: bool = False
    rank: int = 0

    @property
    def width(self) -> int:
        """The width of its widest cell."""
        return max((cell.cell_len for cell in self.cells), default=0)


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines with their title, and how many more lines there would be."""

    lines: list[Text]
    more: int = 0

    def first(self, count: int) -> list[Text]:
        """Return ``count`` lines, the last of which counts the missing ones; none if only the title would fit."""
        if len(self.lines) <= count and not self.more:
            return self.lines
        if count < 2:
            return []
        missing = len(self.lines) + self.more - count + 1
        return [*self.lines[: count - 1], Text(f"     … and {missing} more", "bright_black")]


def frame(picture: Picture, width: int, height: int | None = None) -> list[Text]:
    """Draw the lines, none longer than the width, and no more of them than the height allows (None: all)."""
    running = [job for job in picture.jobs if job.state not in WAITING]
    waiting = [job for job in picture.jobs if job.state in WAITING]
    # Held jobs wait for a user, not for room, and come last. Rows out of sight are not drawn: thousands may wait.
    waiting.sort(key=lambda job: bool(job.held_by))
    parts = {
        "GPUS": _all_nodes(picture.nodes, width, height),
        "RUNNING": _part(running, height, lambda jobs: _running(jobs, picture, width)),
        "WAITING": _part(waiting, height, lambda jobs: _waiting(jobs, picture, width)),
    }
    head = [_head(picture, len(running), len(waiting), width)]
    gaps = sum(bool(part.lines) for part in parts.values())
    shown = _fit(parts, None if height is None else height - len(head) - gaps)
    return [*head, *(line for lines in shown if lines for line in (Text(), *lines))]


def _part(jobs: list[client_pb2.Job], height: int | None, draw: Callable[[list[client_pb2.Job]], list[Text]]) -> Panel:
    drawn = jobs[:height]
    return Panel(draw(drawn) if drawn else [], len(jobs) - len(drawn))


def _head(picture: Picture, running: int, waiting: int, width: int) -> Text:
    up = sum(node.state == "up" for node in picture.nodes)
    nodes = plural(up, "node") if up == len(picture.nodes) else f"{up} of {plural(len(picture.nodes), 'node')}"
    left = Text.assemble(("ebb top  ", "bold"), f"{nodes}, {running} running, {waiting} waiting")
    if picture.away_s is not None:
        left = Text.assemble(("ebb top  ", "bold"), (f"master away since {picture.away_s:.0f} s", "bold red"))
    clock = time.strftime("%H:%M:%S", time.localtime(picture.at))
    right = f"{picture.master}  {clock}" if width >= left.cell_len + len(picture.master) + len(clock) + 4 else clock
    left.truncate(max(0, width - len(right) - 1), overflow="ellipsis", pad=True)
    return left.append(f" {right}")


# --- GPUs ---


def _all_nodes(nodes: Sequence[client_pb2.Node], width: int, height: int | None) -> Panel:
    lines = list[Text]()
    for place, node in enumerate(nodes):
        if height is not None and len(lines) >= height:
            return Panel(lines, sum(1 + bool(rest.gpus) + len(rest.gpus) for rest in nodes[place:]))
        lines += _node(node, width)
    return Panel(lines)


def _node(node: client_pb2.Node, width: int) -> Iterator[Text]:
    yield _node_line(node, width)
    if not node.gpus:
        return
    lines = _table(list(_gpu_columns(node, width)), width)
    yield lines[0]
    for line, gpu in zip(lines[1:], node.gpus, strict=True):
        yield line
        yield from _notes(gpu, width)


def _node_line(node: client_pb2.Node, width: int) -> Text:
    cpus = f"{format_count(node.cpus_allocated)} of {format_count(node.cpus)} CPUs"
    memory = f"{format_size(node.mem_allocated_bytes)} of {format_size(node.mem_bytes)} allocated"
    words = f"{GAP}{printable(node.reason) or f'{cpus}, {memory}'}"
    line = Text.assemble((printable(node.name), "bold"), (f"{GAP}{node.state}", STYLES.get(node.state, "")), words)
    return _cut(line, width)


def _gpu_columns(node: client_pb2.Node, width: int) -> Iterator[Column]:
    gpus = node.gpus
    numbers = [Column("GPU", [Text(str(gpu.info.index)) for gpu in gpus], right=True)]
    numbers.append(Column("MODEL", [Text(_short(gpu.info.model)) for gpu in gpus], elastic=True))
    rest = [
        Column("GiB", [Text(_memory_words(gpu)) for gpu in gpus], right=True),
        Column("SHARE", [Text(format_count(share_of(gpu.share_allocated))) for gpu in gpus], right=True),
        Column("BUSY", [_percent(gpu.reading) for gpu in gpus], right=True),
        Column("TEMP", [_temperature(gpu.reading) for gpu in gpus], right=True, rank=1),
        Column("POWER", [_power(gpu.reading) for gpu in gpus], right=True, rank=2),
    ]
    # The bar takes the width that is left; in a narrow terminal the model's name is cut first.
    least = [max(len(column.title), column.width) for column in (*numbers, *rest)]
    bar = min(BAR[1], max(BAR[0], width - sum(least) - len(GAP) * (len(least) + 1)))
    yield from numbers
    yield Column("MEMORY", [_bar(gpu, bar) for gpu in gpus])
    yield from rest


def _bar(gpu: client_pb2.NodeGpu, width: int) -> Text:
    """Draw the parts of the memory, each with its holder's name: jobs, foreign processes, other use, free memory."""
    total = gpu.info.mem_bytes
    if not total or not gpu.reading.HasField("mem_used_bytes"):
        return Text("?".ljust(width), "bright_black")
    parts = list(_holders(gpu))
    text, end, held = Text(), 0, 0
    for words, fill, style, count in parts:
        held += count
        # Rounded as a running sum, so that the parts together are as long as the whole.
        begin, end = end, min(width, max(end, round(width * held / total)))
        text.append(words[: end - begin].ljust(end - begin, fill), style)
    return text.append(FREE * (width - end), "bright_black")


def _holders(gpu: client_pb2.NodeGpu) -> Iterator[tuple[str, str, str, int]]:
    """Yield words, filling, style and bytes of each holder, jobs first."""
    jobs: dict[str, int] = {}
    foreign = 0
    for process in gpu.reading.processes:
        if process.job_id:
            jobs[process.job_id] = jobs.get(process.job_id, 0) + process.mem_bytes
        else:
            foreign += process.mem_bytes
    for id, count in sorted(jobs.items()):
        yield id, FULL, job_style(id), count
    if foreign:
        yield "foreign", STRANGE, FOREIGN, foreign
    if (rest := gpu.reading.mem_used_bytes - sum(jobs.values()) - foreign) > 0:
        yield "", OTHER, "bright_black", rest


def job_style(id: str) -> str:
    """Return the colour of a job, the same in every frame."""
    return JOB_STYLES[int(id.partition(".")[0] or 0) % len(JOB_STYLES)] if id[:1].isdigit() else JOB_STYLES[0]


def _notes(gpu: client_pb2.NodeGpu, width: int) -> Iterator[Text]:
    """Yield what is wrong with a GPU, and the foreign processes on it."""
    health = gpu.reading if gpu.HasField("reading") else gpu.info
    if not health.healthy:
        yield _cut(Text(f"     {printable(health.unhealthy_reason) or 'unhealthy'}", "red"), width)
    strangers = [_stranger(process) for process in gpu.reading.processes if not process.job_id]
    if strangers:
        yield _cut(Text(f"     foreign: {'; '.join(strangers)}", FOREIGN), width)


def _stranger(process: agent_pb2.GpuProcess) -> str:
    memory = f" {format_size(process.mem_bytes)}" if process.HasField("mem_bytes") else ""
    return printable(f"{process.command or process.pid} of {process.user or '?'}{memory}")


def _memory_words(gpu: client_pb2.NodeGpu) -> str:
    used = f"{gpu.reading.mem_used_bytes / GIB:.1f}" if gpu.reading.HasField("mem_used_bytes") else "?"
    return f"{used}/{gpu.info.mem_bytes / GIB:.1f}"


def _percent(reading: agent_pb2.GpuReading) -> Text:
    return Text(f"{reading.utilisation:.0%}" if reading.HasField("utilisation") else "?")


def _temperature(reading: agent_pb2.GpuReading) -> Text:
    return Text(f"{reading.temperature_c}°C" if reading.HasField("temperature_c") else "?")


def _power(reading: agent_pb2.GpuReading) -> Text:
    return Text(f"{reading.power_w:.0f}W" if reading.HasField("power_w") else "?")


def _short(model: str) -> str:
    """Return the part of a model's name that differs, without the maker's name."""
    return printable(model).removeprefix("NVIDIA ").removeprefix("GeForce ")


# --- jobs ---


def _running(jobs: list[client_pb2.Job], picture: Picture, width: int) -> list[Text]:
    return _table(
        [
            Column("RUNNING", [Text(job.job_id, job_style(job.job_id)) for job in jobs], right=True),
            Column("NAME", [Text(printable(job.spec.name)) for job in jobs], elastic=True),
            Column("USER", [Text(printable(job.user)) for job in jobs], elastic=True, rank=2),
            Column("STATE", [Text(state_of(job), STYLES.get(state_of(job), "")) for job in jobs]),
            Column("GPUS", [Text(gpus_words(job)) for job in jobs]),
            Column("STEP", [Text(progress_words(job)) for job in jobs]),
            Column("SPEED", [_speed_cell(job, picture) for job in jobs], right=True),
            Column("RAN", [Text(format_duration(round(picture.ran_s(job)))) for job in jobs], right=True),
            Column("NODE", [Text(printable(node_words(job))) for job in jobs], elastic=True, rank=1),
        ],
        width,
    )


def _waiting(jobs: list[client_pb2.Job], picture: Picture, width: int) -> list[Text]:
    return _table(
        [
            Column("WAITING", [Text(job.job_id) for job in jobs], right=True),
            Column("NAME", [Text(printable(job.spec.name)) for job in jobs], elastic=True),
            Column("USER", [Text(printable(job.user)) for job in jobs], elastic=True, rank=1),
            Column("GPUS", [Text(gpus_words(job)) for job in jobs]),
            Column("WAITED", [Text(format_duration(round(picture.waited_s(job)))) for job in jobs], right=True),
            Column("WHY", [Text(printable(job.reason)) for job in jobs], elastic=True),
        ],
        width,
    )


def _speed_cell(job: client_pb2.Job, picture: Picture) -> Text:
    return Text("idle", "yellow") if job.HasField("idle_since") else Text(_speed(picture.speeds.get(job.job_id)))


def _speed(steps_per_s: float | None) -> str:
    if steps_per_s is None:
        return "-"
    return f"{steps_per_s:.3g}/s" if steps_per_s >= 0.1 else f"{60 * steps_per_s:.3g}/min"


# --- lines ---


def _table(columns: list[Column], width: int) -> list[Text]:
    """Draw a line of titles and one for each row; columns that do not fit are cut or left out."""
    widths = [max(len(column.title), column.width) for column in columns]
    room = width - len(GAP) * (len(columns) - 1)
    over = sum(widths) - room
    least = [min(each, ELASTIC) if column.elastic else each for each, column in zip(widths, columns, strict=True)]
    if sum(least) > room and (spare := max(columns, key=lambda column: column.rank)).rank:
        return _table([column for column in columns if column is not spare], width)
    for place, column in reversed(list(enumerate(columns))):
        if column.elastic and over > 0:
            cut = min(over, widths[place] - least[place])
            widths[place], over = widths[place] - cut, over - cut
    titles = _line([Text(column.title, "bold") for column in columns], columns, widths, width)
    rows = zip(*(column.cells for column in columns), strict=True)
    return [titles, *(_line(list(row), columns, widths, width) for row in rows)]


def _line(cells: Sequence[Text], columns: Sequence[Column], widths: Sequence[int], width: int) -> Text:
    line = Text()
    for place, (cell, column, wide) in enumerate(zip(cells, columns, widths, strict=True)):
        cell = cell.copy()
        cell.truncate(wide, overflow="ellipsis")
        missing = wide - cell.cell_len
        line.append(GAP if place else "").append(" " * missing if column.right else "")
        line.append_text(cell).append("" if column.right else " " * missing)
    line.rstrip()
    return _cut(line, width)


def _cut(line: Text, width: int) -> Text:
    line.no_wrap = True
    line.truncate(width, overflow="ellipsis")
    return line


def _fit(parts: dict[str, Panel], room: int | None) -> list[list[Text]]:
    """Return as many lines of each part as fit: first the rows that each part keeps, then more in the parts' order."""
    if room is None:
        return [part.lines for part in parts.values()]
    given = dict.fromkeys(parts, 0)
    for most in (ROWS, dict.fromkeys(parts, room)):
        for name, part in parts.items():
            left = max(0, room - sum(given.values()))
            given[name] += min(min(len(part.lines) + part.more, most[name]) - given[name], left)
    return [part.first(given[name]) for name, part in parts.items()]
