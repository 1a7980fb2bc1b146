"""``ebb supply``: borrow nodes from another scheduler."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from ebbtide_core.supply.supply import BorrowedNode, NodeSupply

from ebbtide_cli import interrupts
from ebbtide_cli.commands.verb import Verbs, examples, json_option, master_option
from ebbtide_cli.errors import FAILED, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.supplying.files import SupplyFolder
from ebbtide_cli.supplying.hook import Hook
from ebbtide_cli.supplying.lender import Lender, LenderAwayError, LenderRefusedError
from ebbtide_cli.supplying.settings import FILE, Borrowing, HookCommands, PodOptions, SlurmOptions, names, read
from ebbtide_cli.supplying.slurm import Slurm
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import one_line, plural, printable
from ebbtide_cli.values import format_duration

_NOT_SERVED: Final = "no supplier runs: 'ebb supply run {}' starts one, and it is granted then"
_name: Final = click.argument("name", metavar="NAME")


@click.group(
    cls=Verbs,
    epilog=examples(
        "ebb supply try hpc",
        "ebb supply run hpc",
        "ebb supply ls",
        "ebb supply add hpc --nodes 2",
        "ebb supply release hpc-17",
        "ebb supply pause hpc",
        "ebb supply logs hpc-17",
    ),
)
def command() -> None:
    """Borrow nodes from Slurm, Kubernetes or others: loans come as jobs wait, and go when nobody needs them.

    What is borrowed is in EBB_HOME/supply.toml, a table [supply.NAME] for each supply ('ebb docs supplies').
    """


@command.command(epilog=examples("ebb supply run hpc"))
@_name
@master_option
def run(name: str, master: str | None) -> None:
    """Ask for loans and call them off, in the foreground until SIGTERM; the loans outlive it."""
    from ebbtide_cli.supplying.supplier import Supplier

    borrowing, folder = _found(name)
    with interrupts.unhandled():
        Supplier(borrowing, folder, _lender(borrowing, folder), master, _say).run()


@command.command("try", epilog=examples("ebb supply try hpc"))
@_name
def try_(name: str) -> None:
    """Show what a loan would be, and what the lender would do with it; nothing is borrowed."""
    borrowing, folder = _found(name)
    folder.make()
    with _answers(name):
        for words in _lender(borrowing, folder).preview(f"{name}-0", folder.path / f"{name}-0.invitation"):
            print("\n".join(printable(line) for line in words.splitlines()))


@command.command(epilog=examples("ebb supply ls", "ebb supply ls --json"))
@json_option
def ls(as_json: bool) -> None:
    """List the supplies, and the loans of each."""
    now, found = time.time(), []
    for name in names(Home.current().root / FILE):
        borrowing, folder = _found(name)
        found.append(_facts(borrowing, folder.load(name, borrowing.settings), folder.is_served(), now))
    if as_json:
        print_json(found)
        return
    for supply in found:
        print(printable(f"{supply['name']}: {_state_words(supply)}"))
        for loan in supply["loans"]:
            job = f"  job {loan['job']}" if loan["job"] else ""
            why = f"  {loan['reason']}" if loan["reason"] else ""
            age = format_duration(max(0.0, now - loan["since"]))
            print(printable(f"  {loan['id']}  {loan['phase']}{job}  for {age}{why}"))


@command.command(epilog=examples("ebb supply add hpc", "ebb supply add hpc --nodes 2"))
@_name
@click.option("--nodes", metavar="N", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many.")
def add(name: str, nodes: int) -> None:
    """Borrow nodes even if nobody waits for them, up to max_nodes in all; they are given back when idle."""
    borrowing, folder = _found(name)
    supply = folder.load(name, borrowing.settings)
    more = min(nodes, max(0, supply.room() - supply.wanted))
    bound = "" if more == nodes else f", as {name} borrows at most {borrowing.settings.max_nodes}"
    _wish(name, f"{plural(more, 'node')} will be asked for{bound}", do="add", nodes=nodes)


@command.command(epilog=examples("ebb supply release hpc-17"))
@click.argument("loan", metavar="LOAN")
def release(loan: str) -> None:
    """Give a node back now: its jobs save and leave, with what time the lender gives.

    For their whole grace periods, drain the node first ('ebb node drain LOAN --now --wait').
    """
    name = _supply_of(loan)
    borrowing, folder = _found(name)
    there = folder.load(name, borrowing.settings).loans.get(loan)
    if there is None or there.is_over:
        raise Failure(f"supply: {name} has no loan {loan} that has not ended: 'ebb supply ls' lists them", FAILED)
    _wish(name, f"{loan} will be given back", do="release", loan=loan, user=user_name())


@command.command(epilog=examples("ebb supply pause hpc"))
@_name
def pause(name: str) -> None:
    """Ask for no more loans; those that there are go on."""
    _wish(name, "no more nodes will be asked for", do="pause")


@command.command(epilog=examples("ebb supply resume hpc"))
@_name
def resume(name: str) -> None:
    """Ask for loans again, also after failures."""
    _wish(name, "nodes will be asked for again", do="resume")


@command.command(epilog=examples("ebb supply logs hpc-17"))
@click.argument("loan", metavar="LOAN")
def logs(loan: str) -> None:
    """Print what the pilot of a loan has printed."""
    borrowing, folder = _found(_supply_of(loan))
    with _answers(loan):
        for line in _lender(borrowing, folder).log(loan).splitlines():
            print(printable(line))


def _found(name: str) -> tuple[Borrowing, SupplyFolder]:
    home = Home.current()
    return read(home.root / FILE, name), SupplyFolder.of(home, name)


def _lender(borrowing: Borrowing, folder: SupplyFolder) -> Lender:
    match borrowing.lender:
        case PodOptions() as options:
            return _kubernetes(borrowing, options, folder.path)
        case SlurmOptions() as options:
            return Slurm(borrowing, options, folder.path)
        case HookCommands() as commands:
            return Hook(borrowing, commands, folder.path)


def _kubernetes(borrowing: Borrowing, options: PodOptions, folder: Path) -> Lender:
    try:
        from ebbtide_cli.supplying.kubernetes import Kubernetes
    except ModuleNotFoundError as error:
        raise Failure(f"supply: {error}: install 'ebbtide[kubernetes]'", FAILED) from None
    return Kubernetes(borrowing, options, folder)


@contextmanager
def _answers(about: str) -> Iterator[None]:
    try:
        yield
    except (LenderAwayError, LenderRefusedError) as error:
        raise Failure(f"supply: {about}: {one_line(str(error))}", FAILED) from None


def _supply_of(loan: str) -> str:
    return loan.rpartition("-")[0]


def _wish(name: str, words: str, **wish: Any) -> None:
    _, folder = _found(name)
    folder.wish(**wish)
    print(words if folder.is_served() else f"{words}; {_NOT_SERVED.format(name)}")


def _facts(borrowing: Borrowing, supply: NodeSupply, served: bool, now: float) -> dict[str, Any]:
    backs_off = now < supply.not_before
    state = "paused" if supply.paused else "backing-off" if backs_off else "active" if served else "stopped"
    return {
        "name": supply.name,
        "state": state,
        "served": served,
        "until": supply.not_before if backs_off else None,
        "trouble": supply.trouble or None,
        "pool": borrowing.pool,
        "max_nodes": borrowing.settings.max_nodes,
        "loans": [_loan_facts(loan) for loan in supply.loans.values()],
    }


def _loan_facts(loan: BorrowedNode) -> dict[str, Any]:
    return {
        "id": loan.id,
        "phase": loan.phase.value,
        "job": loan.job or None,
        "since": loan.since,
        "until": loan.until,
        "reason": loan.called_off or loan.reason or None,
    }


def _state_words(supply: dict[str, Any]) -> str:
    there = sum(loan["phase"] != "ended" for loan in supply["loans"])
    words = f"{supply['state']}, {there} of {supply['max_nodes']} nodes borrowed for pool {supply['pool']}"
    if supply["trouble"]:
        words += f"; last failure: {supply['trouble']}"
    return words if supply["served"] else f"{words}; no supplier runs"


def _say(words: str) -> None:
    print(printable(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}"), file=sys.stderr, flush=True)
