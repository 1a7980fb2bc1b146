"""A control group per attempt, where the agent's own group may have others below it.

Found in files of /proc that the test writes; then with real groups, as a process that was given one of its own.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.processes.cgroup import SUPERVISORS, ControlGroup, delegated, own_group
from ebbtide_machine.process import Identity

from tests.agent.supervisor.node import EXITED, python

HYBRID = """\
30 25 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/memory rw,nosuid shared:10 - cgroup cgroup rw,memory
"""
CONTAINER = "40 25 0:26 /docker/c0ffee /sys/fs/cgroup rw - cgroup2 cgroup rw\n"


@pytest.mark.parametrize(
    ("groups", "mounts", "found"),
    [
        ("1:memory:/x\n0::/system.slice/ebb.service\n", HYBRID, "/sys/fs/cgroup/unified/system.slice/ebb.service"),
        ("0::/docker/c0ffee/ebb\n", CONTAINER, "/sys/fs/cgroup/ebb"),
        ("0::/docker/beef\n", CONTAINER, None),
        ("1:memory:/x\n", HYBRID, None),
        ("0::/system.slice\n", "", None),
    ],
    ids=["hybrid", "container", "group that is not mounted", "no v2 group", "no v2 mount"],
)
def test_the_own_group_is_found_where_it_is_mounted(tmp_path: Path, groups: str, mounts: str, found: str | None):
    (tmp_path / "cgroup").write_text(groups)
    (tmp_path / "mountinfo").write_text(mounts)
    assert own_group(tmp_path) == (Path(found) if found else None)


def test_a_kernel_without_control_groups_is_no_error(tmp_path: Path):
    assert own_group(tmp_path) is None


def test_where_no_group_can_be_made_there_is_none(tmp_path: Path):
    assert ControlGroup.create(tmp_path / "missing", "ebb-1.1") is None


ESCAPING = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("up", flush=True)
"""
# Leaves everything behind by which its supervisor's death would not make it unknown: environment, lock, parent.
STRANGER = [
    "sh",
    "-c",
    f"(env -i setsid {sys.executable} -S -c 'import os, time; os.closerange(3, 99); os.fork(); "
    "time.sleep(600)' &); echo up; sleep 600",
]


class TestWithGroups:
    pytestmark = pytest.mark.cgroup

    async def test_a_job_begins_in_a_group_that_is_gone_when_it_is(self, agent, delegation):
        async with agent() as node:
            await node.run(["sh", "-c", "cat /proc/self/cgroup"])
            group = re.search(r"0::(.*)", node.log())[1]
            assert Path(group).parent.name == delegation.name
            assert Path(group).name.endswith("-1.1")
            assert not (delegation / Path(group).name).exists()

    async def test_jobs_may_be_in_another_group_than_the_agent_with_their_supervisors(
        self, agent, delegation, monkeypatch
    ):
        jobs = delegation.parent / f"ebb-test-jobs-{os.getpid()}"
        jobs.mkdir()
        monkeypatch.setenv("EBB_JOBS_CGROUP", str(jobs))
        try:
            async with agent() as node:
                await node.launch(["sh", "-c", "grep ^0:: /proc/$PPID/cgroup /proc/self/cgroup; sleep 600"])
                await node.running(line="self")
                supervisor, job = re.findall(r"0::(.*)", node.log())
                assert Path(supervisor).parent == Path(job).parent
                assert (Path(supervisor).name, Path(job).parent.name) == (SUPERVISORS, jobs.name)
                await node.stop(grace_s=0.0)
        finally:
            delegated.cache_clear()
            ControlGroup(jobs).is_empty_within(10.0)
            ControlGroup(jobs).remove()

    async def test_what_keeps_the_group_of_all_jobs_alive_makes_room_for_their_limits(
        self, agent, delegation, monkeypatch
    ):
        jobs = delegation / "jobs"
        jobs.mkdir()
        monkeypatch.setenv("EBB_JOBS_CGROUP", str(jobs))
        with subprocess.Popen(["sleep", "600"]) as sleeper:
            ControlGroup(jobs).take(sleeper.pid)
            async with agent():
                assert sleeper.pid in ControlGroup(jobs / SUPERVISORS).pids()
                assert (jobs / "cgroup.procs").read_text() == ""
            sleeper.kill()
        assert ControlGroup(jobs).is_empty_within(10.0)
        ControlGroup(jobs).remove()

    async def test_what_escapes_from_its_parents_is_killed_with_the_rest(self, agent, delegation):
        async with agent() as node:
            await node.launch(python(ESCAPING + "time.sleep(600)"))
            await node.running(line="up")
            status = await node.stop(grace_s=0.0)
            assert (status.phase, status.exit.signal) == (EXITED, signal.SIGKILL)
            assert node.jobs() == []

    async def test_a_process_that_joined_the_group_from_outside_holds_up_the_end_until_it_is_dead(
        self, agent, delegation
    ):
        async with agent() as node:
            await node.launch(python("print('up', flush=True); input_ = __import__('time').sleep(600)"))
            await node.running(line="up")
            with subprocess.Popen(["sleep", "600"]) as joined:
                (node.place().cgroup() / "cgroup.procs").write_text(str(joined.pid))
                await node.stop()
                assert joined.wait(10) == -signal.SIGKILL

    async def test_a_killed_supervisor_leaves_nothing_though_nobody_would_know_it(self, agent, delegation):
        async with agent() as node:
            await node.launch(STRANGER)
            await node.running(line="up")
            group = node.place().cgroup()
            await node.until(lambda: len((group / "cgroup.procs").read_text().split()) == 4)
            members = [Identity.of(int(pid)) for pid in (group / "cgroup.procs").read_text().split()]
            node.supervisor().signal(signal.SIGKILL)
            status = await node.end()
            assert status.lost
            assert not any(member.is_alive() for member in members)
            assert not group.exists()

    async def test_groups_that_the_job_made_below_its_own_are_removed(self, agent, delegation):
        make = 'cd "$1$(sed -n s/^0:://p /proc/self/cgroup)" && mkdir -p a/b && echo made'
        mount = str(delegation).removesuffix(_path_of_this_process())
        async with agent() as node:
            await node.run(["sh", "-c", make, "sh", mount])
            assert node.log() == "made\n"

    async def test_a_fork_bomb_is_killed(self, agent, delegation):
        # Thirty-one that are another process every few milliseconds; not more, lest there is no time left to end them.
        bomb = "import os, time\nprint('up', flush=True)\nleader, end = os.getpid(), time.monotonic() + 20\n"
        bomb += "for _ in range(5): os.fork()\n"
        bomb += "while time.monotonic() < end:\n    time.sleep(0.005)\n"
        bomb += "    if os.getpid() != leader and os.fork(): os._exit(0)\n"
        async with agent() as node:
            await node.launch(python(bomb))
            await node.running(line="up")
            assert (await node.stop(grace_s=0.0)).phase == EXITED
            assert node.jobs() == []


def _path_of_this_process() -> str:
    return re.search(r"0::(.*)", Path("/proc/self/cgroup").read_text())[1]


def test_the_attempts_directory_says_which_group_it_has(tmp_path: Path):
    place = AttemptDir(tmp_path)
    assert place.cgroup() is None
    place.record_cgroup(Path("/sys/fs/cgroup/x/ebb-1.1"))
    assert place.cgroup() == Path("/sys/fs/cgroup/x/ebb-1.1")
