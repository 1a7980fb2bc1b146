"""The glossary: every word has one meaning, or a line that says which it has."""

import re
from pathlib import Path

import pytest

from scripts import structure
from tests.docs.pages import PAGES, REPOSITORY, table

GLOSSARY = REPOSITORY / "docs" / "reference" / "glossary.md"


def named(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def test_a_class_name_with_several_definitions_is_in_the_glossary_with_its_meanings() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table(GLOSSARY, "Class names with several meanings")}
    several = structure.ambiguous(structure.modules(REPOSITORY))
    assert sorted(several.keys() - rows.keys()) == [], "rename these, or say in the glossary what each of them means"
    assert sorted(rows.keys() - several.keys()) == [], "these have one definition now: take their lines out"
    for name, meanings in rows.items():
        assert all(len(meaning) > 10 for meaning in meanings), f"{name} has no meaning"


def test_terms_stand_in_the_order_of_the_alphabet_once() -> None:
    terms = [row[0] for row in table(GLOSSARY, "Terms")]
    assert terms == sorted(set(terms), key=str.lower)
    assert len(terms) > 40


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_headings_use_the_terms_of_the_field(page: Path) -> None:
    replaced = {
        word for row in table(GLOSSARY, "Words that are replaced") for word in row[0].replace("`", "").split(", ")
    }
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    used = {word for heading in headings for word in re.findall(r"[a-z_]+", heading.lower())}
    assert used & replaced == set()
