"""Ctrl-C at any moment of any verb: it ends, soon, with 130 or as it would have ended, and leaves nothing behind.

    python -m tests.faults.interrupts --count 1000 --busy
    python -m tests.faults.interrupts --count 100 --verb logs --seed 7

Against a real cluster. An interrupt before Python has taken its signals is the system's to answer: death by SIGINT.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.cluster import EBB, Cluster, wait_for

INTERRUPTED = 130
ENDED_S = 2.0
BUSY_S = 10.0
"""The same where other processes want the cores, too: what is measured then is whether it ends at all."""
_OF_PYTHON = ("KeyboardInterrupt", "Python runtime state: core initialized")
"""What a Python says that is interrupted before it runs a line of ours."""
LONGEST_S = 1.5
"""Of a verb that goes on for ever, or for long: how long after its start it is interrupted at the latest."""


@dataclass(frozen=True)
class Verb:
    """What is interrupted: its ``arguments``; with which ``codes`` it may end beside 130, and within how long."""

    arguments: tuple[str, ...]
    codes: tuple[int, ...] = ()
    ended_s: float = ENDED_S
    own_home: bool = False
    lasts: bool = False

    @property
    def name(self) -> str:
        return self.arguments[0]


def verbs(running: str, waiting: str, folder: Path) -> list[Verb]:
    """Of each kind; ``running`` and ``waiting`` are jobs."""
    job = ("--cpu-only", "--", "true")
    return [
        *(Verb((name,)) for name in ("ls", "nodes", "usage", "reservations", "whoami", "events", "templates")),
        *(Verb((name, running)) for name in ("show", "explain", "story", "logs", "drill")),
        Verb(("logs", "-f", running), lasts=True),
        Verb(("wait", running), lasts=True),
        Verb(("wait", "--timeout", "1h", running, waiting), lasts=True),
        Verb(("submit", *job)),
        Verb(("submit", "--wait", "--begin", "+20h", *job), lasts=True),
        Verb(("submit", "--snapshot", "--workdir", str(folder), *job)),
        Verb(("run", "--cpu-only", "--", "sleep", "1000"), codes=(143, 125), ended_s=15.0, lasts=True),
        Verb(("exec", running, "--", "sleep", "1000"), lasts=True),
        Verb(("cp", f"{running}:.", str(folder / "copies"))),
        Verb(("tunnel", running, "8000"), codes=(0, 1), lasts=True),
        Verb(("top",), codes=(0,), lasts=True),
        Verb(("top", "--once")),
        Verb(("hold", waiting)),
        Verb(("release", waiting)),
        Verb(("set", "--priority", "50", waiting)),
        Verb(("user", "ls")),
        Verb(("token", "ls")),
        Verb(("fake", "status")),
        Verb(("fake", "foreign", "0", "1MiB"), codes=(0,), lasts=True),
        Verb(("observe", "--gpus", "1xT4", "--out", str(folder / "observed.csv")), codes=(0,), lasts=True),
        Verb(("simulate", "--jobs-limit", "2000"), codes=(0,)),
        Verb(("simulate", "--jobs-limit", "300", "--sweep", "seed=1,2,3,4", "--jobs", "2"), codes=(0,)),
        Verb(("simulate", "reservations", "--jobs", "2")),
        Verb(("replay", "--policy", "fifo"), codes=(0,)),
        Verb(("reserve", "--dist", "lognormal:7,0.5")),
        Verb(("up", "--gpus", "1xT4"), ended_s=15.0, own_home=True),
        Verb(("demo", "--gpus", "3xT4"), ended_s=20.0, own_home=True),
    ]


class Stress:
    """Interrupts verbs, and remembers what came of it."""

    def __init__(self, cluster: Cluster, seed: int, patience_s: float = 0.0) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._patience_s = patience_s
        self.failures: list[str] = []
        self.codes: Counter[tuple[str, int]] = Counter()
        self.slowest_s = 0.0
        self._lasts_s: dict[Verb, tuple[float, int | None]] = {}

    def interrupt(self, verb: Verb) -> None:
        """Once, at a random moment."""
        if verb not in self._lasts_s:
            self._lasts_s[verb] = self._measured(verb)
        lasts_s, own = self._lasts_s[verb]
        moment_s = self._random.uniform(0.0, lasts_s)
        with self._started(verb) as process:
            self._wait(process, moment_s)
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            limit_s = max(verb.ended_s, self._patience_s)
            try:
                _, err = process.communicate(timeout=4 * limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                self._fail(verb, moment_s, f"not over after {4 * limit_s:g} s")
                return
            took_s = time.monotonic() - began
            self._judge(verb, moment_s, process, own, err)
        self.slowest_s = max(self.slowest_s, took_s if verb.ended_s == ENDED_S else 0.0)
        if took_s > limit_s:
            self._fail(verb, moment_s, f"took {took_s:.1f} s to end")

    def _judge(self, verb: Verb, moment_s: float, process: "subprocess.Popen[str]", own: int | None, err: str) -> None:
        code = process.returncode
        self.codes[verb.name, code] += 1
        came_to_us = "ebbtide_cli" in err or not any(words in err for words in _OF_PYTHON)
        done = () if verb.lasts else (0, own)  # it was over before
        if came_to_us and code not in (INTERRUPTED, -signal.SIGINT, *done, *verb.codes):
            self._fail(verb, moment_s, f"ended with {code}: {err}")
        said = any(word in err for word in ("Traceback", "Exception ignored", "internal error"))
        if came_to_us and code != -signal.SIGINT and said:
            self._fail(verb, moment_s, f"({code}) said {err}")
        deadline = time.monotonic() + 10
        while _has_group(process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        if _has_group(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
            self._fail(verb, moment_s, "left processes behind")

    def _measured(self, verb: Verb) -> tuple[float, int | None]:
        """How long it lasts, and how it ends by itself."""
        if verb.lasts:
            return LONGEST_S, None
        began = time.monotonic()
        with self._started(verb) as process:
            try:
                process.communicate(timeout=LONGEST_S)
                return time.monotonic() - began, process.returncode
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                try:
                    process.communicate(timeout=60)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    self._fail(verb, LONGEST_S, "not over after 60 s")
                return LONGEST_S, None

    @contextlib.contextmanager
    def _started(self, verb: Verb) -> Iterator["subprocess.Popen[str]"]:
        with contextlib.ExitStack() as stack:
            environment = dict(self._cluster.environment)
            other: Cluster | None = None
            if verb.own_home:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ebb-", ignore_cleanup_errors=True))
                other = Cluster(Path(folder))
                environment |= {"EBB_HOME": folder, "TMPDIR": folder}
            pipe = subprocess.PIPE
            yield stack.enter_context(
                subprocess.Popen(
                    [*EBB, *verb.arguments],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=pipe,
                    stderr=pipe,
                    text=True,
                    start_new_session=True,
                )
            )
            if other is not None:
                self._nothing_is_left(other, verb)

    def _nothing_is_left(self, other: Cluster, verb: Verb) -> None:
        if verb.name == "up":
            up = other.ebb("ls", code=None)
            if not up.code:  # it was up before it heard
                other.ebb("down", "--now")
        try:
            wait_for("nothing is left", lambda: not _inside(other.home), 20)
        except BaseException:  # noqa: BLE001 - pytest's own kind of failure
            self._fail(verb, 0.0, f"left behind: {_inside(other.home)}")
            for line in _inside(other.home):
                os.kill(int(line.split()[0]), signal.SIGKILL)

    def _wait(self, process: "subprocess.Popen[str]", seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)

    def _fail(self, verb: Verb, moment_s: float, what: str) -> None:
        self.failures.append(f"ebb {' '.join(verb.arguments)}, interrupted after {moment_s:.3f} s: {what}")
        print(self.failures[-1], flush=True)


def _inside(home: Path) -> list[str]:
    """Processes that this home's daemons or demos are."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"EBB_HOME={home}".encode() in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found += [f"{folder.name} {command}"] if command else []
    return found


def _has_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def busy_cores(wanted: bool) -> Iterator[None]:
    """Others that want every core."""
    command = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(wanted * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


@contextlib.contextmanager
def a_cluster() -> Iterator[tuple[Cluster, list[Verb]]]:
    """With a job that runs and one that waits for ever, and the verbs that can be tried on it."""
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder, tempfile.TemporaryDirectory() as work:
        cluster = Cluster(Path(folder))
        try:
            cluster.up("2xT4")
            (Path(work) / "file").write_text("text")
            script = "import time\nwhile True:\n    print('x' * 80, flush=True); time.sleep(0.01)"
            options = ("--cpu-only", "--workdir", work, "--grace", "2s")
            running = cluster.submit(*options, "--", sys.executable, "-c", script)
            waiting = cluster.submit("--begin", "+20h", "--cpu-only", "--", "true")
            cluster.wait_for_state(running, "RUNNING")
            yield cluster, verbs(running, waiting, Path(work))
        finally:
            cluster.close()


def stress(count: int, seed: int, wanted: Sequence[str] = (), *, busy: bool = False, patience_s: float = 0.0) -> Stress:
    """Interrupt ``count`` times, the verbs in turn; ``patience_s`` is how long one may take to end at the least."""
    with a_cluster() as (cluster, known), busy_cores(busy):
        chosen = [verb for verb in known if not wanted or verb.name in wanted]
        found = Stress(cluster, seed, patience_s)
        for number in range(count):
            found.interrupt(chosen[number % len(chosen)])
        return found


def main() -> int:
    """Run from the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=1000)
    options.add_argument("--verb", action="append", default=[], help="only this one; may be given again")
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options.add_argument("--busy", action="store_true", help="beside a busy loop on every core")
    given = options.parse_args()
    print(f"seed {given.seed}", flush=True)
    patience_s = BUSY_S if given.busy else 0.0
    found = stress(given.count, given.seed, given.verb, busy=given.busy, patience_s=patience_s)
    for (verb, code), times in sorted(found.codes.items()):
        print(f"{verb:14} {code:4} {times:6}")
    print(f"{given.count} interrupts, {len(found.failures)} failures; the slowest took {found.slowest_s:.2f} s to end")
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
