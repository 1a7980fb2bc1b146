"""The role for Ansible: it is what Ansible reads, and calls `ebb deploy` as that is."""

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from ebbtide_cli.deploying.hosts import Host, read_hosts
from ebbtide_cli.errors import Failure
from ebbtide_cli.verbs.deploy import command as deploy
from jinja2 import Environment
from jinja2.nativetypes import NativeEnvironment

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


def the_arguments(verb: str) -> list[str]:
    """What is called with these values of the role's variables."""
    values = read(ROLE / "defaults/main.yml") | {"ebbtide_deploy": verb, "ebbtide_bundle": "bundle.tar.gz"}
    template = NativeEnvironment().from_string(the_command()["ansible.builtin.command"]["argv"])
    found: list[str] = template.render(**values, ansible_check_mode=False)
    return found


def the_hosts(folder: Path, target: str, options: str) -> list[Host]:
    """The hosts that `ebb deploy` reads from its standard input."""
    template = Environment().from_string(the_command()["ansible.builtin.command"]["stdin"])
    (folder / "stdin").write_text(template.render(ebbtide_target=target, ebbtide_agent_options=options) + "\n")
    return read_hosts((), folder / "stdin", "")


@pytest.mark.parametrize("verb", ["ssh", "upgrade", "remove"])
def test_every_verb_reads_the_host_from_its_standard_input(verb: str) -> None:
    program, group, name, *words = the_arguments(verb)
    assert (program, group, name) == ("ebb", "deploy", verb)
    found = deploy.get_command(click.Context(deploy), verb)
    assert found is not None
    given = found.make_context(verb, words).params
    assert (given["hosts"], given["hostfile"], given["as_json"]) == ((), Path("/dev/stdin"), True)


def test_a_node_has_the_name_that_the_options_of_its_agent_give_it_whatever_is_done(tmp_path: Path) -> None:
    [host] = the_hosts(tmp_path, "anna@ws2:2222", "--name big\n--label 'room=b 12'\n")
    assert (host.target, host.node) == ("anna@ws2:2222", "big")
    assert host.options == ("--name", "big", "--label", "room=b 12")
    assert [host.node for host in the_hosts(tmp_path, "ws3", "")] == ["ws3"]


@pytest.mark.parametrize("target", ["--ssh-config=x", "ws1\nws2", "-oProxyCommand=x"])
def test_what_is_a_hosts_name_can_never_be_an_option(tmp_path: Path, target: str) -> None:
    with pytest.raises(Failure, match=r"^deploy: "):
        the_hosts(tmp_path, target, "--name big")


def test_it_runs_beside_ansible_and_reports_a_change_only_where_there_is_one() -> None:
    task = the_command()
    assert (task["delegate_to"], task["become"], task["check_mode"]) == ("localhost", False, False)
    assert ".changes" in task["changed_when"]
