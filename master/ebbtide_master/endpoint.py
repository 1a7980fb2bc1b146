"""Writes the file in which clients and agents of this account read which process the master is, and its ports."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ebbtide_machine.process import Identity


@contextmanager
def published(home: Path, cluster_id: str, ports: Mapping[str, str | int]) -> Iterator[None]:
    """Keep ``master.json`` in ``home`` for as long as the block lasts. It appears in one step, so it is never half.

    ``ports`` has host, port and agent_port if the master listens on more than the socket in its home, else nothing.
    """
    content = {
        **Identity.own().to_json(),
        **ports,
        "started_at": time.time(),
        "cluster_id": cluster_id,
    }
    path = home / "master.json"
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        json.dump(content, file)
    draft.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
