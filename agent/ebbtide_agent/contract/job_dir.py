"""Makes the directories that a job of another account writes to, as root, and gives them to the account.

Root makes nothing in a directory that other accounts can write to, and follows none of their links.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from ebbtide import trees

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.accounts.rights import rights_of


def provide_job_dir(path: Path, account: Account) -> None:
    """Make sure that the job's checkpoint directory exists and belongs to the account. Raises OSError.

    Where others may write to the parent directory, or root has no rights there, it is made with the account's rights.
    """
    provide_folder(path.parent)
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        private = _is_private(os.fstat(parent))
        with rights_of(None if private else account), suppress(FileExistsError):
            os.mkdir(path.name, 0o700, dir_fd=parent)
            if private:
                os.chown(path.name, account.uid, account.gid, dir_fd=parent, follow_symlinks=False)
        found = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)
    if found.st_uid != account.uid or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{path} is not a directory of {account.name}")


def provide_folder(path: Path) -> None:
    """Make the directory and its parent if they do not exist, with mode 711: accounts enter it, but cannot list it."""
    for folder in (path.parent, path):
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o711)  # independent of the umask


def provide_private(path: Path) -> None:
    """Provide the folder, and check that no other account can write to it. Raises OSError."""
    provide_folder(path)
    if not _is_private(path.lstat()):
        raise PermissionError(f"{path} is not the agent's alone")


def give(draft: Path, account: Account) -> None:
    """Give the whole tree, which no other account can enter before, to the account. Raises OSError."""
    for folder in trees.walk(draft):
        for name in (*folder.folders, *folder.files):
            os.chown(name, account.uid, account.gid, dir_fd=folder.descriptor, follow_symlinks=False)
    os.chown(draft, account.uid, account.gid, follow_symlinks=False)


def _is_private(facts: os.stat_result) -> bool:
    return facts.st_uid == os.geteuid() and not facts.st_mode & 0o022 and stat.S_ISDIR(facts.st_mode)
