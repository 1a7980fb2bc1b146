"""The wheels and source archives of both distributions, as they are built."""

import email
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from scripts import release

REPOSITORY = Path(__file__).resolve().parents[2]
SDK, COMMANDS = "ebbtide_sdk", "ebbtide"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    """Both, of the tree as it is."""
    folder = tmp_path_factory.mktemp("wheels")
    for place in release.FOLDERS.values():
        release.hatchling(REPOSITORY / place, folder, "--target", "wheel")
    return {path.name.partition("-")[0]: zipfile.ZipFile(path) for path in folder.glob("*.whl")}


def metadata(wheel: zipfile.ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def modules(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_no_file_is_in_both_and_the_sdk_has_all_of_its_package(wheels: dict[str, zipfile.ZipFile]) -> None:
    assert modules(wheels[SDK]).isdisjoint(modules(wheels[COMMANDS]))
    assert {name.partition("/")[0] for name in modules(wheels[SDK])} == {"ebbtide"}
    assert {"ebbtide/__init__.py", "ebbtide/py.typed", "ebbtide/offered/ebbtide/__init__.py"} <= modules(wheels[SDK])
    assert not [name for name in modules(wheels[COMMANDS]) if name.startswith("ebbtide/")]


def test_both_together_have_every_file_of_the_packages(wheels: dict[str, zipfile.ZipFile]) -> None:
    packages = [path.parent for path in REPOSITORY.glob("*/ebbtide*/__init__.py")]
    files = [path for package in packages for path in package.rglob("*") if path.is_file()]
    expected = {
        path.relative_to(REPOSITORY).as_posix().partition("/")[2] for path in files if path.parent.name != "__pycache__"
    }
    examples = {f"ebbtide_cli/examples/{path.name}" for path in (REPOSITORY / "examples").glob("*.py")}
    assert expected | examples <= modules(wheels[SDK]) | modules(wheels[COMMANDS])


def test_the_sdk_needs_nothing_and_the_commands_need_exactly_its_version(wheels: dict[str, zipfile.ZipFile]) -> None:
    sdk, commands = metadata(wheels[SDK]), metadata(wheels[COMMANDS])
    assert sdk["Version"] == commands["Version"]
    assert sdk.get_all("Requires-Dist", []) == []
    assert f"ebbtide-sdk=={sdk['Version']}" in commands.get_all("Requires-Dist", [])
    assert (sdk["Requires-Python"], commands["Requires-Python"]) == (">=3.10", ">=3.11")
    for each in (sdk, commands):
        assert each["License-Expression"] == "Apache-2.0"
        assert each["Description-Content-Type"] == "text/markdown"
        assert str(each.get_payload()).strip()


def test_the_sdk_is_installed_without_anything_else_and_with_it_the_commands_are_whole(
    wheels: dict[str, zipfile.ZipFile], tmp_path: Path
) -> None:
    """Each in a folder as pip would lay it out; a module of ours that is missing would be named."""
    wheels[SDK].extractall(tmp_path / "alone")
    path = {"PYTHONPATH": str(tmp_path / "alone")}
    code = "import ebbtide; assert ebbtide.job().id is None; print(ebbtide.__version__)"
    done = subprocess.run([sys.executable, "-S", "-c", code], env=path, capture_output=True, text=True)
    assert done.stdout.strip() == metadata(wheels[SDK])["Version"], done.stderr
    shutil.copytree(tmp_path / "alone", tmp_path / "both")
    wheels[COMMANDS].extractall(tmp_path / "both")
    code = "import ebbtide, ebbtide_agent.main, ebbtide_master.main as m; print(ebbtide.__file__, m.__file__)"
    path = {"PYTHONPATH": str(tmp_path / "both")}
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True)
    assert done.stdout.count(str(tmp_path / "both")) == 2, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_commit_gives_the_same_bytes_and_source_archives_give_the_same_wheels(tmp_path: Path) -> None:
    assert release.reproducible(REPOSITORY, tmp_path) == "4 files"
    assert release.same_from_archives(REPOSITORY, tmp_path) == "2 wheels"
    assert " and " in release.apart(tmp_path)


@pytest.mark.slow
@pytest.mark.programs("twine")
@pytest.mark.timeout(300)
def test_an_index_would_take_them(tmp_path: Path) -> None:
    release.build(REPOSITORY, tmp_path / "built", release.commit_time(REPOSITORY))
    assert release.metadata(tmp_path) == "twine check --strict: 4 files"
