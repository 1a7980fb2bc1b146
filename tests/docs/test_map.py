"""What the map and the other pages name in code exists, and the map answers what a newcomer asks."""

import ast
import re
from pathlib import Path

import pytest

from scripts import structure
from tests.docs.pages import PAGES, REPOSITORY, table

MAP = REPOSITORY / "docs" / "explanation" / "map.md"
NAMED_LINK = re.compile(r"\[`([\w.]+)`\w*\]\((?!https?:)([^)#\s]+)\)")
QUESTIONS = (
    "what ends a grace period",
    "where a quota is checked",
    "why a GPU is quarantined",
    "Eq. 1 of FitGpp",
    "what a restarted master does first",
    "who may read a log",
    "how a resize becomes a launch",
    "where the rate of submits is limited",
    "what a simulated job computes",
    "where `--on-log` is acted on",
)


@pytest.fixture(scope="module")
def product() -> dict[str, structure.Module]:
    return structure.modules(REPOSITORY)


def named(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def defined(tree: ast.AST, prefix: str = "") -> set[str]:
    """Everything that a module or a class defines, members of classes as ``Class.member`` too."""
    found = set[str]()
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.ClassDef(name=name):
                found |= {prefix + name, *defined(node, f"{prefix}{name}.")}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(prefix + name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(prefix + name)
            case ast.Assign(targets=targets):
                found |= {prefix + target.id for target in targets if isinstance(target, ast.Name)}
            case _:
                pass
    return found


def names_in(target: Path) -> set[str]:
    """What is defined in a file, or in the files of a folder, by its last name or all of it; modules by their own."""
    files = sorted(target.rglob("*.py")) if target.is_dir() else [target]
    found = {path.stem for path in files}
    for path in files:
        for name in defined(ast.parse(path.read_text())):
            found |= {name, name.rpartition(".")[2]}
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_link_that_names_something_in_code_leads_to_what_defines_it(page: Path) -> None:
    for name, path in NAMED_LINK.findall(page.read_text()):
        target = (page.parent / path).resolve()
        if target.is_dir() or target.suffix == ".py":
            assert name in names_in(target), f"{named(page)}: {path} defines no {name}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_dotted_name_of_ours_on_a_page_exists(page: Path, product: dict[str, structure.Module]) -> None:
    packages = "|".join(structure.ROOTS.values())
    for name in re.findall(rf"`((?:{packages})\.[\w.]+)`", page.read_text()):
        module, inner = name, ""
        while module and module not in product:
            module, _, last = module.rpartition(".")
            inner = f"{last}.{inner}" if inner else last
        if module == "ebbtide":
            continue  # the SDK hands most of its names on; its own tests import them
        assert module, f"{named(page)}: there is no {name}"
        assert not inner or inner in defined(product[module].tree), f"{named(page)}: {module} has no {inner}"


def test_the_map_answers_what_a_newcomer_asks() -> None:
    asked = [row[0] for row in table(MAP, "Where is …")]
    assert asked == list(QUESTIONS)


@pytest.mark.parametrize("package", ["ebbtide_core", "ebbtide_master", "ebbtide_agent"])
def test_the_map_has_every_room(package: str) -> None:
    text = MAP.read_text()
    rooms = [
        path.parent for path in REPOSITORY.glob(f"*/{package}/*/__init__.py") if not path.parent.name.startswith("_")
    ]
    assert len(rooms) > 5
    missing = [room.name for room in rooms if f"(../../{room.relative_to(REPOSITORY).as_posix()})" not in text]
    assert missing == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/explanation/architecture.md"])
def test_the_map_is_found_from(page: str) -> None:
    assert re.search(r"\]\((docs/explanation/)?map\.md\)", (REPOSITORY / page).read_text())
