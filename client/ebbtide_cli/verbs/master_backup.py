"""``ebb master check``, ``backup``, ``restore``, ``compact``: care for the journal, beside a master or without."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ebbtide_cli.commands.verb import DURATION, examples, json_option
from ebbtide_cli.errors import FAILED, OK, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import format_time, one_line

if TYPE_CHECKING:
    from ebbtide_master.backup.backups import JournalFindings

path_type = click.Path(path_type=Path)


@click.command(epilog=examples("ebb master check", "ebb master check --json"))
@json_option
def check(as_json: bool) -> int:
    """Read the whole journal in EBB_HOME and report whether it is sound; a master may run meanwhile.

    Exit code 1 if it is damaged. The next start of a master sets jobs with unreadable lines aside.
    """
    from ebbtide_master.backup.backups import backups, newest_verified
    from ebbtide_master.backup.backups import check as look

    home = Home.current().root
    with _failing():
        findings, newest = look(_with_journal(home)), newest_verified(home)
    count = sum(1 for _ in backups(home))
    if as_json:
        backup = None if newest is None else {"path": str(newest.path), "taken": newest.taken}
        print_json({**_facts(findings), "backups": count, "newest_backup": backup})
    else:
        print(_words(findings))
        for line in findings.damage:
            print(f"  {one_line(str(line))}")
        print(f"Newest sound backup: {newest.path}" if newest else "There is no sound backup.")
    return FAILED if findings.damage else OK


@click.command(epilog=examples("ebb master backup", "ebb master backup --to /mnt/safe/ebbtide-today"))
@click.option("--to", metavar="DIR", type=path_type, help="Directory to write to, instead of EBB_HOME/backups.")
@click.option(
    "--keep", metavar="N", type=click.IntRange(1), help="Remove all but the newest N backups in EBB_HOME/backups."
)
@json_option
def backup(to: Path | None, keep: int | None, as_json: bool) -> None:
    """Copy the journal in EBB_HOME and its users, then verify the copy; a master may run meanwhile."""
    from ebbtide_master.backup.backups import take

    with _failing():
        made, findings = take(_with_journal(Home.current().root), keep or 0, to.absolute() if to else None)
    if as_json:
        print_json({**_facts(findings), "path": str(made.path), "taken": made.taken})
    else:
        print(f"{made.path}\n{_words(findings)}")


@click.command(epilog=examples("ebb master restore /mnt/safe/ebbtide-today"))
@click.argument("backup", metavar="DIR", type=path_type)
@json_option
def restore(backup: Path, as_json: bool) -> None:
    """Put a backup back into EBB_HOME, where no master may run.

    The present state is kept beside it. Jobs submitted since the backup are unknown afterwards: their running attempts
    are set aside, and their ids are not given out again.
    """
    from ebbtide_master.backup.restoring import restore as put_back

    with _failing():
        done = put_back(Home.current().root, backup.absolute())
    if as_json:
        replaced = None if done.replaced is None else str(done.replaced)
        facts = {"path": str(done.backup.path), "taken": done.backup.taken, "replaced": replaced}
        print_json({**_facts(done.findings), **facts, "epoch": done.epoch, "ids_skipped": done.skipped})
        return
    print(f"Put back what there was at {format_time(done.backup.taken)}: {_words(done.findings)}")
    print(f"  {done.skipped} ids of jobs are skipped")
    if done.replaced is not None:
        print(f"  what was there before is in {done.replaced}")


@click.command(epilog=examples("ebb master compact", "ebb master compact --keep 365d"))
@click.option(
    "--keep",
    metavar="TIME",
    type=DURATION,
    default="90d",
    show_default=True,
    help="Keep jobs that ended less than this time ago.",
)
@json_option
def compact(keep: float, as_json: bool) -> None:
    """Forget jobs that ended long ago, so that masters start sooner; no master may run in EBB_HOME.

    A backup is taken first. The history of scripts stays. Tasks of arrays, and jobs that a kept job refers to, are not
    forgotten.
    """
    from ebbtide_master.backup.compacting import compact as forget

    with _failing():
        done = forget(_with_journal(Home.current().root), keep)
    backup = None if done.backup is None else str(done.backup)
    if as_json:
        print_json(asdict(done) | {"backup": backup})
    else:
        print(f"{done.forgotten} jobs are forgotten that had ended before {format_time(done.before)}")
        if backup is not None:
            print(f"  {done.lines} lines are gone; what there was before is in {backup}")


def _with_journal(home: Path) -> Path:
    if not (home / "journal.db").exists():
        raise Failure(f"there is no journal in {home}")
    return home


@contextmanager
def _failing() -> Iterator[None]:
    """Turn the store's errors into the failure of the verb."""
    from ebbtide_master.store.journal import StoreError, StoreInUseError

    try:
        yield
    except (StoreError, StoreInUseError) as error:
        raise Failure(str(error)) from None


def _words(found: "JournalFindings") -> str:
    damage = f"{len(found.damage)} damaged lines" if found.damage else "sound"
    return f"{damage}: {found.lines} lines, {found.jobs} jobs, until {format_time(found.last_time)}"


def _facts(found: "JournalFindings") -> dict[str, Any]:
    facts = asdict(found)
    damage = [
        {"line": line.sequence, "kind": line.kind, "job": line.job, "reason": line.reason} for line in found.damage
    ]
    return {**facts, "next_id": str(found.next_id), "damage": damage}
