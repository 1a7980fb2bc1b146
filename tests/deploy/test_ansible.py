"""The role for Ansible: it is what Ansible reads, and calls `ebb deploy` as that is."""

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from ebbtide_cli.verbs.deploy import command as deploy

FOLDER = Path(__file__).resolve().parents[2] / "deploy/ansible"
ROLE = FOLDER / "roles/ebbtide_node"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def the_command() -> dict[str, Any]:
    """The task that calls `ebb deploy`."""
    (task,) = (task for task in read(ROLE / "tasks/main.yml") if "ansible.builtin.command" in task)
    found: dict[str, Any] = task
    return found


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.yml")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_file_is_yaml_with_something_in_it(path: Path) -> None:
    assert read(path)


def test_the_playbook_uses_the_role() -> None:
    ((play,),) = [read(FOLDER / "site.yml")]
    assert [role["role"] for role in play["roles"]] == [ROLE.name]


def test_every_variable_of_the_role_has_a_default_or_is_made_in_the_task() -> None:
    task = the_command()
    used = set(re.findall(r"\bebbtide_\w+", (ROLE / "tasks/main.yml").read_text()))
    assert used == read(ROLE / "defaults/main.yml").keys() | task["vars"].keys() | {task["register"]}


def test_the_command_is_an_argument_vector_of_options_that_there_are() -> None:
    words = the_command()["ansible.builtin.command"]["argv"]
    options = set(re.findall(r"'(--[a-z-]+)'", words))
    verb = deploy.get_command(click.Context(deploy), read(ROLE / "defaults/main.yml")["ebbtide_deploy"])
    assert verb is not None
    assert options <= {name for parameter in verb.params for name in parameter.opts}
    assert words.rstrip().endswith("['--', ebbtide_target] }}"), "what is a host's name can never be an option"


def test_it_runs_beside_ansible_and_reports_a_change_only_where_there_is_one() -> None:
    task = the_command()
    assert (task["delegate_to"], task["become"], task["check_mode"]) == ("localhost", False, False)
    assert ".changes" in task["changed_when"]
