"""The two ports of a master with an authority, over real TLS: who gets a word in, and who does not."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest
from ebbtide_agent.link.credentials import Credentials
from ebbtide_agent.link.endpoint import Endpoint
from ebbtide_agent.link.joined import Joined, load, store
from ebbtide_agent.link.joining import new_key
from ebbtide_cli.masters.credentials import ProvenChannel
from ebbtide_core.cluster import Cluster
from ebbtide_core.policies.registry import create_policy
from ebbtide_master.calls.certificates import CertificateGate
from ebbtide_master.calls.gate import TokenGate
from ebbtide_master.identity.caller import Role
from ebbtide_master.identity.identities import Identities, User
from ebbtide_master.service import serving
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_master.tls.authority import DAY_S, Authority, read
from ebbtide_master.tls.enrolment import Enrolment
from ebbtide_master.tls.folder import TlsFolder
from ebbtide_master.tls.listeners import Listeners
from ebbtide_master.tls.upkeep import ending, renew
from ebbtide_protos import home_socket
from ebbtide_protos.v1 import agent_pb2, agent_pb2_grpc, client_pb2, client_pb2_grpc

from tests.certificates import LONG_AGO_S, a_certificate, an_authority, put_server, reach
from tests.master.world import Agent, make_hello, refused, until_node

DENIED, UNKNOWN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
CLOSED = grpc.StatusCode.UNAVAILABLE


class Guarded:
    """A master with an authority, an admin, and a user."""

    def __init__(self, stack, listeners, service, tokens):
        self._stack, self.listeners, self.service, self.tokens = stack, listeners, service, tokens
        self.ca = listeners.enrolment.authority.pem

    async def reach(self, port=None, own=None, token="", ca=None):
        return await self._stack.enter_async_context(reach(port or self.service.port, ca or self.ca, own, token))

    async def clients(self, name="", **how):
        reached = await self.reach(token=self.tokens.get(name, ""), **how)
        return client_pb2_grpc.ClientServiceStub(reached)

    async def agents(self, own, **how):
        return agent_pb2_grpc.AgentServiceStub(await self.reach(self.service.agent_port, own, **how))

    async def invited(self, node="", name="admin"):
        request = client_pb2.InviteNodeRequest(node=node, expires_s=600)
        return await (await self.clients(name)).InviteNode(request)

    async def join(self, secret, node):
        """The node's key and certificate."""
        key = new_key()
        request = client_pb2.JoinRequest(secret=secret, node=node, csr=key.request)
        return key.private, (await (await self.clients()).Join(request)).certificate

    async def member(self, node):
        return await self.join((await self.invited(node)).secret, node)

    async def attached(self, own, node, **has):
        agent = Agent(await self.agents(own), make_hello(node, **has))
        await agent.register()
        return agent


@asynccontextmanager
async def guarded(home, now=time.time) -> AsyncIterator[Guarded]:
    async with AsyncExitStack() as stack:
        journal = SqliteStore(home / "journal.db")
        stack.callback(journal.close)
        identities, tokens = Identities(journal.vault), {}
        for name, role in (("admin", Role.ADMIN), ("ann", Role.USER)):
            await identities.put_user(User(name, role))
            _, tokens[name] = await identities.issue(name, time.time())
        folder = TlsFolder.of(home)
        folder.create_authority(time.time())
        folder.ensure_covers(["localhost", "127.0.0.1"], time.time())
        listeners = Listeners(folder, Enrolment(journal.vault, folder.authority(), now), "127.0.0.1", 0, 0)
        cluster = Cluster(create_policy("fifo", {}))
        gate = CertificateGate(TokenGate(identities, cluster, time.time), listeners.enrolment)
        service = await stack.enter_async_context(serving(cluster, journal, home, "fifo", gate, listeners=listeners))
        yield Guarded(stack, listeners, service, tokens)


def test_a_node_joins_once_and_speaks_for_itself(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            invitation = await master.invited()
            own = await master.join(invitation.secret, "ws2")
            assert read(own[1]).node == "ws2"
            agent = await master.attached(own, "ws2")
            node = await until_node(await master.clients("ann"), "ws2", "up")
            assert node.certificate_ends == read(own[1]).ends
            assert await refused(master.join(invitation.secret, "ws3")) == (UNKNOWN, USED)
            await agent.hang_up()

    asyncio.run(check())


USED = "the invitation is not one of this cluster, or was used already: ask an admin for another: 'ebb node invite'"


def test_an_agent_speaks_for_no_other_node(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            own = await master.member("ws2")
            agent = Agent(await master.agents(own), make_hello("ws1"))
            await agent.send(hello=agent.hello)
            assert await agent.ends() is DENIED
            assert "it may not speak for node 'ws1'" in await agent.details()

    asyncio.run(check())


def test_wrong_certificates_open_no_connection(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            authority = master.listeners.folder.authority()
            wrong = {
                "none": None,
                "foreign": a_certificate(an_authority(), "ws2"),
                "expired": a_certificate(authority, "ws2", age_s=LONG_AGO_S),
                "a server's": authority.server(["localhost"], time.time())[::-1],
            }
            for what, own in wrong.items():
                stub = await master.agents(own)
                code, _ = await refused(stub.Renew(agent_pb2.CertificateRequest()))
                assert code is CLOSED, what

    asyncio.run(check())


def test_who_trusts_another_authority_or_asks_for_another_name_does_not_talk_to_the_master(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            request = client_pb2.ShowClusterRequest()
            stranger = await master.clients("ann", ca=an_authority().certificate.pem)
            assert (await refused(stranger.ShowCluster(request)))[0] is CLOSED
            put_server(master.listeners.folder.path, master.listeners.folder.authority(), ("elsewhere",))
            assert (await refused((await master.clients("ann")).ShowCluster(request)))[0] is CLOSED

    asyncio.run(check())


def test_a_certificate_opens_no_method_of_clients_and_a_token_none_of_agents(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            own = await master.member("ws2")
            there = await master.reach(master.service.agent_port, own, master.tokens["admin"])
            code, words = await refused(client_pb2_grpc.ClientServiceStub(there).ListJobs(client_pb2.ListJobsRequest()))
            assert (code, "not for agents" in words) == (DENIED, True)
            here = agent_pb2_grpc.AgentServiceStub(await master.reach(token=master.tokens["admin"]))
            agent = Agent(here, make_hello("ws2"))
            assert await agent.ends() is DENIED
            assert "an agent joins first" in await agent.details()

    asyncio.run(check())


def test_a_revoked_certificate_ends_its_stream_and_opens_no_other(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            own = await master.member("ws2")
            agent = await master.attached(own, "ws2")
            admin = await master.clients("admin")
            await admin.RevokeNode(client_pb2.RevokeNodeRequest(node="ws2"))
            await agent.ends()
            again = Agent(await master.agents(own), make_hello("ws2"))
            assert await again.ends() is UNKNOWN
            assert "was revoked or replaced" in await again.details()
            code, _ = await refused(admin.RevokeNode(client_pb2.RevokeNodeRequest(node="ws2")))
            assert code is grpc.StatusCode.NOT_FOUND

    asyncio.run(check())


def test_a_certificate_that_was_replaced_is_good_for_nothing(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            old = await master.member("ws2")
            any_name = await master.invited()
            code, words = await refused(master.join(any_name.secret, "ws2"))
            assert (code, "'ebb node invite ws2'" in words) == (DENIED, True)
            new = await master.join((await master.invited("ws2")).secret, "ws2")
            assert await Agent(await master.agents(old), make_hello("ws2")).ends() is UNKNOWN
            await (await master.attached(new, "ws2")).hang_up()

    asyncio.run(check())


def test_a_renewed_certificate_leaves_the_stream_open_and_the_old_one_good(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            own = await master.member("ws2")
            agent = await master.attached(own, "ws2")
            for _ in range(3):  # as often as an answer is lost
                key = new_key()
                reply = await (await master.agents(own)).Renew(agent_pb2.CertificateRequest(csr=key.request))
            new = (key.private, reply.certificate)
            for pair in (own, new):
                request = agent_pb2.CertificateRequest(csr="")
                assert (await refused((await master.agents(pair)).Renew(request)))[0] is not UNKNOWN
            await agent.send(heartbeat=agent_pb2.Heartbeat())
            await agent.hang_up()

    asyncio.run(check())


def test_an_agent_renews_what_has_a_third_of_its_life_left_and_nothing_else(tmp_path):
    async def check(age_s, kept):
        async with guarded(tmp_path / kept, lambda: time.time() - age_s) as master:
            key, certificate = await master.member("ws2")
            before = Joined("localhost:1", master.ca, certificate, key)
            store(tmp_path / kept, before)
            there = await master.reach(master.service.agent_port, (key, certificate))
            proof = Credentials(tmp_path, "ws2", tmp_path / kept)
            keeping = asyncio.create_task(proof.keep(there, Endpoint("localhost", 1)))
            async with asyncio.timeout(30):
                while kept == "old" and load(tmp_path / kept) == before:
                    await asyncio.sleep(0.005)
            await master.attached((key, certificate), "ws2")
            keeping.cancel()
            after = load(tmp_path / kept)
            assert (after == before) is (kept == "young")
            assert read(after.certificate).node == "ws2"

    asyncio.run(check(300 * DAY_S, "old"))
    asyncio.run(check(200 * DAY_S, "young"))


def test_the_same_certificate_from_a_second_machine_is_refused(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            own = await master.member("ws2")
            agent = await master.attached(own, "ws2")
            clone = Agent(await master.agents(own), make_hello("ws2", hostname="other", incarnation="second"))
            await clone.send(hello=clone.hello)
            assert "is connected already" in (await clone.receive("rejected")).reason
            await agent.hang_up()

    asyncio.run(check())


@pytest.mark.parametrize("name", ["ann", ""])
def test_only_admins_invite_and_revoke(tmp_path, name):
    async def check():
        async with guarded(tmp_path) as master:
            stub = await master.clients(name)
            expected = DENIED if name else UNKNOWN
            for call in (
                stub.InviteNode(client_pb2.InviteNodeRequest(expires_s=600)),
                stub.RevokeNode(client_pb2.RevokeNodeRequest(node="ws2")),
            ):
                assert (await refused(call))[0] is expected

    asyncio.run(check())


def test_an_invitation_is_for_its_node_and_its_time(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            secret = (await master.invited("ws2")).secret
            assert (await refused(master.join(secret, "ws3")))[0] is DENIED
            other = secret[:-1] + ("A" if secret[-1] != "A" else "B")
            assert (await refused(master.join(other, "ws2")))[1] == USED
            assert (await refused(master.join("", "ws2")))[1] == USED
            invalid = grpc.StatusCode.INVALID_ARGUMENT
            assert (await refused(master.join(secret, "../ws2")))[0] is invalid
            for seconds in (0, -1, float("nan"), float("inf"), 1e9):
                request = client_pb2.InviteNodeRequest(expires_s=seconds)
                assert (await refused((await master.clients("admin")).InviteNode(request)))[0] is invalid

    asyncio.run(check())


def test_an_invitation_has_the_host_that_is_asked_for_if_the_certificate_is_for_it(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            stub, port = await master.clients("admin"), master.service.port

            async def address(host):
                return (await stub.InviteNode(client_pb2.InviteNodeRequest(expires_s=600, host=host))).address

            assert [await address(host) for host in ("", "localhost")] == [f"127.0.0.1:{port}", f"localhost:{port}"]
            words = "--host: the master's certificate is for localhost, 127.0.0.1, and not for 'evil.example'"
            assert await refused(address("evil.example")) == (grpc.StatusCode.INVALID_ARGUMENT, words)

    asyncio.run(check())


def test_a_new_certificate_of_the_master_is_shown_without_a_restart(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            folder, ask = master.listeners.folder, client_pb2.ShowClusterRequest()
            open_before = await master.clients("ann")
            before = (await open_before.ShowCluster(ask)).certificate_ends
            renew(master.listeners, before - 31 * DAY_S)
            assert folder.server().ends == before
            renew(master.listeners, before - 29 * DAY_S)
            assert (await open_before.ShowCluster(ask)).certificate_ends > before
            # Now one that nobody can take for good: only who connects anew sees it.
            put_server(folder.path, an_authority(), ("localhost",))
            assert (await refused((await master.clients("ann")).ShowCluster(ask)))[0] is CLOSED
            await open_before.ShowCluster(ask)

    asyncio.run(check())


def test_what_ends_within_two_weeks_is_said(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            own = await master.member("ws2")
            ends = read(own[1]).ends
            assert list(ending(master.listeners, ends - 15 * DAY_S, {"ws2"})) == []
            said = list(ending(master.listeners, ends - 13 * DAY_S, {"ws2"}))
            assert [words.split(" ends on")[0] for words in said] == [
                "the master's certificate", "the certificate of node ws2",
            ]  # fmt: skip

    asyncio.run(check())


def test_members_and_invitations_outlive_a_restart_and_no_secret_is_kept(tmp_path):
    async def check():
        async with guarded(tmp_path) as master:
            own = await master.member("ws2")
            left = (await master.invited("ws3")).secret
        async with guarded(tmp_path) as master:
            await (await master.attached(own, "ws2")).hang_up()
            await master.join(left, "ws3")
        kept = b"".join(path.read_bytes() for path in tmp_path.glob("*.db*"))
        assert left.encode() not in kept
        assert left.split("_", 2)[2].encode() not in kept

    asyncio.run(check())


def test_without_an_authority_nobody_joins(tmp_path):
    async def check():
        async with AsyncExitStack() as stack:
            journal = SqliteStore(tmp_path / "journal.db")
            stack.callback(journal.close)
            cluster, identities = Cluster(create_policy("fifo", {})), Identities(journal.vault)
            await identities.put_user(User("admin", Role.ADMIN))
            _, token = await identities.issue("admin", time.time())
            gate = TokenGate(identities, cluster, time.time)
            service = await stack.enter_async_context(serving(cluster, journal, tmp_path, "fifo", gate))
            assert (service.port, service.agent_port) == (0, 0)
            local = grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
            target = stack.enter_context(home_socket.reached(tmp_path))
            reached = await stack.enter_async_context(grpc.aio.secure_channel(target, local))
            stub = client_pb2_grpc.ClientServiceStub(ProvenChannel(reached, token))
            for call in (
                stub.Join(client_pb2.JoinRequest()),
                stub.InviteNode(client_pb2.InviteNodeRequest(expires_s=600)),
                stub.RevokeNode(client_pb2.RevokeNodeRequest(node="x")),
            ):
                assert "'ebb master init'" in (await refused(call))[1]

    asyncio.run(check())


def test_an_authority_of_a_home_is_that_home_s_only(tmp_path):
    async def check():
        async with guarded(tmp_path / "a") as one, guarded(tmp_path / "b") as other:
            own = await one.member("ws2")
            stub = await other.agents(own)
            assert (await refused(stub.Renew(agent_pb2.CertificateRequest())))[0] is CLOSED
            assert isinstance(one.listeners.folder.authority(), Authority)

    asyncio.run(check())
