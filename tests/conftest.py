"""What holds for every test: gRPC reads these when it is first imported, by whichever test that is."""

import asyncio
import importlib.util
import inspect
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Tests start processes, and gRPC would print a line about each fork into the output that they compare.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Several tests train at once, on as few cores: threads of PyTorch that wait for each other would take most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests import sshd
from tests.attacks.hung import can_hang
from tests.postgres import Server, a_server, programs
from tests.slurm import rig

# Whoever starts the tests in the background of a script has them ignore Ctrl-C, and so all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# How long an example takes says what else this machine does. `make test-all` draws more of them than `make test`.
settings.register_profile("thorough", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("any machine", settings.get_profile("thorough"), max_examples=25)
settings.load_profile("any machine")

# Some hundred processes of ours are started: each would compile all the code anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.fixture(autouse=True)
def ctrl_c_is_still_heard() -> Iterator[None]:
    """Fail the test after which no later one, and nothing that it starts, would hear of a Ctrl-C."""
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs to its end in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


# What a test may need of the machine it runs on, and how to see whether it is there.
NEEDS = {
    "root": lambda: os.geteuid() == 0 and _nobody_can_run_this_python(),
    "postgres": lambda: programs() is not None,
    "slurm": rig.available,
    "systemd": lambda: shutil.which("systemd-analyze") is not None,
    "namespaces": lambda: _has_namespaces(),
    "helm": lambda: importlib.util.find_spec("helm_python") is not None,
    "history": lambda: _has_commit("94d509c"),
    "fuse": can_hang,
    "sshd": lambda: sshd.server() is not None,
    "browser": lambda: chromium() is not None and find_spec("playwright") is not None,
}


def chromium() -> str | None:
    """The browser that pages are tested with."""
    return shutil.which("chromium")


def _nobody_can_run_this_python() -> bool:
    """It may lie in a home that nobody else can enter; jobs of other accounts could not run it then."""
    try:
        return subprocess.run([sys.executable, "-c", ""], user=65534, group=65534, extra_groups=[]).returncode == 0
    except OSError:
        return False


def _has_namespaces() -> bool:
    command = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"]
    last = "echo 1000 > /proc/sys/kernel/ns_last_pid"  # a kernel may be built without
    have = all(shutil.which(program) for program in ("unshare", "nsenter", "mount"))
    return have and subprocess.run([*command, "sh", "-c", last], capture_output=True).returncode == 0


def _has_commit(name: str) -> bool:
    command = ["git", "-C", str(Path(__file__).parent), "cat-file", "-e", f"{name}^{{commit}}"]
    return shutil.which("git") is not None and subprocess.run(command, capture_output=True).returncode == 0


def _lacks_a_program(item: pytest.Item) -> bool:
    return not all(shutil.which(name) for marker in item.iter_markers("programs") for name in marker.args)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, and so count, what needs something that is not there."""
    asked = {marker.name for item in items for marker in item.iter_markers()}
    missing = [marker for marker, there in NEEDS.items() if marker in asked and not there()]
    without = [item for item in items if any(item.get_closest_marker(marker) for marker in missing)]
    if without := [item for item in items if item in without or _lacks_a_program(item)]:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A server for all tests of a process; each takes a database of its own."""
    with a_server() as server:
        yield server
