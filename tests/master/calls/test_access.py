"""Every method of every service, called by nobody, by somebody else, and by those who may not: nothing happens."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from ebbtide_core.views.digest import digest
from ebbtide_master.identity.access import ACCESS, READS, Access, in_words
from ebbtide_master.identity.caller import Role
from ebbtide_master.identity.identities import User
from ebbtide_master.identity.visibility import HIDERS
from ebbtide_master.store.vault import EntryKind
from ebbtide_protos.v1 import booking_pb2, channel_pb2, client_pb2, user_pb2
from google.protobuf.message_factory import GetMessageClass

from tests.master.methods import Method, all_methods
from tests.master.world import Master, a_master, make_spec, refused

METHODS = list(all_methods())
CHANGES = {
    "AddUser", "BelieveSilence", "Cancel", "CancelReservation", "Change", "ConfirmDead", "Connect", "CreateToken",
    "DrainNode", "Drill", "EndNode", "EndStray", "Hold", "ImportUsers", "InviteNode", "Join", "Quiesce", "Release",
    "Reload", "Remove", "RemoveNode", "RemoveUser", "Requeue", "ReserveGpus", "Resize", "Resume", "ResumeNode",
    "RevokeNode", "RevokeToken", "SetUser", "Submit", "Suspend", "TestNotice", "UploadSnapshot",
}  # fmt: skip
UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


@dataclass
class Cast:
    """A guarded master, ann's job, booking and token, and the tokens of whoever is in the play."""

    master: Master
    job: str
    booking: str
    token_id: str
    tokens: dict[str, str]

    def request(self, method: Method):
        """One that ann might send."""
        opening = {"open": channel_pb2.OpenChannel(job_id=self.job, port=80)}
        return method.request(
            job_id=self.job, job_ids=[self.job], reservation_id=self.booking, id=self.token_id, for_user="ann",
            name="ann", node="n1", user="ann" if "user" in text_fields(method) else user_pb2.User(name="zoe"),
            spec=make_spec(), **opening,
        )  # fmt: skip

    async def code(self, method: Method, token: str | None) -> grpc.StatusCode:
        try:
            await method.call(self.master.channel, self.request(method), token)
        except grpc.aio.AioRpcError as error:
            return error.code()
        except StopAsyncIteration:
            pass
        return grpc.StatusCode.OK

    def facts(self) -> tuple:
        """Everything that a call could change."""
        vault = self.master.store.vault
        kept = {kind: vault.read(kind) for kind in EntryKind}
        return digest(self.master.cluster.state), self.master.store.last_sequence, kept


def text_fields(method: Method) -> set[str]:
    return {field.name for field in method.descriptor.input_type.fields if field.message_type is None}


@asynccontextmanager
async def a_cast(home: Path) -> AsyncIterator[Cast]:
    async with a_master(home, guarded=True) as master:
        identities, now, tokens = master.identities, time.time(), {}
        for name, role in {"ann": Role.USER, "bob": Role.USER, "olga": Role.OPERATOR, "ada": Role.ADMIN}.items():
            await identities.put_user(User(name, role))
            tokens[name] = (await identities.issue(name, now))[1]
        tokens["expired"] = (await identities.issue("ada", now - 60, now - 1))[1]
        revoked, tokens["revoked"] = await identities.issue("ada", now)
        await identities.revoke(revoked.id)
        await identities.put_user(User("gone", Role.ADMIN))
        tokens["removed"] = (await identities.issue("gone", now))[1]
        await identities.remove_user("gone")
        cast = Cast(
            master, "", "", next(identities.tokens_of("ann")).id, {key: f"Bearer {t}" for key, t in tokens.items()}
        )
        await master.agent_with(tokens["ada"])
        submitted = client_pb2.SubmitRequest(spec=make_spec(command=["secret"], workdir="/private"))
        cast.job = (await master.ask.Submit(submitted, metadata=bearer(tokens["ann"]))).job_id
        wish = booking_pb2.ReserveGpusRequest(gpus=1, start=now + 7200, end=now + 10_800)
        cast.booking = (await master.ask.ReserveGpus(wish, metadata=bearer(tokens["ann"]))).reservation_id
        yield cast


def bearer(token: str):
    return (("authorization", f"Bearer {token}"),)


def test_every_method_is_in_the_table_and_the_table_has_no_other():
    assert {method.path for method in METHODS} == set(ACCESS)


def test_no_method_that_changes_something_counts_as_a_read():
    others = {method.path.rpartition("/")[2] for method in METHODS if ACCESS[method.path] is not Access.AGENT}
    assert others - {path.rpartition("/")[2] for path in READS} == CHANGES


async def test_a_method_that_counts_as_a_read_changes_nothing_even_for_an_admin(tmp_path):
    reads = [method for method in METHODS if method.path in READS]
    assert {method.path for method in reads} == READS
    async with a_cast(tmp_path) as cast:
        before = cast.facts()
        codes = {method.name: await cast.code(method, cast.tokens["ada"]) for method in reads}
        assert cast.facts() == before
    assert {name: code for name, code in codes.items() if code in (UNAUTHENTICATED, DENIED)} == {}


async def test_without_a_proof_that_holds_no_method_does_anything(tmp_path):
    async with a_cast(tmp_path) as cast:
        other = cast.tokens["ada"][:-1] + ("A" if cast.tokens["ada"][-1] != "A" else "B")
        proofs = {
            "none": None, "empty": "", "no scheme": cast.tokens["ada"][7:], "another scheme": "Basic YTpi",
            "malformed": "Bearer ebb_xyz", "of another cluster": "Bearer ebb_" + "0" * 16 + "_" + "a" * 43,
            "another secret": other, **{key: cast.tokens[key] for key in ("expired", "revoked", "removed")},
        }  # fmt: skip
        before = cast.facts()
        codes = {
            (method.name, key): await cast.code(method, proof) for method in METHODS for key, proof in proofs.items()
        }
        assert {key: code for key, code in codes.items() if code is not UNAUTHENTICATED} == {}
        assert cast.facts() == before


async def test_what_is_somebody_elses_is_refused_by_every_method_that_names_it(tmp_path):
    theirs = [method for method in METHODS if ACCESS[method.path] in (Access.OWNER, Access.BOOKER, Access.HOLDER)]
    async with a_cast(tmp_path) as cast:
        before = cast.facts()
        codes = {method.name: await cast.code(method, cast.tokens["bob"]) for method in theirs}
        assert {name: code for name, code in codes.items() if code is not DENIED} == {}
        assert cast.facts() == before


async def test_what_does_not_exist_is_refused_at_once_and_not_awaited_until_it_is_somebody_elses(tmp_path):
    async with a_cast(tmp_path) as cast:
        ask, bob = cast.master.ask, {"metadata": (("authorization", cast.tokens["bob"]),)}
        turn = cast.master.service.context.throttle.work("bob")
        while not turn.locked():
            await turn.acquire()
        assert await refused(ask.Cancel(client_pb2.CancelRequest(job_id="2"), **bob)) == (
            grpc.StatusCode.NOT_FOUND,
            "job 2 does not exist",
        )
        assert await refused(
            ask.CancelReservation(booking_pb2.CancelReservationRequest(reservation_id="2"), **bob)
        ) == (grpc.StatusCode.NOT_FOUND, "reservation 2 does not exist, or is over")


@pytest.mark.parametrize(
    ("name", "denied"),
    [
        ("bob", {Access.AGENT, Access.OPERATOR, Access.ADMIN}),
        ("olga", {Access.AGENT, Access.ADMIN}),
    ],
)
async def test_a_method_for_a_higher_role_is_refused(tmp_path, name, denied):
    methods = [method for method in METHODS if ACCESS[method.path] in denied]
    async with a_cast(tmp_path) as cast:
        before = cast.facts()
        codes = {method.name: await cast.code(method, cast.tokens[name]) for method in methods}
        assert {method: code for method, code in codes.items() if code is not DENIED} == {}
        assert cast.facts() == before


def test_what_needs_a_higher_role_is_refused_in_words_and_not_by_the_name_of_a_call():
    for method in METHODS:
        if ACCESS[method.path] in (Access.OPERATOR, Access.ADMIN):
            assert method.name not in in_words(method.path), method.name
    assert in_words("/ebbtide.v1.ClientService/DrainNode") == "draining a node"


async def test_a_token_of_an_operator_is_not_made_by_other_operators(tmp_path):
    async with a_cast(tmp_path) as cast:
        holders = [method for method in METHODS if ACCESS[method.path] is Access.HOLDER]
        assert {await cast.code(method, cast.tokens["olga"]) for method in holders} == {DENIED}


def test_a_reply_that_holds_what_a_job_runs_is_hidden_from_others_or_only_for_its_owner():
    for method in METHODS:
        if ACCESS[method.path] is Access.USER:
            assert not tells_of_jobs(method.descriptor.output_type), method.name
        if ACCESS[method.path] is Access.SEEN:
            assert GetMessageClass(method.descriptor.output_type) in HIDERS, method.name


def tells_of_jobs(message, known=frozenset()) -> bool:
    """Whether somewhere in it there is a job's spec, or an event, which may hold one."""
    if message.full_name in ("ebbtide.v1.JobSpec", "ebbtide.v1.Event", "ebbtide.v1.LogChunk"):
        return True
    if message.full_name in known:
        return False
    below = [field.message_type for field in message.fields if field.message_type is not None]
    return any(tells_of_jobs(one, known | {message.full_name}) for one in below)
