"""What the agent wants to know of paths that users have named, for a helper's process."""

import os


def is_folder(path: str) -> bool:
    """Whether there is a directory."""
    return os.path.isdir(path)


def is_there(path: str) -> bool:
    """Whether there is anything."""
    return os.path.exists(path)
