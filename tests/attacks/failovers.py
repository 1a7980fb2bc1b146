"""Nodes that are cut off while their checkpoints hang: no attempt lives when the next one of its job begins.

    python -m tests.attacks.failovers --runs 200    # needs root and FUSE

Both nodes have the same checkpoints; what hangs is the way of one of them there, as if a file server were cut off with
it. Each job holds a lock while it lives, and says so if it finds another copy of itself.
"""

import argparse
import ctypes
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.attacks.hung import hung
from tests.e2e.cluster import ANY_ACCOUNT, Cluster, processes_of, wait_for
from tests.faults import figures
from tests.faults.interrupt import EXIT_INTERRUPTED, until_interrupted
from tests.faults.proxy import Proxy, a_line

RUNS, AT_ONCE = 200, 25
GRACE_S, FAILOVER_S = 1, 35
MOVED_S = 240.0
_BIND, _DETACH = 4096, 2
_JOB = """
import fcntl, os, signal, sys, time
from pathlib import Path
folder, deaf = Path(sys.argv[1]), sys.argv[2] == "deaf"
lock = (folder / "lock").open("a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    (folder / "overlap").touch()
    sys.exit(1)
def save(*_):
    for number in range(10**9):
        (Path(os.environ["EBB_CHECKPOINT_DIR"]) / f"{number % 3}").write_text("x" * 10_000)
signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else save)
(folder / f"began-{os.environ['EBB_ATTEMPT']}").touch()
while not (folder / "enough").exists():
    if not deaf:
        (Path(os.environ["EBB_CHECKPOINT_DIR"]) / "seen").write_text("x")
    time.sleep(0.2)
"""


class Field:
    """Two nodes; one of them is behind a line."""

    def __init__(self, cluster: Cluster, line: Proxy, way: Path) -> None:
        self.overlaps = self.moved = 0
        self._cluster, self._line, self._way = cluster, line, way

    def cut(self, jobs: int, dice: random.Random) -> None:
        """Let so many jobs start on the node, cut it off while its checkpoints hang, until all go on elsewhere."""
        self._cluster.ebb("node", "drain", "stays")
        folders = [Path(tempfile.mkdtemp(dir=self._cluster.home, prefix="job-")) for _ in range(jobs)]
        ids = [self._submit(folder, dice) for folder in folders]
        wait_for("all run", lambda: all((folder / "began-1").exists() for folder in folders), 120)
        # Of an attempt that the master has not heard of yet it does not know that it would end itself.
        wait_for("the master knows", lambda: {job["state"] for job in self._cluster.facts("ls")} == {"RUNNING"}, 120)
        self._cluster.ebb("node", "resume", "stays")
        with hung(self._way):
            time.sleep(dice.uniform(0.0, 3.0))
            self._line.refuse()
            self._line.drop()
            self._wait_until_moved(dict(zip(ids, folders, strict=True)))
        self._line.heal()
        for folder in folders:
            (folder / "enough").touch()
            self.overlaps += (folder / "overlap").exists()
            self.moved += (folder / "began-2").exists()
        self._cluster.ebb("cancel", *ids, code=None)
        wait_for("nothing runs", lambda: not self._cluster.facts("ls"), 120)
        wait_for("the node is back", lambda: self._cluster.nodes_up() >= {"cut", "stays"}, 120)

    def _wait_until_moved(self, folders: dict[str, Path]) -> None:
        deadline = time.monotonic() + MOVED_S
        while left := [id for id, folder in folders.items() if not _has_moved(folder)]:
            if time.monotonic() > deadline:
                words = [self._cluster.ebb("story", id, code=None).out for id in left[:3]]
                raise AssertionError("\n".join([f"{len(left)} jobs did not go on elsewhere:", *words]))
            time.sleep(0.5)

    def _submit(self, folder: Path, dice: random.Random) -> str:
        how = dice.choice(("deaf", "saves"))
        times = ("--grace", f"{GRACE_S}s", "--failover-after", f"{FAILOVER_S}s")
        return self._cluster.submit("--cpu-only", *times, "--", sys.executable, "-S", "-c", _JOB, str(folder), how)


def _has_moved(folder: Path) -> bool:
    return (folder / "began-2").exists() or (folder / "overlap").exists()


@contextmanager
def a_field(seed: int) -> Iterator[Field]:
    """Ended in the end, with all that ran there."""
    home = Path(tempfile.mkdtemp(prefix="ebb-"))
    cluster = Cluster(home)
    with ExitStack() as closing:
        closing.callback(subprocess.run, ["rm", "-rf", "--one-file-system", str(home)], check=False)
        closing.callback(lambda: [process.kill() for process in processes_of(home)])
        closing.callback(cluster.close)
        checkpoints, way = home / "checkpoints", home / "way"
        checkpoints.mkdir()
        way.mkdir()
        closing.enter_context(_bound(checkpoints, way))
        cluster.up_for_people()
        line = closing.enter_context(a_line(home, "cut", seed))
        cluster.add_workstation("cut", "none", way, *ANY_ACCOUNT, "--master", f"unix:{line.home}")
        cluster.add_workstation("stays", "none", checkpoints, *ANY_ACCOUNT)
        yield Field(cluster, line, way)


@contextmanager
def _bound(checkpoints: Path, way: Path) -> Iterator[None]:
    """The same directory in another place."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(checkpoints), os.fsencode(way), b"none", _BIND, None):
        raise OSError(ctypes.get_errno(), "cannot mount", str(way))
    try:
        yield
    finally:
        libc.umount2(os.fsencode(way), _DETACH)


def main() -> int:
    """Cut the node off until so many jobs have gone on elsewhere."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.failovers")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with until_interrupted():
        dice = random.Random(options.seed)
        with a_field(options.seed) as field:
            while field.moved < options.runs:
                field.cut(min(AT_ONCE, options.runs - field.moved), dice)
                print(f"{field.moved} of {options.runs} attempts went on elsewhere", flush=True)
                if field.overlaps:
                    break
        figures.at_least("failovers of a node whose checkpoints hang", field.moved, options.runs)
        figures.none("overlapping attempts in them", field.overlaps)
        return 1 if field.overlaps else 0
    return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
