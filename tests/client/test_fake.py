"""`ebb fake`: breaking the fake GPUs of a node on purpose, and healing them."""

import json
import signal

import pytest
from ebbtide_agent.gpu import fake
from ebbtide_agent.gpu.nvml import open_fake
from ebbtide_agent.gpu.profiles import parse_profile

from tests.client.runs import start_ebb

GIB = 1 << 30


@pytest.fixture
def gpus(home):
    """A node with two fake GPUs: what their driver would say, and their UUIDs."""
    return _node(home, "ws1", "2xRTX4090")


def _node(home, name, profile):
    state_dir = home / "nodes" / name / "gpus"
    fake.set_up(state_dir, parse_profile(profile), keep=False)
    backend = open_fake(state_dir)
    return backend, [gpu.uuid for gpu in backend.gpus()]


def test_a_lost_gpu_is_lost_until_it_is_returned(ebb, gpus):
    backend, (first, second) = gpus
    result = ebb("fake", "lose", "0")
    assert (result.code, result.out) == (0, f"{first} is lost: 'ebb fake return 0' brings it back\n")
    assert (backend.read(first).unhealthy_reason, backend.read(second).healthy) == ("GPU is lost", True)
    assert ebb("fake", "return", first).code == 0
    assert backend.read(first).healthy


def test_an_xid_is_told_in_words_and_heals(ebb, gpus, monkeypatch):
    monkeypatch.setattr("ebbtide_agent.gpu.xids._SETTLES_S", -1.0)
    backend, (first, _) = gpus
    assert "Xid 79: the GPU has fallen off the bus" in ebb("fake", "xid", "0", "79").out
    assert backend.read(first).xids == (79,)
    assert not backend.read(first).healthy
    ebb("fake", "xid", "0", "31")
    assert backend.read(first).xids == (31,)
    ebb("fake", "heal")
    assert backend.read(first).healthy


def test_memory_of_processes_can_be_hidden_and_shown(ebb, gpus, monkeypatch):
    backend, (first, _) = gpus
    with start_ebb("fake", "foreign", "0", "1GiB", "--node", "ws1") as foreign:
        foreign.stdout.readline()
        (held,) = backend.read(first).processes
        assert (held.pid, held.mem_bytes) == (foreign.pid, GIB)
        ebb("fake", "no-memory", "0")
        assert backend.read(first).processes[0].mem_bytes is None
        ebb("fake", "no-memory", "0", "--off")
        assert backend.read(first).processes[0].mem_bytes == GIB
        foreign.send_signal(signal.SIGINT)
        assert foreign.wait(20) == 0
    assert backend.read(first).processes == ()


def test_a_foreign_process_ends_by_itself(ebb, gpus):
    result = ebb("fake", "foreign", "1", "1GiB", "--for", "0.1s")
    assert result.code == 0
    assert "holds 1GiB of GPU-" in result.out
    assert gpus[0].read(gpus[1][1]).processes == ()


def test_a_foreign_process_gets_no_more_than_is_free(ebb, gpus):
    result = ebb("fake", "foreign", "0", "30GiB")
    assert result.code == 1
    assert "GPU 0 has" in result.err


def test_errors_and_late_releases_are_undone_with_a_zero(ebb, gpus):
    backend, (first, second) = gpus
    ebb("fake", "error", "1", "nvmlDeviceGetMemoryInfo", "999")
    assert (backend.read(first).healthy, backend.read(second).unhealthy_reason) == (True, "Unknown Error")
    ebb("fake", "error", "all", "nvmlDeviceGetMemoryInfo", "16")
    assert backend.read(first).unhealthy_reason == "GPU requires restart"
    ebb("fake", "error", "all", "nvmlDeviceGetMemoryInfo", "0")
    ebb("fake", "error", "1", "nvmlDeviceGetMemoryInfo", "0")
    assert backend.read(second).healthy
    ebb("fake", "late-release", "0", "5s")
    assert _status(ebb)["gpus"][0]["faults"] == ["memory released after 5s"]
    ebb("fake", "late-release", "0", "0s")
    assert _status(ebb)["gpus"][0]["faults"] == []


def test_the_driver_numbers_its_gpus_anew(ebb, gpus, home):
    _, uuids = gpus
    assert ebb("fake", "permute").code == 0
    again = open_fake(home / "nodes/ws1/gpus")
    assert [gpu.uuid for gpu in again.gpus()] == uuids[::-1]


def test_what_goes_wrong_is_shown_until_it_heals(ebb, gpus):
    for arguments in (("lose", "0"), ("xid", "1", "48"), ("hang",)):
        ebb("fake", *arguments)
    facts = _status(ebb)
    assert (facts["node"], facts["hang"]) == ("ws1", ["nvmlDeviceGetMemoryInfo"])
    assert [gpu["faults"] for gpu in facts["gpus"]] == [["lost"], ["Xid 48: memory error that cannot be corrected"]]
    shown = ebb("fake", "status").out
    assert "lost" in shown
    assert "nvmlDeviceGetMemoryInfo hangs" in shown
    ebb("fake", "heal")
    healed = _status(ebb)
    assert (healed["hang"], [gpu["faults"] for gpu in healed["gpus"]]) == ([], [[], []])


def test_slices_are_named_by_their_numbers_too(ebb, home):
    backend, slices = _node(home, "ws1", "1xA100-40GB:1g.5gb*2")
    ebb("fake", "lose", "1")
    assert [backend.read(uuid).healthy for uuid in slices] == [True, False]
    ebb("fake", "lose", backend.gpus()[0].parent)
    assert not backend.read(slices[0]).healthy


BAD = {
    "no such GPU": (["lose", "7"], 1, "GPU: no GPU '7'; there are 0 to 1"),
    "no GPU's name": (["return", "GPU-1"], 1, "GPU: no GPU 'GPU-1'"),
    "no function": (["hang", "malloc"], 2, "CALL: 'malloc' is no function of NVML"),
    "no such node": (["lose", "0", "--node", "ws9"], 1, "--node: no node 'ws9' on this machine; there are: ws1"),
    "no code": (["error", "0", "nvmlInit", "1000"], 2, "1000"),
    "no size": (["foreign", "0", "10"], 2, "size"),
}


@pytest.mark.parametrize(("arguments", "code", "complaint"), BAD.values(), ids=BAD)
def test_what_cannot_be_broken_is_said_in_one_line(ebb, gpus, arguments, code, complaint):
    result = ebb("fake", *arguments)
    assert (result.code, len(result.err.splitlines())) == (code, 1)
    assert complaint in result.err


def test_several_nodes_are_told_apart_by_their_names(ebb, gpus, home):
    _node(home, "ws2", "1xT4")
    assert "several nodes have fake GPUs here: --node ws1 or ws2" in ebb("fake", "status").err
    assert _status(ebb, "--node", "ws2")["gpus"][0]["model"] == "T4"


def test_real_gpus_are_not_broken(ebb, gpus, home):
    (home / "nodes/ws1/agent.json").write_text(json.dumps({"gpu_backend": "nvml"}))
    assert "its GPUs are real" in ebb("fake", "lose", "0").err
    assert "the GPUs of ws1 are real" in ebb("fake", "lose", "0", "--node", "ws1").err
    (home / "nodes/ws3").mkdir()
    assert "ws3 has no fake GPUs" in ebb("fake", "lose", "0", "--node", "ws3").err


def test_without_a_node_it_is_said_how_to_get_one(ebb):
    result = ebb("fake", "status")
    assert (result.code, "'ebb up --gpus 2xRTX4090' starts one" in result.err) == (1, True)


def _status(ebb, *options):
    return json.loads(ebb("fake", "status", "--json", *options).out)
