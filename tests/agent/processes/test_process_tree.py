"""Whom a signal may reach, and who a process is."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from ebbtide_agent.processes import process_tree
from ebbtide_agent.processes.launchers import ProcessKind
from ebbtide_agent.processes.stop_propagation import Reaction
from ebbtide_machine.process import Identity


@pytest.fixture
def sleeper():
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_is_signalled_if_it_is_the_one_that_is_meant(sleeper):
    assert Identity.of(sleeper.pid).signal(signal.SIGTERM)
    assert sleeper.wait() == -signal.SIGTERM


@pytest.mark.parametrize("changes", [{"starttime": 1}, {"boot_id": "another boot"}], ids=["pid", "boot"])
def test_a_process_that_only_has_the_same_pid_is_not_signalled(sleeper, changes):
    other = replace(Identity.of(sleeper.pid), **changes)
    assert not other.is_alive()
    assert not other.signal(signal.SIGKILL)
    assert sleeper.poll() is None


def test_the_dead_and_the_unburied_are_nobody(sleeper):
    identity = Identity.of(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not identity.is_alive()
    assert Identity.of(sleeper.pid) is None
    sleeper.wait()
    assert not identity.signal(signal.SIGTERM)


def test_nobody_is_never_alive():
    assert not Identity.nobody().is_alive()


def test_only_what_descends_from_the_root_is_signalled(sleeper):
    """The test's child is not below its sibling."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as sibling:
        assert process_tree.signal_below(sibling.pid, [sleeper.pid], signal.SIGKILL) == []
        assert sleeper.poll() is None
        assert process_tree.is_below(sleeper.pid, os.getpid())
        sibling.kill()


def test_a_handler_is_told_from_the_default_from_ignoring_and_from_blocking():
    code = """
import signal
signal.signal(signal.SIGUSR1, print)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
print("up", flush=True)
input()
"""
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert process_tree.reaction(process.pid, signal.SIGUSR1) is Reaction.HANDLER
        assert process_tree.reaction(process.pid, signal.SIGUSR2) is Reaction.IGNORES
        assert process_tree.reaction(process.pid, signal.SIGTERM) is Reaction.DIES
        assert process_tree.reaction(process.pid, signal.SIGHUP) is Reaction.WAITS
        process.kill()
    assert process_tree.reaction(process.pid, signal.SIGUSR1) is Reaction.DIES


def test_a_shell_that_blocks_the_signal_is_only_starting_a_command():
    """As dash does until the new program runs: a shell that was stopped meanwhile blocks it for as long."""
    code = """
import signal
open("/proc/self/comm", "w").write("parallel")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("up", flush=True)
input()
"""
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        found = process_tree.tree([process.pid], signal.SIGTERM)[process.pid]
        process.kill()
    assert (found.kind, found.reaction) == (ProcessKind.SHELL, Reaction.DIES)
