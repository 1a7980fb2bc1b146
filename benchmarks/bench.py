"""All benchmarks that matter, one after the other: a table, and figures (``make bench``; at most 24 minutes).

    python benchmarks/bench.py
    python benchmarks/bench.py --only launches command
    python benchmarks/bench.py --trace HPC2N-2002-2.2-cln.swf.gz --hyperqueue HQ_VENV/bin/python

Each part runs in a process of its own, which prints what it found line by line and has a limit of time. A part that
fails or takes too long is named, and the others go on. Ctrl-C ends the part that runs, which removes what it started,
and writes what was found by then. Everything is written into ``--into`` (dist/bench): table.md, values.json, and a
figure for each question.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from marks import Measured, from_json, table

REPOSITORY: Final = Path(__file__).resolve().parents[1]
INTO: Final = REPOSITORY / "dist" / "bench"
CLEANED_S: Final = 60.0
SIMULATED: Final = 1 << 15
INTERRUPTED: Final = 130
Given = argparse.Namespace


@dataclass(frozen=True)
class Part:
    """One part: what it asks, how long it may take in seconds, and how it is measured."""

    question: str
    limit_s: float
    measured: Callable[[Given], Iterator[Measured]]


def _launches(given: Given) -> Iterator[Measured]:
    import launches

    return launches.measured(hyperqueue=given.hyperqueue)


def _command(given: Given) -> Iterator[Measured]:
    import command

    return command.measured()


def _passes(given: Given) -> Iterator[Measured]:
    import policy_pass

    return policy_pass.measured()


def _simulator(given: Given) -> Iterator[Measured]:
    import simulator_speed

    if given.trace is None:
        print("HPC2N is left out: --trace names no file", file=sys.stderr)
    elif given.accasim is None:
        print("AccaSim is left out: --accasim names no Python that has it", file=sys.stderr)
    return simulator_speed.measured(SIMULATED, given.trace, given.accasim)


def _usage(given: Given) -> Iterator[Measured]:
    import usage

    return usage.measured(usage.UsageHistory(usage.JOBS).journal, usage.JOBS)


def _restart(given: Given) -> Iterator[Measured]:
    import restart

    return restart.measured()


PARTS: Final = {
    "launches": Part("how fast jobs begin, step aside and come back", 360.0, _launches),
    "command": Part("what a call of ebb takes", 120.0, _command),
    "passes": Part("what a pass takes with 1,000 nodes and 10,000 waiting jobs", 420.0, _passes),
    "usage": Part("what ebb usage takes", 240.0, _usage),
    "restart": Part("what a restart takes", 120.0, _restart),
    "simulator": Part("how fast is the simulator", 180.0, _simulator),
}


class Running:
    """A part in a process of its own, whose group ends with it at the latest.

    At its limit of time, or when it is left early, it gets SIGINT, at which it removes what it started; if that takes
    too long, it is killed.
    """

    def __init__(self, name: str, arguments: list[str]) -> None:
        self._name, self._limit_s, self._began = name, PARTS[name].limit_s, time.monotonic()
        command = [sys.executable, __file__, "--part", name, *arguments]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=REPOSITORY
        )
        signal.signal(signal.SIGALRM, lambda *_: self._hurry())
        signal.setitimer(signal.ITIMER_REAL, self._limit_s, CLEANED_S)

    def __enter__(self) -> Iterator[Measured]:
        assert self._process.stdout is not None
        return map(from_json, self._process.stdout)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._process.send_signal(signal.SIGINT)
            self._limit_s = time.monotonic() - self._began
            signal.setitimer(signal.ITIMER_REAL, CLEANED_S, CLEANED_S)
        code = self._process.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._kill()
        if code and kind is None:
            why = f"took longer than {self._limit_s:g} s" if self._is_over else f"ended with {code}"
            print(f"  {self._name} {why}: what it had not found by then is missing", flush=True)

    @property
    def _is_over(self) -> bool:
        return time.monotonic() - self._began >= self._limit_s

    def _hurry(self) -> None:
        if time.monotonic() - self._began < self._limit_s + CLEANED_S:
            self._process.send_signal(signal.SIGINT)
        else:
            self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def machine() -> str:
    """What it ran on, in words."""
    model = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory_kib = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    cores, gib = os.cpu_count(), memory_kib / 2**20
    load = os.getloadavg()[0]
    return f"{cores} cores ({model}), {gib:.0f} GiB, Python {platform.python_version()}, load {load:.1f} at the start"


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def write(values: list[Measured], where: str, into: Path) -> None:
    """Write the table, the values, and the figures."""
    import figures

    into.mkdir(parents=True, exist_ok=True)
    facts = {"machine": where, "values": [asdict(value) for value in values]}
    (into / "values.json").write_text(json.dumps(facts, indent=1) + "\n")
    missed = [value.name for value in values if value.kept is False]
    marks = sum(value.kept is not None for value in values)
    end = f"{marks - len(missed)} of {marks} marks are met" + "".join(f"; missed: {name}" for name in missed)
    (into / "table.md").write_text(f"{where}\n\n{table(values)}\n{end}.\n")
    drawn = figures.draw(values, into)
    print(f"{end}.\nWritten to {into}: {', '.join(['table.md', 'values.json', *drawn])}")


def run(names: list[str], arguments: list[str], into: Path) -> int:
    """Run the parts; 130 after Ctrl-C, 1 if a mark was missed."""
    where, values, code = machine(), list[Measured](), 0
    print(where)
    try:
        for number, name in enumerate(names, 1):
            began = time.monotonic()
            print(
                f"[{number}/{len(names)}] {name}: {PARTS[name].question} (at most {PARTS[name].limit_s:g} s)",
                flush=True,
            )
            with Running(name, arguments) as found:
                for value in found:
                    values.append(value)
                    print(f"  {value}", flush=True)
            print(f"  {time.monotonic() - began:.0f} s", flush=True)
    except KeyboardInterrupt:
        print("interrupted: what was found so far is written", flush=True)
        code = INTERRUPTED
    if values:
        write(values, where, into)
    return code or int(any(value.kept is False for value in values))


def measure(given: Given) -> int:
    """Print what the part finds; 130 after SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for value in PARTS[given.part].measured(given):
            print(value.as_json(), flush=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--into", type=Path, default=INTO, help="the folder that is written (dist/bench)")
    parser.add_argument("--trace", type=Path, help="HPC2N's trace, which is not part of this repository")
    parser.add_argument("--accasim", help="a Python that has AccaSim 1.1.3")
    parser.add_argument("--hyperqueue", help="a Python that has HyperQueue")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        return measure(given)
    chosen = {"--trace": given.trace, "--accasim": given.accasim, "--hyperqueue": given.hyperqueue}
    arguments = [word for option, value in chosen.items() if value for word in (option, str(value))]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run(given.only, arguments, given.into)


if __name__ == "__main__":
    sys.exit(main())
