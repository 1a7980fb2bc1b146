"""The program that a job runs, and what its processes find when they start."""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from ebbtide_core.model import limits, workdir_snapshot
from ebbtide_core.model.choices import JobKind, LaunchMode
from ebbtide_core.model.frozen import part
from ebbtide_core.model.spec_error import SpecError, check_text
from ebbtide_core.model.workdir_snapshot import SnapshotRef

RESUME_PLACEHOLDERS: Final = ("checkpoint", "output")
"""Placeholders that are written ``{checkpoint}`` and ``{output}``. Other braces, as in ``${variable}`` or ``{a:1}``,
are the script's own."""


@part
class ProgramSpec:
    """What a job runs, and where."""

    __slots__ = ()

    command: tuple[str, ...]
    """The program and its arguments."""
    workdir: str
    """The absolute path of its working directory."""
    name: str = ""
    """The job's name in listings; empty: it has none."""
    kind: JobKind = JobKind.BATCH
    """Whether it is a batch job, or a session with a user: a shell, a notebook, a TensorBoard."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Its whole environment; it inherits nothing else."""
    script: str = ""
    """The text of a script that runs in place of ``command[0]``, which is then its name; empty: ``command`` runs as it
    is."""
    scripts: Mapping[str, str] = field(default_factory=dict)
    """The digests at submit of the files that ``command`` runs, by their names in it; a later edit is noticed."""
    resume_args: tuple[str, ...] = ()
    """Appended to ``command`` in attempts that resume; `RESUME_PLACEHOLDERS` stand for paths."""
    launch: LaunchMode = LaunchMode.SINGLE
    """Whether each node starts one process, or one for each of its GPUs."""
    python_env: str = ""
    """The directory of a Python environment, without which it cannot start on a node; empty: it needs none."""
    snapshot: SnapshotRef | None = None
    """An archive of its working directory, which it has on every node; None: it runs in ``workdir`` as that is."""
    slurm: bool = False
    """Whether it finds what a script for Slurm expects: the variables and ``srun``."""
    sdk: bool = True
    """Whether ``import ebbtide`` finds the agent's SDK where none is installed."""
    warm: bool = True
    """Whether its processes may be held ready before an attempt begins."""
    stdin: bool = False
    """Whether it reads what its submitter sends while it runs. Input can be read once: there is no second attempt."""


def text_size(program: ProgramSpec) -> int:
    """Return roughly the bytes of memory that command, script and variables take: nearly all of a large job."""
    command, env = program.command, program.env
    size = sum(map(len, command)) + limits.BYTES_PER_ARGUMENT * len(command) + len(program.script)
    return size + sum(map(len, env)) + sum(map(len, env.values())) if env else size


def check_program(program: ProgramSpec) -> None:
    """Raise `SpecError` for the first fault of the program."""
    _check_name(program.name)
    _check_command(program.command)
    _check_resume_args(program.command, program.resume_args)
    _check_env(program.env)
    check_text("script", program.script, limits.MAX_SCRIPT_BYTES)
    _check_scripts(program.scripts)
    check_text("--workdir", program.workdir, limits.MAX_PATH_BYTES)
    check_text("--venv", program.python_env, limits.MAX_PATH_BYTES)
    if not program.workdir.startswith("/"):
        raise SpecError("--workdir", f"{program.workdir!r} is not an absolute path")
    if program.snapshot is not None:
        try:
            workdir_snapshot.check(program.snapshot)
        except ValueError as error:
            raise SpecError("--snapshot", str(error)) from None


def _check_name(name: str) -> None:
    """Refuse a name that would spoil every listing; an empty name is no name."""
    check_text("--name", name, limits.MAX_NAME_LENGTH)
    if name and not name.strip():
        raise SpecError("--name", "is blank")
    if not name.isprintable() and any(_breaks_lines(letter) for letter in name):
        raise SpecError("--name", "contains a line break or another control character")


def _breaks_lines(letter: str) -> bool:
    from unicodedata import category  # hardly any name has a letter of which it is needed

    return category(letter) in ("Cc", "Zl", "Zp")


def _check_command(command: tuple[str, ...]) -> None:
    if not command or not command[0]:
        raise SpecError("command", "is empty: write it after --")
    if len(command) > limits.MAX_ARGUMENTS:
        raise SpecError("command", f"{len(command)} arguments are over the limit of {limits.MAX_ARGUMENTS}")
    for index, argument in enumerate(command):
        size = check_text(f"argument {index}", argument, None)
        if size > limits.MAX_ARGUMENT_BYTES:
            raise SpecError(f"argument {index}", f"{size} bytes are over the limit of {limits.MAX_ARGUMENT_BYTES}")
    total = sum(len(argument.encode()) + 1 for argument in command)
    if total > limits.MAX_COMMAND_BYTES:
        raise SpecError("command", f"{total} bytes are over the limit of {limits.MAX_COMMAND_BYTES}")


def _check_resume_args(command: tuple[str, ...], resume_args: tuple[str, ...]) -> None:
    for argument in resume_args:
        check_text("--resume-args", argument, limits.MAX_ARGUMENT_BYTES)
        for name in re.findall(r"(?<!\$)\{(\w*)\}", argument):
            if name not in RESUME_PLACEHOLDERS:
                known = " and ".join(f"{{{known}}}" for known in RESUME_PLACEHOLDERS)
                raise SpecError("--resume-args", f"{{{name[:40]}}} is not known: there are {known}")
    total = sum(len(argument.encode()) + 1 for argument in (*command, *resume_args))
    if total > limits.MAX_COMMAND_BYTES:
        raise SpecError(
            "--resume-args", f"{total} bytes with the command are over the limit of {limits.MAX_COMMAND_BYTES}"
        )


def _check_env(env: Mapping[str, str]) -> None:
    for key, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            raise SpecError("--env", f"{key[:40]!r} is not a variable name (letters, digits and _)")
        if check_text(f"--env {key[:40]}", value, None) + len(key) > limits.MAX_ARGUMENT_BYTES:
            raise SpecError(f"--env {key[:40]}", f"is over the limit of {limits.MAX_ARGUMENT_BYTES} bytes")
    total = sum(len(key) + len(value.encode()) + 2 for key, value in env.items())
    if total > limits.MAX_ENV_BYTES:
        raise SpecError("--env", f"{total} bytes in all are over the limit of {limits.MAX_ENV_BYTES}")


def _check_scripts(scripts: Mapping[str, str]) -> None:
    if len(scripts) > limits.MAX_SCRIPTS:
        raise SpecError("scripts", f"{len(scripts)} are over the limit of {limits.MAX_SCRIPTS}")
    for name, digest in scripts.items():
        check_text("scripts", name, limits.MAX_PATH_BYTES)
        check_text("scripts", digest, limits.MAX_NAME_LENGTH)
