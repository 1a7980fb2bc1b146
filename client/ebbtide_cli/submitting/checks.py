"""Work out what a job takes from where it is submitted: its name, its directory, its scripts, its user."""

import os
import pwd
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Final

from ebbtide_core.model.limits import MAX_NAME_LENGTH, MAX_SCRIPTS
from ebbtide_protos.quantities import abbreviated

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.topic import Given
from ebbtide_cli.terminal.text import printable

LARGEST_SCRIPT: Final = 1 << 20
"""Bytes of a script that are read, here as on the node; a longer script is read up to this limit."""

SCRIPT = r"(?i).+\.(py|sh|bash|pl|r|jl)"


def default_name(command: Sequence[str]) -> str:
    """Name a job after the script that it runs, else after its program."""
    script = next((word for word in command if re.fullmatch(SCRIPT, word)), command[0] if command else "")
    name = printable(PurePath(script).name).encode(errors="ignore")
    return name[:MAX_NAME_LENGTH].decode(errors="ignore").strip()


def scripts(command: Sequence[str], workdir: str) -> Iterator[tuple[str, bytes]]:
    """Yield those scripts in the command that exist here, at most `MAX_SCRIPTS`, each with its first bytes.

    These are one more than `LARGEST_SCRIPT`, so that a longer script shows.
    """
    left = MAX_SCRIPTS
    for word in dict.fromkeys(command):
        path = os.path.join(workdir, word)
        if left and re.fullmatch(SCRIPT, word) and os.path.isfile(path):
            with suppress(OSError):
                with open(path, "rb") as file:
                    content = file.read(LARGEST_SCRIPT + 1)
                left -= 1
                yield word, content


def digests(command: Sequence[str], workdir: str) -> dict[str, str]:
    """Return digests of those scripts in the command that exist here, so that a later edit is noticed."""
    return {word: f"{_crc(content):08x}-{len(content)}" for word, content in scripts(command, workdir)}


def _crc(content: bytes) -> int:
    import zlib  # many commands name no script

    return zlib.crc32(content)


def runs_script(given: Given) -> bool:
    """Return whether the command names a script, which may be read here."""
    return given.get("script") is not None or any(re.fullmatch(SCRIPT, word) for word in given["argv"])


def working_directory(given: str | None) -> str:
    """Return the job's absolute working directory: ``given``, or the current one."""
    try:
        return os.path.abspath(given or os.getcwd())
    except FileNotFoundError:
        raise Failure("submit: --workdir: the current directory does not exist any more", USAGE) from None


def resume_arguments(text: str) -> tuple[str, ...]:
    """Split the value of ``--resume-args`` as a shell would."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise Failure(f"submit: --resume-args: {str(error).lower()} in {abbreviated(text)!r}", USAGE) from None


def stop_signal(text: str) -> str:
    """Return the name of a signal as the system knows it: ``usr1``, ``USR1`` and ``SIGUSR1`` are the same."""
    name = text.upper()
    return name if name.startswith("SIG") else f"SIG{name}"


def user_name() -> str:
    """Return the name of the submitting account, whatever the environment says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
