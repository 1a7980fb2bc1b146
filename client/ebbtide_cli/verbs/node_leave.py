"""``ebb node leave``: clear a node of its jobs, on the node itself, before its machine goes down."""

import signal
import time
from typing import Final

import click

from ebbtide_cli.errors import Failure
from ebbtide_cli.home import Home
from ebbtide_cli.output import StatusLine
from ebbtide_cli.text import plural
from ebbtide_cli.verb import DURATION, examples

WITHIN_S: Final = 600.0
HEARD_S: Final = 3.0
"""Seconds until the master has learned of it by the next heartbeat; attempts that it starts until then are awaited."""
POLL_S: Final = 0.1


@click.command("leave", epilog=examples("ebb node leave", "ebb node leave --within 5m", "ebb node leave --stay"))
@click.option(
    "--within", metavar="TIME", type=DURATION, help="Wait at most this long for the jobs to leave (default: 10m)."
)
@click.option("--stay", is_flag=True, help="Undo it: the machine does not go down.")
def command(within: float | None, stay: bool) -> None:
    """Let all jobs of this machine checkpoint and leave, and start none until its agent is started again.

    Use it before a reboot, on the machine itself, as the agent's account; it needs no token. Each job gets its grace
    period, and resumes on another node, or here when the node is back. The command returns when no job is left here.
    """
    home = Home.current()
    agents = home.agents()
    if not agents:
        raise Failure(f"node leave: no agent runs in EBB_HOME {home.root}")
    for agent in agents.values():
        agent.signal(signal.SIGUSR2 if stay else signal.SIGUSR1)
    if stay:
        print(f"In service again: {', '.join(agents)}.")
        return
    _wait(home, WITHIN_S if within is None else within)
    print(f"Nothing runs here any more: {', '.join(agents)}.")


def _wait(home: Home, within_s: float) -> None:
    """Wait until no attempt is left on this machine."""
    began = time.monotonic()
    with StatusLine(wanted=True) as line:
        while (left := list(home.supervisors())) or time.monotonic() - began < HEARD_S:
            if left and time.monotonic() - began > within_s:
                raise Failure(f"node leave: {plural(len(left), 'attempt')} did not leave within {within_s:g} s")
            line.show(f"waiting for {plural(len(left), 'attempt')} to checkpoint and end")
            time.sleep(POLL_S)
