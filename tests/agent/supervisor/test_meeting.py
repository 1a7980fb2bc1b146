"""Where the ranks of a job on several nodes meet."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from ebbtide_agent.attempts.translation import intent_of
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.network import ANY, Network, address_of
from ebbtide_agent.supervisor.launching.preparation import rendezvous_port
from ebbtide_agent.supervisor.status import Refused
from ebbtide_protos.v1 import agent_pb2

from tests.agent.supervisor.node import order


def intent(node_rank: int = 0, master_port: int = 0, network: Network = ANY) -> Intent:
    launch = order(["true"])
    launch.MergeFrom(
        agent_pb2.Launch(node_rank=node_rank, num_nodes=2, master_addr="10.0.0.7", master_port=master_port)
    )
    return intent_of(
        launch, node_dir=Path("/n"), checkpoint_root=Path("/c"), cluster_id="c", fake_gpu_dir=None, network=network
    )


def taken() -> socket.socket:
    """A listening socket on a port of its own choice."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    return server


def test_the_first_node_chooses_a_port_of_its_range():
    assert rendezvous_port(intent(network=Network("", 20010, 20019))) in range(20010, 20020)


def test_the_others_take_the_port_that_it_chose():
    assert rendezvous_port(intent(node_rank=1, master_port=4711)) == 4711


def test_a_port_that_somebody_listens_on_is_passed_over():
    with taken() as server:
        port = server.getsockname()[1]
        meant = intent(network=Network("", port - 19, port))
        # Each attempt searches from a port of its own, some of so many from this one.
        assert port not in {rendezvous_port(replace(meant, attempt=attempt)) for attempt in range(100)}


def test_if_all_are_taken_the_node_refuses_and_names_the_range():
    with taken() as server:
        port = server.getsockname()[1]
        with pytest.raises(Refused, match=f"{port}-{port} are all taken"):
            rendezvous_port(intent(network=Network("", port, port)))


def test_it_survives_being_written_down():
    meant = intent(node_rank=1, master_port=4711, network=Network("eth1", 20010, 20019))
    assert Intent.from_json(json.loads(json.dumps(meant.to_json()))) == meant


def test_what_an_older_agent_wrote_down_is_read():
    older = intent().to_json()
    del older["network"], older["master_port"]
    assert Intent.from_json(older) == intent()


def test_the_loopback_interface_has_an_address():
    assert address_of("lo") == "127.0.0.1"


def test_a_range_of_ports_is_read():
    assert Network.parse("", "20000-20010").ports == range(20000, 20011)
    assert Network.parse("", "") == Network()


@pytest.mark.parametrize("ports", ["20000", "20010-20000", "80-90", "60000-70000", "a-b", "-", "1-999999999999"])
def test_what_is_no_range_is_refused_by_the_name_of_the_option(ports):
    with pytest.raises(ValueError, match="--ports"):
        Network.parse("", ports)


def test_an_interface_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(ValueError, match=r"--interface: there is no 'eth77'; there are .*lo"):
        Network.parse("eth77", "")
