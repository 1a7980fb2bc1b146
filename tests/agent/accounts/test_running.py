"""Jobs as who submitted them, under an agent that runs as root."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from ebbtide_agent.accounts.accounts import MIN_UID, Account
from ebbtide_agent.contract.attempt_dir import socket_dirs
from ebbtide_protos.v1 import agent_pb2, channel_pb2, job_pb2

from tests.agent.channels.end import End
from tests.agent.supervisor.conftest import MakeNode
from tests.agent.supervisor.node import EXITED, FREED, REFUSED, Node, order, python

pytestmark = pytest.mark.root

TELL = """
import json, os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
open_ones = [n for n in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{n}")]
links = {n: os.readlink(f"/proc/self/fd/{n}") for n in open_ones}
facts = {name: status[name] for name in ("Uid", "Gid", "Umask", "NoNewPrivs", "CapEff", "CapPrm")}
print(json.dumps(facts | {"groups": sorted(os.getgroups()), "cwd": os.getcwd(), "env": dict(os.environ), "fds": links}))
"""
SAVE = """
import os, signal, time
folder = os.environ["EBB_CHECKPOINT_DIR"]
def save(*_):
    open(f"{folder}/model.pt", "w").write("weights"); os._exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


async def run(node: Node, account: str, code: str, uid: int | None = None, **spec: object) -> agent_pb2.AttemptStatus:
    launch = order(python(code), **spec)
    launch.account = account
    if uid is not None:
        launch.uid = uid
    await node.attempts.launch(launch)
    return await node.end(launch.job_id, launch.attempt)


async def test_a_job_runs_as_its_account_with_nothing_of_roots(agent: MakeNode, own: Path, somebody: Account) -> None:
    async with agent() as node:
        env = {"A": "b", "HOME": "/root", "USER": "root"}
        status = await run(node, "nobody", TELL, somebody.uid, workdir=str(own), env=env)
        assert (status.phase, status.exit.exit_code) == (EXITED, 0), (status, node.log())
        told = json.loads(node.log())
        assert told["Uid"].split() == [str(somebody.uid)] * 4
        assert told["Gid"].split() == [str(somebody.gid)] * 4
        assert told["groups"] == sorted(somebody.groups)
        assert (told["Umask"], told["NoNewPrivs"]) == ("0077", "1")
        assert (int(told["CapEff"], 16), int(told["CapPrm"], 16)) == (0, 0)
        assert told["cwd"] == str(own)
        assert {name: told["env"][name] for name in ("A", "HOME", "USER", "LOGNAME")} == {
            "A": "b", "HOME": somebody.home, "USER": "nobody", "LOGNAME": "nobody",
        }  # fmt: skip
        lock = str(node.dir / "locks" / "1.lock")
        listed = [name for name, path in told["fds"].items() if path.endswith("/fd")]
        assert sorted(path for name, path in told["fds"].items() if name not in listed) == sorted(
            ["/dev/null", str(node.place().output), str(node.place().output), lock]
        )


async def test_it_may_open_its_own_input_anew(agent: MakeNode, somebody: Account) -> None:
    """As a shell script does that reads /dev/stdin."""
    async with agent() as node:
        launch = order(python("print(open('/dev/stdin').read())"), stdin=True)
        launch.account = "nobody"
        await node.attempts.launch(launch)
        await node.running()
        end = End(node)
        await end.feed(end.open(input=channel_pb2.FeedInput()), b"given")
        status = await node.end()
        assert (status.exit.exit_code, node.log()) == (0, "given\n")


async def test_a_command_inside_it_may_open_its_own_streams_anew(agent: MakeNode, somebody: Account) -> None:
    async with agent() as node:
        launch = order(["/bin/sh", "-c", "echo up; sleep 60"])
        launch.account = "nobody"
        await node.attempts.launch(launch)
        await node.running(line="up\n")
        end = End(node)
        channel = end.run("sh", "-c", "read word < /dev/stdin; echo $word > /dev/stdout; echo $word > /dev/stderr")
        await end.feed(channel, b"given\n")
        await end.end(channel)
        assert (end.out(channel), end.errors(channel)) == (b"given\n", b"given\n")


async def test_it_may_read_the_sdk_that_it_is_offered(agent: MakeNode, somebody: Account) -> None:
    """In a Python in which nothing of ours is installed: without site-packages."""
    async with agent() as node:
        launch = order([sys.executable, "-S", "-c", "import ebbtide; print(ebbtide.job().should_suspend())"])
        launch.account = "nobody"
        await node.attempts.launch(launch)
        status = await node.end()
        assert (status.exit.exit_code, node.log()) == (0, "False\n")


async def test_it_reports_and_saves_and_goes_on_from_its_checkpoint(agent: MakeNode, somebody: Account) -> None:
    async with agent() as node:
        launch = order(python(SAVE))
        launch.account = "nobody"
        await node.attempts.launch(launch)
        await node.running(line="ready\n")
        status = await node.stop()
        assert status.exit.checkpointed == job_pb2.CHECKPOINTED_YES
        sealed = Path(status.checkpoint.path)
        assert {path.stat().st_uid for path in (sealed, *sealed.iterdir())} == {somebody.uid}
        code = "import os; print(open(os.environ['EBB_RESUME_DIR'] + '/model.pt').read())"
        await run(node, "nobody", code, attempt=2, needs_checkpoint=True)
        assert node.log(attempt=2) == "weights\n"


async def test_the_sdk_reaches_the_supervisor_and_nobody_else_does(agent: MakeNode, somebody: Account) -> None:
    async with agent() as node:
        code = """
import os, stat, sys
sys.path.append(sys.argv[1])
import ebbtide
job = ebbtide.job()
job.report(step=7)
facts = os.stat(os.environ["EBB_SOCKET"])
print(facts.st_uid, oct(stat.S_IMODE(facts.st_mode)))
"""
        sdk = str(Path(__file__).resolve().parents[3] / "sdk")
        launch = order([sys.executable, "-S", "-c", code, sdk], env={"PATH": os.environ["PATH"]})
        launch.account = "nobody"
        await node.attempts.launch(launch)
        status = await node.end()
        assert node.log() == f"{somebody.uid} 0o600\n"
        assert status.progress.step == 7


async def test_what_it_prints_can_be_opened_anew_by_it_and_its_log_is_not_elsewhere(agent: MakeNode, own: Path) -> None:
    async with agent() as node:
        status = await run(
            node, "nobody", "open('/dev/stdout', 'a').write('again')", output=str(own / "deep" / "out.txt")
        )
        assert (status.exit.exit_code, node.log()) == (0, "again")
        written = own / "deep" / "out.txt"
        assert (written.read_text(), written.stat().st_uid) == ("again", own.stat().st_uid)


async def test_a_script_that_is_part_of_a_job_is_run(agent: MakeNode) -> None:
    async with agent() as node:
        launch = order(["script.sh", "x"], script="#!/bin/sh\nid -un; echo $1\n", env={"PATH": os.environ["PATH"]})
        launch.account = "nobody"
        await node.attempts.launch(launch)
        await node.end()
        assert node.log() == "nobody\nx\n"


async def test_what_roots_rights_would_open_is_refused(agent: MakeNode, secret: Path) -> None:
    async with agent() as node:
        cases = {
            "1": {"output": str(secret / "out.txt")},
            "2": {"workdir": str(secret)},
            "3": {"python_env": str(secret)},
        }
        for job, spec in cases.items():
            status = await run(node, "nobody", "print('ran')", job_id=job, **spec)
            assert (status.phase, node.log(job)) == (REFUSED, ""), (spec, status)
            assert str(secret) in status.refusal
        assert sorted(path.name for path in secret.iterdir()) == ["key"]


@pytest.mark.parametrize(
    ("account", "uid", "words"),
    [
        ("nobody", 4711, "account nobody has uid 65534 here, and 4711 as the master knows it"),
        ("no-such-account", None, "there is no account 'no-such-account' here"),
        ("daemon", None, "account daemon has uid 1: below 1000 no jobs run here (ebb agent --min-uid)"),
        ("root", None, "account root has uid 0: below 1000 no jobs run here (ebb agent --min-uid)"),
        ("", None, "the job would run as root, as which none does here (ebb agent --min-uid 0)"),
    ],
)
async def test_who_may_not_run_here_is_refused_with_the_reason(
    agent: MakeNode, account: str, uid: int | None, words: str
) -> None:
    async with agent(min_uid=MIN_UID) as node:
        launch = order(python("print('ran')"))
        launch.account = account
        if uid is not None:
            launch.uid = uid
        await node.attempts.launch(launch)
        refused = node.changes[-1]
        assert (refused.refusal_cause, refused.refusal) == (agent_pb2.REFUSAL_CAUSE_NO_ACCOUNT, words)
        assert not node.place().path.exists()


async def test_links_in_the_place_of_its_directories_lead_root_nowhere(
    agent: MakeNode, secret: Path, own: Path
) -> None:
    async with agent() as node:
        code = f"""
import os, shutil
folder = os.environ["EBB_CHECKPOINT_DIR"]
shutil.rmtree(folder); os.symlink({str(secret)!r}, folder)
"""
        status = await run(node, "nobody", code)
        assert (status.phase, status.exit.exit_code) == (EXITED, 0)
        assert sorted(path.name for path in secret.iterdir()) == ["key"]
        status = await run(node, "nobody", "print(1)", attempt=2)
        assert status.phase == EXITED
        assert sorted(path.name for path in secret.iterdir()) == ["key"]


async def test_a_directory_that_somebody_else_has_put_there_is_not_used(agent: MakeNode) -> None:
    async with agent() as node:
        (node.checkpoints / "1").mkdir(parents=True)
        for folder in (node.checkpoints.parent, node.checkpoints):
            folder.chmod(0o711)
        status = await run(node, "nobody", "print(1)")
        assert (status.phase, "is not a directory of nobody" in status.refusal) == (REFUSED, True)


async def test_what_is_left_when_its_supervisor_is_killed_is_found_and_ended(
    agent: MakeNode, somebody: Account
) -> None:
    async with agent() as node:
        launch = order(python("import time; print('ready', flush=True); time.sleep(60)"))
        launch.account = "nobody"
        await node.attempts.launch(launch)
        await node.running(line="ready\n")
        [job] = node.jobs()
        node.supervisor().signal(signal.SIGKILL)
        status = await node.end()
        assert status.lost
        assert not job.is_alive()


async def test_forgotten_nothing_but_its_log_is_left(agent: MakeNode) -> None:
    async with agent() as node:
        await run(node, "nobody", "print(1)", env={"KEY": "canary"})
        socket_dir = node.place().socket_dir
        assert socket_dir.is_dir()
        await node.prove_free()
        assert node.status().phase == FREED
        await node.attempts.forget("1", 1)
        assert sorted(path.name for path in node.place().path.iterdir()) == ["forgotten", "output.log"]
        assert list(socket_dirs(node.dir.resolve()).iterdir()) == []
