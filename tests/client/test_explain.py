"""`ebb explain`: what a user reads, and what a program."""

import json
import time
from types import SimpleNamespace

from ebbtide_cli.terminal.text import format_time
from ebbtide_protos.v1 import client_pb2

WAITING = {
    "job_id": "17",
    "state": "PENDING",
    "reason": "waiting for 2 GPUs",
    "needs": "2 GPUs",
    "ahead": 3,
    "basis": "once job 4 and those that end before it have ended",
    "remaining_s": 7200.0,
    "remaining_from": "from earlier runs",
    "nodes": [client_pb2.NodeView(node="n1", idle_gpus=1, gpus=8, obstacle="too few GPUs left")],
}


def test_a_waiting_job_is_explained_in_words(ebb, master):
    master.explanation = client_pb2.Explanation(**WAITING, room_at=time.time() + 3600)
    result = ebb("explain", "17")
    assert result.code == 0
    assert "Job 17 is PENDING: waiting for 2 GPUs" in result.out
    assert "It has 2h of work on one GPU left (from earlier runs)." in result.out
    assert "Before it in the queue: 3." in result.out
    assert "once job 4 and those that end before it have ended" in result.out
    assert "1 of 8" in result.out


def test_json_has_the_same_facts_and_null_for_what_is_not_known(ebb, master):
    master.explanation = client_pb2.Explanation(**WAITING)
    facts = json.loads(ebb("explain", "--json", "17").out)
    assert facts["id"] == "17"
    assert (facts["ahead"], facts["room_at"], facts["remaining_s"]) == (3, None, 7200.0)
    assert facts["nodes"] == [{"node": "n1", "idle_gpus": 1, "gpus": 8, "obstacle": "too few GPUs left"}]


def test_a_running_job_has_nothing_to_wait_for(ebb, master):
    master.explanation = client_pb2.Explanation(job_id="5", state="RUNNING", reason="running", needs="1 GPU")
    result = ebb("explain", "5")
    assert result.out == "Job 5 is RUNNING: running\nIt needs 1 GPU.\n"


def test_who_is_spared_until_when_and_by_which_rule_is_told(ebb, master):
    until = time.time() + 540
    stays = [
        client_pb2.Stays(reason="resumed lately, min_run_s", until=until, job_ids=["107"], jobs=1),
        client_pb2.Stays(reason="not preemptible", job_ids=["3", "4"], jobs=7),
    ]
    master.explanation = client_pb2.Explanation(**WAITING, stays=stays)
    out = ebb("explain", "17").out
    assert f"Job 107 is spared until {format_time(until)} (resumed lately, min_run_s)." in out
    assert "Jobs 3, 4 and 5 more are not asked to step aside: not preemptible." in out
    facts = json.loads(ebb("explain", "--json", "17").out)
    assert facts["stays"][0] == {"jobs": ["107"], "count": 1, "reason": "resumed lately, min_run_s", "until": until}
    assert facts["stays"][1]["until"] is None


FORECAST = client_pb2.Forecast(basis="at the latest, by time limits", after=["4"], nodes=["n1"])


def test_when_it_starts_and_what_if_are_told_in_words(ebb, master):
    master.explanation = client_pb2.Explanation(
        **WAITING,
        forecast=FORECAST,
        what_if=client_pb2.Forecast(
            basis="once the jobs that it preempts are suspended",
            after=["4"],
            preempts=["4"],
            start_at=time.time() + 10,
        ),
    )
    master.explanation.forecast.start_at = time.time() + 3600
    out = ebb("explain", "17", "--what-if", "priority=10", "--what-if", "gpus=1-2").out
    assert "It starts: in about 1h" in out.replace("59m", "1h")
    assert "at the latest, by time limits on node n1; job 4 has to end first." in out
    assert "With priority=10 and gpus=1-2, it would start: in about" in out
    assert "are suspended; it would preempt job 4." in out
    _, request = master.requests[-1]
    assert (request.priority, request.gpus_max.numerator, request.HasField("weight")) == (10, 2, False)


def test_json_has_the_forecasts(ebb, master):
    master.explanation = client_pb2.Explanation(**WAITING, forecast=FORECAST)
    facts = json.loads(ebb("explain", "--json", "17").out)
    assert facts["forecast"]["start_at"] is None
    assert (facts["forecast"]["after"], facts["what_if"]) == (["4"], None)


def test_a_wrong_what_if_is_named(ebb, master):
    assert (
        "--what-if color: is none of priority, weight, pool, gpus" in ebb("explain", "17", "--what-if", "color=red").err
    )
    assert ebb("explain", "17", "--what-if", "priority=high").code == 2


def test_what_a_supply_has_asked_for_is_told(ebb, master, monkeypatch):
    now = time.time()
    monkeypatch.setattr("ebbtide_cli.verbs.explain.time", SimpleNamespace(time=lambda: now))
    supplies = [
        client_pb2.SupplyStatus(name="hpc", coming=2, since=now - 240, reason="Priority"),
        client_pb2.SupplyStatus(name="spot", coming=1, since=now - 60, not_asking="paused"),
        client_pb2.SupplyStatus(name="lab", not_asking="all 4 nodes are borrowed"),
        client_pb2.SupplyStatus(name="new"),
    ]
    master.explanation = client_pb2.Explanation(**WAITING, supplies=supplies)
    out = ebb("explain", "17").out
    assert "Supply hpc has asked for 2 nodes, for the first one 4m ago (Priority).\n" in out
    assert "Supply spot has asked for 1 node, for the first one 1m ago; it asks for no more: paused.\n" in out
    assert "Supply lab asks for no node: all 4 nodes are borrowed.\n" in out
    assert "Supply new has asked for no node.\n" in out
    facts = json.loads(ebb("explain", "--json", "17").out)["supplies"]
    assert [(one["supply"], one["coming"], one["not_asking"]) for one in facts] == [
        ("hpc", 2, None), ("spot", 1, "paused"), ("lab", 0, "all 4 nodes are borrowed"), ("new", 0, None),
    ]  # fmt: skip
    assert facts[0]["since"] == supplies[0].since
    assert facts[2]["since"] is None
