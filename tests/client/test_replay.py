"""`ebb replay`: a cluster's past under another policy."""

import json
import time

import pytest

from tests.simulator.test_replay import journal, lab, recorded

__all__ = ["lab"]


@pytest.fixture
def past(lab, home):
    return journal(home, recorded(lab))


def test_what_would_have_been_stands_beside_what_was(ebb, past):
    facts = json.loads(ebb("replay", "--policy", "fifo", "--policy", "fitgpp", "--json").out)
    assert facts["live"]["preemptions"] == 1
    assert [report["policy"] for report in facts["simulated"]] == ["fifo", "fitgpp"]
    assert facts["simulated"][0]["preemptions"] == 0
    assert {report["finished"] for report in facts["simulated"]} == {2}


def test_people_read_a_table(ebb, past):
    result = ebb("replay", "--policy", "fifo")
    assert result.code == 0
    assert "what happened" in result.out
    assert "Skipped: 1 jobs: never ran" in result.out


def test_an_export_replays_like_its_journal(ebb, past, tmp_path):
    export = tmp_path / "week.jsonl"
    assert ebb("replay", "--export-to", str(export)).code == 0
    reports = []
    for source in ([], ["--export", str(export)]):
        facts = json.loads(ebb("replay", *source, "--policy", "fitgpp", "--json").out)
        del facts["simulated"][0]["sim_wall_s"]
        reports.append(facts)
    assert reports[0] == reports[1]


def test_an_export_is_read_from_standard_input_and_how_far_it_is_told(ebb, past, tmp_path, monkeypatch):
    export = tmp_path / "week.jsonl"
    ebb("replay", "--export-to", str(export))
    with export.open() as lines:
        monkeypatch.setattr("sys.stdin", lines)
        result = ebb("replay", "--export", "-", "--policy", "fifo", "--json", "--progress")
    assert json.loads(result.out)["live"]["preemptions"] == 1
    told = [json.loads(line) for line in result.err.splitlines()]
    assert told[0] == {"words": "simulating fifo", "done": 0.0}


def test_a_span_and_other_machines_are_simulated(ebb, past):
    whole = json.loads(ebb("replay", "--policy", "fifo", "--json").out)
    since = round(whole["since"] + 125)
    facts = json.loads(ebb("replay", "--policy", "fifo", "--since", f"@{since}", "--nodes", "3x8", "--json").out)
    assert (facts["since"], facts["live"]["preemptions"], facts["gpus"]) == (since, 0, [2, 24])
    assert facts["skipped"] == {"never ran": 1}


def test_a_time_ends_now_at_the_latest(ebb, past):
    facts = json.loads(ebb("replay", "--policy", "fifo", "--until", "@99999999999", "--json").out)
    assert abs(facts["until"] - time.time()) < 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--policy: name at least one to try"),
        (["--policy", "nope"], "--policy: 'nope' is none of"),
        (["--policy", "fifa"], ": did you mean 'fifo'?"),
        (["--policy", "fifo", "--journal", "/nonexistent"], "/nonexistent: there is no journal"),
        (["--policy", "fifo", "--journal", "a", "--export", "b"], "--export: is instead of --journal"),
        (["--policy", "fifo", "--since", "1h", "--until", "2h"], "--since: is not before --until"),
        (["--policy", "fifo", "--nodes", "many"], "--nodes: 'many' is not NODESxGPUS"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(ebb, past, arguments, message):
    result = ebb("replay", *arguments)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
