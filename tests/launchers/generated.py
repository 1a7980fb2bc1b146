"""Shell scripts by chance: nested constructs, traps, pipelines, background jobs and wrappers, of witnesses."""

import random
import shlex
import sys
from pathlib import Path

WITNESS = Path(__file__).with_name("witness.py")
_DEPTH = 3
_WRAPPERS = ("env A=1", "nice -n 1", "timeout 600", "nohup", "bash -c", "sh -c", "xargs", "make", "python", "setsid -w")


def script(dice: random.Random) -> str:
    """One of no more than a few lines, of which one at least runs until it is asked to leave."""
    lines = ["#!/bin/bash", *dice.choice(((), ("set -e",), ("set -o pipefail",), ("set -m",)))]
    lines += dice.choice(((), (f"trap {shlex.quote(_witness('tidy'))} EXIT",)))
    lines += dice.choice(((), (), (f"trap {shlex.quote(_witness('tidy') + '; exit 85')} TERM",)))
    lines += [_list(dice, _DEPTH) for _ in range(dice.randint(0, 2))]
    lines += [_long(dice), _list(dice, _DEPTH), _witness("short")]
    return "\n".join(lines) + "\n"


def _witness(kind: str) -> str:
    return f"{sys.executable} -S {WITNESS} {kind}" if kind != "takes-part" else f"{sys.executable} {WITNESS} {kind}"


def _long(dice: random.Random) -> str:
    """What runs until it is asked."""
    return _around(dice, dice.choices((_witness("saves"), _witness("takes-part"), _witness("ignorant")), (5, 1, 1))[0])


def _list(dice: random.Random, depth: int) -> str:
    if depth == 0 or dice.random() < 0.3:
        return _witness("short") if dice.random() < 0.5 else _long(dice)
    inner, other = _list(dice, depth - 1), _list(dice, depth - 1)
    return dice.choice(
        (
            f"{inner} && {other}",
            f"{inner} || {other}",
            f"( {inner}; {other} )",
            f"{{ {inner}; {other}; }}",
            f"{inner} | cat",
            f"{inner} 2>&1 | tee -a log | cat; {other}",
            f"for n in 1 2; do {inner}; done",
            f"while :; do {inner}; {other}; done",
            f"if {inner}; then {other}; fi",
            f"f() {{ {inner}; }}; f; {other}",
            f"x=$({inner}); {other}",
            f"( {inner} ) & {other}; wait",
            f"{inner} & pid=$!; wait $pid; {other}",
        )
    )


def _around(dice: random.Random, command: str) -> str:
    if dice.random() < 0.5:
        return command
    match dice.choice(_WRAPPERS):
        case ("bash -c" | "sh -c") as shell:
            return f"{shell} {shlex.quote(command + '; ' + _witness('short'))}"
        case "xargs":
            return f"printf '%s\\n' 1 2 | xargs -n 1 {command}"
        case "make":
            return (
                f"printf 'all:\\n\\t%s\\n\\t%s\\n' {shlex.quote(command)} {shlex.quote(_witness('short'))} | make -f -"
            )
        case "python":
            after = shlex.split(_witness("short"))
            code = f"import subprocess, sys; subprocess.call(sys.argv[1:]); sys.exit(subprocess.call({after}))"
            return f"{sys.executable} -S -c {shlex.quote(code)} {command}"
        case wrapper:
            return f"{wrapper} {command}"
