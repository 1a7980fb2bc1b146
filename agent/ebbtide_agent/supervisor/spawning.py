"""The process that forks supervisors: small, with one thread, and with everything imported that they need.

The agent cannot fork, because of gRPC's threads, and a new interpreter for every attempt would take longer than many
attempts do.
"""

import gc
import os
import signal
import socket

from ebbtide_protos.process import boot_id

from ebbtide_agent.processes import cgroup, linux
from ebbtide_agent.supervisor.supervise import supervise

READY = b"!"


def main(descriptor: int) -> None:
    """Fork a supervisor for every channel that comes in over the descriptor's socket, until its other end is closed."""
    agent = socket.socket(fileno=descriptor)
    _forget_inherited_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the supervisors
    linux.renounce_new_privileges()
    boot_id()  # read once, here, like the next
    cgroup.divide(os.getppid())  # all that are forked here stay where this process goes
    gc.collect()
    gc.freeze()  # or a collection in a supervisor would copy all that it shares with this process
    agent.sendall(READY)
    while True:
        request, channels, _, _ = socket.recv_fds(agent, 1, 1)
        if not request:
            return
        for channel in channels:
            _spawn(agent, channel)


def _forget_inherited_signals() -> None:
    """Have jobs begin with what a login shell would give them.

    An agent that was started with nohup, or in the background of a script, ignores SIGHUP, SIGINT and SIGQUIT, and what
    is ignored is inherited through every exec. Supervisors set handlers of their own, which exec puts back to these.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Python needs SIGPIPE and SIGXFSZ ignored, and gives them back to whatever it starts.
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
        # Never back into the spawner's loop, whatever happened.
        os._exit(code)


def _detach_standard_streams() -> None:
    """Whoever waits for the end of the agent's output must not wait for the supervisor's end as well."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
