"""Processes held ready for a job's next attempt: warm it is what it would be cold, and nothing is left over."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from ebbtide_agent.attempts.translation import intent_of
from ebbtide_agent.network import ANY
from ebbtide_agent.supervisor.launching.recipe import Recipe
from ebbtide_protos.v1 import job_pb2

from tests.agent.supervisor.node import RUNNING, gpus, order

PROBE = Path(__file__).with_name("probe.py")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The probe in a folder of its own."""
    folder = tmp_path / "work"
    folder.mkdir()
    return Path(shutil.copy(PROBE, folder))


def facts(log):
    """What each process said of itself."""
    lines = [line for line in log.splitlines() if line.startswith("facts ")]
    return [json.loads(line.removeprefix("facts ")) for line in lines]


async def told(node, attempt=1):
    """Wait until the attempt has told what it imported, and a process is held ready with that."""
    await node.running(attempt=attempt, line="reported")
    await node.until(lambda: node.standbys() != [])


async def run(node, script, attempt, *arguments, cold=False, command=None, line="reported", **options):
    """Run the attempt up to its first step, and leave it running; whether it was warm."""
    command = command or [sys.executable, "-u", script.name, *arguments]
    await node.launch(command, attempt=attempt, workdir=str(script.parent), cold=cold, **options)
    await node.running(attempt=attempt, line=line)
    await node.until(lambda: node.status(attempt=attempt).start.stepped_at > 0)
    return node.status(attempt=attempt).start.warm


async def suspend(node, attempt, goes_on=False):
    status = await node.stop(attempt=attempt, goes_on=goes_on)
    assert status.exit.acknowledged, node.log(attempt=attempt)


@pytest.mark.parametrize("as_module", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_warm_process_sees_what_a_cold_one_sees(agent, script, as_module):
    command = [sys.executable, "-m", "probe", "look"] if as_module else None
    async with agent(warm=1) as node:
        assert not await run(node, script, 1, "look", command=command)
        await told(node)
        await suspend(node, 1)
        assert await run(node, script, 2, "look", command=command)
        await suspend(node, 2)
        [cold], [warm] = facts(node.log()), facts(node.log(attempt=2))
        for what in cold:
            assert warm[what] == cold[what], what


async def test_a_warm_process_is_known_by_its_pid_from_the_beginning_to_the_end(agent, script):
    async with agent(warm=1) as node:
        await run(node, script, 1)
        await told(node)
        [ready] = node.standbys()
        await suspend(node, 1)
        assert await run(node, script, 2)
        assert node.status(attempt=2).pid == ready.pid
        assert ready in node.jobs()
        await suspend(node, 2)
        assert not ready.is_alive()


async def test_warm_it_fails_as_it_fails_cold(agent, script):
    async with agent(warm=1) as node:
        await run(node, script, 1, "fail")
        await told(node)
        await suspend(node, 1)
        command = [sys.executable, "-u", script.name, "fail"]
        warm = await node.run(command, attempt=2, workdir=str(script.parent))
        cold = await node.run(command, attempt=3, workdir=str(script.parent), cold=True)
        assert (warm.start.warm, cold.start.warm) == (True, False)
        assert warm.exit.exit_code == cold.exit.exit_code == 1
        assert "ValueError: as it was told\nat exit\n" in node.log(attempt=2)
        assert node.log(attempt=2) == node.log(attempt=3)


@pytest.mark.slow
async def test_of_a_script_that_has_changed_the_new_lines_run(agent, script):
    async with agent(warm=1) as node:
        await run(node, script, 1)
        await told(node)
        await suspend(node, 1)
        script.write_text(script.read_text().replace('"reported"', '"reported anew"'))
        assert await run(node, script, 2, line="reported anew")


async def test_beside_modules_of_its_own_it_begins_anew_with_those(agent, script):
    async with agent(warm=1) as node:
        await run(node, script, 1)
        await told(node)
        await suspend(node, 1)
        script.with_name("numpy.py").write_text("print('my own numpy')\n")
        [ready] = node.standbys()
        assert not await run(node, script, 2, line="my own numpy")
        assert node.status(attempt=2).pid == ready.pid
        assert not (await node.stop(attempt=2)).exit.killed


@pytest.mark.parametrize(("name", "is_warm"), [("numpy.toml", True), ("numpy", False)])
async def test_only_what_python_would_import_counts_as_a_module_beside_the_script(agent, script, name, is_warm):
    """A configuration ebbtide.toml beside a script that imports ebbtide is no module."""
    async with agent(warm=1) as node:
        await run(node, script, 1)
        await told(node)
        await suspend(node, 1)
        place = script.with_name(name)
        place.touch() if is_warm else place.mkdir()
        if is_warm:
            assert await run(node, script, 2)
        else:
            place.joinpath("__init__.py").write_text("print('my own numpy')\n")
            assert not await run(node, script, 2, line="my own numpy")


async def test_a_script_that_changes_its_environment_is_always_cold(agent, script):
    setting = "import os\nos.environ['OMP_NUM_THREADS'] = '3'\n"
    script.write_text(setting + script.read_text())
    async with agent(warm=1) as node:
        await run(node, script, 1)
        await node.until(lambda: (node.place().path / "told.json").exists())
        await suspend(node, 1)
        assert not await run(node, script, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"env": {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}},
        {"command": [sys.executable, "-u", "probe.py", "another argument"]},
        {"job_id": "2", "command": [sys.executable, "probe.py"]},
        {"cold": True},
    ],
)
def test_another_environment_or_command_has_another_recipe(changes, tmp_path):
    def recipe(**changes):
        changed = {"command": [sys.executable, "-u", "probe.py"], **changes}
        where = {"node_dir": tmp_path, "checkpoint_root": tmp_path, "cluster_id": "c1", "fake_gpu_dir": None}
        return Recipe.of(intent_of(order(**changed), network=ANY, **where))

    assert recipe(job_id="1") == recipe(job_id="2", attempt=3, gpus=gpus(2), grace_s=7.0)
    assert recipe(**changes) != recipe()


async def test_every_rank_is_warm_that_a_process_was_ready_for(agent, script):
    ddp = {"launch": job_pb2.LAUNCH_MODE_DDP, "gpus": gpus(2), "cpus": 2.0}
    async with agent(warm=2) as node:
        await run(node, script, 1, "look", **ddp)
        await node.until(lambda: node.log().count("reported") == 2 and len(node.standbys()) == 2)
        ready = {process.pid for process in node.standbys()}
        await suspend(node, 1)
        assert await run(node, script, 2, "look", **ddp)
        await node.until(lambda: node.log(attempt=2).count("reported") == 2)
        assert ready <= set(node.attempts.holders.pids()["1", 2])
        assert {rank["shown"]["RANK"] for rank in facts(node.log(attempt=2))} == {"0", "1"}


@pytest.mark.parametrize("whose", ["standbys", "waiting"])
async def test_if_what_is_held_ready_is_killed_the_attempt_starts_cold(agent, script, whose):
    async with agent(warm=1) as node:
        await run(node, script, 1)
        await told(node)
        victims, standbys = getattr(node, whose)(), node.standbys()
        for victim in victims:
            victim.signal(signal.SIGKILL)
        await node.until(lambda: not any(process.is_alive() for process in [*victims, *standbys]))
        await suspend(node, 1)
        assert not await run(node, script, 2)


async def test_who_is_asked_to_leave_and_goes_on_later_has_a_process_made_ready_meanwhile(agent, script):
    async with agent(warm=1) as node:
        await run(node, script, 1)
        await told(node)
        [waiting] = node.waiting()
        waiting.signal(signal.SIGKILL)
        await node.until(lambda: not waiting.is_alive())
        await suspend(node, 1, goes_on=True)
        assert await run(node, script, 2)


async def test_however_many_modules_the_last_attempt_had_imported_the_next_one_is_warm(agent, script):
    """Their names take more bytes than the kernel lets one message have."""
    async with agent(warm=1) as node:
        await run(node, script, 1)
        await told(node)
        imports = node.place().imports()
        imports["modules"] += [f"a_package_that_is_not_here.its_module_{number}" for number in range(6_000)]
        node.place().record_imports(imports)
        [waiting] = node.waiting()
        waiting.signal(signal.SIGKILL)
        await node.until(lambda: not waiting.is_alive())
        await suspend(node, 1, goes_on=True)
        assert await run(node, script, 2)


async def test_without_its_supervisor_it_runs_no_line_of_the_script(agent, script):
    async with agent(warm=1) as node:
        await run(node, script, 1)
        await told(node)
        [ready] = node.standbys()
        ready.signal(signal.SIGSTOP)
        await suspend(node, 1)
        await node.launch([sys.executable, "-u", script.name], attempt=2, workdir=str(script.parent))
        await node.until(lambda: node.status(attempt=2).phase == RUNNING)
        node.supervisor(attempt=2).signal(signal.SIGKILL)
        assert (await node.end(attempt=2)).lost
        ready.signal(signal.SIGCONT)
        await node.until(lambda: not ready.is_alive())
        assert node.log(attempt=2) == ""


async def test_killed_when_it_runs_its_supervisor_leaves_nothing(agent, script):
    async with agent(warm=1) as node:
        await run(node, script, 1)
        await told(node)
        await suspend(node, 1)
        assert await run(node, script, 2)
        node.supervisor(attempt=2).signal(signal.SIGKILL)
        assert (await node.end(attempt=2)).lost
        assert node.jobs() == []


async def test_nothing_is_held_ready_any_more_when_the_agent_has_ended(agent, script):
    async with agent(warm=1) as node:
        await run(node, script, 1)
        await told(node)
        both = [*node.standbys(), *node.waiting()]
        await suspend(node, 1)
    await node.until(lambda: not any(process.is_alive() for process in both))


@pytest.mark.slow
async def test_resumed_warm_the_digits_end_with_the_weights_of_a_run_that_nobody_interrupted(
    agent, tmp_path, monkeypatch
):
    monkeypatch.setattr("tests.agent.supervisor.node.DEADLINE_S", 100.0)
    digits = Path(__file__).parents[3] / "examples" / "digits.py"

    def command(name):
        (tmp_path / name).mkdir(exist_ok=True)
        out = str(tmp_path / name / "weights")  # its last part becomes a part of the file
        return [sys.executable, str(digits), "--steps", "300", "--width", "4", "--out", out]

    settings = {"env": {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}}
    async with agent(warm=1) as node:
        await node.launch(command("resumed"), **settings)
        await node.until(lambda: (node.place().path / "told.json").exists())
        await node.until(lambda: node.standbys() != [])
        assert (await node.stop(goes_on=True)).exit.acknowledged
        status = await node.run(command("resumed"), attempt=2, **settings)
        assert (status.start.warm, status.exit.exit_code) == (True, 0), node.log(attempt=2)
        assert "resumed from step" in node.log(attempt=2)
        assert (await node.run(command("whole"), job_id="2", **settings)).exit.exit_code == 0
    assert (tmp_path / "resumed" / "weights").read_bytes() == (tmp_path / "whole" / "weights").read_bytes()
