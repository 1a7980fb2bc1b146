"""``ebb master``: run the daemon that owns the queue and the journal."""

from pathlib import Path

import click

from ebbtide_cli import interrupts
from ebbtide_cli.commands.verb import SETTING, Verbs, examples
from ebbtide_cli.errors import OK
from ebbtide_cli.home import Home
from ebbtide_cli.verbs import master_backup
from ebbtide_cli.verbs.master_init import init
from ebbtide_cli.verbs.master_reload import reload


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    epilog=examples(
        "ebb master",
        "ebb master --port 7077 --policy fitgpp --policy-option s=8",
        "ebb master --store postgresql://ebbtide@db1/ebbtide",
        "ebb master --metrics-port 9317",
        "ebb master init --host login.lab.example && ebb master --host 0.0.0.0",
    ),
)
@click.option("--host", help="Address to listen on with TLS (default: 127.0.0.1 if there is an authority, else none).")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port for clients, with TLS (default: the one of 'ebb master init')."
)
@click.option("--agent-port", type=click.IntRange(0, 65535), help="Port for agents, with TLS (default: the next one).")
@click.option("--policy", metavar="NAME", help="Scheduling policy of the pool 'default' (default: fitgpp).")
@click.option(
    "--policy-option", "policy_options", metavar="K=V", type=SETTING, multiple=True, help="Option of the policy."
)
@click.option(
    "--metrics-port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="Port on loopback for Prometheus to read metrics from (default: as configured, else none).",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help=(
        "Configuration file with pools and more; see 'ebb docs configure' (default: ebbtide.toml in "
        "EBB_HOME, if there is one)."
    ),
)
@click.option(
    "--store",
    metavar="URL",
    default="",
    help="PostgreSQL database for the journal, without a password (default: a file in EBB_HOME). "
    "Of several masters on one database the first leads, and the others stand by.",
)
@click.pass_context
def command(
    context: click.Context,
    host: str | None,
    port: int | None,
    agent_port: int | None,
    policy: str | None,
    policy_options: tuple[tuple[str, str], ...],
    metrics_port: int | None,
    config: Path | None,
    store: str,
) -> int:
    """Run the master in the foreground, with its state in EBB_HOME, until SIGTERM.

    It serves its own account on a socket in EBB_HOME, and others over TLS once there is a certificate authority:
    'ebb master init' makes one, and so does the first start with a port or a host.
    """
    if context.invoked_subcommand is not None:
        return OK
    from ebbtide_master.main import MasterOptions, run

    with interrupts.unhandled():
        return run(
            MasterOptions(
                home=Home.current().root,
                host=host,
                port=port,
                agent_port=agent_port,
                policy=policy,
                policy_options=dict(policy_options),
                config=config,
                store=store,
                metrics_port=metrics_port,
            )
        )


command.add_command(master_backup.check)
command.add_command(master_backup.backup)
command.add_command(master_backup.restore)
command.add_command(master_backup.compact)
command.add_command(init)
command.add_command(reload)
