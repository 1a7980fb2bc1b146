"""What an index of packages says about our two distributions, and what our messages say about the index."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts.wheel import Contents

REPOSITORY = Path(__file__).resolve().parents[2]
TREES = {"ebbtide": REPOSITORY, "ebbtide-sdk": REPOSITORY / "sdk"}
METADATA = {name: tomllib.loads((tree / "pyproject.toml").read_text()) for name, tree in TREES.items()}
PROJECTS = {name: metadata["project"] for name, metadata in METADATA.items()}
EXTRAS = PROJECTS["ebbtide"]["optional-dependencies"]
WHEEL = METADATA["ebbtide"]["tool"]["hatch"]["build"]["targets"]["wheel"]
PACKAGES = sorted(str(path.parent.relative_to(REPOSITORY)) for path in REPOSITORY.glob("*/ebbtide*/__init__.py"))


def version_of(name: str) -> str:
    """The version of a distribution, as its build reads it."""
    source = TREES[name] / METADATA[name]["tool"]["hatch"]["version"]["path"]
    return re.search(r'^VERSION = "(.*)"$', source.read_text(), re.MULTILINE)[1]  # type: ignore[index]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert all("Typing :: Typed" in project["classifiers"] for project in PROJECTS.values())
    assert (REPOSITORY / package / "py.typed").is_file()


def test_every_package_is_in_one_of_the_wheels_and_the_examples_are_too() -> None:
    of_the_sdk = METADATA["ebbtide-sdk"]["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    built = {*WHEEL["only-include"], *(f"sdk/{name}" for name in of_the_sdk)}
    assert built == set(PACKAGES)
    assert set(WHEEL["sources"]) == {path.partition("/")[0] for path in WHEEL["only-include"]}
    assert WHEEL["force-include"] == {"examples": "ebbtide_cli/examples"}


def included(version: str) -> dict[str, str]:
    """What the build adds to a wheel, by the path in the repository."""
    data: dict[str, Any] = {"force_include": {}}
    Contents(str(REPOSITORY), {}, None, None, "", "wheel").initialize(version, data)  # type: ignore[arg-type]
    found = {str(Path(path).relative_to(REPOSITORY)): place for path, place in data["force_include"].items()}
    assert all((REPOSITORY / path).exists() for path in found)
    return found


def test_every_page_of_the_docs_is_in_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EBB_DOCS_SITE", raising=False)
    pages = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "docs").rglob("*.md")}
    assert included("standard") == {page: f"ebbtide_cli/{page}" for page in pages}
    assert included("editable") == {}


def test_the_site_is_in_the_wheel_if_the_build_is_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBB_DOCS_SITE", str(REPOSITORY / "docs"))
    assert included("standard")["docs"] == "ebbtide_cli/site"


def test_the_commands_need_exactly_their_own_version_of_the_sdk_and_the_sdk_needs_nothing() -> None:
    pinned = [each for each in PROJECTS["ebbtide"]["dependencies"] if each.startswith("ebbtide")]
    assert pinned == [f"ebbtide-sdk=={version_of('ebbtide')}"]
    assert version_of("ebbtide-sdk") == version_of("ebbtide")
    assert PROJECTS["ebbtide-sdk"]["dependencies"] == []
    assert "optional-dependencies" not in PROJECTS["ebbtide-sdk"]


def test_both_distributions_have_the_same_licence() -> None:
    assert {project["license"] for project in PROJECTS.values()} == {"Apache-2.0"}
    assert (REPOSITORY / "sdk/LICENSE").read_bytes() == (REPOSITORY / "LICENSE").read_bytes()


def test_every_extra_that_a_message_or_a_page_names_can_be_installed() -> None:
    sources = [path for folder in PACKAGES for path in (REPOSITORY / folder).rglob("*.py")]
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("*/*.md"), *(REPOSITORY / "docs").rglob("*.md")]
    named = {name for path in (*sources, *pages) for name in re.findall(r"ebbtide\[([\w,]+)\]", path.read_text())}
    named = {extra for group in named for extra in group.split(",")}
    assert {"examples", "simulate", "dashboard"} <= named
    assert named <= set(EXTRAS)


def test_every_template_of_init_has_an_extra_that_brings_what_it_imports() -> None:
    from ebbtide_cli.verbs.init import STARTERS

    distributions = {"sklearn": "scikit-learn"}
    for starter in STARTERS.values():
        brought = {re.split(r"[<>=\[]", each)[0] for each in EXTRAS[starter.extra]}
        needed = {distributions.get(name, name).replace("_", "-") for name in starter.packages}
        assert needed <= brought, starter


@pytest.mark.parametrize("project", PROJECTS.values(), ids=PROJECTS)
def test_the_classifiers_are_in_order_and_name_the_oldest_python_that_is_required(project: dict[str, Any]) -> None:
    classifiers = project["classifiers"]
    versions = [text.rpartition(" ")[2] for text in classifiers if re.search(r":: 3\.\d+$", text)]
    assert len(classifiers) == len(set(classifiers))
    assert project["requires-python"] == f">={versions[0]}"
    oldest = int(versions[0].partition(".")[2])
    assert versions == [f"3.{minor}" for minor in range(oldest, oldest + len(versions))]


@pytest.mark.parametrize("project", PROJECTS.values(), ids=PROJECTS)
def test_an_address_of_the_project_is_one_that_everybody_can_open(project: dict[str, Any]) -> None:
    for name, url in project.get("urls", {}).items():
        assert re.fullmatch(r"https://(?!localhost|127\.|10\.|192\.168\.)[\w-]+(\.[\w-]+)+(/\S*)?", url), name
