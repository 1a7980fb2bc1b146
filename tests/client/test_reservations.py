"""`ebb reserve-gpus` and `ebb reservations` against a master that answers."""

import time
from datetime import datetime

import grpc
import pytest
from ebbtide_cli.submitting.checks import user_name
from ebbtide_protos.v1 import booking_pb2

from tests.client.scripted_master import make_node

NINE, FOUR_HOURS = datetime(2026, 11, 23, 9).timestamp(), 4 * 3600.0
LISTED = "ID  USER  START                FOR  STATE   GPUS       NOW ON THEM  NOTE"


@pytest.fixture
def reserved(master):
    """Two GPUs of ws1 and one of ws2, and one GPU later."""
    gpus = [
        booking_pb2.ReservedGpu(node="ws1", uuid="GPU-a", index=0, model="A100", job_ids=["17"]),
        booking_pb2.ReservedGpu(node="ws1", uuid="GPU-b", index=1, model="A100"),
        booking_pb2.ReservedGpu(node="ws2", uuid="GPU-c", index=3, model="A100"),
    ]
    master.reservations = [
        booking_pb2.Reservation(
            reservation_id="3", user="anna", by="bob", start=NINE, end=NINE + FOUR_HOURS, gpus=gpus, note="demo",
            state="now",
        ),
        booking_pb2.Reservation(
            reservation_id="4", user="eve", start=NINE + FOUR_HOURS, end=NINE + 2 * FOUR_HOURS, gpus=gpus[:1],
            state="coming",
        ),
    ]  # fmt: skip
    master.reserved_from = NINE
    return master


def test_gpus_are_reserved_for_whom_and_when_it_says(ebb, reserved):
    options = ("--gpus", "3", "--start", "2026-11-23 09:00", "--for", "4h", "--user", "anna", "--note", "demo")
    result = ebb("reserve-gpus", *options, "--node", "ws1", "--gpu-type", "a100")
    assert result.out.startswith("reservation 3: 3 GPUs (ws1:0,1 ws2:3) for anna from 2026-11-23 09:00:00 to ")
    [request] = reserved.sent("ReserveGpus")
    assert (request.gpus, request.start, request.end) == (3, NINE, NINE + FOUR_HOURS)
    assert (request.user, request.by, request.node) == ("anna", user_name(), "ws1")
    assert (request.gpu_type, request.note) == ("a100", "demo")


def test_without_more_they_are_for_me_from_now_on(ebb, reserved):
    before = time.time()
    assert ebb("reserve-gpus", "--gpus", "1", "--for", "30m", "--json").json["id"] == "3"
    [request] = reserved.sent("ReserveGpus")
    assert before <= request.start <= time.time()
    assert (request.user, request.end - request.start) == (user_name(), 1800)


def test_a_reservation_is_cancelled_by_its_id(ebb, reserved):
    assert ebb("reserve-gpus", "--cancel", "3").out.startswith("reservation 3 is cancelled: 3 GPUs")
    assert reserved.sent("CancelReservation")[0].reservation_id == "3"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--for", "4h"), "reserve-gpus: --gpus: is missing"),
        (("--gpus", "2"), "reserve-gpus: --for: is missing"),
        (("--gpus", "2", "--for", "4"), "reserve-gpus: Invalid value for '--for': '4' is not a duration with units"),
        (("--gpus", "2", "--for", "4h", "--start", "soon"), "reserve-gpus: --start: 'soon' is not a time"),
        (("--gpus", "2", "--cancel", "3"), "reserve-gpus: --cancel: not together with --gpus or --for"),
        (("--gpus", "0", "--for", "4h"), "reserve-gpus: Invalid value for '--gpus'"),
        (
            ("--gpus", "99999999999", "--for", "4h"),
            "reserve-gpus: Invalid value for '--gpus': 99999999999 is not in the range 1<=x<=4096",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(ebb, master, options, complaint):
    result = ebb("reserve-gpus", *options)
    assert result.code == 2
    assert result.complaint.startswith(complaint)


def test_what_the_master_refuses_is_said_in_its_words(ebb, master):
    words = "--start: only 0 GPUs are left then: reserved for eve"
    master.refusals["ReserveGpus"] = (grpc.StatusCode.FAILED_PRECONDITION, words)
    result = ebb("reserve-gpus", "--gpus", "1", "--for", "4h")
    assert (result.code, result.complaint) == (1, words)


def test_the_list_says_who_has_what_and_who_is_on_it(ebb, reserved):
    lines = ebb("reservations").out.splitlines()
    assert lines[0].split() == LISTED.split()
    assert lines[1].split() == [
        "3", "anna", "2026-11-23", "09:00:00", "4h", "now", "ws1:0,1", "ws2:3", "job", "17", "demo",
    ]  # fmt: skip
    facts = ebb("reservations", "--json").json
    assert [(found["id"], found["user"], found["state"]) for found in facts] == [
        ("3", "anna", "now"),
        ("4", "eve", "coming"),
    ]
    assert facts[0]["gpus"][0] == {"node": "ws1", "uuid": "GPU-a", "index": 0, "model": "A100", "job_ids": ["17"]}


def test_the_timeline_has_a_line_for_each_gpu(ebb, reserved):
    lines = ebb("reservations", "--timeline").out.splitlines()
    assert lines[0] == "from 2026-11-23 09:00:00 to 2026-11-23 17:00:00, 10m each"
    assert lines[1:4] == [
        f"ws1:0  {'3' * 24}{'4' * 24}",
        f"ws1:1  {'3' * 24}{'·' * 24}",
        f"ws2:3  {'3' * 24}{'·' * 24}",
    ]


def test_nodes_say_what_is_reserved(ebb, master):
    node = make_node()
    node.gpus[0].reserved = "reserved for anna, 2026-11-23 09:00 to 13:00 (reservation 3)"
    master.nodes.append(node)
    assert "reserved for anna" in ebb("nodes").out
    assert ebb("nodes", "--json").json[0]["gpus"][0]["reserved"] == node.gpus[0].reserved


def test_where_nothing_is_reserved_it_says_so(ebb, master):
    assert ebb("reservations").out == "No GPU is reserved.\n"
