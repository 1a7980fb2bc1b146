"""``ebb master``: the daemon that owns queue and journal."""

from pathlib import Path

import click

from ebbtide_cli.home import Home
from ebbtide_cli.verb import SETTING, examples


@click.command(epilog=examples("ebb master", "ebb master --port 4711 --policy fitgpp --policy-option s=8"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on (default: a free one).")
@click.option("--policy", metavar="NAME", help="Scheduling policy of the pool 'default' (default: fitgpp).")
@click.option("--policy-option", "policy_options", metavar="K=V", type=SETTING, multiple=True, help="For the policy.")
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Pools and more, as docs/operations.md says (default: ebbtide.toml in EBB_HOME, if it is there).",
)
def command(
    host: str, port: int, policy: str | None, policy_options: tuple[tuple[str, str], ...], config: Path | None
) -> int:
    """Run the master in the foreground, with its state in EBB_HOME, until SIGTERM."""
    from ebbtide_master.main import MasterOptions, run

    return run(
        MasterOptions(
            home=Home.current().root,
            host=host,
            port=port,
            policy=policy,
            policy_options=dict(policy_options),
            config=config,
        )
    )
