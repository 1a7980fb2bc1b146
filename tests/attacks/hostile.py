"""A job that is as nasty as its owner may be: `hostile.py SEED` builds trees and processes, says "ready", and waits.

Which ones is decided by the seed alone. It needs the standard library only, and runs as whoever the job runs as.
"""

import contextlib
import ctypes
import fcntl
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

TREES, PROCESSES = 16, 4
"""Per run of this program."""

_PR_SET_NAME, _PR_SET_DUMPABLE = 15, 4
_HUGE = 1 << 41
_LIVES_S = 600
_NAMES: tuple[bytes, ...] = (
    b"MANIFEST.json",
    b"step-000000000001",
    b"step-999999999999999999",
    b".step-000000000001-1-00000000",
    b"attempt-1",
    b"attempt-99999999999999999999",
    b"1.2",
    b"job.sock",
    b"intent.json",
    b"exit.json",
    b"\xff.1",
    b"\xfe\xff",
    b" ",
    b"-rf",
    b"*",
    b"%s%n",
    b"{checkpoint}",
    b"a\nb",
    b"\x1b]0;pwned\x07",
    "\u202etxt".encode(),
    b"x" * 255,
    b"~",
    b"$(reboot)",
)
_ELSEWHERE = ("/", "/dev/zero", "/dev/full", "/dev/stdin", "/etc/shadow", "/proc/self/root", "/proc/1/fd", ".", "..")
_POSES = ("python -m ebbtide_agent.supervisor", "ebb agent --name other", "nvidia-cuda-mps-control", "(sd-pam)", "1.2")


class Hostile:
    """What one run builds."""

    def __init__(self, dice: random.Random, places: list[Path]) -> None:
        self._dice = dice
        self._places = places

    def tree(self) -> str:
        """Build a tree somewhere; what kind of."""
        kind = self._dice.choice(TREE_KINDS)
        place = os.fsencode(self._dice.choice(self._places))
        with contextlib.suppress(OSError):
            kind(self, place)
        return kind.__name__.strip("_")

    def process(self) -> str:
        """Start a process that goes on; what kind of."""
        kind = self._dice.choice(PROCESS_KINDS)
        sys.stdout.flush()
        if not (pid := os.fork()):
            with contextlib.suppress(OSError):
                kind(self)
            os._exit(0)
        if kind in _ENDS_AT_ONCE:
            os.waitpid(pid, 0)
        return kind.__name__.strip("_")

    def _name(self) -> bytes:
        return self._dice.choice(_NAMES)

    def _free(self, place: bytes) -> bytes:
        path = os.path.join(place, self._name())
        return path if not os.path.lexists(path) else path[:-1] + b"%d" % self._dice.randrange(10**6)

    # Trees

    def _fifo(self, place: bytes) -> None:
        os.mkfifo(self._free(place))

    def _socket(self, place: bytes) -> None:
        os.chdir(place)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._name()[:100])

    def _link(self, place: bytes) -> None:
        os.symlink(self._dice.choice(_ELSEWHERE), self._free(place))

    def _loop(self, place: bytes) -> None:
        path = self._free(place)
        os.symlink(os.path.basename(path), path)

    def _hard_link(self, place: bytes) -> None:
        path = self._free(place)
        Path(os.fsdecode(path)).write_text("x")
        os.link(path, self._free(place))

    def _sparse(self, place: bytes) -> None:
        with open(self._free(place), "wb") as file:
            file.truncate(_HUGE)

    def _no_json(self, place: bytes) -> None:
        words = self._dice.choice((b"", b"[" * 100_000, b"\x00" * 4096, b'{"files": 7}', b'{"format": 1e999}', b"\xff"))
        with open(os.path.join(place, b"MANIFEST.json"), "wb") as file:
            file.write(words)

    def _wide(self, place: bytes) -> None:
        folder = self._free(place)
        os.mkdir(folder)
        for index in range(self._dice.randrange(200, 2_000)):
            os.close(os.open(folder + b"/%d" % index, os.O_CREAT | os.O_WRONLY))

    def _deep(self, place: bytes) -> None:
        os.chdir(place)
        for _ in range(self._dice.randrange(1_000, 3_000)):
            name = self._name()[:20]
            with contextlib.suppress(FileExistsError):
                os.mkdir(name)
            os.chdir(name)

    def _closed(self, place: bytes) -> None:
        folder = self._free(place)
        os.mkdir(folder)
        Path(os.fsdecode(folder), "within").write_text("x")
        os.chmod(folder, self._dice.choice((0, 0o100, 0o400, 0o7000)))

    def _swapped(self, place: bytes) -> None:
        """A directory that has become a link to another one after it was made."""
        folder = self._free(place)
        os.mkdir(folder)
        os.rename(folder, folder + b"~")
        os.symlink(self._dice.choice(_ELSEWHERE), folder)

    # Processes

    def _deaf(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(_LIVES_S)

    def _gone(self) -> None:
        """Left by its parent and in a session of its own."""
        os.setsid()
        if os.fork():
            os._exit(0)
        self._deaf()

    def _poser(self) -> None:
        pose = self._dice.choice(_POSES)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, pose.encode()[:15])
        os.execve(sys.executable, [*pose.split(), "-c", f"import time; time.sleep({_LIVES_S})"], dict(os.environ))

    def _hidden(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)
        self._deaf()

    def _stopped(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def _runner(self) -> None:
        """A chain of processes, each of which ends as soon as the next one lives."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ends = time.monotonic() + _LIVES_S
        while time.monotonic() < ends:
            if os.fork():
                os._exit(0)
            time.sleep(0.02)

    def _stops_its_own(self) -> None:
        """Stops whatever it may stop: of its owner's, and only what belongs to the job or tends it."""
        job = os.environ["EBB_SOCKET"].encode()
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(folder.name)
                tends = os.path.dirname(job) in (folder / "cmdline").read_bytes()
                if pid not in (os.getpid(), 1) and tends:
                    os.kill(pid, signal.SIGSTOP)

    def _talker(self) -> None:
        """Says what nobody understands to whoever listens for the job."""
        words = self._dice.choice(
            (b"\x00" * 70_000, b"{" * 70_000, b'{"kind":"progress","step":1e999}\n', os.urandom(4096))
        )
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as line:
                line.settimeout(5)
                line.connect(os.environ["EBB_SOCKET"])
                line.send(words)
        self._deaf()

    def _locker(self) -> None:
        """Holds a lock on whatever it can open beside its own socket."""
        held = []
        for path in Path(os.environ["EBB_SOCKET"]).parent.glob("*"):
            with contextlib.suppress(OSError):
                held.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
                fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._deaf()


TREE_KINDS: tuple[Callable[[Hostile, bytes], None], ...] = (
    Hostile._fifo,
    Hostile._socket,
    Hostile._link,
    Hostile._loop,
    Hostile._hard_link,
    Hostile._sparse,
    Hostile._no_json,
    Hostile._wide,
    Hostile._deep,
    Hostile._closed,
    Hostile._swapped,
)
PROCESS_KINDS: tuple[Callable[[Hostile], None], ...] = (
    Hostile._deaf,
    Hostile._gone,
    Hostile._poser,
    Hostile._hidden,
    Hostile._stopped,
    Hostile._runner,
    Hostile._stops_its_own,
    Hostile._talker,
    Hostile._locker,
)
_ENDS_AT_ONCE = (Hostile._stops_its_own, Hostile._gone)


def main() -> None:
    """Build everything, and wait without listening to anybody."""
    dice = random.Random(sys.argv[1])
    if dice.random() < 0.7:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    checkpoints, here = Path(os.environ["EBB_CHECKPOINT_DIR"]), Path.cwd()
    places = [checkpoints, checkpoints.parent, Path(os.environ["EBB_OUTPUT_DIR"]), here]
    checkpoints.mkdir(parents=True, exist_ok=True)
    hostile = Hostile(dice, [place for place in places if os.access(place, os.W_OK)])
    kinds = [hostile.tree() for _ in range(TREES)]
    os.chdir(here)
    kinds += [hostile.process() for _ in range(PROCESSES)]
    print("ready", *kinds, flush=True)
    if dice.random() < 0.2:
        return
    time.sleep(_LIVES_S)


if __name__ == "__main__":
    main()
