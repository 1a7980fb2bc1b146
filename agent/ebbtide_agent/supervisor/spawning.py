"""Fork supervisors from a small process with one thread, which has imported everything that they need.

The agent cannot fork, because of gRPC's threads, and a new interpreter for every attempt would take longer than many
attempts do.
"""

import gc
import os
import signal
import socket

from ebbtide_machine.process import boot_id

from ebbtide_agent.processes import cgroup, linux
from ebbtide_agent.supervisor.supervise import supervise

READY = b"!"


def main(descriptor: int) -> None:
    """Fork a supervisor for every channel that comes in over the descriptor's socket, until its other end is closed."""
    agent = socket.socket(fileno=descriptor)
    _forget_inherited_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the supervisors
    linux.renounce_new_privileges()
    boot_id()  # read once, here, and not in every supervisor
    cgroup.divide(os.getppid())  # once, here, because every supervisor stays in the group that this process enters
    gc.collect()
    gc.freeze()  # otherwise a collection in a supervisor would copy the memory that it shares with this process
    agent.sendall(READY)
    while True:
        request, channels, _, _ = socket.recv_fds(agent, 1, 1)
        if not request:
            return
        for channel in channels:
            _spawn(agent, channel)


def _forget_inherited_signals() -> None:
    """Reset the signals, so that jobs begin with what a login shell would give them.

    An agent that was started with nohup, or in the background of a script, ignores SIGHUP, SIGINT and SIGQUIT, and
    every exec passes on what is ignored. Supervisors set handlers of their own, which exec resets to the default.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Python needs SIGPIPE and SIGXFSZ ignored, and restores them in the programs that it starts.
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        signal.signal(signum, signal.SIG_DFL)


def _spawn(agent: socket.socket, channel: int) -> None:
    try:
        pid = os.fork()
    except OSError:
        pid = -1  # the agent sees that its channel is closed
    if pid == 0:
        _become_supervisor(agent, channel)
    os.close(channel)


def _become_supervisor(agent: socket.socket, channel: int) -> None:
    code = 70
    try:
        os.setsid()
        agent.close()
        _detach_standard_streams()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        supervise(socket.socket(fileno=channel))
        code = 0
    finally:
        # Whatever happened, a supervisor must not return to the spawner's loop.
        os._exit(code)


def _detach_standard_streams() -> None:
    """Detach the streams, so that a process that waits for the end of the agent's output does not wait for this one."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
