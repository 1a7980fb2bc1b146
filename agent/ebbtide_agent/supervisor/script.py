"""Scripts of a job: where the copy of one that is part of it is, what runs it, and whether others have changed."""

import os
import sys
import zlib
from pathlib import Path

from ebbtide_agent import slurm
from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.contract.intent import Intent, SignalTarget

# What a script without a first line that says so is run by, as under Slurm.
_SHELL = ("/bin/bash",)
# A larger one is looked at so far.
_LARGEST = 1 << 20


def command_of(intent: Intent, place: AttemptDir) -> tuple[str, ...]:
    """What is executed: the command, with the copy of its script in its place, written with our rights. Raises OSError.

    Under Slurm a script runs on the first node, and the others do what its `srun` says.
    """
    if intent.slurm and intent.node_rank:
        # Nobody but the first node's script gets the signal that was for the script alone.
        deaf = ("--deaf",) if intent.signal_target is SignalTarget.LEADER else ()
        return (sys.executable, "-I", "-S", str(slurm.FOLLOWER), "--follow", *deaf)
    if not intent.script:
        return intent.command
    return (*interpreter(intent.script), str(_written(intent, place)), *intent.command[1:])


def _written(intent: Intent, place: AttemptDir) -> Path:
    """Where the script lies for this attempt: another account finds it among its own files."""
    folder, name = (place.path, "script") if intent.account is None else (intent.job_dir, f"script-{intent.attempt}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(folder / name, flags, 0o700), "w") as file:
        file.write(intent.script)
    return folder / name


def interpreter(script: str) -> tuple[str, ...]:
    """What the first line names, with at most one argument: as the kernel reads it, but from any file system."""
    line = script.partition("\n")[0]
    return tuple(line[2:].strip().split(maxsplit=1)) or _SHELL if line.startswith("#!") else _SHELL


def has_python(directory: str) -> bool:
    """Whether there is a Python environment on this node; any is good enough if none was asked for."""
    return not directory or os.access(Path(directory, "bin", "python"), os.X_OK, effective_ids=True)


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
