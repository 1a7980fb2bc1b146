"""Whatever NVML answers, in whatever order: no call raises, and what was broken by it heals."""

import random

import pytest
from ebbtide_agent.gpu import xids
from ebbtide_agent.gpu.fake import FakeNvml
from ebbtide_agent.gpu.nvml import NvmlBackend, NvmlUnavailable

CALLS = sorted(name for name in vars(FakeNvml) if name.startswith("nvmlDevice") or name.startswith("nvmlE"))
CODES = (*range(1, 31), 999)
ROUNDS = 60


@pytest.mark.parametrize("profile", ["4xT4", "2xA100-40GB:1g.5gb*2"])
@pytest.mark.parametrize("seed", range(2))
def test_a_backend_survives_random_faults(fake_node, monkeypatch, profile, seed):
    monkeypatch.setattr(xids, "_SETTLES_S", -1.0)
    node = fake_node(profile)
    dice = random.Random(seed)
    for number in range(ROUNDS):
        node.faults(**_faults(dice, node.uuids, number))
        backends = [node.backend]
        if dice.random() < 0.2:
            backends.append(_open(node))
        for backend in backends:
            _ask_everything(backend, node.uuids)
    node.faults(recovery=dict.fromkeys(node.uuids, 0))
    readings = [node.backend.read(uuid) for uuid in node.uuids]
    assert [reading.unhealthy_reason for reading in readings] == [""] * len(readings)


def _faults(dice, uuids, number):
    targets = [*uuids, "*"]
    return {
        "errors": {dice.choice(targets): {dice.choice(CALLS): dice.choice(CODES)} for _ in range(3)},
        "lost": dice.sample(uuids, dice.randint(0, 2)),
        "no_memory": dice.sample(uuids, 1),
        "xids": [{"uuid": dice.choice(uuids), "xid": dice.choice((13, 31, 48, 79, 500)), "number": number + 1}],
    }


def _open(node):
    try:
        return NvmlBackend(FakeNvml(node.state_dir))
    except NvmlUnavailable:
        return node.backend


def _ask_everything(backend, uuids):
    backend.links()
    backend.driver()
    for uuid in uuids:
        backend.settings(uuid)
        assert backend.read(uuid).uuid == uuid
