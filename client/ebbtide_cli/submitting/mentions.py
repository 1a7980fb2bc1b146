"""Look for what a script says about its environment and its end: variables that it reads, and traps that return."""

import re
from collections.abc import Iterator
from signal import Signals
from typing import Final

from ebbtide_cli.submitting.checks import scripts
from ebbtide_cli.submitting.topic import Given

_IN_SHELL: Final = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)
_ASSIGNED: Final = re.compile(r"^[ \t]*(?:export[ \t]+|readonly[ \t]+|local[ \t]+)?([A-Za-z_]\w*)=(.*)$", re.MULTILINE)
_IN_PYTHON: Final = re.compile(r"""(?:environ(?:\.get\(|\[)|getenv\()[ \t]*["']([A-Za-z_]\w*)["']""", re.ASCII)
_TRAP: Final = re.compile(
    r"""^[ \t]*trap[ \t]+(?:--[ \t]+)?(?P<quote>['"])(?P<body>.*?)(?P=quote)(?P<signals>(?:[ \t]+\w+)+)""", re.MULTILINE
)


def variables_read(given: Given) -> set[str]:
    """Return the names of the variables that the job's scripts read from their environment."""
    found: set[str] = set()
    for _, text, is_shell in _texts(given):
        found |= _read_by_shell(text) if is_shell else set(_IN_PYTHON.findall(text))
    return found


def returning_trap(given: Given, signal: str) -> str:
    """Return where a shell script has one trap for its end and for ``signal`` that does not end it; empty if nowhere.

    A shell goes on with its next command after such a trap. ``signal`` is a name with ``SIG``.
    """
    names = {signal.removeprefix("SIG"), str(getattr(Signals, signal, Signals.SIGTERM).value)}
    for name, text, is_shell in _texts(given):
        for trap in _TRAP.finditer(text) if is_shell else ():
            signals = {word.removeprefix("SIG") for word in trap["signals"].upper().split()}
            if signals & names and signals & {"EXIT", "0"} and _returns(trap["body"], text):
                return f"{name}, line {text.count(chr(10), 0, trap.start()) + 1}"
    return ""


def _returns(body: str, text: str) -> bool:
    """Return whether the shell goes on after this trap; a function that it calls is looked for in ``text``."""
    called = re.findall(r"[A-Za-z_]\w*", body)
    bodies = [body, *(found[1] for name in called for found in re.finditer(_function(name), text, re.DOTALL))]
    return bool(body.strip()) and not any(re.search(r"\b(exit|exec|kill)\b", each) for each in bodies)


def _function(name: str) -> str:
    return rf"(?:function[ \t]+{name}\b|\b{name}[ \t]*\(\))[^{{]*\{{(.*?)\n[ \t]*\}}"


def _read_by_shell(text: str) -> set[str]:
    """Return the variables that a shell script reads before it sets them itself."""
    first: dict[str, int] = {}
    for match in _IN_SHELL.finditer(text):
        first.setdefault(match[1], match.start())
    for match in _ASSIGNED.finditer(text):
        name = match[1]
        if match.start() < first.get(name, -1) and name not in _IN_SHELL.findall(match[2]):
            del first[name]
    return set(first)


def _texts(given: Given) -> Iterator[tuple[str, str, bool]]:
    """Yield name and text of each script that the job runs, and whether a shell runs it."""
    if (script := given.get("script")) is not None:
        yield script.name, script.text, script.is_shell
        return
    for name, content in scripts(given["argv"], given["workdir"] or "."):
        yield name, content.decode(errors="replace"), name.lower().endswith((".sh", ".bash"))
