"""Talks to the MPS control daemon of one GPU, through the program that NVIDIA ships for it.

The daemon is the one whose pipes are in `directory`; those of other GPUs or other users are never reached. Every method
blocks, none for longer than a call's timeout, and raises ControlFailed.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

BINARY = "nvidia-cuda-mps-control"
_TIMEOUT_S = 10.0
# The length of a socket's path (107 bytes), less the longest name that the daemon makes below its directory.
_LONGEST_DIRECTORY = 107 - len("/nvidia-cuda-mps-control-XXXXXXXX")


class ControlFailed(Exception):
    """The daemon is not there, does not answer, or does not start; the message says which in one line."""


@dataclass(frozen=True, slots=True)
class MpsControl:
    """Gives commands to the daemon of one GPU."""

    binary: str
    uuid: str  # of its GPU
    directory: Path

    @property
    def log_directory(self) -> Path:
        """Directory in which daemon and server write their logs."""
        return self.directory.with_name(f"{self.directory.name}.log")

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make a process talk to this daemon and to no other."""
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.directory), "CUDA_MPS_LOG_DIRECTORY": str(self.log_directory)}

    def check_path(self) -> None:
        """Raise ControlFailed if the directory's path is too long for a socket below it."""
        size = len(os.fsencode(self.directory))
        if size > _LONGEST_DIRECTORY:
            raise ControlFailed(f"{self.directory} has {size} bytes, and MPS needs a path of {_LONGEST_DIRECTORY}")

    def start(self) -> None:
        """Start the daemon for its GPU alone; it may not answer yet."""
        try:
            with (self.log_directory / "start.log").open("w") as output:
                done = subprocess.run(
                    [self.binary, "-d"],
                    env=self._environment() | {"CUDA_VISIBLE_DEVICES": self.uuid},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=output,  # a file, because the daemon keeps it open
                    stderr=output,
                    start_new_session=True,
                    timeout=_TIMEOUT_S,
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ControlFailed(f"{self.binary} -d: {error}") from None
        if done.returncode:
            lines = (self.log_directory / "start.log").read_text(errors="replace").split("\n")
            words = next((line.strip() for line in lines if line.strip()), "it says nothing")
            raise ControlFailed(f"{self.binary} -d ended with status {done.returncode}: {words[:200]}")

    def pid(self) -> int:
        """Return the daemon's pid, which it has written into its directory."""
        path = self.directory / f"{BINARY}.pid"
        try:
            return int(path.read_text())
        except (OSError, ValueError) as error:
            raise ControlFailed(f"{path}: {error}") from None

    def start_server(self) -> None:
        """Start the server for this user's processes; it may not be there yet."""
        self._ask(f"start_server -uid {os.getuid()}")

    def servers(self) -> tuple[int, ...]:
        """Return the pids of the daemon's servers."""
        return _numbers(self._ask("get_server_list"))

    def is_faulty(self, server: int) -> bool:
        """Return whether the server has met a client's fatal fault; it serves none until all its clients are gone."""
        return "FAULT" in self._ask(f"get_server_status {server}").upper()

    def clients(self, server: int) -> tuple[int, ...]:
        """Return the pids of the processes that compute through the server."""
        return _numbers(self._ask(f"get_client_list {server}"))

    def quit(self) -> None:
        """Ask the daemon to end, and its server with it."""
        self._ask("quit")

    def _ask(self, command: str) -> str:
        try:
            done = subprocess.run(
                [self.binary],
                env=self._environment(),
                cwd="/",
                input=f"{command}\n",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ControlFailed(f"{command}: {error}") from None
        if done.returncode:
            words = " ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}"
            raise ControlFailed(f"{command}: {words[:200]}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        return mine | self.environment


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(line) for line in text.split() if line.isdigit())
