"""The file that tells clients and agents on this machine where the master is, and which process it is."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def published(home: Path, host: str, port: int, cluster_id: str, agent_port: int, *, tls: bool) -> Iterator[None]:
    """``master.json`` in ``home``, for as long as the block lasts; written in one step, so that nobody reads half."""
    content = {
        "pid": os.getpid(),
        "starttime": _own_start_time(),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "host": host,
        "port": port,
        "agent_port": agent_port,
        "tls": tls,
        "started_at": time.time(),
        "cluster_id": cluster_id,
    }
    path = home / "master.json"
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(content))
    draft.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _own_start_time() -> int:
    """Jiffies from boot to the start of this process: with the pid and the boot id, an identity."""
    stat = Path("/proc/self/stat").read_text()
    return int(stat[stat.rindex(")") + 2 :].split()[19])
