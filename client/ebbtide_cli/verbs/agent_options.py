"""Defines the options of ``ebb agent``, which ``ebb agent pilot`` has, too."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ebbtide_cli.commands.time_options import TIME_TO_COME
from ebbtide_cli.commands.verb import CPUS, DURATION, SETTING, SIZE
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.home import Home

if TYPE_CHECKING:
    from ebbtide_agent.accounts.accounts import AllowedAccounts
    from ebbtide_agent.main import AgentOptions

Command = TypeVar("Command", bound=Callable[..., Any])

SECTIONS: Final = {
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
    "Jobs": ("--warm", "--min-uid", "--shared-account", "--interface", "--ports"),
}
DAILY: Final = frozenset(
    {
        *("--name", "--master", "--pool", "--label", "--gpus", "--cpus", "--mem"),
        *("--checkpoint-root", "--keep", "--checkpoint-quota"),
    }
)
OPTIONS: Final = (
    click.option("--name", default="", help="Name of the node (default: the host's name)."),
    click.option(
        "--gpus",
        metavar="PROFILE",
        default="auto",
        show_default=True,
        help="GPUs to offer: auto (the real ones), none, or fake ones such as 4xRTX4090.",
    ),
    click.option(
        "--only-gpus",
        metavar="GPU,...",
        default="",
        help="Offer only these GPUs, by index or UUID; no two agents with this option get the same GPU.",
    ),
    click.option(
        "--master",
        metavar="HOST:PORT|unix:HOME,...",
        help=(
            "Address of the master, and of its standbys (default: EBB_MASTER, else the joined master, else "
            "the one in EBB_HOME)."
        ),
    ),
    click.option(
        "--checkpoint-root",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Directory for checkpoints (default: in EBB_HOME).",
    ),
    click.option("--cpus", metavar="N", type=CPUS, help="CPUs to offer (default: all)."),
    click.option("--mem", metavar="SIZE", type=SIZE, help="Host memory to offer (default: all)."),
    click.option(
        "--interface",
        metavar="NAME",
        default="",
        help="Network that jobs on several nodes use (default: the one that leads to the master).",
    ),
    click.option(
        "--ports",
        metavar="N-M",
        default="",
        help="Ports on which the ranks of such jobs may meet (default: 20000-31999).",
    ),
    click.option(
        "--warm",
        metavar="N",
        type=click.IntRange(0, 64),
        default=2,
        show_default=True,
        help="Number of Python interpreters that are kept ready for jobs that will resume here (0: none).",
    ),
    click.option(
        "--mps",
        metavar="auto|off|PROGRAM",
        default="auto",
        show_default=True,
        help="Whether jobs on shares of a GPU use NVIDIA's MPS (auto: if it is installed).",
    ),
    click.option(
        "--pool", metavar="NAME", default="default", show_default=True, help="Pool that this node belongs to."
    ),
    click.option(
        "--share-with-foreign",
        is_flag=True,
        help=(
            "Offer what is left of GPUs that processes outside the cluster use (default: such a GPU is not offered)."
        ),
    ),
    click.option(
        "--label",
        "labels",
        metavar="K=V",
        multiple=True,
        type=SETTING,
        help="Label that jobs can select this node by; may be repeated.",
    ),
    click.option(
        "--taint",
        "taints",
        metavar="NAME",
        multiple=True,
        help="Refuse jobs that were not submitted with --tolerate NAME; may be repeated.",
    ),
    click.option(
        "--keep",
        metavar="TIME",
        type=DURATION,
        help="Remove logs and checkpoints this long after their job finished (default: never).",
    ),
    click.option(
        "--checkpoint-quota",
        metavar="SIZE",
        type=SIZE,
        help=(
            "Remove the oldest checkpoints of finished jobs while all checkpoints take more than this (default: never)."
        ),
    ),
    click.option(
        "--min-uid",
        metavar="UID",
        type=click.IntRange(0),
        default=1000,
        show_default=True,
        help="Lowest uid whose jobs an agent of root runs (0: every uid, root's too).",
    ),
    click.option(
        "--shared-account",
        is_flag=True,
        help="Run everybody's jobs as this account, which must not be root; they can read each other's files.",
    ),
    click.option(
        "--on-foreign",
        metavar="COMMAND",
        default="",
        help="Run this, without a shell, for each process on a GPU that belongs to no job (EBB_FOREIGN_PID, …).",
    ),
    click.option(
        "--until", metavar="TIME", type=TIME_TO_COME, help="Time when this node is gone: 17:20, or '2026-11-23 07:30'."
    ),
    click.option("--ends-in", metavar="TIME", type=DURATION, help="The same as a time from now, e.g. 8h."),
    click.option("--owner", metavar="NAME", default="", help="Who lends this node until then; 'ebb nodes' shows it."),
)


def with_options(command: Command) -> Command:
    """Give a command all of these options."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def agent_options(given: Mapping[str, Any]) -> "AgentOptions":
    """Return the agent's settings that the options give. Raises Failure."""
    from ebbtide_agent.files.retention import Retention
    from ebbtide_agent.main import AgentOptions

    _check_marks(given["labels"], given["taints"])
    root: Path | None = given["checkpoint_root"]
    return AgentOptions(
        home=Home.current().root,
        name=given["name"],
        master=given["master"] or os.environ.get("EBB_MASTER", ""),
        gpus=given["gpus"],
        only_gpus=_names(given["only_gpus"]),
        checkpoint_root=root.absolute() if root else None,
        cpus=given["cpus"],
        mem_bytes=given["mem"],
        interface=given["interface"],
        ports=given["ports"],
        warm=given["warm"],
        mps=given["mps"],
        pool=given["pool"],
        share_with_foreign=given["share_with_foreign"],
        labels=given["labels"],
        taints=given["taints"],
        keep=Retention(given["keep"], given["checkpoint_quota"]),
        allowed=_allowed(given["min_uid"], given["shared_account"]),
        on_foreign=given["on_foreign"],
        until=_end(given["until"], given["ends_in"], given["owner"]),
        owner=given["owner"],
    )


def _allowed(min_uid: int, shared: bool) -> "AllowedAccounts":
    """Return whose jobs run here."""
    from ebbtide_agent.accounts.accounts import AllowedAccounts

    if shared and os.geteuid() == 0:
        raise Failure("agent: --shared-account: not for root: run the agent as the account of the jobs", USAGE)
    return AllowedAccounts(min_uid, shared)


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
