"""The configuration file as the docs and `ebb init` show it: all is understood, and nothing is left out."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ebbtide_cli.supplying.settings import FIELDS, read
from ebbtide_cli.supplying.simulated import read_supply
from ebbtide_master.config.file import Config, read_config

from scripts.reference import EVERY_TABLE, REFERENCE, configuration_keys
from tests.docs.pages import DOCS, REPOSITORY, fenced

FIRST = REPOSITORY / "examples" / "ebbtide.toml"
OF_FAKES = "gpu"
"""A block with this is about fake GPUs."""


OF_SUPPLIES = "supply"
"""A block with this is of supply.toml."""


def blocks() -> list[str]:
    """Every block in TOML."""
    return [block for page in sorted(DOCS.rglob("*.md")) for block in fenced(page, "toml")]


def shown() -> list[str]:
    """Every block that is part of the configuration file."""
    return [block for block in blocks() if not {OF_FAKES, OF_SUPPLIES} & tomllib.loads(block).keys()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "ebbtide.toml"
    file.touch(0o600)  # what has a password must be nobody else's
    return file


@pytest.mark.parametrize("block", shown(), ids=lambda block: block.strip().splitlines()[0])
def test_each_part_that_is_shown_can_stand_alone(path, block):
    path.write_text(block)
    read_config(path)


def test_the_files_of_supplies_are_understood_as_they_are_shown_and_their_page_has_every_field(tmp_path):
    path, shown = tmp_path / "supply.toml", [block for block in blocks() if OF_SUPPLIES in tomllib.loads(block)]
    prices, found = set(), set()
    for block in shown:
        path.write_text(block)
        found |= {read(path, name).name for name in tomllib.loads(block)[OF_SUPPLIES]}
        prices.add(read_supply(str(path)).lender.price)
    assert found == {"hpc", "k8s"}
    assert prices == {0.0, 2.0}  # one has what is assumed of the lender
    page = (DOCS / "how-to/supplies.md").read_text()
    assert [field for field in FIELDS if f"`{field}`" not in page] == []


def together() -> dict[str, Any]:
    """All of it; a section may be shown in several places."""
    whole: dict[str, Any] = {}
    for block in shown():
        for key, value in tomllib.loads(block).items():
            whole[key] = {**whole.get(key, {}), **value} if isinstance(value, dict) else value
    return whole


def test_all_parts_are_one_file_of_which_every_section_and_of_those_shown_every_key_is_named():
    values, text = together(), (DOCS / "how-to/configure.md").read_text()
    keys = configuration_keys(values)
    sections = {key.name for key in keys if not key.table}
    assert {key for key in sections if f"`{key}`" not in text and f"`[{key}" not in text} == set()
    of_those_shown = {(key.table, key.name) for key in keys if key.table.partition(".")[0] in values}
    blocks = "\n".join(shown())
    assert {(table, key) for table, key in of_those_shown if key not in blocks} == set()


def test_the_reference_has_every_key_of_every_section():
    text = (REFERENCE / "configuration.md").read_text()
    sections = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    keys = configuration_keys(EVERY_TABLE)
    assert {key.name for key in keys if not key.table} - {*sections, "gpu_pool", "cpu_pool"} == set()
    for key in keys:
        if key.kind != "a table":
            assert f"| `{key.name}` | {key.kind} | {key.default} | " in text
            assert not key.table or f"`[{key.table}]`\n" in text


def test_a_default_of_the_reference_is_the_one_that_holds(path):
    """Every key with its default written out makes a file that changes nothing."""
    tables: dict[str, list[str]] = {}
    for key in configuration_keys({}):
        if key.default != "none":
            tables.setdefault(key.table, []).append(f"{key.name} = {key.default.strip('`')}\n")
    head = "".join(tables.pop(""))
    path.write_text(head + "".join(f"[{table}]\n{''.join(lines)}" for table, lines in tables.items()))
    assert len(tables) > 5
    assert read_config(path) == Config()


def test_the_first_configuration_file_changes_nothing_as_it_stands(path):
    path.write_text(FIRST.read_text())
    assert read_config(path) == Config()


def uncommented() -> str:
    """The first configuration file with all of its settings in force."""
    return re.sub(r"^#(?=\[|[\w-]+ = )", "", FIRST.read_text(), flags=re.MULTILINE)


def test_the_settings_of_the_first_configuration_file_are_understood_and_every_section_is_there(path):
    path.write_text(uncommented())
    assert read_config(path) != Config()
    values = tomllib.loads(uncommented())
    assert {key.name for key in configuration_keys(values) if not key.table} == set(values)


@pytest.mark.parametrize("section", ["sessions", "idle", "journal", "limits", "fencing"])
def test_a_setting_of_the_first_configuration_file_shows_its_default(path, section):
    values = tomllib.loads(uncommented())[section]
    values.pop("hook", None)
    path.write_text(f"[{section}]\n" + "".join(f"{key} = {value!r}\n" for key, value in values.items()))
    assert values
    assert read_config(path) == Config()
