"""Takes backups on a schedule, each in a process of its own, so that folding the copy does not delay the master."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from ebbtide_master.backup.backups import backups, take
from ebbtide_master.config.journal import JournalSettings
from ebbtide_master.store.journal import StoreError

NICENESS: Final = 10

log = logging.getLogger(__name__)


@asynccontextmanager
async def backing_up(home: Path, settings: JournalSettings) -> AsyncIterator[None]:
    """Take backups of the journal and the vault in ``home`` for as long as the block lasts."""
    task = asyncio.create_task(_back_up(home, settings))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _back_up(home: Path, settings: JournalSettings) -> None:
    while settings.backup_every_s:
        await asyncio.sleep(due_in_s(home, settings.backup_every_s, time.time()))
        command = [sys.executable, "-m", __name__, str(home), str(settings.backup_keep)]
        try:
            failed = await _run(command)
        except OSError as error:
            log.error("backup=failed %s", error)
            failed = True
        if failed:
            await asyncio.sleep(settings.backup_every_s)


async def _run(command: list[str]) -> bool:
    """Run ``command`` to its end, and return whether it failed; it logs the reason itself."""
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    try:
        return await process.wait() != 0
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise


def due_in_s(home: Path, every_s: float, now: float) -> float:
    """Return the seconds until the next backup; the first one comes after ``every_s``, too."""
    newest = next(backups(home), None)
    return every_s if newest is None else min(every_s, max(0.0, newest.taken + every_s - now))


def main(home: Path, keep: int) -> int:
    """Take one backup, and return the process's exit code."""
    os.nice(NICENESS)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        backup, findings = take(home, keep)
    except StoreError as error:
        log.error("backup=failed %s", error)
        return 1
    log.info("backup=%s lines=%d jobs=%d", backup.path, findings.lines, findings.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
