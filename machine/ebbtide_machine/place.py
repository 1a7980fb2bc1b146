"""Checks that no other account can decide what lies at a path, before a program trusts what it finds there."""

import grp
import os
import pwd
import stat
from functools import cache
from pathlib import Path
from typing import Final

MAX_LINKS: Final = 40
_OF_OTHERS: Final = 0o022


class NotTrusted(Exception):
    """Another account could have put the file there; the message is one line."""


def check_folder(folder: Path) -> None:
    """Raise `NotTrusted` if an account besides this one and root can change what is in ``folder``; OSError if missing.

    All directories above it count, and so do the owners of the links on the way.
    """
    _check_way(folder, to_its_end=True)


def make_folder(folder: Path) -> None:
    """Make ``folder`` with mode 0700 if it is missing, but only in a trusted place. Raises `NotTrusted`, OSError."""
    there = folder.absolute()
    while not os.path.lexists(there):
        there = there.parent
    _check_way(there, to_its_end=there == folder.absolute())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_folder(folder)


def _check_way(folder: Path, *, to_its_end: bool) -> None:
    rest, done, links = list(reversed(folder.absolute().parts)), Path("/"), 0
    while rest:
        part = rest.pop()
        if part == "..":
            done = done.parent
            continue
        done = done / part
        facts = done.lstat()
        _check(done, facts, on_the_way=bool(rest) or not to_its_end)
        if stat.S_ISLNK(facts.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise NotTrusted(f"{folder}: too many links lead there")
            rest += reversed(done.readlink().parts)
            done = done.parent
        elif not stat.S_ISDIR(facts.st_mode):
            raise NotADirectoryError(20, "it is no directory", str(done))


def check_file(path: Path) -> None:
    """Raise `NotTrusted` unless ``path`` is a regular file that only this account and root could write; OSError."""
    check_folder(path.parent)
    facts = path.lstat()
    if not stat.S_ISREG(facts.st_mode):
        raise NotTrusted(f"{path} is no regular file")
    _check(path, facts)


def _check(path: Path, facts: os.stat_result, *, on_the_way: bool = False) -> None:
    if facts.st_uid != os.geteuid() and facts.st_uid not in _roots():
        raise NotTrusted(f"{path} belongs to uid {facts.st_uid}, and this is uid {os.geteuid()}")
    if stat.S_ISLNK(facts.st_mode):
        return  # the mode of a link has no meaning
    others = facts.st_mode & _OF_OTHERS
    if others == 0o020 and _is_personal(facts.st_gid):
        return
    # In a sticky directory that all accounts may write, such as /tmp, no account can replace another one's files.
    if others and not (on_the_way and facts.st_mode & stat.S_ISVTX):
        raise NotTrusted(f"{path} can be written by others: chmod go-w {path}")


@cache
def _roots() -> frozenset[int]:
    """Return the uids that mean root: in a user namespace that does not map root, it has the uid of nobody."""
    mapped = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    nobody = int(Path("/proc/sys/kernel/overflowuid").read_text())
    is_mapped = any(first <= nobody < first + length for first, _, length in mapped)
    return frozenset({0} if is_mapped else {0, nobody})


def _is_personal(gid: int) -> bool:
    """Whether the group has this account alone, as many systems make such a group for each account."""
    try:
        account, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return account.pw_gid == gid and group.gr_name == account.pw_name and set(group.gr_mem) <= {account.pw_name}
