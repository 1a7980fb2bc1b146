"""``ebb user``: manage who may use the cluster, and what they may do."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click
from ebbtide_protos.v1 import user_pb2

from ebbtide_cli.commands.verb import OneOf, Verbs, examples, json_option, master_option
from ebbtide_cli.describing.identity import ROLES, user_facts
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.connection import ask, connected
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import plural, printable

TITLES: Final = ("NAME", "ROLE", "ACCOUNT", "UID", "TOKENS")
COLUMNS: Final = ("name", "account", "uid", "role")
"""Columns of a file of users."""
MAX_USERS: Final = 10_000

name_argument = click.argument("name", metavar="NAME")
account_option = click.option(
    "--account", metavar="NAME", help="UNIX account that the user's jobs run as (default: the account of that name)."
)
uid_option = click.option(
    "--uid", type=click.IntRange(0, 2**32 - 2), help="uid of that account, which every node then checks."
)


@click.group(
    cls=Verbs,
    epilog=examples(
        "ebb user add anna",
        "ebb user ls",
        "ebb user set anna --role operator",
        "ebb user import --group ml --dry-run",
        "ebb user remove anna",
    ),
)
def command() -> None:
    """Manage who may use the cluster (for admins).

    A user submits jobs and controls their own; an operator controls everybody's jobs, and takes nodes out of service;
    an admin also manages users. 'ebb token create' makes what they log in with.
    """


@command.command(epilog=examples("ebb user add anna", "ebb user add ci --account builder --role operator"))
@name_argument
@click.option(
    "--role", type=OneOf(ROLES), default="user", show_default=True, help="Role, which says what the user may do."
)
@account_option
@uid_option
@json_option
@master_option
def add(name: str, role: str, account: str | None, uid: int | None, as_json: bool, master: str | None) -> None:
    """Add a user; 'ebb token create --user NAME' makes what they log in with."""
    wanted = user_pb2.User(name=name, role=role, account=account or "", uid=uid)
    with connected(master) as stub:
        _print(ask(stub.AddUser, user_pb2.AddUserRequest(user=wanted)), as_json, "added")


@command.command("set", epilog=examples("ebb user set anna --role operator", "ebb user set anna --account a.smith"))
@name_argument
@click.option("--role", type=OneOf(ROLES), help="Role, which says what the user may do.")
@account_option
@uid_option
@json_option
@master_option
def set_(name: str, role: str | None, account: str | None, uid: int | None, as_json: bool, master: str | None) -> None:
    """Give a user another role, account or uid. A lower role holds at once."""
    if role is None and account is None and uid is None:
        raise Failure("user set: give --role, --account or --uid", USAGE)
    request = user_pb2.SetUserRequest(name=name, role=role, account=account, uid=uid)
    with connected(master) as stub:
        _print(ask(stub.SetUser, request), as_json, "changed")


@command.command(epilog=examples("ebb user ls", "ebb user ls --json"))
@json_option
@master_option
def ls(as_json: bool, master: str | None) -> None:
    """List users."""
    with connected(master) as stub:
        users = ask(stub.ListUsers, user_pb2.ListUsersRequest()).users
    if as_json:
        print_json([user_facts(user) for user in users])
        return
    from ebbtide_cli.terminal.drawing import print_table

    print_table(TITLES, map(_row, users))


@command.command(epilog=examples("ebb user remove anna"))
@name_argument
@json_option
@master_option
def remove(name: str, as_json: bool, master: str | None) -> None:
    """Remove a user and revoke their tokens, at once.

    Their running jobs continue to their end. Their waiting jobs are held: an operator may release or cancel them.
    """
    with connected(master) as stub:
        reply = ask(stub.RemoveUser, user_pb2.RemoveUserRequest(name=name))
    if as_json:
        print_json({"name": name, "tokens": reply.tokens, "running": list(reply.running), "held": list(reply.held)})
        return
    print(printable(f"User {name} is removed, and {plural(reply.tokens, 'token')} revoked."))
    for what, jobs in (("goes on", reply.running), ("held", reply.held)):
        if jobs:
            print(f"{what}: job {', '.join(jobs)}")


@command.command(
    "import",
    epilog=examples(
        "ebb user import --group ml --dry-run", "ebb user import --all-accounts", "ebb user import users.csv"
    ),
)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option("--group", metavar="NAME", default="", help="Add the members of this group on the master's machine.")
@click.option(
    "--all-accounts", is_flag=True, help="Add all accounts of people (uid 1000 and up) on the master's machine."
)
@click.option("--dry-run", is_flag=True, help="Print who would be added or changed, but change nothing.")
@json_option
@master_option
def import_(
    file: Path | None, group: str, all_accounts: bool, dry_run: bool, as_json: bool, master: str | None
) -> None:
    """Add users from a CSV file (name,account,uid,role; a first line may say so), or from accounts.

    No user is removed, and existing users keep their roles; run again, it changes nothing.
    """
    if (file is not None) + bool(group) + all_accounts != 1:
        raise Failure("user import: give a FILE, or --group, or --all-accounts", USAGE)
    users = list(_read(file)) if file is not None else []
    request = user_pb2.ImportUsersRequest(users=users, group=group, all_accounts=all_accounts, dry_run=dry_run)
    with connected(master) as stub:
        found = ask(stub.ImportUsers, request).users
    if as_json:
        print_json([{**user_facts(one.user), "change": one.change} for one in found])
        return
    for one in found:
        print(printable(f"{one.change:<9}  {_words(one.user)}"))
    changed = sum(one.change != "unchanged" for one in found)
    print(f"{plural(len(found), 'user')}, {changed} {'to be ' if dry_run else ''}added or changed")


def _read(file: Path) -> Iterator[user_pb2.User]:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            yield from _users(file, csv.reader(lines, skipinitialspace=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Failure(f"user import: {file}: {getattr(error, 'strerror', None) or error}", USAGE) from None


def _users(file: Path, rows: Iterable[list[str]]) -> Iterator[user_pb2.User]:
    columns: tuple[str, ...] = COLUMNS
    seen = set[str]()
    for number, row in enumerate(rows, start=1):
        if not row or row[0].startswith("#"):
            continue
        if number == 1 and "name" in row:
            if unknown := set(row) - set(COLUMNS):
                raise _wrong(file, number, f"there is no column {min(unknown)!r}: there are {', '.join(COLUMNS)}")
            columns = tuple(row)
            continue
        said = {key: value.strip() for key, value in zip(columns, row, strict=False) if value.strip()}
        if len(row) > len(columns) or "name" not in said:
            raise _wrong(file, number, f"is not {','.join(columns)}")
        if said["name"] in seen:
            raise _wrong(file, number, f"{said['name']} stands there twice")
        if not said.get("uid", "0").isascii() or not said.get("uid", "0").isdecimal() or len(said.get("uid", "")) > 10:
            raise _wrong(file, number, f"{said['uid'][:20]!r} is no uid")
        seen.add(said["name"])
        if len(seen) > MAX_USERS:
            raise _wrong(file, number, f"more than {MAX_USERS} users")
        uid = int(said["uid"]) if "uid" in said else None
        if uid is not None and uid > 2**32 - 2:
            raise _wrong(file, number, f"{uid} is no uid")
        yield user_pb2.User(name=said["name"], account=said.get("account", ""), uid=uid, role=said.get("role", ""))


def _row(user: user_pb2.User) -> tuple[str, ...]:
    return tuple("-" if fact is None else str(fact) for fact in user_facts(user).values())


def _wrong(file: Path, number: int, what: str) -> Failure:
    return Failure(f"user import: {file}:{number}: {what}", USAGE)


def _print(user: user_pb2.User, as_json: bool, what: str) -> None:
    if as_json:
        print_json(user_facts(user))
    else:
        print(printable(f"{what}: {_words(user)}"))


def _words(user: user_pb2.User) -> str:
    uid = f" ({user.uid})" if user.HasField("uid") else ""
    return f"{user.name}, {user.role}, account {user.account or user.name}{uid}"
