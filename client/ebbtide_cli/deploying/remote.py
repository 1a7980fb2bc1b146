"""Run the steps on hosts, each a shell script that ssh reads from its standard input.

What is secret is in that text only: in no argument, no environment, and no file that has a name (some shells keep a
long text that they read in a temporary file of their own, which they have unlinked).
"""

import asyncio
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import IO, Final

from ebbtide_protos.quantities import printable

from ebbtide_cli.deploying.bundle import Bundle
from ebbtide_cli.deploying.hosts import Host
from ebbtide_cli.terminal.text import one_line

CONNECT_S: Final = 15
OUTPUT_BYTES: Final = 1 << 20
"""Most that a step may print; the longest is what the doctor found, some ten KiB."""
ENDED_S: Final = 0.5
"""Seconds that an ssh has to end in after SIGTERM."""
_TAIL_BYTES: Final = 4096
_SSH_FAILED: Final = 255
_MARK: Final = b"ebb-deploy "
_OPTIONS: Final = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT_S}",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=4",
    "ControlMaster=no",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
)
SECONDS: Final = {
    "look": 60,
    "send": 1800,
    "install": 900,
    "join": 90,
    "start": 180,
    "doctor": 300,
    "remove": 120,
    "say": 30,
}
"""How long each step may take, in seconds."""


class StepFailed(Exception):
    """A step on a host failed; ``why`` is one line that is safe to print."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(f"{step}: {why}")
        self.step, self.why = step, one_line(why)


@dataclass(frozen=True, slots=True)
class Places:
    """Where things go on the hosts, and who keeps the agent there; empty places are the defaults of the account."""

    folder: str
    home: str
    service: str  # auto, systemd or none


@dataclass(frozen=True, slots=True)
class Remote:
    """The other side of one host's connection."""

    host: Host
    places: Places
    bundle: Bundle | None
    keeps_options: bool
    """Whether the agent goes on with the options that it has."""
    ssh_config: Path | None

    async def run(self, step: str, replaced: Mapping[str, str] | None = None) -> dict[str, list[str]]:
        """Run a step and return the facts that it printed, by name. Raises `StepFailed`.

        ``replaced`` are words of the script, such as ``@INVITATION@``, with what stands for them.
        """
        text = self.script(step)
        for word, meant in (replaced or {}).items():
            text = text.replace(word, meant)
        output = await self._ssh(step, ("sh", "-s"), text.encode())
        found: dict[str, list[str]] = {}
        for line in output.splitlines():
            if line.startswith(_MARK):
                name, _, value = line.removeprefix(_MARK).decode(errors="replace").partition(" ")
                found.setdefault(name, []).append(value)
        return found

    async def send(self) -> None:
        """Send the bundle into the account's home directory. Raises `StepFailed`."""
        assert self.bundle is not None
        # The account's own shell reads this, whichever that is; the name has nothing that one of them would expand.
        command = ("umask", "077;", "cat", ">", f".ebbtide-deploy-{self.host.node}.part")
        with self.bundle.path.open("rb") as file:
            await self._ssh("send", command, file)

    def script(self, step: str) -> str:
        """Return the text of a step for this host."""
        options = "as-before" if self.keeps_options else shlex.join(self.host.options)
        settings = {
            "node": self.host.node,
            "folder": self.places.folder,
            "home": self.places.home,
            "service": self.places.service,
            "build": self.bundle.build if self.bundle else "none",
            "digest": self.bundle.digest if self.bundle else "none",
            "python": self.bundle.python if self.bundle else "none",
            "options": options,
        }
        head = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
        head.append(f"set -- {shlex.join(self.host.doctor)}")
        steps = files("ebbtide_cli.deploying") / "steps"
        return "\n".join([*head, *((steps / f"{part}.sh").read_text() for part in ("common", "units", step))])

    def arguments(self, command: Sequence[str]) -> list[str]:
        """Return the command line of ssh that runs ``command`` on the host."""
        options = [word for option in _OPTIONS for word in ("-o", option)]
        config = ["-F", str(self.ssh_config.absolute())] if self.ssh_config else []
        port = ["-p", str(self.host.port)] if self.host.port else []
        user = ["-l", self.host.user] if self.host.user else []
        return ["ssh", "-T", *config, *options, *port, *user, "--", self.host.name, *command]

    async def _ssh(self, step: str, command: Sequence[str], sent: bytes | IO[bytes]) -> bytes:
        # No variable of ours goes along, even if the user's configuration has SendEnv for it: there may be a token.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EBB_")}
        try:
            process = await asyncio.create_subprocess_exec(
                *self.arguments(command),
                stdin=asyncio.subprocess.PIPE if isinstance(sent, bytes) else sent,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                limit=OUTPUT_BYTES,
            )
        except FileNotFoundError:
            raise StepFailed("connect", "there is no ssh on this machine: install an OpenSSH client") from None
        try:
            async with asyncio.timeout(SECONDS[step]):
                output, said = await _talk(process, sent if isinstance(sent, bytes) else b"")
        except TimeoutError:
            raise StepFailed(step, f"did not end within {SECONDS[step]} s") from None
        finally:
            await _ended(process)
        if len(output) > OUTPUT_BYTES:
            raise StepFailed(step, f"printed more than {OUTPUT_BYTES} bytes")
        if process.returncode:
            raise _failure(step, process.returncode, said)
        return output


async def _talk(process: asyncio.subprocess.Process, sent: bytes) -> tuple[bytes, bytes]:
    """Send the input, and return what came on both outputs: all of the first, and the end of the second.

    A process that prints more than `OUTPUT_BYTES` is ended, and as much more than that as came with them is returned.
    """
    assert process.stdout is not None
    assert process.stderr is not None

    async def feed() -> None:
        if process.stdin is not None:
            with suppress(BrokenPipeError, ConnectionResetError):  # then its exit code says why
                process.stdin.write(sent)
                await process.stdin.drain()
            process.stdin.close()

    async def read(stream: asyncio.StreamReader) -> bytes:
        data = b""
        while len(data) <= OUTPUT_BYTES and (more := await stream.read(65_536)):
            data += more
        if len(data) > OUTPUT_BYTES:
            await _ended(process)
        return data

    async def tail(stream: asyncio.StreamReader) -> bytes:
        data = b""
        while more := await stream.read(65_536):
            data = (data + more)[-_TAIL_BYTES:]
        return data

    async with asyncio.TaskGroup() as group:
        group.create_task(feed())
        output, said = group.create_task(read(process.stdout)), group.create_task(tail(process.stderr))
    await process.wait()
    return output.result(), said.result()


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End an ssh that still runs; the step goes on there until it notices, and the next run waits for its lock."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(ENDED_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _failure(step: str, code: int, said: bytes) -> StepFailed:
    lines = [text for line in said.decode(errors="replace").splitlines() if (text := printable(line).strip())]
    words = lines[-1] if lines else ""
    if code == _SSH_FAILED:
        return StepFailed("connect", words or "ssh failed and said nothing")
    if code < 0:
        return StepFailed(step, f"ssh was ended by {signal.Signals(-code).name}")
    return StepFailed(step, words or f"exit code {code}, and no word about it")
