"""``ebb down``: stop the cluster of this machine; the next ``ebb up`` resumes its jobs."""

import click

from ebbtide_cli.cluster import LocalSettings, bring_down, exclusive
from ebbtide_cli.commands.verb import examples, json_option
from ebbtide_cli.errors import INTERRUPTED, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.terminal.output import StatusLine, complain, print_json


@click.command(epilog=examples("ebb down", "ebb down --now"))
@click.option("--now", is_flag=True, help="Kill all jobs at once, without their grace periods.")
@json_option
def command(now: bool, as_json: bool) -> None:
    """Let every job checkpoint and end, then stop agent and master. The next 'ebb up' resumes the jobs.

    A node of this machine that has joined a cluster elsewhere goes on.
    """
    home = Home.current()
    try:
        with StatusLine(wanted=not as_json) as line, exclusive(home, line):
            stopped = bring_down(home, kill=now, line=line)
    except KeyboardInterrupt:
        words = "interrupted: the cluster starts nothing until 'ebb down' has finished or 'ebb up' is run"
        raise Failure(f"down: {words}", INTERRUPTED) from None
    others = {node: address for node in home.agents() if (address := home.elsewhere(node))}
    for node, address in others.items():
        words = f"node {node} goes on, as it has joined the cluster at {address}"
        complain(f"down: {words}: 'ebb node leave' clears it of its jobs")
    if as_json:
        print_json({"home": str(home.root), "stopped": stopped})
    elif stopped:
        print(f"Stopped: {', '.join(stopped)}. 'ebb up' resumes the jobs{_of_other_nodes(home, stopped)}.")
    else:
        print(f"Nothing{' else' if others else ''} is running in {home.root}.")


def _of_other_nodes(home: Home, stopped: list[str]) -> str:
    """Name those of the stopped nodes that 'ebb up' does not start; empty if there is none."""
    settings = LocalSettings.remembered(home)
    nodes = [part.removeprefix("node ") for part in stopped if part.startswith("node ")]
    others = [node for node in nodes if settings and node != settings.node]
    return "".join(f", 'ebb agent --name {node}' starts node {node}" for node in others)
