"""Reservations of GPUs as clients ask for them: for two users, over a restart, and refused with the reason."""

import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_protos.v1 import booking_pb2, client_pb2, job_pb2

from tests.master.world import RUNNING, Master, a_master, make_spec, refused


def wish(**fields: Any) -> booking_pb2.ReserveGpusRequest:
    now = time.time()
    defaults = {"user": "bob", "by": "ann", "gpus": 2, "start": now, "end": now + 3600}
    return booking_pb2.ReserveGpusRequest(**(defaults | fields))


async def listed(master: Master) -> list[booking_pb2.Reservation]:
    return list((await master.ask.ListReservations(booking_pb2.ListReservationsRequest())).reservations)


async def test_only_its_user_gets_the_gpus_also_under_the_next_master(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.agent()
        made = await master.ask.ReserveGpus(wish(note="demo"))
        assert (made.reservation_id, made.user, made.by, made.state, made.note) == ("1", "bob", "ann", "now", "demo")
        assert [gpu.uuid for gpu in made.gpus] == ["n1-0", "n1-1"]
    async with a_master(tmp_path) as master:
        agent = await master.agent()
        waits = await master.submit()
        request = client_pb2.SubmitRequest(spec=make_spec(), user="bob")
        owner = (await master.ask.Submit(request)).job_id
        assert (await agent.receive("launch")).job_id == owner
        await agent.report(owner, 1, RUNNING)
        await master.becomes(owner, "RUNNING")
        shown = await master.show(waits)
        assert shown.state == job_pb2.JOB_STATE_PENDING
        assert shown.reason.startswith("waiting for 1 GPU: 2 GPUs are reserved for bob, ")
        [found] = await listed(master)
        assert [list(gpu.job_ids) for gpu in found.gpus] == [[owner], []]
        (node,) = (await master.ask.ListNodes(client_pb2.ListNodesRequest())).nodes
        assert {gpu.reserved for gpu in node.gpus} == {shown.reason.partition("are ")[2]}
        await master.ask.CancelReservation(booking_pb2.CancelReservationRequest(reservation_id="1", by="bob"))
        assert (await agent.receive("launch")).job_id == waits
        assert await listed(master) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus": 3}, "--gpus: only 2 GPUs are there, or can be free then"),
        ({"gpus": 0}, "--gpus: 0 is not between 1 and "),
        ({"node": "n9"}, "--node: there is no node 'n9'"),
        ({"gpu_type": "H100"}, "--gpus: only 0 GPUs of type H100 are there"),
        ({"user": ""}, "--user: is empty"),
        ({"user": "a\nb"}, "--user: is not a text"),
        ({"start": 1000.0}, "--start: is over"),
        ({"start": float("nan")}, "--start: is over"),
        ({"end": 0.0}, "--for: is not between 60 s and 31 days"),
        ({"note": "x" * 200}, "--note: is not a text of at most 128"),
    ],
)
async def test_what_cannot_be_had_is_refused_with_the_reason(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    async with a_master(tmp_path) as master:
        await master.agent()
        code, said = await refused(master.ask.ReserveGpus(wish(**fields)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert said.startswith(words)
        assert await listed(master) == []


async def test_what_others_have_is_a_conflict_and_what_is_not_there_unknown(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.agent()
        await master.ask.ReserveGpus(wish())
        code, said = await refused(master.ask.ReserveGpus(wish(gpus=1, user="eve")))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "reserved for bob" in said
        request = booking_pb2.CancelReservationRequest(reservation_id="9")
        assert (await refused(master.ask.CancelReservation(request)))[0] is grpc.StatusCode.NOT_FOUND
