"""Check at submit whether a job can start, as far as this machine can tell, so that it does not fail on a node.

A program that is here and cannot be run is refused. A file that is missing here is refused only if every node is this
machine and the job waits for nothing that could create the file; else it is a warning, because a node may have it.
"""

import os
import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import PurePath
from typing import Final

from ebbtide_core.model.spec.program import ProgramSpec
from ebbtide_protos.quantities import abbreviated
from ebbtide_protos.v1 import client_pb2

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import complain

MOST_FILES: Final = 2000
"""Files of a directory that are compared with a name that may be misspelt."""
_RUN_BY: Final = {".py": "python", ".sh": "bash", ".bash": "bash", ".pl": "perl", ".r": "Rscript", ".jl": "julia"}
_WITH_VALUE: Final = {r"python[0-9.]*": "[WX]$", r"(ba|da)?sh": "[oO]", r"[kz]sh": "[oO]$"}
"""The interpreters of scripts, and which letters of their options take a next word each, as in ``-euo pipefail``."""
_LAUNCHERS: Final = frozenset({"torchrun", "accelerate", "deepspeed"})
_LONG_WITH_VALUE: Final = frozenset({"--check-hash-based-pycs", "--rcfile", "--init-file"})
_LONG_OF_BASH: Final = "-(debug|init-file|login|noediting|noprofile|norc|posix|rcfile|restricted|verbose)"
"""The long options with which bash runs a script; it takes them with one dash, too."""


def check_start(master: str | Address | None, spec: ProgramSpec, *, waits: bool) -> None:
    """Refuse or warn of a job that cannot start; ``waits``: it waits for something that may create missing files."""
    if not spec.script and (why := _unfit(spec)):
        raise Failure(f"submit: {why}", USAGE)
    missing = list(_missing(spec))
    if not missing:
        return
    if not waits and _all_nodes_are_here(master):
        raise Failure(f"submit: {missing[0]}", USAGE)
    for line in missing:
        complain(f"warning: {line}: the node where it runs has to have it")


def _unfit(spec: ProgramSpec) -> str:
    """Return why the program, which is here, cannot be run anywhere; empty if nothing is wrong with it."""
    program, shown = spec.command[0], abbreviated(spec.command[0])
    try:
        mode = os.stat(os.path.join(spec.workdir, program)).st_mode
    except (OSError, ValueError):
        return ""
    executable = stat.S_ISREG(mode) and bool(mode & 0o111)
    if "/" not in program:
        if stat.S_ISDIR(mode) or _found(spec, program):
            return ""
        instead = f"./{program}" if executable and program[:1] != "-" else _with_interpreter(spec.command)
        return f"{shown}: is a file, and no program on PATH" + _meant(instead)
    if stat.S_ISDIR(mode):
        return f"{shown}: is a directory, and no program"
    if executable or not stat.S_ISREG(mode):
        return ""
    return f"{shown}: may not be executed, it lacks the execute bit" + _meant(
        _with_interpreter(spec.command) or f"chmod +x {program}"
    )


def _meant(words: str) -> str:
    return f": did you mean '{words}'?" if words else ""


def _with_interpreter(command: Sequence[str]) -> str:
    """Return the beginning of a command line that runs such a file; empty if the file's name does not tell."""
    interpreter = _RUN_BY.get(PurePath(command[0]).suffix.lower())
    return f"-- {interpreter} {shlex.quote(command[0])}" if interpreter else ""


def _missing(spec: ProgramSpec) -> Iterator[str]:
    """Yield what the job needs and this machine lacks."""
    if not os.path.isdir(spec.workdir):
        yield f"--workdir: there is no directory {abbreviated(spec.workdir, 200)}"
        return
    has_env = not (why := _no_environment(spec))
    if why:
        yield why
    if spec.script:
        return
    program = spec.command[0]
    if _is_open(program):
        return
    if "/" in program:
        if not os.path.lexists(os.path.join(spec.workdir, program)):
            yield _no_file(program, spec.workdir)
    elif has_env and not _found(spec, program):
        close = _RUN_BY.get(PurePath(program).suffix.lower())
        yield _no_file(program, spec.workdir) if close else f"{abbreviated(program)}: there is no such program on PATH"
    script = _script_of(spec.command)
    if script and not _is_open(script) and not os.path.lexists(os.path.join(spec.workdir, script)):
        yield _no_file(script, spec.workdir)


def _no_environment(spec: ProgramSpec) -> str:
    """Return why a node could not use the job's Python environment; empty if it could, or none was requested."""
    directory = spec.python_env
    if not directory:
        return ""
    option = "--conda" if spec.env.get("CONDA_PREFIX") == directory else "--venv"
    if not os.path.isdir(directory):
        return f"{option}: there is no directory {abbreviated(directory, 200)}"
    if not os.access(os.path.join(directory, "bin", "python"), os.X_OK):
        return f"{option}: {abbreviated(directory, 200)} has no bin/python, so it is no Python environment"
    return ""


def _is_open(word: str) -> bool:
    """Whether ``word`` contains a parameter, whose value is not known yet."""
    return "{" in word or "\0" in word


def _no_file(name: str, workdir: str) -> str:
    import difflib  # most jobs lack nothing

    folder = os.path.dirname(os.path.join(workdir, name))
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, MOST_FILES)]
    except OSError:
        names = []
    close = difflib.get_close_matches(os.path.basename(name), names, n=1)
    hint = f": did you mean {os.path.join(os.path.dirname(name), close[0])!r}?" if close else ""
    return f"{abbreviated(name, 100)}: there is no such file in {abbreviated(workdir, 200)}{hint}"


def _script_of(command: Sequence[str]) -> str:
    """Return the file that the interpreter is to run; empty if there is none, or if that cannot be told."""
    name, rest = PurePath(command[0]).name, command[1:]
    if name in _LAUNCHERS:
        by_module = any(word in ("-m", "--module", "--no_python", "--no-python") for word in rest)
        return "" if by_module else next((word for word in rest if word.endswith(".py")), "")
    letter = next((letter for known, letter in _WITH_VALUE.items() if re.fullmatch(known, name)), "")
    words = iter(rest if letter else ())
    for word in words:
        if name == "bash" and re.fullmatch(_LONG_OF_BASH, word):
            word = f"-{word}"
        if word[:1] not in ("-", "+"):
            return word
        if len(word) == 1 or (word[1] != "-" and set(word) & set("cms")):  # the program is not a file of the command
            return ""
        for _ in [word] if word in _LONG_WITH_VALUE else re.findall(letter, word) if word[1] != "-" else ():
            next(words, None)
    return ""


def _found(spec: ProgramSpec, program: str) -> bool:
    """Whether the program is on the job's PATH."""
    folders = spec.env.get("PATH", os.defpath)
    paths = (os.path.join(folder, program) for folder in folders.split(os.pathsep) if folders)
    return any(os.access(path, os.X_OK) and not os.path.isdir(path) for path in paths)


def _all_nodes_are_here(master: str | Address | None) -> bool:
    """Whether every node of the cluster is this machine; False if that cannot be found out."""
    try:
        with connected(master) as stub:
            nodes = ask(stub.ListNodes, client_pb2.ListNodesRequest()).nodes
    except Failure:
        return False
    return bool(nodes) and all(node.hostname == os.uname().nodename for node in nodes)
