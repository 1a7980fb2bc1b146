"""What is importable, and from where."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ROOTS = {
    "core": "ebbtide_core",
    "master": "ebbtide_master",
    "agent": "ebbtide_agent",
    "simulator": "ebbtide_sim",
    "dashboard": "ebbtide_web",
    "client": "ebbtide_cli",
    "sdk": "ebbtide",
    "protos": "ebbtide_protos",
    "machine": "ebbtide_machine",
}


@pytest.mark.parametrize("folder", ROOTS)
def test_a_folder_holds_its_package_and_no_module_of_its_own(folder: str) -> None:
    """The folders are on the path of every Python that has this installed: a module in one could hide a user's."""
    names = {path.name for path in (REPOSITORY / folder).iterdir()} - {"__pycache__"}
    importable = {
        name for name in names if name.endswith((".py", ".so", ".pyc")) or Path(REPOSITORY, folder, name).is_dir()
    }
    assert importable == {ROOTS[folder]}


@pytest.mark.parametrize("folder", ROOTS)
def test_every_module_says_what_it_is_for(folder: str) -> None:
    modules = [path for path in (REPOSITORY / folder).rglob("*.py") if "_pb2" not in path.name]
    assert modules
    assert [str(path) for path in modules if not path.read_text().startswith('"""')] == []
