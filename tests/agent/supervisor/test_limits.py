"""A job gets no more than it asked for: the kernel sees to it where groups can be limited, and a watch elsewhere."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.processes import procfs
from ebbtide_agent.processes.cgroup import SUPERVISORS, ControlGroup
from ebbtide_agent.supervisor import limits
from ebbtide_agent.supervisor.limits import MemoryWatch

from tests.agent.supervisor.node import EXITED, order, python

MIB = 1 << 20
TOO_MUCH = "it used more than its --mem 64 MiB"
TAKE = "import sys, time\nkept = b'x' * (int(sys.argv[1]) << 20)\nprint('has it', flush=True)\ntime.sleep(600)\n"
# Two that have little enough each.
SHARE_OUT = "import os\nif os.fork(): kept = b'x' * (24 << 20)\n" + TAKE
# What several have because one of them had it before is there once.
INHERIT = """
import os, sys, time
kept = b'x' * (48 << 20)
for _ in range(3):
    if os.fork() == 0: time.sleep(600)
print('up', flush=True)
time.sleep(600)
"""
SAVE_TOO_MUCH = """
import signal, sys, time
def save(*_):
    kept = b'x' * (256 << 20)
    time.sleep(600)
signal.signal(signal.SIGTERM, save)
print('up', flush=True)
while True: time.sleep(0.1)
"""


class TestWatched:
    """Where no control group can be limited, which is so in every test that makes none."""

    @pytest.mark.parametrize("code", [TAKE, SHARE_OUT], ids=["one process", "all together"])
    async def test_who_has_more_memory_than_it_asked_for_is_ended_and_told_so(self, agent, code):
        async with agent() as node:
            status = await node.run(python(code, "48" if code == SHARE_OUT else "128"), mem_bytes=64 * MIB)
            assert (status.phase, status.exit.signal, status.exit.stop_requested) == (EXITED, signal.SIGKILL, False)
            assert status.exit.memory_failure == TOO_MUCH
            assert node.jobs() == []

    async def test_a_save_that_takes_too_much_is_no_end_of_the_grace_period(self, agent):
        async with agent() as node:
            await node.launch(python(SAVE_TOO_MUCH), mem_bytes=64 * MIB)
            await node.running(line="up")
            status = await node.stop()
            assert (status.exit.stop_requested, status.exit.killed) == (True, False)
            assert status.exit.memory_failure == TOO_MUCH

    async def test_who_asked_for_none_may_have_what_there_is(self, agent):
        async with agent() as node:
            status = await node.run(python("kept = b'x' * (128 << 20)"))
            assert (status.exit.signal, status.exit.memory_failure) == (0, "")

    @pytest.mark.cgroup
    async def test_a_group_without_limits_says_who_belongs_to_the_attempt(self, agent, delegation, monkeypatch):
        monkeypatch.setattr(
            ControlGroup, "limit_memory", lambda *_: False
        )  # before the spawner is forked, which inherits it
        async with agent() as node:
            status = await node.run(python(TAKE, "128"), mem_bytes=64 * MIB)
            assert status.exit.memory_failure == TOO_MUCH


def intent(mem_bytes: int, **more: object) -> Intent:
    content = order([], mem_bytes=mem_bytes)
    fixed = dict.fromkeys(("cluster_id", "workdir", "signal", "master_addr", "node_dir", "fake_gpu_dir"), "")
    numbers = dict.fromkeys(("gpu_mem_bytes", "cpus", "grace_s", "node_rank", "num_nodes", "world_size"), 0)
    rest = {"job_id": "1", "attempt": 1, "command": (), "env": {}, "gpus": (), "job_checkpoint_dir": ""}
    flags = {"signal_target": "auto", "ddp": False, "needs_checkpoint": False}
    return Intent.from_json({**fixed, **numbers, **rest, **flags, "mem_bytes": content.spec.mem_bytes, **more})


class TestWatch:
    """Without an attempt around it."""

    def test_pages_that_processes_share_count_once(self):
        with _running(INHERIT) as process:
            pids = [process.pid, *procfs.children(process.pid)]
            assert sum(map(procfs.memory_bytes, pids)) > 4 * 48 * MIB
            assert 48 * MIB < limits.total_memory_bytes(pids) < 96 * MIB
            assert not _watch(128 * MIB, pids)
            assert _watch(40 * MIB, pids)

    def test_what_is_only_mapped_of_a_file_does_not_count(self, tmp_path: Path):
        data = tmp_path / "data"
        data.write_bytes(bytes(128 * MIB))
        code = (
            "import mmap, os, sys, time\nwhole = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ)\n"
        )
        code += "print(sum(whole[i] for i in range(0, len(whole), 4096)), flush=True)\ntime.sleep(600)\n"
        with _running(code, str(data)) as process:
            assert procfs.memory_bytes(process.pid) < 64 * MIB
            assert limits.total_memory_bytes([process.pid]) < 64 * MIB

    def test_memory_that_is_shared_without_a_file_counts(self):
        code = "import mmap, time\nwhole = mmap.mmap(-1, 64 << 20)\nwhole[:] = b'x' * (64 << 20)\n"
        with _running(code + "print('up', flush=True)\ntime.sleep(600)\n") as process:
            assert limits.total_memory_bytes([process.pid]) >= 64 * MIB

    def test_of_who_is_gone_nothing_counts(self):
        with subprocess.Popen(["true"]) as process:
            process.wait(10)
        assert (procfs.memory_bytes(process.pid), procfs.proportional_bytes(process.pid)) == (0, 0)

    def test_nobody_is_woken_for_who_did_not_ask_or_whom_the_kernel_limits(self):
        with selectors.DefaultSelector() as selector:
            assert limits.enforce(intent(0), None)
            assert not limits.enforce(intent(64 * MIB), None)
            assert MemoryWatch(intent(0), True, selector, list).next_at == float("inf")

    def test_who_takes_long_to_look_at_is_looked_at_less_often(self):
        with selectors.DefaultSelector() as selector:
            watch = MemoryWatch(intent(64 * MIB), False, selector, lambda: time.sleep(0.1) or [])
            began = time.monotonic()
            assert not watch.finds_too_much(watch.next_at)
            assert watch.next_at - began > 4.0

    def test_what_is_moved_out_of_a_gpu_is_no_part_of_what_it_asked_for(self):
        gpu = {"uuid": "GPU-0", "numerator": 1, "denominator": 1, "mem_bytes": 8 * MIB}
        assert limits.allowed_bytes(intent(64 * MIB, gpus=[gpu])) == 64 * MIB
        assert limits.allowed_bytes(intent(64 * MIB, gpus=[gpu], swaps=True)) == 72 * MIB

    @pytest.mark.parametrize(
        ("mem_bytes", "words"), [(4 << 30, "4 GiB"), (3 << 29, "1.5 GiB"), (512 * MIB, "512 MiB"), (10**9, "953.7 MiB")]
    )
    def test_it_is_told_in_the_units_of_the_request(self, mem_bytes: int, words: str):
        assert limits.failure(intent(mem_bytes)) == f"it used more than its --mem {words}"


class TestKernel:
    """What a group's files say, without a kernel that writes them."""

    @pytest.mark.parametrize(
        ("killed", "own", "below", "words"),
        [
            (2, 5, 5, "it used more than its --mem 64 MiB"),
            (1, 0, 0, "the node ran out of memory, and the kernel killed a process of it"),
            (1, 0, 3, ""),
            (0, 4, 4, ""),
        ],
        ids=["over its limit", "the node's fault", "over a limit of its own making", "nobody was killed"],
    )
    def test_who_was_killed_for_what(self, tmp_path: Path, killed: int, own: int, below: int, words: str):
        (tmp_path / "memory.events").write_text(f"low 0\nmax 9\noom {below}\noom_kill {killed}\n")
        (tmp_path / "memory.events.local").write_text(f"low 0\nmax 9\noom {own}\noom_kill {killed}\n")
        assert limits.kernel_failure(intent(64 * MIB), ControlGroup(tmp_path)) == words

    def test_a_group_without_limits_says_nothing(self, tmp_path: Path):
        assert limits.kernel_failure(intent(64 * MIB), ControlGroup(tmp_path)) == ""
        assert limits.kernel_failure(intent(64 * MIB), None) == ""

    def test_cpus_are_a_cap_and_a_weight(self, tmp_path: Path):
        for name in ("cpu.max", "cpu.weight"):
            (tmp_path / name).touch()
        assert ControlGroup(tmp_path).limit_cpus(2.5)
        assert [(tmp_path / name).read_text() for name in ("cpu.max", "cpu.weight")] == ["250000 100000", "250"]
        assert ControlGroup(tmp_path).limit_cpus(0.001)
        assert [(tmp_path / name).read_text() for name in ("cpu.max", "cpu.weight")] == ["1000 100000", "1"]
        assert ControlGroup(tmp_path).limit_cpus(512.0)
        assert [(tmp_path / name).read_text() for name in ("cpu.max", "cpu.weight")] == ["51200000 100000", "10000"]

    def test_a_group_that_cannot_be_limited_is_watched(self, tmp_path: Path):
        assert not limits.enforce(intent(64 * MIB, cpus=2.0), ControlGroup(tmp_path / "none"))


@pytest.mark.cgroup
def test_a_service_that_systemd_starts_in_the_group_itself_stays_there(delegation: Path):
    """Or it could not be started again while its jobs run."""
    service = delegation / "ebb.service"
    service.mkdir()
    code = "import os, sys\nsys.path += sys.argv[2:]\nopen(sys.argv[1], 'w').write('0')\n"
    code += "from ebbtide_agent.processes.cgroup import divide\ndivide(os.getpid())\n"
    code += "print(open('/proc/self/cgroup').read())\n"
    command = [sys.executable, "-S", "-c", code, str(service / "cgroup.procs"), *sys.path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "/ebb.service\n" in done.stdout
    assert [path for path in service.iterdir() if path.is_dir()] == []
    service.rmdir()


class TestEnforced:
    pytestmark = pytest.mark.controllers

    async def test_who_uses_more_memory_than_it_asked_for_is_killed_whole_and_told_so(self, agent, delegation):
        code = "import os\nif os.fork() == 0:\n    __import__('time').sleep(600)\n" + TAKE
        async with agent() as node:
            status = await node.run(python(code, "256"), mem_bytes=64 * MIB)
            assert (status.phase, status.exit.signal, status.exit.stop_requested) == (EXITED, signal.SIGKILL, False)
            assert (status.exit.memory_failure, status.lost) == (TOO_MUCH, False)
            assert (node.jobs(), "has it" in node.log()) == ([], False)

    async def test_supervisors_are_neither_counted_nor_killed_with_their_jobs(self, agent, delegation):
        async with agent() as node:
            await node.launch(python(TAKE, "16"), mem_bytes=64 * MIB, cpus=0.5)
            await node.running(line="has it")
            group, watching = ControlGroup(node.place().cgroup()), ControlGroup(delegation / SUPERVISORS)
            assert {node.supervisor().pid, os.getpid()} <= set(watching.pids())
            assert group.pids() == [node.status().pid]
            found = {name: (group.path / name).read_text().strip() for name in ("cpu.max", "memory.max", "cpu.weight")}
            assert found == {"cpu.max": "50000 100000", "memory.max": str(64 * MIB), "cpu.weight": "50"}
            assert (limits.cpus_are(), limits.memory_is()) == ("enforced", "enforced")

    async def test_who_did_not_ask_is_not_limited(self, agent, delegation):
        show = 'cd "$1$(sed -n s/^0:://p /proc/self/cgroup)" && cat cpu.max memory.max memory.oom.group'
        async with agent() as node:
            await node.run(["sh", "-c", show, "sh", str(_mount())])
            assert node.log() == "max 100000\nmax\n0\n"

    async def test_nobody_computes_on_more_cpus_than_it_asked_for(self, agent, delegation):
        busy = "import time\nbegan = time.monotonic()\nwhile time.process_time() < 0.5: pass\n"
        async with agent() as node:
            await node.run(python(busy + "print(time.monotonic() - began)"), cpus=0.25)
            assert float(node.log()) > 1.5

    async def test_an_agent_that_starts_again_limits_jobs_as_the_one_before(self, agent, delegation):
        async with agent(leave=True) as node:
            await node.launch(python(TAKE, "16"), mem_bytes=64 * MIB)
            await node.running(line="has it")
        async with agent() as node:
            status = await node.run(python(TAKE, "256"), mem_bytes=64 * MIB, job_id="2")
            assert status.exit.memory_failure == TOO_MUCH
            assert (await node.stop(0.0)).exit.memory_failure == ""

    async def test_what_a_job_limits_by_itself_is_its_own_business(self, agent, delegation):
        make = 'cd "$1$(sed -n s/^0:://p /proc/self/cgroup)" && mkdir one two && echo $$ > one/cgroup.procs'
        make += " && echo +memory > cgroup.subtree_control && echo 33554432 > two/memory.max"
        eat = "b = bytes(1) * (200 << 20)"
        run = f' && (sh -c \'echo $$ > two/cgroup.procs; exec "$0" -S -c "{eat}"\' "$2"; echo $?)'
        async with agent() as node:
            status = await node.run(["sh", "-c", make + run, "sh", str(_mount()), sys.executable], mem_bytes=1024 * MIB)
            assert "137" in node.log()
            assert (status.exit.exit_code, status.exit.memory_failure) == (0, "")

    def test_who_else_lives_in_the_group_keeps_it_from_being_limited(self, delegation):
        with subprocess.Popen(["sleep", "600"]) as sleeper:
            stranger = delegation / "stranger"
            stranger.mkdir()
            child = os.fork()
            if child == 0:
                (stranger / "cgroup.procs").write_text("0")
                code = "import os, sys\nsys.path += sys.argv[1:]\n"
                code += "from ebbtide_agent.processes.cgroup import divide, limited\ndivide(os.getpid())\n"
                code += "sys.exit(1 if limited() else 0)\n"
                ControlGroup(stranger).take(sleeper.pid)
                os.execv(sys.executable, [sys.executable, "-S", "-c", code, *sys.path])
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert (stranger / "cgroup.procs").read_text().split() == [str(sleeper.pid)]
            sleeper.kill()
        ControlGroup(stranger).is_empty_within(10.0)
        ControlGroup(stranger).remove()


def _mount() -> Path:
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line]
    return Path(mounts[0][4])


def _watch(allowed_bytes: int, pids: list[int]) -> bool:
    """What a watch finds at its first look, with the weighing that may follow."""
    with selectors.DefaultSelector() as selector:
        watch = MemoryWatch(intent(allowed_bytes), False, selector, lambda: pids)
        found = watch.finds_too_much(watch.next_at)
        while not found and selector.get_map():
            selector.select(max(0.0, watch.next_at - time.monotonic()))
            found = watch.finds_too_much(time.monotonic())
        watch.close()
        return found


@contextmanager
def _running(code: str, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """A process of this code that has printed its first line, and all that it started; they are killed in the end."""
    command = python(code, *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout.readline()
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
