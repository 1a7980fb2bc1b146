"""`make chaos`: every kind of fault, as often as was promised; the figures beside their limits.

    python -m tests.faults.chaos --seed 7           # about 20 minutes on two cores
    python -m tests.faults.chaos --only kills storm

Ends with 1 if a limit does not hold. Ctrl-C ends whatever was started.
"""

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults import figures
from tests.faults.interrupt import EXIT_INTERRUPTED, until_interrupted

REPOSITORY = Path(__file__).resolve().parents[2]
CLEAN_UP_S = 60.0
LONGEST_S = 3600.0
KILLS, FAULTS, SCHEDULES, MESSAGES = 1_000, 500, 10_000, 100_000


Facts = dict[str, Any]


def _json(lines: Sequence[str]) -> Facts:
    """What the last line says."""
    facts: Facts = json.loads(lines[-1])
    return facts


def _schedules(lines: Sequence[str]) -> None:
    facts = _json(lines)
    figures.at_least("simulated fault schedules", facts["schedules"], SCHEDULES)
    figures.none("schedules that failed", len(facts["failed"]))


def _restart(lines: Sequence[str]) -> None:
    """Of a master with 10,000 jobs and 100 nodes."""
    said = _said(lines)
    for name, words, limit in (
        ("serving_s", "seconds until a master of 10,000 jobs serves", 5.0),
        ("attached_s", "seconds until its 100 nodes are attached", 30.0),
    ):
        figures.record(words, float(said[name]), f"< {limit:g}", held=float(said[name]) < limit)
    figures.none("launches before its nodes were heard", int(float(said["launched_too_early"])))


def _load(lines: Sequence[str]) -> None:
    """Of a master for whom 100,000 jobs wait."""
    said = _said(lines)
    figures.at_least("durable submits granted a second, of 500", round(float(said["granted_per_s"])), 495)
    p99 = float(said["status_p99_ms"])
    figures.record("status meanwhile, p99 in ms", p99, "< 200", held=p99 < 200)


def _said(lines: Sequence[str]) -> dict[str, str]:
    """The lines that are a name and a figure."""
    return dict(re.findall(r"^(\w+): ([\d.]+)", "\n".join(lines), re.MULTILINE))


@dataclass(frozen=True, slots=True)
class Part:
    """One program; what it measured it notes itself, or prints, for ``note`` to read. It ends with 0 if all is well."""

    name: str
    file: str
    options: tuple[str, ...] = ()
    seeded: bool = True
    note: Callable[[Sequence[str]], None] | None = None

    @property
    def path(self) -> Path | None:
        """Where it is, if it is part of this tree."""
        candidates = (REPOSITORY / self.file, REPOSITORY / self.file.removesuffix(".py") / "__main__.py")
        return next((path for path in candidates if path.exists()), None)

    def command(self, seed: int) -> list[str]:
        """What runs it."""
        module = self.file.removesuffix(".py").replace("/", ".")
        how = ["-m", module] if self.file.startswith("tests/") else [self.file]
        seeded = ["--seed", str(seed)] if self.seeded else []
        return [sys.executable, "-u", *how, *self.options, *seeded]


PARTS = (
    Part("kills", "tests/faults/kills.py", ("--count", str(KILLS))),
    Part("storm", "tests/faults/storm.py", ("--faults", str(FAULTS))),
    Part("schedules", "tests/faults/schedules.py", ("--count", str(SCHEDULES), "--jobs", "2"), note=_schedules),
    Part("fuzz", "tests/faults/fuzz.py", ("--count", str(MESSAGES))),
    Part("restart", "benchmarks/restart.py", seeded=False, note=_restart),
    Part("load", "benchmarks/load.py", seeded=False, note=_load),
)


def run(part: Part, seed: int) -> None:
    """Run one program to its end, and note with what it ended."""
    name = f"{part.name}: exit code"
    if part.path is None:
        figures.record(name, "not there", "0", held=False)
        return
    began = time.monotonic()
    command = part.command(seed)
    print(f"\n=== {part.name}: {' '.join(['python', *command[2:]])}", flush=True)
    lines = []
    with _ended_with_us(subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
        code = process.wait()
    if part.note is not None and lines:
        try:
            part.note(lines)
        except (ValueError, LookupError) as error:
            figures.record(f"{part.name}: its figures", f"{type(error).__name__} {error}", "", held=False)
    figures.record(name, code, "0", held=code == 0)
    print(f"=== {part.name}: ended with {code} after {time.monotonic() - began:.0f} s", flush=True)


@contextlib.contextmanager
def _ended_with_us(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """If this is cut short, the process gets the time that it takes to end what it started."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(CLEAN_UP_S)
        if process.stdout is not None:
            process.stdout.close()


def main() -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(description="every kind of fault, and the figures")
    parser.add_argument("--seed", type=int, help="(default: from the clock)")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}: make chaos SEED={seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ebb-figures-") as folder:
        path = Path(folder) / "figures"
        os.environ[figures.FILE] = str(path)
        for part in PARTS:
            if part.name in options.only:
                run(part, seed)
        noted = figures.read(path)
    took = time.monotonic() - began
    noted.append(figures.Figure("minutes in all", round(took / 60, 1), "≤ 60", took <= LONGEST_S))
    print(f"\nseed {seed}\n{figures.table(noted)}")
    return 0 if all(figure.held for figure in noted) else 1


if __name__ == "__main__":
    with until_interrupted():
        sys.exit(main())
    sys.exit(EXIT_INTERRUPTED)
