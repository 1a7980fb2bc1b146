"""From what a user wrote to a job that can be sent: name, directory, checks."""

import os
import pwd
import re
import shlex
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Final

from ebbtide_core.model.limits import MAX_NAME_LENGTH, MAX_SCRIPTS
from ebbtide_core.model.spec import JobSpec, SpecError, validate
from ebbtide_protos.quantities import abbreviated

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.text import printable

LARGEST_SCRIPT: Final = 1 << 20
"""Of a longer one the beginning is looked at, here as on the node."""

SCRIPT = re.compile(r".+\.(py|sh|bash|pl|r|jl)", re.IGNORECASE)


def check(spec: JobSpec) -> JobSpec:
    """Return ``spec`` if it can be sent; the failure names the option and the limit."""
    try:
        validate(spec)
    except SpecError as error:
        raise Failure(f"submit: {error}", USAGE) from None
    return spec


def default_name(command: Sequence[str]) -> str:
    """Name a job after the script that it runs, else after its program."""
    script = next((word for word in command if SCRIPT.fullmatch(word)), command[0] if command else "")
    name = printable(PurePath(script).name).encode(errors="ignore")
    return name[:MAX_NAME_LENGTH].decode(errors="ignore").strip()


def digests(command: Sequence[str], workdir: str) -> dict[str, str]:
    """Digests of the scripts that the command names, as far as they are here, so that a later edit is noticed."""
    found: dict[str, str] = {}
    for word in command:
        path = os.path.join(workdir, word)
        if SCRIPT.fullmatch(word) and os.path.isfile(path) and len(found) < MAX_SCRIPTS:
            with suppress(OSError), open(path, "rb") as file:
                content = file.read(LARGEST_SCRIPT + 1)
                found[word] = f"{zlib.crc32(content):08x}-{len(content)}"
    return found


def working_directory(given: str | None) -> str:
    """The job's absolute working directory: ``given``, or the current one."""
    try:
        return os.path.abspath(given or os.getcwd())
    except FileNotFoundError:
        raise Failure("submit: --workdir: the current directory does not exist any more", USAGE) from None


def resume_arguments(text: str) -> tuple[str, ...]:
    """What stands in ``--resume-args``, split as a shell would."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise Failure(f"submit: --resume-args: {str(error).lower()} in {abbreviated(text)!r}", USAGE) from None


def stop_signal(text: str) -> str:
    """The name of a signal as the system knows it: ``usr1``, ``USR1`` and ``SIGUSR1`` are one."""
    name = text.upper()
    return name if name.startswith("SIG") else f"SIG{name}"


def user_name() -> str:
    """Who submits: the account, not what the environment says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
