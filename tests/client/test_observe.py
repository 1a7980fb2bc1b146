"""`ebb observe`, on GPUs made up for it."""

import json
import re
import signal

import pytest

from tests.client.runs import run_on_terminal, start_ebb, without_styles

FAKE = ("--gpus", "2xRTX4090", "--node", "ws1")


def test_it_records_for_the_time_that_was_asked_for_and_says_what_to_do_with_it(ebb, tmp_path):
    out = tmp_path / "lab.csv"
    result = ebb("observe", "--out", str(out), "--for", "0.1s", "--every", "0.1s", *FAKE)
    assert (result.code, result.err) == (0, "")
    seconds = re.fullmatch(rf"{re.escape(str(out))}: 0 jobs of 0 users in ([0-9.]+)s", result.out.splitlines()[0])
    assert seconds is not None
    assert float(seconds[1]) >= 0.1  # a busy machine takes longer
    assert result.out.splitlines()[-1] == "Nothing to simulate yet."
    assert out.read_text().startswith("id,submit_s,runtime_s,user,")


def test_its_facts_are_one_object(ebb, tmp_path):
    out = tmp_path / "lab.csv"
    facts = ebb("observe", "--out", str(out), "--for", "0s", "--json", *FAKE).json
    assert (facts["file"], facts["jobs"], facts["gpus"], facts["looks"]) == (str(out), 0, 2, 1)
    assert facts["replay"] == f"ebb simulate --workload {out} --nodes 1x2 --gpu-mem 24GiB --policy fitgpp"


def test_an_interrupt_ends_it_as_its_time_would(home, tmp_path):
    out = tmp_path / "lab.csv"
    with start_ebb("observe", "--out", str(out), "--json", *FAKE) as process:
        while not out.exists() and process.poll() is None:
            pass
        process.send_signal(signal.SIGINT)
        said, complaint = process.communicate(timeout=30)
    assert (process.returncode, complaint) == (0, "")
    assert json.loads(said)["looks"] == 1


def test_a_terminal_shows_how_far_it_is_while_it_records(home, tmp_path):
    result = run_on_terminal("observe", "--out", str(tmp_path / "lab.csv"), "--for", "0.2s", "--every", "0.1s", *FAKE)
    assert result.code == 0
    assert "0 jobs, 0 of them running, 0.0 GPU-hours of 0 users; Ctrl-C ends" in without_styles(result.out)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--out", "/nowhere/lab.csv", *FAKE), 2, "--out /nowhere/lab.csv: its directory does not exist"),
        (("--out", "lab.csv", "--every", "0.01s", *FAKE), 2, "--every: 0.01 s is less than 0.1 s"),
        (("--out", "lab.csv", "--gpus", "2xNoSuch"), 2, "unknown GPU model"),
        (("--every", "15s"), 2, "--out"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(ebb, tmp_path, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    result = ebb("observe", *arguments)
    assert (result.code, result.out) == (code, "")
    assert words in result.complaint
    assert not (tmp_path / "lab.csv").exists()


def test_without_a_gpu_there_is_nothing_to_observe(ebb, tmp_path):
    result = ebb("observe", "--out", str(tmp_path / "lab.csv"), "--gpus", "none")
    assert (result.code, result.out) == (1, "")
    assert result.complaint == "observe: there is no GPU to look at ('ebb doctor' says why)"
    assert list(tmp_path.glob("lab.csv*")) == []


def test_a_file_that_is_no_recording_is_not_written_to(ebb, tmp_path):
    out = tmp_path / "lab.csv"
    out.write_text("precious\n")
    result = ebb("observe", "--out", str(out), *FAKE)
    assert result.code == 1
    assert "choose another name" in result.complaint
    assert out.read_text() == "precious\n"
