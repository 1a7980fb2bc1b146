"""A command is run for each process that is nobody's job, once, and cannot get in the way."""

import asyncio
import json
import os
import pwd
import sys

import pytest
from ebbtide_agent.gpu.backend import GpuProcess, GpuReading
from ebbtide_agent.gpu_use.attribution import Attribution
from ebbtide_agent.gpu_use.foreign_processes import AT_ONCE, ForeignProcessNotifier, parse_command
from ebbtide_agent.processes.procfs import ProcessStat

GIB = 1 << 30
ME = os.getpid()
ANYBODY = Attribution(dict).is_foreign
ALIVE = ProcessStat(7, 1, 1, "python", True, 0.0)
WRITE = (
    "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1] + '/' + os.environ['EBB_FOREIGN_PID'], 'w'))"
)


def look(notifier, readings, owners=None):
    """Twice: what is there for one reading only is told of by nobody."""
    for _ in range(2):
        notifier.look(readings, owners or {})


def seen(*pids, uuid="GPU-0", mem_bytes=GIB):
    return {uuid: GpuReading(uuid, processes=tuple(GpuProcess(pid, mem_bytes) for pid in pids))}


async def done(notifier):
    async with asyncio.timeout(30):
        while notifier._running:
            await asyncio.sleep(0.005)


@pytest.fixture
def notifier(tmp_path):
    return ForeignProcessNotifier((sys.executable, "-SIc", WRITE, str(tmp_path)), "ws1", ANYBODY)


async def test_a_foreign_process_is_told_of_once_with_what_is_known_of_it(notifier, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "7")
    for _ in range(2):
        look(notifier, seen(ME) | seen(ME, uuid="GPU-1"))
        await done(notifier)
    told = json.loads((tmp_path / str(ME)).read_text())
    (tmp_path / str(ME)).unlink()
    assert told["EBB_NODE"] == "ws1"
    assert told["EBB_FOREIGN_GPU"] == "GPU-0,GPU-1"
    assert told["EBB_FOREIGN_MEM_BYTES"] == str(2 * GIB)
    assert told["EBB_FOREIGN_USER"] == pwd.getpwuid(os.getuid()).pw_name
    assert told["EBB_FOREIGN_COMMAND"]
    assert "SECRET" not in told
    look(notifier, seen(ME))
    await done(notifier)
    assert list(tmp_path.iterdir()) == []


async def test_one_that_comes_back_to_the_gpus_is_told_of_again(notifier, tmp_path):
    for pids in ((ME,), (), (ME,)):
        look(notifier, seen(*pids))
        await done(notifier)
        for path in tmp_path.iterdir():
            path.unlink()
            told = pids
    assert told == (ME,)


async def test_jobs_and_processes_that_are_gone_are_nobodys_business(notifier, tmp_path):
    look(notifier, seen(ME, 2**22 + 1), {ME: ("1", 1)})
    await done(notifier)
    assert list(tmp_path.iterdir()) == []


async def test_memory_that_is_not_known_is_told_as_empty(notifier, tmp_path):
    look(notifier, seen(ME, mem_bytes=None))
    await done(notifier)
    assert json.loads((tmp_path / str(ME)).read_text())["EBB_FOREIGN_MEM_BYTES"] == ""


async def test_a_command_that_takes_too_long_is_killed(caplog):
    slow = ForeignProcessNotifier((sys.executable, "-SIc", "import time; time.sleep(1000)"), "ws1", ANYBODY, time_s=0.2)
    look(slow, seen(ME))
    await done(slow)
    assert "not done after 0.2 s" in caplog.text


@pytest.mark.parametrize("command", [("/no/such/command",), (sys.executable, "-SIc", "raise SystemExit(3)")])
async def test_a_command_that_fails_is_logged_and_not_tried_again(command, caplog):
    failing = ForeignProcessNotifier(command, "ws1", ANYBODY)
    for _ in range(2):
        look(failing, seen(ME))
        await done(failing)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


async def test_only_so_many_run_at_once_and_the_others_come_later(monkeypatch):
    monkeypatch.setattr("ebbtide_agent.gpu_use.foreign_processes.procfs.read_stat", lambda pid: ALIVE)
    notifier = ForeignProcessNotifier(
        (sys.executable, "-SIc", "import time; time.sleep(1000)"), "ws1", lambda pid: True
    )
    pids = range(10, 10 + 2 * AT_ONCE)
    look(notifier, seen(*pids))
    assert len(notifier._running) == AT_ONCE
    await notifier.close()
    look(notifier, seen(*pids))
    assert set(notifier._running) == set(pids[AT_ONCE:])
    await notifier.close()


@pytest.mark.parametrize(("text", "command"), [("", ()), ("write 'a b'", ("write", "a b")), ("x; y", ("x;", "y"))])
def test_a_command_is_split_as_a_shell_would_and_run_by_none(text, command):
    assert parse_command(text) == command


@pytest.mark.parametrize("text", [" ", "say 'hello"])
def test_what_is_no_command_is_refused(text):
    with pytest.raises(ValueError, match="--on-foreign"):
        parse_command(text)


async def test_what_is_there_for_one_reading_only_is_told_of_by_nobody(notifier, tmp_path):
    for pids in ((ME,), (), (ME,)):
        notifier.look(seen(*pids), {})
        await done(notifier)
    assert list(tmp_path.iterdir()) == []
