"""Words about jobs, as users ask for them: at submit, while they wait, and to try."""

import json
from pathlib import Path

import pytest
from ebbtide_protos.v1 import client_pb2

from tests.client.scripted_master import make_job


def test_who_wants_to_hear_of_what_goes_along_with_the_job(ebb, master):
    options = ("--notify", "failed,held=team", "--notify", "ended=mailto:ada@example.org")
    assert ebb("submit", *options, "--", "true").code == 0
    [request] = master.sent("Submit")
    assert [(list(rule.moments), rule.target) for rule in request.spec.notify] == [
        (["failed", "held"], "team"), (["ended"], "mailto:ada@example.org")
    ]  # fmt: skip


def test_a_rule_that_is_none_is_wrong_usage(ebb, master):
    result = ebb("submit", "--notify", "broken=team", "--", "true")
    assert (result.code, "'broken' is none of started, suspended" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("delivered", "code", "said"), [(True, 0, "delivered: ok\n"), (False, 1, "not delivered: ok\n")]
)
def test_a_target_can_be_tried(ebb, master, delivered, code, said):
    master.notice_reply = client_pb2.NoticeTestReply(delivered=delivered, detail="ok")
    assert (ebb("notify", "test", "team").code, ebb("notify", "test", "team").out) == (code, said)
    shown = json.loads(ebb("notify", "test", "--json", "https://h/secret").out)
    assert shown == {"target": "https://h/…", "delivered": delivered, "detail": "ok"}


def test_a_command_runs_once_the_jobs_have_finished(ebb, master, tmp_path):
    master.add(make_job(state="COMPLETED"))
    result = ebb("wait", "--then", f'echo "$EBB_JOBS $EBB_STATES" > {tmp_path}/done; exit 3', "17")
    assert (tmp_path / "done").read_text() == "17 COMPLETED\n"
    assert (result.code, result.err) == (0, "ebb: wait: --then: exit code 3\n")


def test_the_desktop_is_told_where_there_is_one(ebb, master, tmp_path, monkeypatch):
    master.add(make_job(state="FAILED"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "--desktop: notify-send is not installed here" in ebb("wait", "--desktop", "17").err
    said = tmp_path / "said"
    fake = Path(tmp_path / "notify-send")
    fake.write_text(f'#!/bin/sh\necho "$3" > {said}\n')
    fake.chmod(0o755)
    assert ebb("wait", "--desktop", "17").code == 1
    assert said.read_text() == "job 17 FAILED\n"
