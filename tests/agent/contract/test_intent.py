"""The order to run an attempt is one flat record, put together of parts."""

import json
from collections import Counter
from dataclasses import FrozenInstanceError, fields

import pytest
from ebbtide_agent.contract.intent import AllocatedGpu, Intent

OLDEST = {
    "job_id": "17", "attempt": 2, "cluster_id": "c1", "command": ["true"], "workdir": "/", "env": {}, "cpus": 0.0,
    "gpus": [{"uuid": "GPU-0", "numerator": 1, "denominator": 2, "mem_bytes": 10}], "gpu_mem_bytes": 0,
    "grace_s": 180.0, "signal": "", "ddp": False, "needs_checkpoint": False, "node_rank": 0, "num_nodes": 1,
    "world_size": 0, "master_addr": "", "node_dir": "/node", "job_checkpoint_dir": "/c/17", "fake_gpu_dir": "",
}  # fmt: skip
"""What the first agents wrote into intent.json."""


def test_each_field_stands_in_one_part():
    parts = Counter(name for kind in Intent.__bases__ for name in kind.__annotations__)
    assert set(parts) == {field.name for field in fields(Intent)}
    assert set(parts.values()) == {1}


def test_what_the_first_agents_wrote_is_read_and_written_again_with_defaults_beside_it():
    intent = Intent.from_json(OLDEST)
    assert intent.gpus == (AllocatedGpu("GPU-0", 1, 2, 10),)
    written = json.loads(json.dumps(intent.to_json()))
    assert written == written | OLDEST
    assert set(written) == {field.name for field in fields(Intent)}


def test_the_whole_has_slots_alone_and_is_frozen():
    intent = Intent.from_json(OLDEST)
    assert not hasattr(intent, "__dict__")
    with pytest.raises(FrozenInstanceError):
        intent.grace_s = 1.0
