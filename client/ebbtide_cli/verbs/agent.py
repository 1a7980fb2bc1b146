"""``ebb agent``: run the daemon of one node."""

import os
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from ebbtide_cli import interrupts
from ebbtide_cli.errors import OK, USAGE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.sections import SectionedCommand, help_all_option
from ebbtide_cli.time_options import TIME_TO_COME
from ebbtide_cli.verb import CPUS, DURATION, SETTING, SIZE, Verbs, examples
from ebbtide_cli.verbs.agent_join import join

_SECTIONS: Final = {
    "Node": ("--name", "--master", "--pool", "--label", "--taint", "--until", "--ends-in", "--owner"),
    "GPUs, CPUs and memory": (
        "--gpus",
        "--only-gpus",
        "--cpus",
        "--mem",
        "--mps",
        "--share-with-foreign",
        "--on-foreign",
    ),
    "Files": ("--checkpoint-root", "--keep", "--checkpoint-quota"),
    "Jobs": ("--warm", "--min-uid", "--interface", "--ports"),
}
_DAILY: Final = frozenset(
    {
        *("--name", "--master", "--pool", "--label", "--gpus", "--cpus", "--mem"),
        *("--checkpoint-root", "--keep", "--checkpoint-quota"),
    }
)


class _AgentCommand(SectionedCommand, Verbs):
    def sections(self) -> Mapping[str, Sequence[str]]:
        return _SECTIONS

    def daily(self) -> Container[str]:
        return _DAILY


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
@click.option("--name", default="", help="Name of the node (default: the host's name).")
@click.option(
    "--gpus",
    metavar="PROFILE",
    default="auto",
    show_default=True,
    help="GPUs to offer: auto (the real ones), none, or fake ones such as 4xRTX4090.",
)
@click.option(
    "--only-gpus",
    metavar="GPU,...",
    default="",
    help="Offer only these GPUs, by index or UUID; no two agents with this option get the same GPU.",
)
@click.option(
    "--master",
    metavar="HOST:PORT|unix:HOME,...",
    help=(
        "Address of the master, and of its standbys (default: EBB_MASTER, else the joined master, else "
        "the one in EBB_HOME)."
    ),
)
@click.option(
    "--checkpoint-root",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory for checkpoints (default: in EBB_HOME).",
)
@click.option("--cpus", metavar="N", type=CPUS, help="CPUs to offer (default: all).")
@click.option("--mem", metavar="SIZE", type=SIZE, help="Host memory to offer (default: all).")
@click.option(
    "--interface",
    metavar="NAME",
    default="",
    help="Network that jobs on several nodes use (default: the one that leads to the master).",
)
@click.option(
    "--ports", metavar="N-M", default="", help="Ports on which the ranks of such jobs may meet (default: 20000-31999)."
)
@click.option(
    "--warm",
    metavar="N",
    type=click.IntRange(0, 64),
    default=2,
    show_default=True,
    help="Number of Python interpreters that are kept ready for jobs that will resume here (0: none).",
)
@click.option(
    "--mps",
    metavar="auto|off|PROGRAM",
    default="auto",
    show_default=True,
    help="Whether jobs on shares of a GPU use NVIDIA's MPS (auto: if it is installed).",
)
@click.option("--pool", metavar="NAME", default="default", show_default=True, help="Pool that this node belongs to.")
@click.option(
    "--share-with-foreign",
    is_flag=True,
    help=("Offer what is left of GPUs that processes outside the cluster use (default: such a GPU is not offered)."),
)
@click.option(
    "--label",
    "labels",
    metavar="K=V",
    multiple=True,
    type=SETTING,
    help="Label that jobs can select this node by; may be repeated.",
)
@click.option(
    "--taint",
    "taints",
    metavar="NAME",
    multiple=True,
    help="Refuse jobs that were not submitted with --tolerate NAME; may be repeated.",
)
@click.option(
    "--keep",
    metavar="TIME",
    type=DURATION,
    help="Remove logs and checkpoints this long after their job finished (default: never).",
)
@click.option(
    "--checkpoint-quota",
    metavar="SIZE",
    type=SIZE,
    help=("Remove the oldest checkpoints of finished jobs while all checkpoints take more than this (default: never)."),
)
@click.option(
    "--min-uid",
    metavar="UID",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    help="Lowest uid whose jobs an agent of root runs (0: every uid, root's too).",
)
@click.option(
    "--on-foreign",
    metavar="COMMAND",
    default="",
    help="Run this, without a shell, for each process on a GPU that belongs to no job (EBB_FOREIGN_PID, …).",
)
@click.option(
    "--until", metavar="TIME", type=TIME_TO_COME, help="Time when this node is gone: 17:20, or '2026-11-23 07:30'."
)
@click.option("--ends-in", metavar="TIME", type=DURATION, help="The same as a time from now, e.g. 8h.")
@click.option("--owner", metavar="NAME", default="", help="Who lends this node until then; 'ebb nodes' shows it.")
@help_all_option
@click.pass_context
def command(
    context: click.Context,
    name: str,
    gpus: str,
    only_gpus: str,
    master: str | None,
    checkpoint_root: Path | None,
    cpus: float | None,
    mem: int | None,
    interface: str,
    ports: str,
    warm: int,
    mps: str,
    pool: str,
    share_with_foreign: bool,
    labels: tuple[tuple[str, str], ...],
    taints: tuple[str, ...],
    keep: float | None,
    checkpoint_quota: int | None,
    min_uid: int,
    on_foreign: str,
    until: float | None,
    ends_in: float | None,
    owner: str,
) -> int:
    """Run the agent of this node in the foreground until SIGTERM; the jobs outlive it.

    As root, the agent runs each job as the account of the user who submitted it; as another account, it runs only that
    account's jobs.
    """
    if context.invoked_subcommand is not None:
        return OK
    from ebbtide_agent.files.retention import Retention
    from ebbtide_agent.main import AgentOptions, run

    _check_marks(labels, taints)
    end = _end(until, ends_in, owner)
    with interrupts.unhandled():
        return run(
            AgentOptions(
                home=Home.current().root,
                name=name,
                master=master or os.environ.get("EBB_MASTER", ""),
                gpus=gpus,
                only_gpus=_names(only_gpus),
                checkpoint_root=checkpoint_root.absolute() if checkpoint_root else None,
                cpus=cpus,
                mem_bytes=mem,
                interface=interface,
                ports=ports,
                warm=warm,
                mps=mps,
                pool=pool,
                share_with_foreign=share_with_foreign,
                labels=labels,
                taints=taints,
                keep=Retention(keep, checkpoint_quota),
                min_uid=min_uid,
                on_foreign=on_foreign,
                until=end,
                owner=owner,
            )
        )


command.add_command(join)


def _names(gpus: str) -> tuple[str, ...]:
    """Return the GPUs that are named with commas between them."""
    names = tuple(name.strip() for name in gpus.split(",")) if gpus else ()
    if not all(names):
        raise Failure("agent: --only-gpus: write indexes or UUIDs with commas between them, such as 0,2", USAGE)
    return names


def _end(until: float | None, ends_in_s: float | None, owner: str) -> float | None:
    """Return when the node is gone, in Unix seconds; None if it stays."""
    from ebbtide_core.model import limits

    if until is not None and ends_in_s is not None:
        raise Failure("agent: --ends-in: not together with --until", USAGE)
    end = time.time() + ends_in_s if ends_in_s is not None else until
    if end is not None and end <= time.time():
        raise Failure("agent: --until: that time is over", USAGE)
    if owner and end is None:
        raise Failure("agent: --owner: needs --until or --ends-in", USAGE)
    if len(owner) > limits.MAX_USER_LENGTH or not owner.isprintable():
        raise Failure(f"agent: --owner: is not a name of at most {limits.MAX_USER_LENGTH} printable characters", USAGE)
    return end


def _check_marks(labels: tuple[tuple[str, str], ...], taints: tuple[str, ...]) -> None:
    """Refuse labels and taints that the master would refuse at each connection."""
    from ebbtide_core.model.constraints import check_marks
    from ebbtide_core.model.spec_error import SpecError

    try:
        check_marks(dict(labels), taints)
    except SpecError as error:
        raise Failure(f"agent: {error}", USAGE) from None
    if len(dict(labels)) < len(labels):
        raise Failure("agent: --label: a key is given twice", USAGE)
