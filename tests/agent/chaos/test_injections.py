"""Faults at random: the agent survives, no GPU is double-booked, no job is lost."""

import contextlib
import random
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from ebbtide_master.nodes import heartbeats

from tests.agent.chaos.chaos import NODE, PROFILE, Chaos
from tests.e2e.cluster import ANY_ACCOUNT, processes_of
from tests.master.world import a_master


async def suffer(seed: int, injections: int, monkeypatch: pytest.MonkeyPatch) -> Chaos:
    """Let so many things go wrong, and then all be well."""
    print(f"seed {seed}")
    monkeypatch.setattr(heartbeats, "HEARTBEAT_S", 0.1)
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        home = Path(folder)
        monkeypatch.setenv("EBB_HOME", folder)
        async with a_master(home) as master:
            agent = [sys.executable, "-m", "ebbtide_cli.main", "agent", "--name", NODE, *ANY_ACCOUNT]
            command = [*agent, "--gpus", PROFILE, "--master", f"unix:{home}", "--warm", "0"]
            chaos = Chaos(home, master, random.Random(seed), command)
            await chaos.start_agent()
            try:
                for _ in range(injections):
                    await chaos.inject()
                await chaos.heal()
                chaos.close()
                log = (home / "agent.log").read_text()
            except AssertionError as error:
                log = "\n".join((home / "agent.log").read_text().splitlines()[-60:])
                raise AssertionError(f"seed {seed} after {chaos.injections}: {error}\n{log}") from None
            finally:
                chaos.close()
                end_what_is_left(home)
        assert "Traceback" not in log, f"seed {seed}: {log}"
        return chaos


def end_what_is_left(home: Path) -> None:
    for process in processes_of(home):
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(list(processes_of(home)), timeout=10)


@pytest.mark.timeout(600)
async def test_forty_faults_harm_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    chaos = await suffer(7, 40, monkeypatch)
    assert len(chaos.jobs) >= 8
    assert len(set(chaos.injections)) >= 8


@pytest.mark.slow  # about two minutes in all
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 110))
async def test_a_thousand_faults_harm_nobody(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chaos = await suffer(seed, 100, monkeypatch)
    assert len(chaos.jobs) >= 8
