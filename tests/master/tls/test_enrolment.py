"""Certificates of nodes that are gone: they prove nothing, nobody is warned of them, and they do not pile up."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest
from ebbtide_agent.link.joining import new_key
from ebbtide_master.identity.caller import NotKnownError
from ebbtide_master.nodes import agents
from ebbtide_master.store.journal import StoreError
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_master.store.vault import EntryKind
from ebbtide_master.tls import upkeep
from ebbtide_master.tls.enrolment import Enrolment
from ebbtide_master.tls.folder import TlsFolder
from ebbtide_master.tls.listeners import Listeners
from ebbtide_master.tls.upkeep import ending, keep_up, over
from ebbtide_protos.v1 import client_pb2

from tests.master.tls.test_ports import guarded
from tests.master.world import DEADLINE_S, RUNNING, make_spec, make_status


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


async def test_a_master_that_cannot_write_what_it_forgets_keeps_its_own_certificate_up_all_the_same(
    listeners, monkeypatch, caplog
):
    async def broken(nodes: object) -> None:
        raise StoreError("disk I/O error")

    renewed = asyncio.Event()
    monkeypatch.setattr(listeners.enrolment, "forget", broken)
    monkeypatch.setattr(upkeep, "PAUSE_S", 0.0)
    monkeypatch.setattr(upkeep, "renew", lambda *_: renewed.set() if "not-forgotten" in caplog.text else None)
    keeping = asyncio.create_task(keep_up(listeners, time.time, set))
    async with asyncio.timeout(DEADLINE_S):
        await renewed.wait()
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


async def test_what_runs_on_a_node_that_was_removed_by_mistake_is_ended_when_the_node_is_back(tmp_path, monkeypatch):
    monkeypatch.setattr(agents, "NODE_SILENCE_S", 0.01)
    async with guarded(tmp_path) as master:
        own, admin = await master.member("ws2"), await master.clients("admin")
        other = await master.attached(await master.member("ws3"), "ws3", gpus=0)  # sees the checkpoints, too
        agent = await master.attached(own, "ws2", gpus=1)
        job = (await admin.Submit(client_pb2.SubmitRequest(spec=make_spec()))).job_id
        await agent.receive("launch")
        await agent.report(job, 1, RUNNING)
        await agent.hang_up()
        async with asyncio.timeout(DEADLINE_S):
            events = admin.WatchEvents(client_pb2.WatchEventsRequest(follow=True))
            while (await events.read()).kind != "NodeLost":
                pass
            events.cancel()
        await admin.ConfirmDead(client_pb2.NodeRequest(node="ws2"))
        await admin.RemoveNode(client_pb2.NodeRequest(node="ws2"))
        assert "ws2" in master.listeners.enrolment.members()
        back = await master.attached(own, "ws2", gpus=1, attempts=[make_status(job, 1, RUNNING, gpus=["ws2-0"])])
        stop = await back.receive("stop")
        assert (stop.job_id, stop.attempt, stop.grace_s) == (job, 1, 0.0)
        await back.hang_up()
        await other.hang_up()
