"""Write the copy of the script that a job carries, find what runs it, and see whether other scripts have changed."""

import os
import sys
import zlib
from pathlib import Path

from ebbtide_agent import slurm
from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.contract.intent import Intent, StopSignalTarget

# Runs a script whose first line names no interpreter, as under Slurm.
_SHELL = ("/bin/bash",)
# Bytes; of a larger script only the beginning is compared.
_LARGEST = 1 << 20


def command_of(intent: Intent, place: AttemptDir) -> tuple[str, ...]:
    """Return what is executed: the command, with the copy of its script in the script's place. Raises OSError.

    The copy is written with this process's rights. Under Slurm a script runs on the first node, and the other nodes do
    what its `srun` says.
    """
    if intent.slurm and intent.node_rank:
        # A signal that is for the script alone goes only to the first node.
        deaf = ("--deaf",) if intent.signal_target is StopSignalTarget.LEADER else ()
        return (sys.executable, "-I", "-S", str(slurm.FOLLOWER), "--follow", *deaf)
    if not intent.script:
        return intent.command
    return (*interpreter(intent.script), str(_written(intent, place)), *intent.command[1:])


def _written(intent: Intent, place: AttemptDir) -> Path:
    """Write the script for this attempt, and return its path: for another account, in the job's directory."""
    folder, name = (place.path, "script") if intent.account is None else (intent.job_dir, f"script-{intent.attempt}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(folder / name, flags, 0o700), "w") as file:
        file.write(intent.script)
    return folder / name


def interpreter(script: str) -> tuple[str, ...]:
    """Return what the first line names, with at most one argument: as the kernel reads it, but from any file system."""
    line = script.partition("\n")[0]
    return tuple(line[2:].strip().split(maxsplit=1)) or _SHELL if line.startswith("#!") else _SHELL


def has_python(directory: str) -> bool:
    """Return whether this node has the Python environment; true if none was asked for."""
    return not directory or os.access(Path(directory, "bin", "python"), os.X_OK, effective_ids=True)


def edited(intent: Intent) -> tuple[str, ...]:
    """Return the scripts that have changed since submit, as the command names them, without those that are missing."""
    now = {name: _digest(Path(intent.workdir, name)) for name in intent.scripts}
    return tuple(name for name, digest in intent.scripts.items() if now[name] not in ("", digest))


def _digest(path: Path) -> str:
    """Compute the digest as the client does; empty if the file cannot be read."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError:
        return ""
    return f"{zlib.crc32(content):08x}-{len(content)}"
