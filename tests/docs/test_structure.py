"""The figures of the structure: what is counted, and that CONTRIBUTING.md has the same rows."""

from pathlib import Path

import pytest

from scripts import structure
from tests.docs.pages import REPOSITORY, table

CONTRIBUTING = REPOSITORY / "CONTRIBUTING.md"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A tree with one circle, which only a type closes, and one class name with two meanings."""
    for folder, package in structure.ROOTS.items():
        (tmp_path / folder / package).mkdir(parents=True)
        (tmp_path / folder / package / "__init__.py").write_text('"""A package."""\n')
    core = tmp_path / "core" / "ebbtide_core"
    (core / "room").mkdir()
    (core / "room" / "__init__.py").write_text("")
    (core / "a.py").write_text("from ebbtide_core.room import b\n\n\nclass Line:\n    x: int\n    y: int\n")
    (core / "room" / "b.py").write_text(
        "from typing import TYPE_CHECKING, Any\n\nif TYPE_CHECKING:\n    from ebbtide_core.a import Line\n\n\n"
        "def f(line: 'Line') -> Any: ...\n"
    )
    (core / "room" / "c.py").write_text("from ebbtide_core import a\n\n\nclass Line: ...\n\n\nspec: JobSpec\n")
    (core / "room" / "d_pb2.py").write_text("class Line: ...\n")
    return tmp_path


def test_the_table_of_the_structure_has_the_figures_that_the_script_prints(small: Path) -> None:
    page = CONTRIBUTING.read_text()
    rows = [row[0] for row in table(CONTRIBUTING, "The structure in figures")]
    assert rows == list(structure.figures(small))
    assert "| – |" not in structure.MARK.search(page)[0]  # type: ignore[index]


def test_the_figures_of_a_small_tree_are_those_that_one_counts_by_hand(small: Path) -> None:
    figures = structure.figures(small)
    assert figures["modules loose in core"] == 1
    assert figures["modules loose in master"] == 0
    assert figures["import circles, those of types included"] == 1
    assert figures["modules in import circles"] == 2
    assert figures["public class names with several definitions"] == 1
    assert figures["uses of `Any` in core"] == 1
    assert figures["fields of the largest record"] == 2
    assert figures["modules that name a type which carries a submit"] == 1
    assert structure.circles(structure.modules(small)) == [["ebbtide_core.a", "ebbtide_core.room.b"]]


def test_the_table_is_refreshed_and_what_was_before_stays(small: Path) -> None:
    page = "# C\n\n<!-- structure -->\n| figure | before | now |\n|---|---|---|\n| modules | 648 | 1 |\n\nMore.\n"
    new = structure.written(page, {"modules": 2000, "lines of product code": 5})
    assert "| modules | 648 | 2,000 |\n| lines of product code | – | 5 |\n\nMore.\n" in new
    assert structure.written(new, {"modules": 2000, "lines of product code": 5}) == new
    with pytest.raises(ValueError, match="structure"):
        structure.written("# C\n", {})
