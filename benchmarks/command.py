"""What a call of ``ebb`` takes until it has answered, beside an interpreter that does nothing.

    python benchmarks/command.py
    python benchmarks/command.py --rounds 30

``ebb submit``, ``ls``, ``show``, ``--help`` and ``--version`` in turn with ``python -c pass``: wall time, and CPU time
as the kernel counts it. Mark: ``ebb submit`` takes at most 6 times the CPU of ``python -c pass``.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from marks import Measured
from suspend_resume import cluster, ebb

ROUNDS: Final = 20
TIMES: Final = 6.0
NOTHING: Final = "python -c pass"
EBB: Final = Path(sys.executable).with_name("ebb")


def took_ms(command: list[str]) -> tuple[float, float]:
    """Wall and CPU milliseconds of the command."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return 1000 * wall, 1000 * (used.ru_utime + used.ru_stime)


def measured(rounds: int = ROUNDS) -> Iterator[Measured]:
    """All values."""
    with cluster("1xA100-40GB"):
        job = ebb("submit", "--hold", "--", "true")
        calls = {
            "submit": ["submit", "--hold", "--", "true"],
            "ls": ["ls"],
            "show": ["show", job],
            "--help": ["--help"],
            "--version": ["--version"],
        }
        commands = {f"ebb {name}": [str(EBB), *arguments] for name, arguments in calls.items()}
        commands = {NOTHING: [sys.executable, "-c", "pass"], **commands}
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for number in range(rounds + 1):
            for name, command in commands.items():
                pair = took_ms(command)
                if number:  # the first one reads from the disk
                    took[name].append(pair)
    wall, cpu = ({name: median(each[which] for each in took[name]) for name in commands} for which in (0, 1))
    for name in list(commands)[1:]:
        yield Measured(name=f"{name}: wall", value=wall[name], unit="ms", beside={NOTHING: wall[NOTHING]})
        most = TIMES * cpu[NOTHING] if name == "ebb submit" else None
        beside = {NOTHING: cpu[NOTHING]}
        yield Measured(name=f"{name}: CPU", value=cpu[name], unit="ms", most=most, beside=beside, shown="command")


def main() -> None:
    """Print the values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    for value in measured(parser.parse_args().rounds):
        print(f"{value}; {', '.join(value.ratios)}", flush=True)


if __name__ == "__main__":
    main()
