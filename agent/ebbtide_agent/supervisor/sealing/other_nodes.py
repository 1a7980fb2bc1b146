"""Tell the first node of an attempt how the other nodes have ended, through the job's directory, which all share.

Each other node has a file there since it prepared the attempt. The file is empty until no process is left on its node.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from ebbtide import regular

from ebbtide_agent.jsonfile import write_json

_LARGEST = 1024 * 1024  # bytes of a node's file
_LOOK_S = 0.1


def folder_of(job_dir: Path, attempt: int) -> Path:
    """Return where the nodes of an attempt tell how they have ended."""
    return job_dir / f"nodes-{attempt}"


def begin(folder: Path, node_rank: int) -> None:
    """Note that this node takes part, so that the first one waits for it. Raises OSError."""
    folder.mkdir(exist_ok=True)
    (folder / str(node_rank)).touch()


def tell(folder: Path, node_rank: int, left: dict[str, Any]) -> None:
    """Tell what this node has left, now that no process of the attempt is left on it. Raises OSError."""
    write_json(folder / str(node_rank), left)


def told(folder: Path) -> list[dict[str, Any]]:
    """Return what each of the other nodes has told; an empty object for one that has not ended, or is lost."""
    try:
        names = os.listdir(folder)  # NFS shows what is new once the folder is opened again
    except FileNotFoundError:
        return []
    except OSError:
        return [{}]
    return [_read(folder / name) for name in names if name.isdigit()]


def wait(folder: Path, within_s: float) -> None:
    """Wait until all other nodes have told, at most for this time."""
    until = time.monotonic() + within_s
    while not all(told(folder)) and time.monotonic() < until:
        time.sleep(_LOOK_S)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(regular.read_regular(path, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
