"""Read a script that is submitted as a file: the job runs a copy of it as it is at submit."""

import codecs
import re
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from ebbtide_core.model.limits import MAX_SCRIPT_BYTES
from ebbtide_protos.quantities import abbreviated

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.directives import marked

SHELL_SCRIPT: Final = re.compile(r".+\.(sh|bash|slurm|sbatch|ebb)", re.IGNORECASE)
SHELL: Final = r"(a|ba|da|z|k|mk|c|tc|fi)?sh"
MARKS: Final = ("#EBB", "#SBATCH")
_ENCODING: Final = "utf-8-sig"
"""Leaves out the byte order mark that some editors write, and no shell takes."""


class Script(NamedTuple):
    """A script as it was when it was read; ``name`` is what its submitter calls it."""

    name: str
    text: str

    @property
    def is_shell(self) -> bool:
        """Whether a shell runs it, so that a copy will do; a Python program may import files beside it."""
        words = self.interpreter
        return not words or any(re.fullmatch(SHELL, PurePath(word).name) for word in words)

    @property
    def interpreter(self) -> list[str]:
        """The interpreter in its first line, without an ``env`` that only finds it; empty if it names none."""
        line = self.text.partition("\n")[0]
        words = line[2:].split() if line.startswith("#!") else []
        return words[1:] if words[:1] == ["/usr/bin/env"] and words[1:] and not words[1].startswith("-") else words

    @property
    def marks(self) -> frozenset[str]:
        """The marks of those lines in its head that have options: ``#EBB``, ``#SBATCH``."""
        return frozenset(mark for mark in MARKS if marked(self.text, mark))


def read_script(name: str) -> Script | None:
    """Return the script in the file ``name``; None if there is no such file, or if it is another kind of program.

    A script begins with ``#!``, or has lines of options, or has the name of a shell script.
    """
    path = Path(name)
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            content = file.read(MAX_SCRIPT_BYTES + 1)
    except (OSError, ValueError):
        return None  # the error shows when the file is started
    begins = content.removeprefix(codecs.BOM_UTF8).startswith(b"#!")
    if not (begins or SHELL_SCRIPT.fullmatch(name) or _has_options(content)):
        return None
    return Script(name, _text(name, content))


def _has_options(content: bytes) -> bool:
    text = content.decode(_ENCODING, errors="replace")
    return any(marked(text, mark) for mark in MARKS)


def _text(name: str, content: bytes) -> str:
    shown = abbreviated(name)
    if len(content) > MAX_SCRIPT_BYTES:
        raise Failure(f"submit: {shown}: over the limit of {MAX_SCRIPT_BYTES} bytes for a script", USAGE)
    try:
        text = content.decode(_ENCODING)
    except UnicodeDecodeError:
        raise Failure(f"submit: {shown}: is not UTF-8 text; to run it as it is: ebb submit -- {shown}", USAGE) from None
    if "\r\n" in text.partition("\n")[0] + "\n":
        raise Failure(f"submit: {shown}: has DOS line ends, which no shell takes: convert it with dos2unix", USAGE)
    return text
