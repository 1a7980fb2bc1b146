"""`ebb replay`: a cluster's past under another policy."""

import json

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--policy: name at least one to try"),
        (["--policy", "nope"], "--policy: 'nope' is none of"),
        (["--policy", "fifa"], ": did you mean 'fifo'?"),
        (["--policy", "fifo", "--journal", "/nonexistent"], "/nonexistent: there is no journal"),
        (["--policy", "fifo", "--journal", "a", "--export", "b"], "--export: is instead of --journal"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(ebb, past, arguments, message):
    result = ebb("replay", *arguments)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
