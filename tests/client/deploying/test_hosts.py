"""Which hosts `ebb deploy` is given, and what it refuses before it reaches any."""

from pathlib import Path

import pytest
from ebbtide_cli.deploying.hosts import MAX_HOSTS, read_hosts
from ebbtide_cli.errors import USAGE, Failure


def refused(*given: str, hostfile: Path | None = None, agent: str = "") -> str:
    with pytest.raises(Failure) as failure:
        read_hosts(given, hostfile, agent)
    assert failure.value.code == USAGE
    assert "\n" not in failure.value.message
    return failure.value.message


def a_file(folder: Path, text: str) -> Path:
    path = folder / "hosts.txt"
    path.write_text(text)
    return path


def test_a_host_may_have_a_user_and_a_port_and_its_node_is_called_as_its_machine() -> None:
    plain, full, address = read_hosts(["ws1", "anna@ws2.lab.example:2222", "192.0.2.7"], None, "")
    assert (plain.user, plain.name, plain.port, plain.node) == ("", "ws1", 0, "ws1")
    assert (full.user, full.name, full.port, full.node) == ("anna", "ws2.lab.example", 2222, "ws2")
    assert (address.name, address.node) == ("192.0.2.7", "192.0.2.7")


def test_an_address_of_ipv6_stands_in_brackets_and_needs_a_name_for_its_node(tmp_path: Path) -> None:
    (host,) = read_hosts((), a_file(tmp_path, "root@[2001:db8::1]:22 --name ws6\n"), "")
    assert (host.user, host.name, host.port, host.node) == ("root", "2001:db8::1", 22, "ws6")
    assert "give another one with --name" in refused("[2001:db8::1]")


@pytest.mark.parametrize(
    "target",
    [
        *("-oProxyCommand=touch", "-l", "-a@ws1", "@ws1", "a b@ws1", "ws1 -v", "ws1 ws2", "ws1\nws2"),
        *("ws1;reboot", "$(id)", "`id`", "ws1/", "ẃs1", "ws.", "", "w" * 300),
        *("ws1:", "ws1:0", "ws1:65536", "ws1:22:22", "[ws1]", "2001:db8::1"),
    ],
)
def test_what_is_no_host_is_refused_and_never_reaches_ssh(target: str) -> None:
    assert "is not [USER@]HOST[:PORT]" in refused(target)


def test_a_file_has_a_host_a_line_with_the_options_of_its_agent(tmp_path: Path) -> None:
    text = "# the lab\n\nws1 --checkpoint-root /data#4 --warm 2\nanna@ws2 --name big --pool 'a100'  # eight of them\n"
    one, two = read_hosts((), a_file(tmp_path, text), "--gpus 2xRTX4090 --label zone=east")
    common = ("--gpus", "2xRTX4090", "--label", "zone=east")
    assert one.options == ("--name", "ws1", *common, "--checkpoint-root", "/data#4", "--warm", "2")
    assert two.options == ("--gpus", "2xRTX4090", "--label", "zone=east", "--name", "big", "--pool", "a100")
    assert (two.node, two.doctor) == ("big", ("--gpus", "2xRTX4090"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ws1 --labl x=y", "line 2: there is no option '--labl': did you mean '--label'?"),
        ("ws1 --warm 100", "line 2: Invalid value for '--warm'"),
        ("ws1 status", "line 2: Got unexpected extra argument (status)"),
        ("ws1 --help-all", "line 2: --help-all is no option to run an agent with"),
        ("ws1 --checkpoint-root here", "line 2: --checkpoint-root: 'here' does not begin with /"),
        ("ws1 --pool 'a", "line 2: no closing quotation"),
        ("ws1 --pool \x07", "line 2: has a character that cannot be printed"),
        ("ws1 --name ../x", "line 2: node name '../x'"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(tmp_path: Path, line: str, words: str) -> None:
    assert words in refused(hostfile=a_file(tmp_path, f"ws0\n{line}\n"))


def test_two_hosts_cannot_be_one_node_nor_one_host_two() -> None:
    assert "ws1.a and ws1.b would both be node ws1" in refused("ws1.a", "ws1.b")
    assert "host ws1 is given twice" in refused("ws1", "ws1")


def test_at_least_one_host_is_needed_and_too_many_are_refused(tmp_path: Path) -> None:
    assert "name at least one host" in refused()
    assert "name at least one host" in refused(hostfile=a_file(tmp_path, "# nobody\n"))
    assert f"at most {MAX_HOSTS}" in refused(*(f"ws{number}" for number in range(MAX_HOSTS + 1)))


def test_a_name_for_all_hosts_is_one_for_a_single_host_only() -> None:
    (host,) = read_hosts(("ws1",), None, "--name big")
    assert host.node == "big"
    assert "ws1 and ws2 would both be node big" in refused("ws1", "ws2", agent="--name big")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hosts.bin"
    path.write_bytes(b"\xff\xfe\x00")
    assert "is no text" in refused(hostfile=path)
