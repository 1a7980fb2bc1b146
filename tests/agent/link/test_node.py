"""Who a node says it is, and where it looks for its master."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from ebbtide_agent.link.endpoint import Endpoint, NoMaster, local_master, parse_endpoint
from ebbtide_agent.node import ROOT_MARKER, address_towards, describe, node_name, root_id

from tests.proof import publish


def test_a_node_is_measured_where_nothing_is_given(tmp_path):
    node = describe("n1", None, None, tmp_path)
    assert node.cpus == len(os.sched_getaffinity(0))
    assert node.mem_bytes == psutil.virtual_memory().total
    assert node.boot_id
    assert node.incarnation != describe("n1", None, None, tmp_path).incarnation


def test_what_is_given_wins_over_what_is_measured(tmp_path):
    node = describe("n1", 2.5, 1 << 30, tmp_path)
    assert (node.cpus, node.mem_bytes) == (2.5, 1 << 30)


def test_two_nodes_that_see_one_checkpoint_root_give_it_one_id(tmp_path):
    with ThreadPoolExecutor(8) as nodes:
        ids = set(nodes.map(root_id, [tmp_path / "shared"] * 32))
    assert len(ids) == 1
    assert ids == {root_id(tmp_path / "shared")}
    assert [entry.name for entry in (tmp_path / "shared").iterdir()] == [ROOT_MARKER]


def test_two_checkpoint_roots_differ(tmp_path):
    assert root_id(tmp_path / "a") != root_id(tmp_path / "b")


def test_a_new_checkpoint_root_shows_nobody_else_what_is_there(tmp_path):
    """Jobs of accounts, which only root can start, find their own directories below it."""
    root_id(tmp_path / "root")
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == (0o700 if os.geteuid() else 0o711)


@pytest.mark.parametrize("name", ["n1", "gpu-07.lab", "A_b"])
def test_a_name_that_can_be_a_directory_is_taken(name):
    assert node_name(name) == name


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "a b", "-x", "a\x00", "x" * 64, "é"])
def test_a_name_that_cannot_be_a_directory_is_refused(name):
    with pytest.raises(ValueError, match="node name"):
        node_name(name)


def test_a_node_without_a_name_is_called_as_its_host():
    assert node_name("") == os.uname().nodename


async def test_the_way_to_a_master_here_starts_here():
    assert await address_towards("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:4000", "127.0.0.1", 4000, True),
        ("localhost:4000", "localhost", 4000, True),
        ("[::1]:4000", "::1", 4000, True),
        ("10.1.2.3:4000", "10.1.2.3", 4000, False),
        ("gpu1:4000", "gpu1", 4000, False),
    ],
)
def test_a_master_is_named_by_host_and_port(text, host, port, is_loopback):
    endpoint = parse_endpoint(text)
    assert (endpoint, str(endpoint), endpoint.is_loopback) == (Endpoint(host, port), text, is_loopback)


def test_a_master_of_this_account_is_named_by_its_home():
    endpoint = parse_endpoint("unix:/home/ada/lab")
    assert endpoint == Endpoint.of(Path("/home/ada/lab"))
    assert (str(endpoint), endpoint.is_loopback) == ("unix:/home/ada/lab", True)


@pytest.mark.parametrize("text", ["unix:", "gpu1", "gpu1:", ":4000", "gpu1:0", "gpu1:65536", "gpu1:-1", "gpu1:x"])
def test_what_is_no_host_and_port_is_refused(text):
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_endpoint(text)


def test_the_master_of_a_home_is_read_anew_each_time(tmp_path):
    with pytest.raises(NoMaster, match=r"master\.json does not exist"):
        local_master(tmp_path)
    publish(tmp_path)
    assert local_master(tmp_path) == Endpoint.of(tmp_path)
    for port in (4000, 4001):
        publish(tmp_path, host="127.0.0.1", port=port, agent_port=port + 1)
        assert local_master(tmp_path) == Endpoint("127.0.0.1", port + 1, front=Endpoint("127.0.0.1", port))
    publish(tmp_path, host="127.0.0.1", port=4000)
    with pytest.raises(NoMaster, match="only half"):
        local_master(tmp_path)


@pytest.mark.parametrize("stale", [{"starttime": 1}, {"boot_id": "another"}, {"pid": 2**22 + 1}])
def test_a_record_of_a_master_that_ended_is_not_believed(tmp_path, stale):
    publish(tmp_path, host="127.0.0.1", port=4000, **stale)
    with pytest.raises(NoMaster, match="none runs here"):
        local_master(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"host": "127.0.0.1", "port": "4000"}'])
def test_a_master_file_that_says_nothing_sensible_is_no_master(tmp_path, content):
    (tmp_path / "master.json").write_text(content)
    with pytest.raises(NoMaster, match=r"master\.json"):
        local_master(tmp_path)
