"""docs/schema.json and the verbs that print JSON."""

from collections.abc import Iterator
from typing import Any

from tests.docs.test_examples_of_help import commands
from tests.json_schema import published

UNITS = ("_s", "_bytes", "_hours")


def objects(node: Any) -> Iterator[dict[str, Any]]:
    """Every schema of an object, wherever it is."""
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            yield node
        for below in node.values():
            yield from objects(below)
    elif isinstance(node, list):
        for below in node:
            yield from objects(below)


def test_what_each_verb_with_json_prints_is_published_and_nothing_else():
    able = {
        name.split()[0]
        for name, command in commands()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert able == set(published()["verbs"])


def test_an_object_has_no_keys_but_those_that_are_published():
    assert all("additionalProperties" in node for node in objects(published()))


def test_a_key_that_must_be_there_is_described():
    for node in objects(published()):
        assert set(node.get("required", ())) <= set(node["properties"])


def test_the_unit_of_a_number_is_in_its_name_or_its_description():
    for node in objects(published()):
        for name, schema in node["properties"].items():
            if "number" in schema.get("type", ()) and not name.endswith(UNITS):
                assert "description" in schema, name
