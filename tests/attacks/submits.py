"""Options of `ebb submit` that nobody in their senses gives: odd names wherever a user can put a name."""

import os
import random
from pathlib import Path

_NAMES = (
    "a\nb",
    "\x1b]0;pwned\x07\x1b[2J",
    "\u202etxt",
    "\udcff",
    "",
    " ",
    "x" * 10_000,
    "../../../etc",
    "-rf",
    "%j%x%N%A%a%n%s",
    "{checkpoint}",
    "$(reboot)",
    "1.2",
    "\u0085\u009b31m",
)
_PLACES = (
    "/",
    "/proc/self/cwd",
    "/proc/self/root",
    "/proc/1/cwd",
    "/dev/full",
    "/dev/zero",
    "/etc/shadow",
    "/nowhere",
    "loop",
    "fifo",
    "deep",
    "closed",
    "x" * 300,
    "a\nb",
)


def a_submit(dice: random.Random, place: Path) -> list[str]:
    """One to three options, as the dice fall; paths are in ``place`` unless they are absolute."""
    chosen = dice.sample(_OPTIONS, dice.randrange(1, 4))
    return [word for option in chosen for word in (option, _value(option, dice, place))]


def _value(option: str, dice: random.Random, place: Path) -> str:
    if option in ("--workdir", "--output", "--require-path", "--venv", "--conda"):
        path = dice.choice(_PLACES)
        return path if path.startswith("/") else os.path.join(place, path)
    if option in ("--array", "--gpus", "--priority", "--retries", "--time", "--grace", "--begin"):
        return dice.choice(("-1", "0", "1e999", "9" * 40, "nan", "0-9999999999%1", "1/0", "", "１"))
    name = dice.choice(_NAMES)
    return f"{name}={name}" if option in ("--env", "--on-log", "--select") else name


_OPTIONS = (
    "--name",
    "--workdir",
    "--output",
    "--require-path",
    "--venv",
    "--conda",
    "--env",
    "--on-log",
    "--select",
    "--group",
    "--pool",
    "--on",
    "--gpu-type",
    "--resume-args",
    "--array",
    "--gpus",
    "--priority",
    "--retries",
    "--time",
    "--grace",
    "--begin",
    "--after",
)


def prepare(place: Path) -> None:
    """Make what the paths lead to, in a directory of the attacker's."""
    os.symlink("loop", place / "loop")
    os.mkfifo(place / "fifo", 0o666)
    (place / "closed").mkdir(mode=0)
