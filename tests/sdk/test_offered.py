"""The SDK that a job finds where none is installed: behind whatever the user has."""

import os
import subprocess
import sys
from pathlib import Path

import ebbtide
import pytest

from tests.interpreters import interpreters

REAL = Path(ebbtide.__path__[0])
OFFERED = REAL / "offered"
ASK = "import ebbtide.checkpoints as c, ebbtide; print(ebbtide.__file__, c.__file__, ebbtide.__name__)"
OURS = f"{REAL}/__init__.py {REAL}/checkpoints.py ebbtide"


def ask(code: str, *path: object, python: str = sys.executable, **environment: str) -> str:
    """What a script says, in an interpreter with nothing installed, with this PYTHONPATH; or its last complaint."""
    searched = ":".join(map(str, [*path, OFFERED]))
    done = subprocess.run(
        [python, "-S", "-B", "-W", "error", "-c", code],
        env={"PATH": os.defpath, "PYTHONPATH": searched, **environment},
        cwd="/",
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def a_package(folder: Path, words: str = "") -> Path:
    """An ebbtide of somebody else's, of another version."""
    (folder / "ebbtide").mkdir(parents=True)
    (folder / "ebbtide" / "__init__.py").write_text(words)
    (folder / "ebbtide" / "checkpoints.py").write_text("")
    return folder


def test_the_folder_holds_the_package_and_nothing_that_could_hide_a_users_module():
    assert os.listdir(OFFERED) == ["ebbtide"]


@pytest.mark.parametrize("version", interpreters())
def test_without_one_installed_it_is_the_agents_with_all_of_its_modules(version):
    python = interpreters()[version]
    assert ask(ASK, python=python) == OURS
    assert ask("import ebbtide; print(ebbtide.job().should_suspend())", python=python) == "False"


def test_one_that_is_installed_wins_though_python_looks_there_later(tmp_path):
    """As in a virtual environment: PYTHONPATH comes before site-packages."""
    installed = a_package(tmp_path / "site-packages", "VERSION = 7")
    code = f"import sys; sys.path.append({str(installed)!r}); {ASK}; print(ebbtide.VERSION)"
    assert ask(code) == f"{installed}/ebbtide/__init__.py {installed}/ebbtide/checkpoints.py ebbtide\n7"


def test_one_that_is_installed_in_place_wins(tmp_path):
    """Its finder is asked after those for folders."""
    elsewhere = a_package(tmp_path, "VERSION = 8")
    finder = f"""
import importlib.util, sys
class Editable:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "ebbtide":
            return importlib.util.spec_from_file_location(name, {str(elsewhere / "ebbtide/__init__.py")!r})
class Ancient:
    pass
sys.meta_path += [Ancient, Editable]
import ebbtide
print(ebbtide.VERSION)
"""
    assert ask(finder) == "8"


def test_a_folder_that_only_has_the_name_is_passed_over(tmp_path):
    """A checkout of this repository lies in a folder of that name."""
    (tmp_path / "ebbtide" / "docs").mkdir(parents=True)
    assert ask(ASK, tmp_path) == OURS


def test_of_two_agents_one_offers_it(tmp_path):
    """A job of a job may have both on its path: neither waits for the other."""
    other = tmp_path / "ebbtide"
    other.symlink_to(REAL)
    assert ask(ASK, other / "offered") == OURS.replace(str(REAL), str(other))


def test_an_error_in_one_that_is_installed_is_that_error(tmp_path):
    broken = a_package(tmp_path, "raise RuntimeError('broken')")
    assert ask(f"import sys; sys.path.append({str(broken)!r}); import ebbtide") == "RuntimeError: broken"


def test_a_python_that_is_too_old_says_so():
    code = "import sys; sys.version_info = (3, 9, 18); import ebbtide"
    assert ask(code) == "ImportError: ebbtide needs Python 3.10 or newer, and this is 3.9.18"
