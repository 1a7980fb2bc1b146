"""From the version before to this one and back, while jobs run: both are started from the code of their time."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from ebbtide.version import VERSION
from ebbtide_protos.protocol import PROTOCOL

from tests.e2e.cluster import ANY_ACCOUNT, EBB, REPOSITORY, Cluster, alive, wait_for

pytestmark = [pytest.mark.history, pytest.mark.slow]

WITHOUT_TOKENS = "94d509c"
"""The last version in which nobody had to prove who they are, and whose journal held the environments of jobs."""
BEFORE = "before"
"""This code as the version of the protocol before it: of the real ones of that version none speaks with tokens yet."""
FOLDERS = ("core", "machine", "protos", "master", "agent", "simulator", "client", "sdk")
JOB = "trap 'exit 85' TERM; echo $$ > {name}.pid; until [ -e {name}.end ]; do sleep 0.05; done; exit 7"
NODE = "n1"


def check_out(code: Path, commit: str) -> None:
    code.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=REPOSITORY, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=code, input=archive.stdout, check=True)


def lay_before(code: Path) -> None:
    for folder in FOLDERS:
        shutil.copytree(REPOSITORY / folder, code / folder, ignore=shutil.ignore_patterns("__pycache__"))
    numbered = code / "protos/ebbtide_protos/protocol.py"
    now, before = f"PROTOCOL: Final = {PROTOCOL}", f"PROTOCOL: Final = {PROTOCOL - 1}"
    text = numbered.read_text()
    assert text.count(now) == 1
    numbered.write_text(text.replace(now, before))


class Upgrade:
    """A cluster of which each part may be of another version."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @contextmanager
    def version(self, name: str) -> Iterator[None]:
        """What is started in the block is of this version: `BEFORE`, or a commit."""
        code = self.folder / name
        if not code.exists():
            if name == BEFORE:
                lay_before(code)
            else:
                check_out(code, name)
        self.cluster.environment["PYTHONPATH"] = ":".join(str(code / name) for name in FOLDERS)
        command = [sys.executable, "-c", "import ebbtide_agent, ebbtide_master.main as m; print(m.__file__)"]
        used = subprocess.run(command, env=self.cluster.environment, capture_output=True, text=True, check=True)
        assert used.stdout.startswith(str(code))
        yield
        del self.cluster.environment["PYTHONPATH"]

    def start(self, part: str) -> None:
        """Start the master or the agent, of which none runs."""
        words = ["master"] if part == "master" else ["agent", "--name", NODE, "--gpus", "2xT4"]
        if part == "agent" and WITHOUT_TOKENS not in self.cluster.environment.get("PYTHONPATH", ""):
            words += ANY_ACCOUNT
        with (self.cluster.home / f"{part}.out").open("ab") as out:
            self._running[part] = subprocess.Popen([*EBB, *words], env=self.cluster.environment, stdout=out, stderr=out)
        record = self.cluster.home / ("master.json" if part == "master" else f"nodes/{NODE}/agent.json")
        wait_for(f"the {part} serves", record.exists)

    def stop(self, part: str) -> None:
        self._running[part].send_signal(signal.SIGTERM)
        assert self._running.pop(part).wait(30) == 0, self.said(part)

    def said(self, part: str) -> str:
        return (self.cluster.home / f"{part}.out").read_text()

    def submit(self, name: str) -> str:
        return self.cluster.submit("--workdir", str(self.folder), "--", "sh", "-c", JOB.format(name=name))

    def process(self, name: str) -> psutil.Process:
        """The job's, once it runs."""
        written = self.folder / f"{name}.pid"
        return psutil.Process(int(wait_for(f"{name} runs", lambda: written.exists() and written.read_text())))

    def end(self, name: str) -> None:
        (self.folder / f"{name}.end").touch()

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait(30)


@pytest.fixture
def upgrade(idle_cluster: Cluster, tmp_path: Path) -> Iterator[Upgrade]:
    upgrade = Upgrade(idle_cluster, tmp_path)
    yield upgrade
    upgrade.close()
    idle_cluster.environment.pop("PYTHONPATH", None)
    idle_cluster.up("2xT4", "--node", NODE)  # so that what is left can be ended


def test_jobs_run_on_from_a_version_whose_agents_have_no_token(upgrade: Upgrade) -> None:
    """Master first, then the agents, which can say nothing to it in between: no job notices either."""
    cluster = upgrade.cluster
    with upgrade.version(WITHOUT_TOKENS):
        upgrade.start("master")
        upgrade.start("agent")
        staying, ending = upgrade.submit("staying"), upgrade.submit("ending")
        process, other = upgrade.process("staying"), upgrade.process("ending")
    upgrade.stop("master")
    upgrade.start("master")
    assert cluster.show(staying)["attempt"] == 1
    upgrade.end("ending")
    wait_for("it has ended", lambda: not alive(other))
    upgrade.stop("agent")
    upgrade.start("agent")
    ended = cluster.wait_for_state(ending, "FAILED")
    assert (ended["exit_code"], ended["attempt"], ended["restarts"]) == (7, 1, 0)
    assert cluster.wait_for_state(staying, "RUNNING")["attempt"] == 1
    assert alive(process)

    cluster.ebb("suspend", staying, "--wait")
    assert not alive(process)
    cluster.ebb("resume", staying)
    assert cluster.wait_for_state(staying, "RUNNING")["attempt"] == 2
    upgrade.end("staying")
    assert cluster.wait_for_state(staying, "FAILED")["exit_code"] == 7


def test_an_agent_of_the_protocol_before_works_under_this_master_and_one_may_go_back_to_it(upgrade: Upgrade) -> None:
    cluster = upgrade.cluster
    with upgrade.version(BEFORE):
        upgrade.start("master")
        upgrade.start("agent")
        first = upgrade.submit("first")
        process = upgrade.process("first")
    upgrade.stop("master")
    upgrade.start("master")
    assert cluster.wait_for_state(first, "RUNNING")["attempt"] == 1
    second = upgrade.submit("second")
    cluster.wait_for_state(second, "RUNNING")
    cluster.ebb("suspend", second, "--wait")
    cluster.ebb("resume", second)
    assert cluster.wait_for_state(second, "RUNNING")["attempt"] == 2

    upgrade.stop("agent")
    upgrade.start("agent")
    cluster.ebb("suspend", second, "--wait")
    cluster.ebb("resume", second)
    assert cluster.wait_for_state(second, "RUNNING")["attempt"] == 3
    cluster.ebb("node", "drain", NODE, "--now", "--wait")  # what is promised of the way back
    assert not alive(process)
    upgrade.stop("agent")
    with upgrade.version(BEFORE):
        upgrade.start("agent")
    cluster.ebb("node", "resume", NODE)
    for name, job, attempt in (("first", first, 2), ("second", second, 4)):
        assert cluster.wait_for_state(job, "RUNNING")["attempt"] == attempt
        upgrade.end(name)
        assert cluster.wait_for_state(job, "FAILED")["exit_code"] == 7


TRAINS = """
import os, sys, time
import ebbtide
job = ebbtide.job()
state = job.load_checkpoint()
step = state.step if state else 0
open(f"attempt-{job.attempt}", "w").write(f"{os.getpid()} {step} {ebbtide.__version__}")
while True:
    step += 1
    job.report(step=step)
    if job.should_suspend():
        job.suspend(lambda folder: (folder / "state").write_text("x"), step)
    time.sleep(0.01)
"""


@pytest.mark.timeout(300)
def test_a_job_with_a_newer_sdk_is_suspended_and_resumed_by_an_older_node(upgrade: Upgrade) -> None:
    """That node knows of no versions, and of no other request to leave than the signal."""
    cluster, folder = upgrade.cluster, upgrade.folder

    def told(attempt: int) -> list[str]:
        written = folder / f"attempt-{attempt}"
        return wait_for(f"attempt {attempt} runs", lambda: written.exists() and written.read_text()).split()

    with upgrade.version(WITHOUT_TOKENS):
        upgrade.start("master")
        upgrade.start("agent")
        environment = ["--env", f"PYTHONPATH={REPOSITORY / 'sdk'}"]
        job = cluster.submit("--workdir", str(folder), *environment, "--", sys.executable, "-c", TRAINS)
        pid, step, version = told(1)
        assert (step, version) == ("0", VERSION)
        process = psutil.Process(int(pid))
        cluster.ebb("suspend", job)
        wait_for("it has left", lambda: not alive(process))
        cluster.ebb("resume", job)
        pid, step, version = told(2)
        assert int(step) > 0
        cluster.ebb("cancel", job)
        wait_for("it has ended", lambda: not psutil.pid_exists(int(pid)))
