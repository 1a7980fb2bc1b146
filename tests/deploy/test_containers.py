"""The files that build and run master and dashboard as containers, read as Docker reads them; no Docker is needed."""

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from ebbtide_cli.commands.verb import ebb
from ebbtide_master.tls.folder import DEFAULT_PORT

from tests.deploy.dockerfile import read

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "deploy" / "container"
ARGUMENTS, STAGES = read(FOLDER / "Dockerfile")
LAST = STAGES[-1]
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
CHECKOUT = (REPOSITORY / "scripts" / "make_bundle.sh").read_text()


def verb_of(words: list[str]) -> str:
    """The verb of `ebb` that the words name, all of whose options it has."""
    command: click.Command = ebb
    context, verb = click.Context(ebb), []
    while isinstance(command, click.Group) and words and (found := command.get_command(context, words[0])):
        command, words, verb = found, words[1:], [*verb, words[0]]
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known, words
    return " ".join(verb)


# --- the Dockerfile ---


def test_every_file_that_is_copied_is_in_the_bundle() -> None:
    copied = {word for one in STAGES[0].all("COPY") for word in one.words[:-1]}
    assert copied == {"wheels", "install.sh", "VERSION", "PYTHON"}
    for name in copied:
        assert re.search(rf"\$dist/\$name/{name}|deploy/bundle/{re.escape(name)}", CHECKOUT), name
    assert "deploy/container" in CHECKOUT, "the bundle has these files as well"


def test_nothing_comes_from_a_network_but_the_base_image() -> None:
    run = [" ".join(one.words) for stage in STAGES for one in stage.all("RUN")]
    assert run[0] == "sh /bundle/install.sh /opt"
    assert not re.search(r"\b(apt|apt-get|apk|pip|curl|wget|git)\b", " ".join(run))
    assert not [one for stage in STAGES for one in stage.all("ADD")]
    assert not re.search(r"^#\s*syntax=", (FOLDER / "Dockerfile").read_text(), re.MULTILINE), "that is fetched"


def test_the_base_image_has_a_version_and_is_the_same_in_both_stages() -> None:
    assert {stage.base for stage in STAGES} == {"python:${PYTHON}-slim"}
    assert re.fullmatch(r"3\.\d+", ARGUMENTS["PYTHON"])


def test_what_runs_is_not_root_and_has_one_place_of_its_own() -> None:
    [user] = LAST.the("USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user), "a number: orchestrators can see that it is not 0"
    [place] = LAST.the("VOLUME")
    assert LAST.environment()["EBB_HOME"] == place == LAST.environment()["HOME"]
    assert LAST.environment()["EBB_MASTER"] == f"unix:{place}"
    [made] = [one.words for one in LAST.all("RUN")]
    assert made[0] == "install"
    assert made[-1] == place
    assert {"--owner=" + user.partition(":")[0], "--mode=0700"} <= set(made)
    names = [one.name for one in LAST.instructions]
    assert names.index("USER") > names.index("RUN")


def test_signals_reach_the_command_because_no_shell_is_between() -> None:
    [entrypoint], [command] = LAST.all("ENTRYPOINT"), LAST.all("CMD")
    assert entrypoint.is_list
    assert command.is_list
    assert LAST.the("STOPSIGNAL") == ["SIGTERM"]
    assert entrypoint.words == ["ebb"]
    assert verb_of(command.words) == "master"


# --- compose.yaml ---


def test_there_are_a_master_and_a_dashboard_and_no_agent() -> None:
    assert set(SERVICES) == {"master", "dashboard"}
    assert all(
        "agent" not in service["command"] and service["command"][0] == name for name, service in SERVICES.items()
    )


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_write_to_its_volume_and_nowhere_else(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.keys() & {"privileged", "cap_add", "user", "pid", "network_mode", "devices", "userns_mode"}
    assert service["tmpfs"] == ["/tmp:size=64m,mode=1777"]
    writable = [volume for volume in service["volumes"] if not volume.endswith(":ro")]
    assert writable == [f"state:{LAST.the('VOLUME')[0]}"]
    assert not [volume for volume in service["volumes"] if "docker.sock" in volume]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_runs_a_command_of_today_and_shows_ports_that_the_image_names(name: str) -> None:
    assert verb_of(SERVICES[name]["command"]) == name
    for ports in SERVICES[name]["ports"]:
        outside, inside = ports.split(":")
        assert outside == inside
        assert inside in LAST.the("EXPOSE")
    assert {str(DEFAULT_PORT), str(DEFAULT_PORT + 1)} == {each.split(":")[0] for each in SERVICES["master"]["ports"]}


def test_the_dashboard_waits_until_the_master_answers() -> None:
    test = SERVICES["master"]["healthcheck"]["test"]
    assert test[:2] == ["CMD", "ebb"]
    assert verb_of(test[2:]) == "nodes"
    assert SERVICES["dashboard"]["depends_on"]["master"]["condition"] == "service_healthy"


def test_the_image_is_built_without_a_network_and_from_the_bundle_around_it() -> None:
    build = SERVICES["master"]["build"]
    assert build == {"context": "..", "dockerfile": "container/Dockerfile", "network": "none"}
    assert {service["image"] for service in SERVICES.values()} == {"ebbtide"}


def test_what_has_to_be_set_is_said_at_the_head_of_the_file() -> None:
    text = (FOLDER / "compose.yaml").read_text()
    head = text.partition("name:")[0]
    named = set(re.findall(r"\$\{(\w+)", text))
    assert named == {"EBB_WEB_HOST", "EBB_TLS"}
    assert all(name in head for name in named)
    [first] = re.findall(r"docker compose run --rm master (.*)", head)
    assert verb_of(first.split()) == "master init"
