"""Check paths that users have named, in a helper process."""

import os


def is_folder(path: str) -> bool:
    """Return whether the path is a directory."""
    return os.path.isdir(path)


def is_there(path: str) -> bool:
    """Return whether there is anything at the path."""
    return os.path.exists(path)
