"""Words about jobs, to real servers on loopback."""

import asyncio
import logging
import re
import sqlite3
from functools import partial

import grpc
import pytest
from ebbtide_master.backup import backups, restoring
from ebbtide_master.config.file import Config
from ebbtide_master.config.notify import Mail, NotifySettings, Tls
from ebbtide_master.notify import notifier
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2

from tests.master import world
from tests.master.notify.servers import a_hook, a_mail_server
from tests.master.world import FREED, make_spec, refused

HERE = frozenset({"127.0.0.1"})
a_master = partial(world.a_master, config=Config(notify=NotifySettings(allow=HERE)))

FAILED = agent_pb2.ExitRecord(exit_code=1, ended_at=1001.0)


@pytest.fixture
def hook():
    with a_hook() as hook:
        yield hook


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(notifier, "FIRST_PAUSE_S", 0.01)


def rule(target, *moments):
    return job_pb2.NoticeRule(moments=moments, target=target)


async def until(holds):
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.005)


async def failed(master, *rules, **spec):
    """A job that ran and failed."""
    agent = await master.agent()
    job = await master.running(agent, notify=rules, name="resnet", **spec)
    await agent.report(job, 1, FREED, exit=FAILED)
    await master.becomes(job, "FAILED")
    return job


async def test_a_hook_hears_what_it_was_asked_to_hear(tmp_path, hook):
    async with a_master(tmp_path) as master:
        await failed(master, rule(hook.url, "started", "ended"))
        await until(lambda: len(hook.bodies) == 2)
        assert hook.texts() == [
            "job 1 (resnet) of ann started: 1 GPU of node n1",
            "job 1 (resnet) of ann failed: failed with exit code 1",
        ]
        body = hook.bodies[1]
        assert (body["version"], body["event"], body["detail"]) == (1, "failed", "failed with exit code 1")
        assert body["job"] == {
            "id": "1", "name": "resnet", "user": "ann", "state": "FAILED", "attempt": 1, "exit_code": 1
        }  # fmt: skip
        assert hook.keys == [body["key"] for body in hook.bodies]
        assert re.fullmatch(r"[0-9a-f]{16}-\d+-failed", body["key"])


async def test_a_hook_that_fails_is_asked_again_and_none_waits_for_it(tmp_path, hook):
    with a_hook() as other:
        hook.answers = [500, 503, 429]
        async with a_master(tmp_path) as master:
            await failed(master, rule(hook.url, "failed"), rule(other.url, "failed"))
            await until(lambda: hook.bodies and other.bodies)
            assert len(hook.asked) == 4
            assert hook.keys == other.keys


@pytest.mark.parametrize("answer", [404, 302])
async def test_a_hook_that_says_no_is_not_asked_again_and_no_redirection_is_followed(tmp_path, hook, caplog, answer):
    hook.answers = [answer]
    async with a_master(tmp_path) as master:
        await failed(master, rule(hook.url, "failed"))
        await until(lambda: "given-up" in caplog.text)
        assert hook.asked == ["/hook/secret"]
        assert "secret" not in caplog.text


async def test_what_was_not_delivered_is_said_by_the_next_master_and_nothing_else_again(tmp_path, hook):
    with a_hook() as other:
        hook.answers = [500] * 1000
        async with a_master(tmp_path) as master:
            await failed(master, rule(hook.url, "failed"), rule(other.url, "failed"))
            await until(lambda: other.bodies and hook.asked)
        hook.answers = []
        async with a_master(tmp_path):
            await until(lambda: hook.bodies)
        assert set(hook.keys) == set(other.keys)  # what was told a moment before it ended may be told again


async def test_a_master_that_was_killed_before_it_had_noted_anything_says_it_again_with_the_same_key(tmp_path, hook):
    async with a_master(tmp_path) as master:
        await failed(master, rule(hook.url, "failed"))
        await until(lambda: hook.bodies)
    with sqlite3.connect(tmp_path / "journal.db") as db:  # as it was when the job was submitted
        db.execute("UPDATE meta SET value = '{\"\": 0}' WHERE key = 'notified'")
    db.close()
    async with a_master(tmp_path):
        await until(lambda: len(hook.bodies) == 2)
    assert len(set(hook.keys)) == 1


async def test_after_a_restore_what_is_new_has_a_new_key_and_what_is_said_again_has_its_own(tmp_path, hook):
    async def cancelled(master, jobs):
        for _ in range(jobs):
            job, heard = await master.submit(notify=[rule(hook.url, "ended")], hold=True), len(hook.bodies)
            await master.ask.Cancel(client_pb2.CancelRequest(job_id=job))
            await until(lambda: len(hook.bodies) > heard)  # noqa: B023

    async with a_master(tmp_path) as master:
        await cancelled(master, 1)
        backup, _ = backups.take(tmp_path)
        await cancelled(master, 5)
    before = {body["key"]: body["sequence"] for body in hook.bodies}
    restoring.restore(tmp_path, backup.path)
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute("INSERT OR REPLACE INTO meta VALUES ('notified', '{\"\": 0}')")
    db.close()
    async with a_master(tmp_path) as master:
        await until(lambda: len(hook.keys) == 7)
        assert hook.keys[6] == hook.keys[0]
        await cancelled(master, 5)
    after = {body["key"]: body["sequence"] for body in hook.bodies[7:]}
    assert set(before.values()) & set(after.values())
    assert not set(before) & set(after)
    assert hook.keys == [body["key"] for body in hook.bodies]


async def test_a_new_configuration_says_nothing_of_what_is_long_past(tmp_path, hook):
    async with a_master(tmp_path) as master:
        await failed(master)
    settings = NotifySettings(allow=HERE, users={"ann": notifier_rule(hook.url)})
    async with a_master(tmp_path, config=Config(notify=settings)) as master:
        job = await master.submit(hold=True)
        await master.ask.Cancel(client_pb2.CancelRequest(job_id=job))
        await until(lambda: hook.bodies)
    assert hook.texts() == ["job 2 of ann cancelled: cancelled by user"]


def notifier_rule(target):
    from ebbtide_core.model.notice_rules import parse_rule

    return parse_rule(f"ended={target}")


async def test_mail_goes_to_the_server_of_the_configuration(tmp_path):
    with a_mail_server() as server:
        mail = Mail(host="127.0.0.1", port=server.port, sender="ebb@example.org", tls=Tls.NONE)
        async with a_master(tmp_path, config=Config(notify=NotifySettings(mail=mail))) as master:
            await failed(master, rule("mailto:ada@example.org", "failed"))
            await until(lambda: server.messages)
        [message] = server.messages
        assert "Subject: [ebb] job 1 (resnet) of ann failed: failed with exit code 1" in message
        assert "To: ada@example.org" in message
        assert "Message-ID: <" in message
        assert message.endswith("failed with exit code 1")


async def test_a_recipient_who_is_not_known_is_given_up(tmp_path, caplog):
    with a_mail_server() as server:
        server.refusing = True
        mail = Mail(host="127.0.0.1", port=server.port, sender="ebb@example.org", tls=Tls.NONE)
        async with a_master(tmp_path, config=Config(notify=NotifySettings(mail=mail))) as master:
            await failed(master, rule("mailto:ada@example.org", "failed"))
            await until(lambda: "given-up" in caplog.text)
    assert not server.messages


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            "https://example.org/x",
            "host 'example.org' is not allowed by the master's configuration: allowed are hooks.corp",
        ),
        ("http://169.254.169.254/latest", "host '169.254.169.254' is not allowed"),
        ("mailto:ada@example.org", "the master's configuration names no mail server ([notify.smtp])"),
        ("tema", "there is no target 'tema' in the master's configuration: there are team"),
        ("gopher://x", "'gopher' is neither mailto:ADDRESS nor https://HOST/PATH nor a name"),
    ],
)
async def test_a_job_whose_words_may_not_go_there_is_refused(tmp_path, target, words):
    settings = NotifySettings(allow=frozenset({"hooks.corp"}), targets={"team": "https://hooks.slack.com/x"})
    async with a_master(tmp_path, config=Config(notify=settings)) as master:
        code, said = await refused(master.submit(notify=[rule(target, "failed")]))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert said.startswith(f"--notify: {words}")
        await master.submit(notify=[rule("https://hooks.corp/a", "failed"), rule("team", "failed")], hold=True)


async def test_a_target_can_be_tried(tmp_path, hook):
    async with a_master(tmp_path, config=Config(notify=NotifySettings(targets={"team": hook.url}))) as master:
        reply = await master.ask.TestNotice(client_pb2.NoticeTest(target="team", user="ann"))
        assert (reply.delivered, reply.detail) == (True, "answered 200")
        assert hook.texts() == ["This is a test, sent by ann with 'ebb notify test'."]
        hook.answers = [403]
        reply = await master.ask.TestNotice(client_pb2.NoticeTest(target="team"))
        assert not reply.delivered
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/… answered 403", reply.detail)


async def test_nobody_is_shown_the_address_of_a_hook(tmp_path, hook):
    async with a_master(tmp_path) as master:
        job = await master.submit(notify=[rule(hook.url, "failed")], hold=True)
        story = await master.ask.ShowStory(client_pb2.JobRequest(job_id=job))
        assert "secret" not in f"{await master.show(job)} {story}"


async def test_too_many_words_do_not_pile_up(tmp_path, hook, monkeypatch, caplog):
    monkeypatch.setattr(notifier, "MOST_WAITING", 2)
    hook.answers = [500] * 1000
    with caplog.at_level(logging.ERROR):
        async with a_master(tmp_path) as master:
            for _ in range(4):
                job = await master.submit(notify=[rule(hook.url, "ended")], hold=True)
                await master.ask.Cancel(client_pb2.CancelRequest(job_id=job))
            await until(lambda: "too many wait" in caplog.text)
            hook.answers = []
            await until(lambda: any("job 4" in text for text in hook.texts()))
    assert not any("job 1 " in text for text in hook.texts()[1:])


async def test_a_script_for_slurm_that_wants_mail_where_there_is_none_runs_without(tmp_path):
    async with a_master(tmp_path) as master:
        spec = make_spec(notify=[rule("mailto:ada@example.org", "ended")], slurm=True)
        reply = await master.ask.Submit(client_pb2.SubmitRequest(spec=spec, user="ann", hold=True))
        words = "--notify: the master's configuration names no mail server ([notify.smtp]): no notification is sent"
        assert list(reply.warnings) == [words]
        assert not (await master.show(reply.job_id)).spec.notify
