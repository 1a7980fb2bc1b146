"""Whether the scripts that a job names are still what they were when it was submitted."""

import os
import zlib
from pathlib import Path

from ebbtide_agent.contract.intent import Intent

_LARGEST = 1 << 20


def edited(intent: Intent) -> tuple[str, ...]:
    """The scripts that have changed, as the command names them; one that is not here is no changed one."""
    now = {name: _digest(Path(intent.workdir, name)) for name in intent.scripts}
    return tuple(name for name, digest in intent.scripts.items() if now[name] not in ("", digest))


def _digest(path: Path) -> str:
    """As the client takes it; empty if the file cannot be read."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError:
        return ""
    return f"{zlib.crc32(content):08x}-{len(content)}"
