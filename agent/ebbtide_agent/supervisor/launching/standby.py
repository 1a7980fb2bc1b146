"""Hold standbys ready: processes of the job's own command line, started early, with only their imports done.

From its start a standby is a child of the supervisor of the attempt that it will be part of. Until the attempt starts,
it runs no line of the script, holds no GPU and no lock, and ends when its supervisor does. The standby's own part is in
`standby/sitecustomize.py`.
"""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ebbtide_agent import standby
from ebbtide_agent.contract.environment import SDK
from ebbtide_agent.processes.cgroup import ControlGroup
from ebbtide_agent.supervisor.launching.recipe import Recipe

ORDER = "stand by"
# Room for the attempt's own variables in the environment that the kernel shows; an attempt that needs more starts cold.
_ROOM_BYTES = 16 * 1024
_LARGEST_ANSWER = 4096


@dataclass(slots=True)
class Standby:
    """One process that is or was held ready."""

    recipe: Recipe
    process: "subprocess.Popen[bytes]"
    _program: str
    _channel: socket.socket
    _answer: str | None = field(default=None)

    def give(
        self,
        command: tuple[str, ...],
        workdir: str,
        environment: Mapping[str, str],
        output: int,
        lock: int,
        cgroup: ControlGroup | None,
    ) -> bool:
        """Have the standby go on as this process of an attempt; return False if it cannot, and has been ended."""
        if command == self.recipe.command and self.process.poll() is None:
            order = {
                "program": self._program,
                "command": command,
                "workdir": workdir,
                "environment": dict(environment),
                "lock": lock,
            }
            if cgroup is not None:
                cgroup.take(self.process.pid)
            with suppress(OSError):
                socket.send_fds(self._channel, [json.dumps(order).encode()], [output, lock])
                return True
        self.end()
        return False

    def is_warm(self) -> bool:
        """Return whether the standby has reported that it went on with its imports; otherwise it restarts itself."""
        if self._answer is None:
            with suppress(OSError):
                self._answer = self._channel.recv(_LARGEST_ANSWER, socket.MSG_DONTWAIT).decode(errors="replace")
        return self._answer == "\0"

    def end(self) -> None:
        """End the process, which runs nothing of the job."""
        self.process.kill()
        self.process.wait()
        self._channel.close()


def request(recipe: Recipe, imports: Mapping[str, Any], processes: int) -> dict[str, Any]:
    """Return the request that precedes a new supervisor's order; `imports` is what the SDK said of the last attempt."""
    return {"do": ORDER, "recipe": recipe.to_json(), "told": dict(imports), "processes": processes}


def stand_by(content: Mapping[str, Any]) -> list[Standby]:
    """Start the requested standbys, and return those that started before one failed."""
    recipe = Recipe.from_json(content["recipe"])
    started: list[Standby] = []
    with suppress(OSError, ValueError):
        for _ in range(content["processes"]):
            started.append(_start(recipe, content["told"]))  # noqa: PERF401 - those before one that fails are kept
    return started


def _start(recipe: Recipe, imports: Mapping[str, Any]) -> Standby:
    environment = dict(recipe.environment)
    program = _find(recipe, environment)
    path = {"PYTHONPATH": environment.pop("PYTHONPATH")} if environment.get("PYTHONPATH") else {}
    told = {"path": path, "sdk": SDK, **{name: imports[name] for name in ("modules", "changed")}}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # What the imports print goes into the job's log when the attempt begins.
    output = os.memfd_create("standby")
    try:
        with theirs, _in_memory(told) as file:
            # Variables that are not the job's come last: they are overwritten in the memory that the kernel shows.
            environment |= {
                "PYTHONPATH": os.pathsep.join([str(standby.FOLDER), *path.values()]),
                "CUDA_VISIBLE_DEVICES": "",
                "EBB_STANDBY": f"{theirs.fileno()} {file.fileno()}",
                "EBB_STANDBY_ROOM": "-" * _ROOM_BYTES,
            }
            process = subprocess.Popen(
                recipe.command,
                cwd=recipe.workdir,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(), file.fileno()),
                process_group=0,
            )
    finally:
        os.close(output)
    return Standby(recipe, process, program, ours)


def _in_memory(content: Mapping[str, Any]) -> BinaryIO:
    """Return a file with the content as JSON: a message of the channel might be too small for it. Raises OSError."""
    file = open(os.memfd_create("recipe"), "w+b")  # noqa: SIM115 - the caller closes it
    file.write(json.dumps(content).encode())
    file.seek(0)
    return file


def _find(recipe: Recipe, environment: Mapping[str, str]) -> str:
    """Return the command's interpreter. Raises ValueError for a script around one, which might start other programs."""
    program = shutil.which(recipe.command[0], path=environment.get("PATH", os.defpath))
    if program is None or not os.path.isabs(program):
        raise ValueError(f"{recipe.command[0]!r} is not found by an absolute path")
    with Path(program).open("rb") as file:
        if file.read(4) != b"\x7fELF":
            raise ValueError(f"{program} is not an interpreter itself")
    return program
