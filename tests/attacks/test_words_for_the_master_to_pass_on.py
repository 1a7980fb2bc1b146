"""What the master does with addresses that users and nodes name: where it posts to, and what a fence hook is given."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_core.model.spec import SpecError
from ebbtide_master.config.file import Config
from ebbtide_master.config.notify import NotifySettings
from ebbtide_master.convert import is_host, registration_from_hello
from ebbtide_master.identity.caller import Caller, Role
from ebbtide_master.notify import delivery
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.master.notify.servers import a_hook
from tests.master.world import OpenGate, a_master, make_hello, refused
from tests.ports import free_port

BY_NAME = Config(notify=NotifySettings(allow=frozenset({"hooks.example.org"})))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "169.254.169.254", "10.0.0.1"])
async def test_a_user_cannot_have_the_master_post_to_itself_or_its_neighbours(tmp_path: Path, host: str) -> None:
    async with a_master(tmp_path) as master:
        rule = job_pb2.NoticeRule(moments=["failed"], target=f"http://{host}:22/")
        assert (await refused(master.submit(notify=[rule])))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_name_that_is_allowed_leads_to_no_address_of_this_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_hook() as hook:
        port = int(hook.url.split(":")[2].split("/")[0])

        addresses = ["127.0.0.1", "10.0.0.1", "169.254.169.254"]

        def resolve(*_: Any, **__: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses.pop(), port))]

        monkeypatch.setattr(delivery.socket, "getaddrinfo", resolve)
        async with a_master(tmp_path, config=BY_NAME) as master:
            while addresses:
                notice = client_pb2.NoticeTest(target=f"http://hooks.example.org:{port}/x")
                reply = await master.ask.TestNotice(notice)
                assert (reply.delivered, reply.detail.endswith("is at no address that is allowed")) == (False, True)
        assert hook.asked == []


async def test_the_address_that_was_looked_at_is_the_one_that_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that stands for another address each time that it is asked for."""
    reached = list[Any]()

    def connect(place: Any, *_: Any, **__: Any) -> socket.socket:
        reached.append(place)
        raise ConnectionRefusedError

    answers = iter(["203.0.114.9", "127.0.0.1", "127.0.0.1"])
    monkeypatch.setattr(
        delivery.socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", (next(answers), 80))]
    )
    monkeypatch.setattr(delivery.socket, "create_connection", connect)
    async with a_master(tmp_path, config=BY_NAME) as master:
        await master.ask.TestNotice(client_pb2.NoticeTest(target="http://hooks.example.org/x"))
    assert reached == [("203.0.114.9", 80)]


def test_what_is_no_public_address() -> None:
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.1.1", "fe80::1", "169.254.1.1", "224.0.0.1", "::"):
        assert not delivery.is_public(address)
    assert delivery.is_public("8.8.8.8")


async def test_a_user_hears_only_whether_it_was_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenGate, "admit", lambda *_: Caller("eve", Role.USER))
    config = Config(notify=NotifySettings(allow=frozenset({"127.0.0.1"})))
    with a_hook() as hook:
        hook.answers = [200, 404, 500]
        async with a_master(tmp_path, config=config) as master:
            said = [await master.ask.TestNotice(client_pb2.NoticeTest(target=hook.url)) for _ in range(3)]
            free = await asyncio.to_thread(free_port)
            said.append(await master.ask.TestNotice(client_pb2.NoticeTest(target=f"http://127.0.0.1:{free}/")))
    assert [reply.detail for reply in said] == ["delivered", *["not delivered"] * 3]


@pytest.mark.parametrize(
    "address", ["$(reboot)", "-oProxyCommand=x", "a b", "10.0.0.1;id", "n1/../n2", "\u0430.org", "x\n"]
)
def test_an_address_of_a_node_is_an_address_or_the_name_of_a_host(address: str) -> None:
    with pytest.raises(SpecError, match="neither an address nor the name of a host"):
        registration_from_hello(make_hello("n1", address=address))


def test_addresses_and_names_of_hosts_are_taken() -> None:
    assert all(map(is_host, ("10.0.0.1", "fd00::1", "gpu-01.cluster.example.org", "n1", "host_2")))
