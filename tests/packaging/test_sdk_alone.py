"""The SDK where nothing else is: every Python from 3.10 on, and systems that jobs do not run on."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreters import interpreters

SDK = Path(__file__).resolve().parents[2] / "sdk"
FILES = sorted(SDK.rglob("*.py"))
NEED_OTHERS = ("cluster.py", "torch.py", "integrations/", "offered/")
"""Modules that are for another library, and the one that stands in for the package where there is none."""
PLAIN = sorted(
    ".".join(path.relative_to(SDK).with_suffix("").parts).removesuffix(".__init__")
    for path in FILES
    if not path.relative_to(SDK / "ebbtide").as_posix().startswith(NEED_OTHERS)
)
IMPORTS = "import importlib; modules = [importlib.import_module(name) for name in {names}]; print(len(modules))"
SAVES = """
import os, pathlib, sys
os.environ["EBB_CHECKPOINT_DIR"] = sys.argv[1]
import ebbtide
job = ebbtide.job()
for step in (1, 2, 3):
    job.checkpoint(lambda folder: (folder / "state").write_text("x" * 300_000 + str(step)), step)
state = ebbtide.Job(ebbtide.jobs.Environment.read(os.environ)).load_checkpoint()
print(state.step, (state.path / "state").read_text()[-1], len(list(pathlib.Path(sys.argv[1]).rglob("MANIFEST.json"))))
"""
ON_WINDOWS = """
import os, signal, socket, sys
import fcntl, hashlib, json, pathlib, shutil, tempfile, threading  # by Python itself, before they are out of reach
for name in ("fcntl", "grp", "posix", "pwd", "resource", "termios"):
    sys.modules[name] = None
for module, names in {
    os: "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK fork geteuid getuid kill register_at_fork",
    signal: "SIGHUP SIGKILL SIG_BLOCK SIG_SETMASK SIGUSR1 pthread_sigmask",
    socket: "AF_UNIX SOCK_SEQPACKET",
}.items():
    for name in names.split():
        delattr(module, name)
os.supports_dir_fd.clear()
os.supports_fd.clear()
"""
TRAINS = """
import ebbtide
job = ebbtide.job()
assert job.load_checkpoint() is None
for step in range(3):
    job.report(step=step + 1, total=3, loss=0.5)
    assert not job.should_suspend()
    job.checkpoint(lambda folder: 1 / 0, step)
job.suspend(lambda folder: 1 / 0)
assert not ebbtide.fake_allocate(1 << 30)
print("trained", ebbtide.__version__)
"""


def run(code: str, *arguments: object, python: str = sys.executable, **environment: str) -> str:
    """What the code prints in an interpreter without any package but the SDK, or its last complaint."""
    done = subprocess.run(
        [python, "-S", "-B", "-W", "error", "-c", code, *map(str, arguments)],
        env={"PATH": os.defpath, "PYTHONPATH": str(SDK), **environment},
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("version", interpreters())
def test_every_module_is_imported_without_a_warning_or_a_package(version: str) -> None:
    assert len(PLAIN) > 10
    assert run(IMPORTS.format(names=PLAIN), python=interpreters()[version]) == str(len(PLAIN))


@pytest.mark.parametrize("version", interpreters())
def test_checkpoints_are_saved_verified_and_loaded(version: str, tmp_path: Path) -> None:
    """On Python 3.10, which has no hashlib.file_digest, none could be saved."""
    assert run(SAVES, tmp_path, python=interpreters()[version]) == "3 3 2"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SDK).as_posix())
def test_a_module_is_written_in_the_oldest_pythons_language(path: Path) -> None:
    ast.parse(path.read_text(), path.name, feature_version=(3, 10))


def test_outside_of_linux_a_script_that_imports_it_runs_and_nothing_happens() -> None:
    assert run(ON_WINDOWS + IMPORTS.format(names=PLAIN)) == str(len(PLAIN))
    assert run(ON_WINDOWS + TRAINS).startswith("trained ")


def test_a_checkpoint_directory_on_windows_is_refused_by_name_and_not_ignored(tmp_path: Path) -> None:
    said = run(ON_WINDOWS + TRAINS, EBB_CHECKPOINT_DIR=str(tmp_path))
    assert said == "ValueError: EBB_CHECKPOINT_DIR must not be set on this system: checkpoints need Linux or macOS"
