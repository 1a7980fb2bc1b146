"""Lock the job on this node: two attempts of one job never run here at the same time, whatever state was lost.

Every process of the job inherits the lock, so it outlives even a supervisor that is killed. The file holds the highest
attempt that ever held the lock, so an order that a newer one has overtaken is refused for good. The file also names its
job: a process that has it open belongs to that job, wherever the file was moved.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbtide_agent.supervisor.status import Refused, refusing

_WIDTH = 12


@contextmanager
def hold(path: Path, attempt: int) -> Iterator[int]:
    """Hold the lock for this attempt; yields the descriptor for its processes to inherit.

    The attempt's number is not on disk yet, but outlives every process of this boot: call `make_durable` once the
    attempt runs, for it may take longer than the start. When the block ends the lock is let go for every process that
    inherited it, so none of them may live then. Raises Refused if another attempt holds it, if this or a later one
    ever held it, or if the file cannot be used.
    """
    with refusing("cannot open the job's lock"):
        # A process that inherits this descriptor can hold the lock, but not write the file.
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with refusing("cannot lock the job"):
            _acquire(descriptor, path, attempt)
        yield descriptor
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def make_durable(descriptor: int, path: Path) -> None:
    """Make the fence outlive a crash of the machine, too. Raises OSError."""
    os.fsync(descriptor)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _acquire(descriptor: int, path: Path, attempt: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refused(f"node still runs attempt {_read(descriptor)}") from None
    highest = _read(descriptor)
    if attempt <= highest:
        raise Refused(f"attempt {highest} of the job was already started here")
    # The line has a fixed width and is written in place, so that the file is never empty.
    writable = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(writable, b"%0*d\n%s\n" % (_WIDTH, attempt, os.fsencode(path.stem)), 0)
    finally:
        os.close(writable)


def _read(descriptor: int) -> int:
    content = os.pread(descriptor, _WIDTH, 0)
    # A damaged file fences no old attempt any more, but holding the lock still proves that no attempt is alive.
    return int(content) if content.isdigit() else 0
