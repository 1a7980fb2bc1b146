"""The configuration file as docs/operations.md and `ebb init` show it: all is understood, and nothing is left out."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ebbtide_master.config.file import Config, _read, read_config
from ebbtide_master.config.table import Table

from tests.docs.pages import REPOSITORY, fenced

FIRST = REPOSITORY / "examples" / "ebbtide.toml"
OPERATIONS = REPOSITORY / "docs" / "operations.md"
OF_FAKES = "gpu"
"""A block with this is about fake GPUs."""


def shown() -> list[str]:
    """Every block that is part of the configuration file."""
    return [block for block in fenced(OPERATIONS, "toml") if OF_FAKES not in tomllib.loads(block)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "ebbtide.toml"
    file.touch(0o600)  # what has a password must be nobody else's
    return file


@pytest.mark.parametrize("block", shown(), ids=lambda block: block.strip().splitlines()[0])
def test_each_part_that_is_shown_can_stand_alone(path, block):
    path.write_text(block)
    read_config(path)


def together() -> dict[str, Any]:
    """All of it; a section may be shown in several places."""
    whole: dict[str, Any] = {}
    for block in shown():
        for key, value in tomllib.loads(block).items():
            whole[key] = {**whole.get(key, {}), **value} if isinstance(value, dict) else value
    return whole


def test_all_parts_are_one_file_of_which_every_section_and_of_those_shown_every_key_is_named(monkeypatch):
    known, take = set(), Table.take

    def noted(self, key, *rest):
        known.add((self.where, key))
        return take(self, key, *rest)

    monkeypatch.setattr(Table, "take", noted)
    values, text = together(), OPERATIONS.read_text()
    _read(values)
    sections = {key for where, key in known if not where}
    assert {key for key in sections if f"`{key}`" not in text and f"`[{key}" not in text} == set()
    keys = {(where, key) for where, key in known if where and where.partition(".")[0] in values}
    blocks = "\n".join(shown())
    assert {(where, key) for where, key in keys if key not in blocks} == set()


def test_the_first_configuration_file_changes_nothing_as_it_stands(path):
    path.write_text(FIRST.read_text())
    assert read_config(path) == Config()


def uncommented() -> str:
    """The first configuration file with all of its settings in force."""
    return re.sub(r"^#(?=\[|[\w-]+ = )", "", FIRST.read_text(), flags=re.MULTILINE)


def test_the_settings_of_the_first_configuration_file_are_understood_and_every_section_is_there(path, monkeypatch):
    known, take = set(), Table.take

    def noted(self, key, *rest):
        known.add((self.where, key))
        return take(self, key, *rest)

    monkeypatch.setattr(Table, "take", noted)
    path.write_text(uncommented())
    assert read_config(path) != Config()
    assert {key for where, key in known if not where} == set(tomllib.loads(uncommented()))


@pytest.mark.parametrize("section", ["sessions", "idle", "journal", "limits", "fencing"])
def test_a_setting_of_the_first_configuration_file_shows_its_default(path, section):
    values = tomllib.loads(uncommented())[section]
    values.pop("hook", None)
    path.write_text(f"[{section}]\n" + "".join(f"{key} = {value!r}\n" for key, value in values.items()))
    assert values
    assert read_config(path) == Config()
