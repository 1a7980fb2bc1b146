"""`ebb doctor`, on this machine with made-up GPUs."""

import grpc
import pytest
from ebbtide_agent.doctor import examine as examining
from ebbtide_agent.doctor.finding import Finding, Level

from tests.client.scripted_master import make_node


@pytest.fixture(autouse=True)
def checks(monkeypatch):
    """What the checks find, which have tests of their own; each verb hands over what it was asked for."""
    found = {"subject": None, "findings": [Finding("driver", Level.OK, "580.65.06, CUDA 13.0")]}

    def examine(subject, begins):
        begins("driver")
        found["subject"] = subject
        return found["findings"]

    monkeypatch.setattr(examining, "examine", examine)
    return found


def test_a_node_without_a_problem_exits_with_0_and_says_so(ebb):
    result = ebb("doctor")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[0].split() == ["ok", "driver", "580.65.06,", "CUDA", "13.0"]
    assert result.out.splitlines()[-1] == "1 note."  # there is no master


def test_a_problem_exits_with_1_and_comes_with_what_to_do(ebb, checks):
    checks["findings"] = [Finding("GPU 0", Level.PROBLEM, "GPU is lost", "sudo nvidia-smi --gpu-reset -i 0")]
    result = ebb("doctor")
    assert result.code == 1
    assert "→ sudo nvidia-smi --gpu-reset -i 0" in result.out
    assert result.out.splitlines()[-1] == "1 problem, 1 note."


def test_each_finding_is_an_object(ebb, checks):
    checks["findings"] = [Finding("GPU 0", Level.WARNING, "slow", "nvidia-smi -pm 1")]
    result = ebb("doctor", "--json")
    assert result.code == 0
    assert result.json[0] == {"check": "GPU 0", "level": "warning", "text": "slow", "advice": "nvidia-smi -pm 1"}


def test_the_masters_clock_and_the_other_nodes_checkpoints_are_compared(ebb, master, checks):
    master.behind_s = 40.0
    here, there = make_node(name="here"), make_node(name="ws2")
    master.nodes = [here, there]
    result = ebb("doctor", "--node", "here")
    assert result.out.splitlines()[1].split()[:3] == ["ok", "master", "answers"]
    assert 35 < checks["subject"].clock_ahead_s < 45
    assert checks["subject"].other_roots == {"ws2": there.checkpoint_root_id}


def test_a_master_that_was_named_and_does_not_answer_is_a_problem(ebb):
    result = ebb("doctor", "--master", "127.0.0.1:1", "--json")
    assert result.code == 1
    assert result.json[-1]["level"] == "problem"
    assert "127.0.0.1:1" in result.json[-1]["text"]


def test_a_master_that_does_not_let_us_in_is_a_problem_among_others(ebb, master):
    master.refusals["ShowCluster"] = (grpc.StatusCode.PERMISSION_DENIED, "not for you")
    result = ebb("doctor", "--json")
    assert result.code == 1
    assert [finding["check"] for finding in result.json] == ["driver", "master"]
    assert "not for you" in result.json[-1]["text"]


@pytest.mark.parametrize(
    "arguments", [("--gpus", "2xNoSuch"), ("--ports", "9-1"), ("--node", "a/b"), ("--master", "nowhere")]
)
def test_options_that_make_no_sense_are_wrong_usage(ebb, arguments):
    result = ebb("doctor", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.complaint
