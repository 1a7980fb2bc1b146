"""A pid that the kernel really gives out a second time, in a namespace where it can be told which is next."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.namespaces
NEW = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]

# The kernel counts a process's start in hundredths of a second: the second one must not start in the first one's.
PROGRAM = """
import signal, subprocess, time
from pathlib import Path
from ebbtide_machine.process import Identity

first = subprocess.Popen(["sleep", "60"])
known = Identity.of(first.pid)
assert known.is_alive()
first.kill()
first.wait()
began = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10_000_000
while time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10_000_000 == began:
    pass
Path("/proc/sys/kernel/ns_last_pid").write_text(str(known.pid - 1))
innocent = subprocess.Popen(["sleep", "60"])
assert innocent.pid == known.pid, "the pid was to be given out again"
assert not known.is_alive()
assert not known.signal(signal.SIGKILL)
assert Identity.of(innocent.pid).signal(0)
assert Identity.of(innocent.pid).signal(signal.SIGTERM)
print(innocent.wait())
"""


def test_whoever_has_a_dead_processs_pid_is_not_signalled_in_its_place() -> None:
    done = subprocess.run([*NEW, sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "-15\n"), done.stderr
