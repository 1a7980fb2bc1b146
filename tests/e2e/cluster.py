"""A real cluster for a test: daemons, sockets, processes; used through the `ebb` command as a person would."""

import contextlib
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e import loaded
from tests.json_schema import check_json
from tests.processes import every_process

EBB = (sys.executable, "-m", "ebbtide_cli.main")
REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
FRONT = "front"
ANY_ACCOUNT = ("--min-uid", "0")
"""Of an agent that runs people's jobs as the account that the tests run as, even if that is root."""


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until ``condition`` is true and return it; fail with ``what`` if it is not in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    pytest.fail(f"not in {seconds:.0f} s: {what}")


class Cluster:
    """One EBB_HOME."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = dict(os.environ) | {"EBB_HOME": str(home), "OMP_NUM_THREADS": "1"}
        self.environment |= {"XDG_CONFIG_HOME": str(home / "config")}
        home.mkdir(mode=0o700, exist_ok=True)
        settings = home / "config" / "ebbtide" / "submit.toml"
        settings.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.write_text('env_pass = ["OMP_NUM_THREADS"]\n')  # jobs do not take each other's cores either
        for name in ("EBB_MASTER", "EBB_TOKEN"):
            self.environment.pop(name, None)
        # What a user's shell has: the interpreter with torch comes first.
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{self.environment['PATH']}"
        self.agents: list[subprocess.Popen[bytes]] = []

    def ebb(self, *arguments: str, code: int | None = 0, seconds: float = 60.0, text: str = "") -> Result:
        """Run `ebb`, with ``text`` as its input; ``code`` is the exit code that it must end with (None: any)."""
        done = loaded.run(arguments, self.environment, REPOSITORY, seconds, text)
        assert code is None or done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        check_json(arguments, done.stdout)
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Run `ebb` beside the test."""
        pipe = subprocess.PIPE
        return subprocess.Popen([*EBB, *arguments], env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def up(self, gpus: str = "4xA100-40GB", *options: str) -> None:
        """Start master and agent."""
        self.ebb("up", "--gpus", gpus, *options)

    def up_for_people(self) -> None:
        """Start the master, beside a node that takes nothing: to be followed by workstations with `ANY_ACCOUNT`."""
        self.up("none", "--node", FRONT)
        self.ebb("node", "drain", FRONT)

    def add_workstation(self, name: str, gpus: str, checkpoint_root: Path | None = None, *options: str) -> None:
        """Start one more agent, as a second machine would, and wait until it is there."""
        self.start_workstation(name, gpus, checkpoint_root, *options)
        wait_for(f"node {name} is up", lambda: name in self.nodes_up())

    def start_workstation(self, name: str, gpus: str, checkpoint_root: Path | None = None, *more: str) -> None:
        """Start one more agent."""
        options = [*(["--checkpoint-root", str(checkpoint_root)] if checkpoint_root else []), *more]
        log = (self.home / f"agent-{name}.log").open("ab")
        command = [*EBB, "agent", "--name", name, "--gpus", gpus, *ANY_ACCOUNT, *options]
        with log:
            agent = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
        self.agents.append(agent)

    def nodes_up(self) -> set[str]:
        """Names of the connected nodes."""
        return {node["name"] for node in self.facts("nodes") if node["state"] == "up"}

    def add_user(self, name: str, role: str = "user") -> None:
        """Somebody else, whose jobs the agent can run: as root as an account that is nobody's, else as its own."""
        own = pwd.getpwuid(os.geteuid()).pw_name
        if not os.geteuid():
            self.home.chmod(0o711)  # their checkpoints are below it
        self.ebb("user", "add", name, "--role", role, "--account", own if os.geteuid() else "nobody")

    def add_person(self, name: str) -> str:
        """Somebody else, whose jobs run as the account that the tests run as; their token."""
        self.ebb("user", "add", name, "--account", pwd.getpwuid(os.geteuid()).pw_name)
        return self.ebb("token", "create", "--user", name).out.strip()

    def facts(self, *arguments: str) -> Any:
        """What `ebb … --json` prints."""
        return json.loads(self.ebb(*arguments, "--json").out)

    def submit(self, *arguments: str) -> str:
        """Submit a job; its id."""
        return self.ebb("submit", *arguments).out.strip()

    def show(self, job: str) -> dict[str, Any]:
        """Everything on one job."""
        shown: dict[str, Any] = self.facts("show", job)
        return shown

    def wait_for_state(self, job: str, *states: str, seconds: float = 60.0) -> dict[str, Any]:
        """Wait until the job is in one of ``states``."""

        def reached() -> dict[str, Any] | None:
            shown = self.show(job)
            return shown if shown["state"] in states else None

        found: dict[str, Any] = wait_for(f"job {job} is {' or '.join(states)}", reached, seconds)
        return found

    def wait_for_step(self, job: str, step: int, seconds: float = 60.0) -> int:
        """Wait until the job reports at least ``step``; the step."""

        def reached() -> int | None:
            progress = self.show(job)["progress"]
            return int(progress["step"]) if progress and progress["step"] and progress["step"] >= step else None

        return int(wait_for(f"job {job} is at step {step}", reached, seconds))

    def log(self, job: str) -> str:
        """All that the job printed, over all attempts."""
        return self.ebb("logs", job).out

    def daemon(self, which: str) -> psutil.Process:
        """The process of the master (``master``), of the dashboard, or of a node's agent (its name)."""
        own = self.home / f"{which}.json"
        path = own if which in ("master", "dashboard") else self.home / "nodes" / which / "agent.json"
        return psutil.Process(json.loads(path.read_text())["pid"])

    def node_name(self) -> str:
        """The node that `ebb up` started."""
        return str(self.facts("nodes")[0]["name"])

    def kill(self, process: psutil.Process) -> None:
        """kill -9, and wait until it is gone."""
        process.send_signal(signal.SIGKILL)
        wait_for("the killed process is gone", lambda: not alive(process))

    def cancel_all(self) -> None:
        """End all jobs, and wait until they have left."""
        if left := [job["id"] for job in self.facts("ls")]:
            self.ebb("cancel", "--now", "--wait", *left)
        wait_for("all GPUs are free", self._is_free)

    def _is_free(self) -> bool:
        return not any(gpu["share_allocated"] for node in self.facts("nodes") for gpu in node["gpus"])

    def close(self) -> None:
        """Stop everything at once; whatever of it is left then is a failure."""
        self.ebb("down", "--now", code=None)
        for agent in self.agents:
            agent.terminate()
            agent.wait(60)
        wait_for("nothing is left running", lambda: not self.leftovers(), 60)

    def leftovers(self) -> list[str]:
        """Processes that belong to this cluster, by their environment."""
        found = []
        for process in processes_of(self.home):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile; a zombie is one, too
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        return found


def alive(process: psutil.Process) -> bool:
    """Whether the process has not ended (a zombie has)."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def processes_of(home: Path) -> Iterator[psutil.Process]:
    """The processes that belong to the cluster of this home, by their environment."""
    for process in every_process():
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            ours = environment.get("EBB_HOME") == str(home) or str(home) in environment.get("EBB_SOCKET", "")
            if ours and process.pid != os.getpid() and alive(process):
                yield process
