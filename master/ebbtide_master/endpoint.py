"""The file that tells clients and agents on this machine where the master is, and which process it is."""

import json
import os
import time
from pathlib import Path


class Endpoint:
    """``master.json`` in the home directory: there while the master serves."""

    def __init__(self, home: Path) -> None:
        self._path = home / "master.json"

    def publish(self, host: str, port: int, cluster_id: str) -> None:
        """Write it in one step, so that nobody reads half of it."""
        content = {
            "pid": os.getpid(),
            "starttime": _own_start_time(),
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "host": host,
            "port": port,
            "started_at": time.time(),
            "cluster_id": cluster_id,
        }
        draft = self._path.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps(content))
        draft.replace(self._path)

    def withdraw(self) -> None:
        """Remove it."""
        self._path.unlink(missing_ok=True)


def _own_start_time() -> int:
    """Jiffies from boot to the start of this process: with the pid and the boot id, an identity."""
    stat = Path("/proc/self/stat").read_text()
    return int(stat[stat.rindex(")") + 2 :].split()[19])
