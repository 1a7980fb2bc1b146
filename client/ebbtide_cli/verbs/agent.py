"""``ebb agent``: run the daemon of one node."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import click

from ebbtide_cli import interrupts
from ebbtide_cli.commands.sections import SectionedCommand, help_all_option
from ebbtide_cli.commands.verb import Verbs, examples
from ebbtide_cli.errors import OK
from ebbtide_cli.verbs.agent_join import join
from ebbtide_cli.verbs.agent_options import DAILY, SECTIONS, agent_options, with_options
from ebbtide_cli.verbs.agent_pilot import pilot


class _AgentCommand(SectionedCommand, Verbs):
    def sections(self) -> Mapping[str, Sequence[str]]:
        return SECTIONS

    def daily(self) -> Container[str]:
        return DAILY


@click.group(
    cls=_AgentCommand,
    invoke_without_command=True,
    epilog=examples(
        "ebb agent",
        "ebb agent --name ws2 --gpus 4xRTX4090 --master unix:/home/ada/lab",
        "ebb agent --master login.lab.example:7078,standby.lab.example:7078",
        "ebb agent --pool a100",
        "ebb agent --keep 90d --checkpoint-quota 500GiB",
        "ebb agent --label zone=basement --label disk=nvme --taint gold",
        "ebb agent --warm 4",
        "ebb agent --ends-in 8h --owner ann",
        "ebb agent --only-gpus 0,1 --cpus 16 --mem 128GiB",
        "ebb agent --mps off",
        "ebb agent --share-with-foreign",
        "ebb agent --min-uid 500",
        "ebb agent --on-foreign /etc/ebbtide/foreign.sh",
        "ebb agent --checkpoint-root /nfs/ebbtide --interface eth1 --ports 20000-20999",
    ),
)
@with_options
@help_all_option
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Run the agent of this node in the foreground until SIGTERM; the jobs outlive it.

    As root, the agent runs each job as the account of the user who submitted it; as another account, it runs only that
    account's jobs.
    """
    if context.invoked_subcommand is not None:
        return OK
    from ebbtide_agent.main import run

    options = agent_options(given)
    with interrupts.unhandled():
        return run(options)


command.add_command(join)
command.add_command(pilot)
