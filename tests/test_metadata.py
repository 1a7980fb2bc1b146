"""What an index of packages says about this one, and what its messages say about the index."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts.wheel import Documentation

REPOSITORY = Path(__file__).resolve().parents[1]
METADATA = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
PROJECT = METADATA["project"]
WHEEL = METADATA["tool"]["hatch"]["build"]["targets"]["wheel"]


@pytest.mark.parametrize("package", WHEEL["packages"])
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert (REPOSITORY / package / "py.typed").is_file()


def test_every_package_of_the_repository_is_in_the_wheel_and_so_are_the_examples() -> None:
    packages = {str(path.parent.relative_to(REPOSITORY)) for path in REPOSITORY.glob("*/ebbtide*/__init__.py")}
    assert packages == set(WHEEL["packages"])
    assert WHEEL["force-include"] == {"examples": "ebbtide_cli/examples"}


def included(version: str) -> dict[str, str]:
    """What the build adds to a wheel, by the path in the repository."""
    data: dict[str, Any] = {"force_include": {}}
    Documentation(str(REPOSITORY), {}, None, None, "", "wheel").initialize(version, data)  # type: ignore[arg-type]
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


def test_every_extra_that_a_message_or_a_page_names_can_be_installed() -> None:
    sources = [path for folder in WHEEL["packages"] for path in (REPOSITORY / folder).rglob("*.py")]
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("*/*.md"), *(REPOSITORY / "docs").rglob("*.md")]
    named = {name for path in (*sources, *pages) for name in re.findall(r"ebbtide\[(\w+)\]", path.read_text())}
    assert {"examples", "simulate", "dashboard"} <= named
    assert named <= set(PROJECT["optional-dependencies"])


def test_every_template_of_init_has_an_extra_that_brings_what_it_imports() -> None:
    from ebbtide_cli.verbs.init import STARTERS

    distributions = {"sklearn": "scikit-learn"}
    for starter in STARTERS.values():
        brought = {re.split(r"[<>=\[]", each)[0] for each in PROJECT["optional-dependencies"][starter.extra]}
        needed = {distributions.get(name, name).replace("_", "-") for name in starter.packages}
        assert needed <= brought, starter


def test_the_classifiers_are_in_order_and_name_the_oldest_python_that_is_required() -> None:
    classifiers = PROJECT["classifiers"]
    versions = [text.rpartition(" ")[2] for text in classifiers if re.search(r":: 3\.\d+$", text)]
    assert len(classifiers) == len(set(classifiers))
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert versions == [f"3.{minor}" for minor in range(11, 11 + len(versions))]


def test_an_address_of_the_project_is_one_that_everybody_can_open() -> None:
    for name, url in PROJECT.get("urls", {}).items():
        assert re.fullmatch(r"https://(?!localhost|127\.|10\.|192\.168\.)[\w-]+(\.[\w-]+)+(/\S*)?", url), name
