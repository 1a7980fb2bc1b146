"""The list of mutations is kept up with the code: what it takes out is there, and so is the test that notices."""

import ast

import pytest

from tests.faults.mutations import MUTATIONS, REPOSITORY, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.fence.partition(":")[0])
def test_a_mutation_can_be_applied_and_its_test_exists(mutation: Mutation) -> None:
    assert (REPOSITORY / mutation.file).read_text().count(mutation.text) == 1
    ast.parse((REPOSITORY / mutation.file).read_text().replace(mutation.text, mutation.instead))
    path, *names = mutation.test.split("::")
    assert f"def {names[-1]}(" in (REPOSITORY / path).read_text()


def test_the_page_lists_them() -> None:
    page = (REPOSITORY / "docs/explanation/reliability.md").read_text()
    rows = [f"| {mutation.fence} | `{mutation.test}` |" for mutation in MUTATIONS]
    assert "\n".join(rows) in page
