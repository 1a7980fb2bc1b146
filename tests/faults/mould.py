"""Masters without the third of a second that Python spends on imports: each is a fork of one process that did them.

What is forked is as real as what a shell starts: it has its own pid, opens the journal, serves, and is killed. Only
what Python would have read from disk again is shared.

    python -m tests.faults.mould        # used by Mould: "start HOME LOG ARGUMENTS…" and "reap PID" on stdin
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

MODULES = ("ebbtide_cli.main", "ebbtide_cli.verbs.master", "ebbtide_master.main")


class Mould:
    """The process that is forked; a context, at whose end its children are dead."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.mould"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def tell(self, *words: str) -> str:
        """What it answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


class Cast:
    """A master out of a mould, as `Daemon` is one out of a shell."""

    def __init__(self, mould: Mould, home: Path, *arguments: str) -> None:
        self.mould, self.home, self.arguments = mould, home, arguments
        self.log = home / "master.log"
        self.pid = 0

    def start(self) -> None:
        """Start it; it is not ready yet when this returns."""
        self.pid = int(self.mould.tell("start", str(self.home), str(self.log), *self.arguments))

    def runs(self) -> bool:
        """Whether it has not ended: its state is neither zombie nor dead."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        os.kill(self.pid, 9)
        self.mould.tell("reap", str(self.pid))

    def log_end(self, lines: int = 40) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _become(home: str, log: str, arguments: list[str]) -> None:
    """What `ebb` with these arguments is in a shell; does not return."""
    os.setsid()
    for descriptor, path, how in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)):
        opened = os.open(path, how, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(1, 2)
    os.environ |= {"EBB_HOME": home, "EBB_DEBUG": "1"}
    os.chdir(home)
    sys.argv = ["ebb", *arguments]
    sys.exit(importlib.import_module("ebbtide_cli.main").main())


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    children = set[int]()
    for line in sys.stdin:
        match line.rstrip("\n").split("\t"):
            case ["start", home, log, *arguments]:
                pid = os.fork()
                if pid == 0:
                    _become(home, log, arguments)
                children.add(pid)
                print(pid, flush=True)
            case ["reap", pid]:
                os.waitpid(int(pid), 0)
                children.discard(int(pid))
                print("gone", flush=True)
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
