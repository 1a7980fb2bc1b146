"""Attempts with a lease end themselves when the master was not heard for as long as their job allows."""

import asyncio
import os
import signal
import socket
import time

import pytest
from ebbtide_agent.attempts import backstop, registry
from ebbtide_agent.helper.worker import Worker
from ebbtide_agent.supervisor import lease
from ebbtide_agent.supervisor.launching.launch_wait import LaunchWait
from ebbtide_agent.supervisor.lease import Lease, boottime
from ebbtide_machine.process import Identity

from tests.agent.supervisor.node import EXITED, LAUNCHING, REFUSED, RUNNING, order, python
from tests.agent.supervisor.test_adoption import other_agent, reported
from tests.attacks.hung import hung

UP = python("print('up', flush=True); import time; time.sleep(600)")
SAVES = python("""
import os, signal, sys, time
def save(signum, frame):
    open(os.environ["EBB_CHECKPOINT_DIR"] + "/saved", "w").write(os.environ["EBB_ATTEMPT"])
    sys.exit(85)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    time.sleep(0.05)
""")


class TestArithmetic:
    def test_it_ends_a_term_after_what_the_master_acknowledged_was_sent(self):
        lease = Lease(term_s=60.0, grace_s=10.0, renewed=100.0)
        assert [lease.left_s(now) for now in (100.0, 150.0, 160.0, 999.0)] == [60.0, 10.0, 0.0, 0.0]
        assert [lease.is_ending(now) for now in (100.0, 149.9, 150.0)] == [False, False, True]

    def test_an_older_acknowledgement_that_comes_late_takes_nothing_away(self):
        lease = Lease(60.0, 10.0, 100.0)
        lease.renew(90.0, now=120.0)
        assert lease.renewed == 100.0

    def test_nothing_is_acknowledged_before_it_is_sent(self):
        lease = Lease(60.0, 10.0, 100.0)
        lease.renew(1e9, now=120.0)
        assert lease.renewed == 120.0


async def heard_until_it_runs(node):
    """Have it start however long that takes, and begin to count from here."""

    def runs():
        node.attempts.renew(boottime())
        status = node.status()
        assert status.phase in (LAUNCHING, RUNNING), status
        return status.phase == RUNNING and "up" in node.log()

    node.attempts.renew(boottime())
    await node.until(runs)
    return boottime()


def ended(status):
    """When no process was left, by the clock that leases go by: that it is told takes a slow machine longer."""
    return boottime() - (time.time() - status.exit.ended_at)


async def launch(node, command, **lease_):
    node.attempts.renew(boottime())
    await node.launch(command, **lease_)
    return await heard_until_it_runs(node)


async def test_without_word_from_the_master_it_saves_and_ends_in_time(agent):
    async with agent() as node:
        began = await launch(node, SAVES, failover_after_s=33.0, grace_s=30.0)
        assert node.status().leased
        status = await node.end()
        assert ended(status) - began < 33.0
        assert (status.phase, status.exit.fenced, status.exit.stop_requested) == (EXITED, True, True)
        assert (status.exit.exit_code, (node.checkpoints / "1/attempt-1/saved").read_text()) == (85, "1")


async def test_as_long_as_the_master_is_heard_it_runs(agent):
    async with agent() as node:
        began = await launch(node, UP, failover_after_s=6.0, grace_s=0.1)  # a busy machine is late by seconds
        while boottime() < began + 6.2:
            await heard_until_it_runs(node)
        assert node.status().phase == RUNNING


@pytest.mark.slow
async def test_a_job_that_does_not_listen_is_killed_at_the_end(agent):
    deaf = python("import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)")
    async with agent() as node:
        began = await launch(node, deaf, failover_after_s=2.0, grace_s=1.0)
        status = await node.end()
        assert 1.9 < ended(status) - began < 3.0
        assert (status.exit.fenced, status.exit.killed) == (True, True)


async def test_an_attempt_that_was_asked_to_stop_before_was_not_fenced(agent):
    async with agent() as node:
        node.attempts.renew(boottime())
        await node.launch(SAVES, failover_after_s=120.0, grace_s=30.0)
        await node.running(line="up")
        status = await node.stop(30.0)
        assert (status.exit.fenced, status.exit.exit_code) == (False, 85)


async def test_it_ends_itself_though_its_agent_is_stopped(agent, disk):
    """The agent stands still; only the supervisor and the job go on."""
    with other_agent(disk, order(SAVES, failover_after_s=23.0, grace_s=20.0)) as first:
        before = reported(first, RUNNING)
        os.kill(first.pid, signal.SIGSTOP)
        async with asyncio.timeout(60):
            while os.path.exists(f"/proc/{before.pid}"):
                await asyncio.sleep(0.02)
        first.kill()
        first.wait()
        async with agent() as node:
            status = await node.end()
            assert (status.phase, status.exit.fenced) == (EXITED, True)


async def test_a_supervisor_that_was_stopped_past_the_lease_ends_its_job_as_soon_as_it_goes_on(agent):
    async with agent() as node:
        began = await launch(node, UP, failover_after_s=5.0, grace_s=0.2)
        node.supervisor().signal(signal.SIGSTOP)
        await node.until(lambda: boottime() > began + 5.1)
        node.supervisor().signal(signal.SIGCONT)
        status = await node.end()
        assert (status.exit.fenced, status.exit.killed) == (True, True)


async def test_a_supervisor_that_wakes_after_the_agent_killed_its_job_does_not_call_that_a_failure(agent, monkeypatch):
    monkeypatch.setattr(backstop, "END_S", 600.0)
    async with agent() as node:
        await launch(node, UP, failover_after_s=2.0, grace_s=0.2)
        job, supervisor = Identity.of(node.status().pid), node.supervisor()
        supervisor.signal(signal.SIGSTOP)
        await node.until(lambda: not job.is_alive())
        supervisor.signal(signal.SIGCONT)
        status = await node.end()
        assert not status.lost
        assert (status.exit.fenced, status.exit.stop_requested, status.exit.killed) == (True, True, True)


async def test_the_lease_of_an_adopted_attempt_counts_from_its_adoption_and_not_from_its_launch(agent):
    async with agent(leave=True) as node:
        await launch(node, SAVES, failover_after_s=600.0, grace_s=30.0)
        an_hour_ago = node.place().intent() | {"leased_at": boottime() - 3600.0}
        node.place().record_intent(an_hour_ago)
    async with agent() as node:
        status = await node.stop(30.0)
        assert (status.exit.exit_code, status.exit.killed) == (85, False)


@pytest.mark.fuse
async def test_while_an_attempt_is_prepared_an_agent_that_has_just_started_renews_its_lease_and_stops_it(
    agent, monkeypatch
):
    monkeypatch.setattr(registry, "_ADOPTION_S", 0.0)  # it says nothing of itself before it runs

    def is_prepared_longer_than_the_first_lease():
        node.attempts.renew(boottime())
        assert node.status().phase == LAUNCHING, node.status()
        return boottime() > began + 4.5

    async with agent() as node:
        directory = node.checkpoints / "1"
    directory.mkdir(parents=True)
    with hung(directory, deeply=True):
        async with agent(leave=True) as node:
            node.attempts.renew(boottime())
            await node.launch(UP, failover_after_s=12.0, grace_s=0.2)
            await node.until(lambda: node.place().supervisor() is not None)
            began = boottime()
        async with agent() as node:
            await node.until(is_prepared_longer_than_the_first_lease)
            status = await node.stop(0.2)
            assert (status.phase, "it was asked to stop before it could start" in status.refusal) == (REFUSED, True)


def test_who_connects_while_an_attempt_is_prepared_is_heard_and_stays_connected():
    ours, supervisors = socket.socketpair()
    with ours, supervisors, socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as later:
        listener.bind("")
        listener.listen()
        waiting = LaunchWait(supervisors, b"", listener, 60.0, 1.0, Worker(None))
        ours.close()
        later.connect(listener.getsockname())
        later.sendall(b'{"do": "lease", "at": 2.0}\n')
        assert waiting.leased_at() == 2.0
        [_, (connection, received)] = waiting.received()
        with connection:
            assert (connection.getpeername(), received) == (later.getsockname(), b'{"do": "lease", "at": 2.0}\n')


async def test_what_was_ordered_too_late_is_not_started(agent):
    async with agent() as node:
        node.attempts.renew(boottime() - 100.0)
        status = await node.run(UP, failover_after_s=60.0, grace_s=1.0)
        assert status.phase == REFUSED
        assert status.refusal == "its lease is over: the master was not heard in time"


async def test_a_job_without_a_lease_does_not_care(agent):
    async with agent() as node:
        await node.launch(UP)
        assert not (await node.running(line="up")).leased


@pytest.mark.parametrize("step_s", [365 * 86_400.0, -365 * 86_400.0])
async def test_the_wall_clock_says_nothing_about_it(agent, step_s, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1.7e9 + step_s)
    now = lease.boottime()
    assert not Lease(60.0, 10.0, now).is_ending(lease.boottime())
