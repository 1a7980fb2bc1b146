"""The errors that a driver reports as they happen: which of them speak against a GPU, and until when."""

import pytest
from ebbtide_agent.gpu import xids
from ebbtide_agent.gpu.fake import FakeNvml
from ebbtide_agent.gpu.nvml import NvmlBackend, open_fake

from tests.agent.gpu import hand_nvml
from tests.agent.gpu.hand_nvml import HandNvml


def _xid(uuid, xid, number):
    return {"uuid": uuid, "xid": xid, "number": number}


def test_a_critical_xid_speaks_against_its_gpu_and_no_other_until_the_agent_ends(fake_node):
    node = fake_node("2xT4")
    hit, other = node.uuids
    assert node.backend.read(hit).healthy
    node.faults(xids=[_xid(hit, 79, 1)])
    first, later = node.backend.read(hit), node.backend.read(hit)
    assert (first.xids, later.xids) == ((79,), ())
    for reading in (first, later):
        assert (reading.unhealthy_reason, reading.gone) == ("Xid 79: the GPU has fallen off the bus", True)
    assert node.backend.read(other).healthy


@pytest.mark.parametrize("xid", sorted(xids.OF_APPLICATIONS))
def test_the_fault_of_an_application_is_told_and_changes_nothing(fake_node, xid):
    node = fake_node("1xT4")
    node.faults(xids=[_xid(node.uuids[0], xid, 1)])
    reading = node.backend.read(node.uuids[0])
    assert (reading.xids, reading.healthy) == ((xid,), True)


def test_an_xid_without_words_is_told_by_its_number(fake_node):
    node = fake_node("1xT4")
    node.faults(xids=[_xid(node.uuids[0], 999, 1)])
    reading = node.backend.read(node.uuids[0])
    assert (reading.unhealthy_reason, reading.gone) == ("Xid 999", False)


def test_the_worst_of_several_is_what_stands(fake_node):
    node = fake_node("1xT4")
    node.faults(xids=[_xid(node.uuids[0], xid, number) for number, xid in enumerate((48, 79, 31), start=1)])
    reading = node.backend.read(node.uuids[0])
    assert (reading.xids, reading.unhealthy_reason) == ((48, 79, 31), "Xid 79: the GPU has fallen off the bus")


def test_a_gpu_that_needs_nothing_any_more_is_healthy_again(fake_node, monkeypatch):
    node = fake_node("1xT4")
    (uuid,) = node.uuids
    node.faults(xids=[_xid(uuid, 48, 1)], recovery={uuid: 1})
    monkeypatch.setattr(xids, "_SETTLES_S", -1.0)
    assert node.backend.read(uuid).unhealthy_reason == "Xid 48: memory error that cannot be corrected"
    node.faults(xids=[_xid(uuid, 48, 1)], recovery={uuid: 0})
    assert node.backend.read(uuid).healthy


def test_a_driver_is_given_a_moment_to_find_out_what_a_gpu_needs(fake_node):
    node = fake_node("1xT4")
    (uuid,) = node.uuids
    node.faults(xids=[_xid(uuid, 48, 1)], recovery={uuid: 0})
    assert not node.backend.read(uuid).healthy
    assert not node.backend.read(uuid).healthy


def test_what_was_seen_before_still_stands(fake_node):
    node = fake_node("1xT4")
    again = NvmlBackend(FakeNvml(node.state_dir), xids_before={node.uuids[0]: 95})
    assert again.read(node.uuids[0]).unhealthy_reason == "Xid 95: memory error, not contained"


def test_a_gpu_that_fell_off_the_bus_and_cannot_say_its_name_is_the_one_that_is_meant(fake_node):
    node = fake_node("2xT4")
    node.faults(lost=[node.uuids[0]], xids=[_xid(node.uuids[0], 79, 1)])
    lost, other = (node.backend.read(uuid) for uuid in node.uuids)
    assert (lost.xids, lost.gone) == ((79,), True)
    assert (other.xids, other.healthy) == ((), True)


def test_what_happens_to_a_gpu_that_is_cut_up_happens_to_its_slices(fake_node):
    node = fake_node("1xA100-40GB:1g.5gb*2")
    backend = open_fake(node.state_dir)
    gpus = backend.gpus()
    node.faults(xids=[_xid(gpus[0].parent, 48, 1)])
    assert [backend.read(gpu.uuid).xids for gpu in gpus] == [(48,), (48,)]


def test_a_driver_without_events_only_has_no_xids():
    assert NvmlBackend(HandNvml()).read("GPU-0").xids == ()


def test_events_that_break_down_leave_the_readings_alone(fake_node):
    node = fake_node("1xT4")
    node.faults(errors={"*": {"nvmlEventSetWait": 999}})
    reading = node.backend.read(node.uuids[0])
    assert (reading.healthy, reading.xids) == (True, ())


def test_hardware_that_supports_no_events_is_not_asked_for_them():
    library = HandNvml()
    library.nvmlEventSetCreate = lambda: "events"
    library.nvmlDeviceGetSupportedEventTypes = lambda handle: 0
    library.nvmlEventSetWait_v2 = lambda events, timeout_ms: (_ for _ in ()).throw(hand_nvml.NVMLError(10, "Timeout"))
    assert NvmlBackend(library).read("GPU-0").healthy
