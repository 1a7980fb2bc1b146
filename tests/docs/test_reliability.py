"""docs/explanation/reliability.md names, for each fault, a test that exists, or says why there is none."""

import ast
import re

import pytest

from tests.docs.pages import REPOSITORY

PAGE = (REPOSITORY / "docs/explanation/reliability.md").read_text()
FAULTS = {
    int(cells[1]): cells[-2]
    for line in PAGE.splitlines()
    if re.match(r"\| \d+ \|", line) and (cells := [cell.strip() for cell in line.split("|")])
}


def test_every_fault_is_there() -> None:
    assert list(FAULTS) == list(range(1, 73))


@pytest.mark.parametrize("number", FAULTS)
def test_the_test_of_a_fault_exists(number: int) -> None:
    for path, name in re.findall(r"`(tests/[^:`]+\.py)::(?:\w+::)?(\w+)", FAULTS[number]):
        tree = ast.parse((REPOSITORY / path).read_text())
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        assert name in functions | classes, f"fault {number}: {path} has no {name}"
