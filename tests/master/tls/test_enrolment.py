"""Certificates of nodes that are gone: they prove nothing, nobody is warned of them, and they do not pile up."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from ebbtide_agent.link.joining import new_key
from ebbtide_master.identity.caller import NotKnownError
from ebbtide_master.loop import StoppedError
from ebbtide_master.nodes import agents
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_master.store.vault import EntryKind
from ebbtide_master.tls.enrolment import Enrolment
from ebbtide_master.tls.folder import TlsFolder
from ebbtide_master.tls.listeners import Listeners
from ebbtide_master.tls.upkeep import ending, keep_up, over
from ebbtide_protos.v1 import client_pb2

from tests.master.tls.test_ports import UNKNOWN, Guarded, guarded
from tests.master.world import DEADLINE_S, Agent, make_hello, refused

NOT_FOUND = grpc.StatusCode.NOT_FOUND


@pytest.fixture
def listeners(tmp_path: Path):
    journal, folder = SqliteStore(tmp_path / "journal.db"), TlsFolder.of(tmp_path)
    folder.create_authority(time.time())
    yield Listeners(folder, Enrolment(journal.vault, folder.authority(), time.time), "127.0.0.1", 0, 0)
    journal.close()


async def member(enrolment: Enrolment, node: str) -> str:
    """The certificate of a node that has joined."""
    secret, _ = await enrolment.invite(node, 600.0)
    return await enrolment.join(secret, node, new_key().request)


async def test_a_certificate_that_is_forgotten_proves_nothing_and_an_invitation_for_its_node_stays(listeners):
    enrolment = listeners.enrolment
    pem, other = await member(enrolment, "ws2"), await member(enrolment, "ws3")
    secret, _ = await enrolment.invite("ws2", 600.0)
    await enrolment.forget(["ws2", "ws9"])
    with pytest.raises(NotKnownError, match="was revoked or replaced"):
        enrolment.caller(pem.encode())
    assert list(enrolment.members()) == list(enrolment._vault.read(EntryKind.NODE)) == ["ws3"]
    assert enrolment.caller(other.encode()).node == "ws3"
    again = await enrolment.join(secret, "ws2", new_key().request)
    assert enrolment.caller(again.encode()).node == "ws2"


async def test_what_has_ended_is_forgotten_unless_it_is_of_a_node_of_the_cluster(listeners):
    enrolment = listeners.enrolment
    for node in ("ws2", "loan-7"):
        await member(enrolment, node)
    ends = max(enrolment.members().values())
    assert over(listeners, min(enrolment.members().values()) - 1, {"ws2"}) == []
    keeping = asyncio.create_task(keep_up(listeners, lambda: ends + 1, lambda: {"ws2"}))
    async with asyncio.timeout(DEADLINE_S):
        while list(enrolment.members()) != ["ws2"]:
            await asyncio.sleep(0.005)
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


async def test_nobody_is_warned_of_the_certificate_of_a_node_that_is_gone(listeners):
    for node in ("ws2", "loan-7"):
        await member(listeners.enrolment, node)
    [words] = ending(listeners, min(listeners.enrolment.members().values()) - 1, {"ws2"})
    assert words.startswith("the certificate of node ws2 ends on ")


async def one_that_is_lost(master: Guarded, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The key and certificate of node ws2, which was here and is lost."""
    monkeypatch.setattr(agents, "NODE_SILENCE_S", 0.01)
    own = await master.member("ws2")
    await (await master.attached(own, "ws2")).hang_up()
    async with asyncio.timeout(DEADLINE_S):
        events = (await master.clients("admin")).WatchEvents(client_pb2.WatchEventsRequest(follow=True))
        while (await events.read()).kind != "NodeLost":
            pass
        events.cancel()
    return own


async def test_a_node_that_is_removed_has_to_join_again_and_may(tmp_path, monkeypatch):
    async with guarded(tmp_path) as master:
        own = await one_that_is_lost(master, monkeypatch)
        remove, admin = client_pb2.NodeRequest(node="ws2"), await master.clients("admin")
        await admin.RemoveNode(remove)
        assert master.listeners.enrolment.members() == {}
        assert await Agent(await master.agents(own), make_hello("ws2")).ends() is UNKNOWN
        assert await refused(admin.RemoveNode(remove)) == (NOT_FOUND, "node ws2 does not exist")
        new = await master.member("ws2")
        await (await master.attached(new, "ws2")).hang_up()


async def test_a_removal_that_a_master_ended_amid_is_completed_by_the_next_one(tmp_path, monkeypatch):
    async with guarded(tmp_path) as master:
        await one_that_is_lost(master, monkeypatch)
        remove, admin = client_pb2.NodeRequest(node="ws2"), await master.clients("admin")

        async def killed(nodes: object) -> None:
            raise StoppedError

        with monkeypatch.context() as patched:
            patched.setattr(master.listeners.enrolment, "forget", killed)
            await refused(admin.RemoveNode(remove))
        assert list(master.listeners.enrolment.members()) == ["ws2"]
        await admin.RemoveNode(remove)
        assert master.listeners.enrolment.members() == {}


async def test_a_removal_that_is_refused_leaves_the_certificate(tmp_path):
    async with guarded(tmp_path) as master:
        own = await master.member("ws2")
        agent = await master.attached(own, "ws2")
        admin = await master.clients("admin")
        code, _ = await refused(admin.RemoveNode(client_pb2.NodeRequest(node="ws2")))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert list(master.listeners.enrolment.members()) == ["ws2"]
        await agent.hang_up()
