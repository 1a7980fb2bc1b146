"""One run of `ebb` and what it ended with, as a program or a person at a terminal sees it."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """What one run of `ebb` ended with."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line on stderr; the test fails if there are more or none."""
        (line,) = self.err.splitlines()
        assert line.startswith("ebb: ")
        return line.removeprefix("ebb: ")


Ebb = Callable[..., Result]


UNHURRIED = {"ebbtide_cli.interrupts.ENDED_S": 60.0, "ebbtide_cli.masters.connection.SETTLED_S": 60.0}
"""For a process that may be stopped for seconds, because much else runs."""


def start_ebb(*arguments: str, times: dict[str, float] | None = None, **options: Any) -> subprocess.Popen[str]:
    """Start `ebb` as a process of its own, with stdout and stderr as pipes, and ``times`` in place of its own ones."""
    defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
    entry = ["-m", "ebbtide_cli.main"]
    if times:
        named = [(*name.rpartition(".")[::2], value) for name, value in times.items()]
        lines = [f"import {module} as module; module.{constant} = {value}" for module, constant, value in named]
        entry = ["-c", "\n".join([*lines, "import sys; from ebbtide_cli.main import main; sys.exit(main())"])]
    command = [sys.executable, *entry, *arguments]
    return subprocess.Popen(command, **({"env": os.environ.copy()} | defaults | options))


def run_on_terminal(*arguments: str, columns: int = 80, streams: tuple[str, ...] = ("stdout", "stderr")) -> Result:
    """Run `ebb` with ``streams`` on a terminal; what they showed is the result's ``out``, any other stream its ``err``.

    The environment's own wishes about colours and widths do not count, but NO_COLOR does.
    """
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environ = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "COLORTERM")}
    environ["TERM"] = "xterm-256color"
    with start_ebb(*arguments, env=environ, **dict.fromkeys(streams, inner)) as process:
        os.close(inner)
        shown = b"".join(iter(lambda: read_terminal(outer), b""))
        piped = "".join(stream.read() for stream in (process.stdout, process.stderr) if stream)
    os.close(outer)
    return Result(process.returncode, shown.decode().replace("\r\n", "\n"), piped)


def read_terminal(descriptor: int) -> bytes:
    """What the other side wrote; nothing once it has gone (Linux then fails the read)."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def colours(shown: str) -> set[str]:
    """The colours that were asked of the terminal; bold is none."""
    return {code for codes in re.findall(r"\x1b\[([0-9;]+)m", shown) for code in codes.split(";")} - {"0", "1"}


def without_styles(shown: str) -> str:
    """What is left to read."""
    return re.sub(r"\x1b\[[0-9;]*m", "", shown)


def modules_of(*arguments: str) -> set[str]:
    """The modules that a run of `ebb` has loaded when it ends."""
    script = "import sys; from ebbtide_cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", script, *arguments]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ.copy()).stderr
    return set(loaded.split())
