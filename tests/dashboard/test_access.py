"""Who may do what through the dashboard: nobody without a session, and nobody more than the master allows."""

import asyncio
import json
import re
import time

import pytest
from ebbtide_core.views.digest import digest
from ebbtide_protos.v1 import client_pb2, user_pb2
from ebbtide_web import dashboard as dashboards
from ebbtide_web.access import sessions
from ebbtide_web.access.guard import HEADERS
from ebbtide_web.board import feed as feeds
from ebbtide_web.pages.job import VERBS
from ebbtide_web.serve import listen
from starlette.routing import Mount

from tests.dashboard.stage import Visitor, a_dashboard, a_stage, answer_reads, tokens_of_users
from tests.master.world import RUNNING, a_master, make_spec

OPEN = {"/login": {"GET"}, "/login/code": {"POST"}, "/login/token": {"POST"}, "/static": {"GET"}}
"""What is answered to everybody. Whatever else a dashboard serves needs a session."""
BASES = ["", "/ebb"]


def routes_of(stage) -> dict[str, set[str]]:
    """All routes that are served, as the application itself has them, by path; with their methods."""
    found = dict[str, set[str]]()

    def walk(routes, prefix):
        for route in routes:
            if isinstance(route, Mount) and route.routes:
                walk(route.routes, prefix + route.path)
            else:
                found[prefix + route.path] = set(getattr(route, "methods", None) or {"GET"}) - {"HEAD"}

    walk(stage.app._app.routes, "")
    base = stage.listening.base
    if base:  # leads to the first page, and tells a proxy what is wrong
        assert (found.pop(base), found.pop("/{path:path}")) == ({"GET"}, {"GET", "POST"})
    assert all(path.startswith(base) for path in found)
    return {path.removeprefix(base): methods for path, methods in found.items()}


def closed_routes_of(stage) -> list[tuple[str, str]]:
    """Method and path of each route that needs a session."""
    found = routes_of(stage)
    assert {path: found.pop(path) for path in OPEN} == OPEN
    return [(method, path) for path, methods in found.items() for method in methods]


def filled(path: str, job: str, array: str = "") -> str:
    found = (
        path.replace("/arrays/{id}", f"/arrays/{array or job}")
        .replace("{id}", job)
        .replace("{verb}", "cancel")
        .replace("{name}", "n1")
    )
    assert "{" not in found, "what stands for a new parameter?"
    return found


async def a_job(stage, user: str = "ann", **fields) -> str:
    request = client_pb2.SubmitRequest(spec=make_spec(**fields))
    return (await stage.master.ask.Submit(request, metadata=stage.bearer(user))).job_id


def facts(stage):
    """Everything that a change of a job could change."""
    return digest(stage.master.cluster.state), stage.master.store.last_sequence


async def refused_everywhere(stage, visitor, job: str, status: int) -> None:
    before = facts(stage)
    routes = closed_routes_of(stage)
    assert len(routes) > 15
    for method, path in routes:
        reply = await visitor.ask(method, filled(path, job), {} if method == "POST" else None)
        assert reply.status == status, (path, reply)
        assert set(reply.json) == {"error"}
        if method == "GET":
            page = await visitor.page(filled(path, job))
            assert (page.status, page.headers["location"]) == (303, f"{stage.listening.base}/login")
    assert facts(stage) == before


@pytest.mark.parametrize("base", BASES)
async def test_without_a_session_every_route_is_refused_and_nothing_changes(tmp_path, monkeypatch, base):
    async with a_stage(tmp_path, monkeypatch, base) as stage:
        job = await a_job(stage)
        await refused_everywhere(stage, stage.visitor(), job, 401)


@pytest.mark.parametrize("base", BASES)
async def test_with_a_session_that_is_over_every_route_is_refused_and_nothing_changes(tmp_path, monkeypatch, base):
    async with a_stage(tmp_path, monkeypatch, base) as stage:
        job = await a_job(stage)
        ann = await stage.logged_in("ann")
        for session in stage.dashboard.sessions.all():
            session.ends = time.monotonic() - 1
        await refused_everywhere(stage, ann, job, 401)


async def test_with_a_made_up_cookie_every_route_is_refused(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        visitor = stage.visitor()
        visitor.cookie = "ebbtide=" + "A" * 43
        await refused_everywhere(stage, visitor, await a_job(stage), 401)


async def test_with_a_session_whose_token_was_revoked_every_route_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(dashboards, "CHECKED_S", 0.0)
    async with a_stage(tmp_path, monkeypatch) as stage:
        job, ann = await a_job(stage), await stage.logged_in("ann")
        await revoke_token_of(stage, "ann")
        await refused_everywhere(stage, ann, job, 401)


async def revoke_token_of(stage, user: str) -> None:
    (own,) = [session for session in stage.dashboard.sessions.all() if session.user == user]
    revoked = user_pb2.RevokeTokenRequest(id=own.token_id)
    await stage.master.ask.RevokeToken(revoked, metadata=stage.bearer(user))


async def test_on_no_route_is_shown_what_of_somebody_elses_job_is_private(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        job = await a_job(stage, command=["secret-command"], workdir="/secret", env={"secret": "secret"})
        bob, read = await stage.logged_in("bob"), []
        for method, path in closed_routes_of(stage):
            if method == "POST" or "{name}" in path:
                continue
            read.append(path)
            if path.startswith("/stream"):
                events = await bob.stream(filled(path, job))
                await events.until(
                    lambda name, _: (
                        name in ("frame", "job", "events", "usage", "array", "timeline", "refused", "failed")
                    )
                )
                events.close()
                assert "secret" not in json.dumps(events.seen), path
            else:
                assert b"secret" not in (await bob.get(filled(path, job))).body, path
        assert len(read) > 10


async def test_somebody_elses_job_is_not_changed_and_its_log_not_shown(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        job = await a_job(stage, command=["secret-command"])
        bob = await stage.logged_in("bob")
        before = facts(stage)
        fields = {"gpus": "1", "priority": 50}
        for verb in VERBS:
            reply = await bob.post(f"/jobs/{job}/{verb}", fields)
            assert reply.status == 403, verb
            assert "ann" in reply.json["error"]
        many = await bob.post("/jobs", {"verb": "cancel", "ids": [job]})
        assert (many.json["done"], list(many.json["refused"])) == (0, [job])
        log = await bob.stream(f"/stream/jobs/{job}/log")
        assert (await log.until(lambda name, _: name == "refused"))["status"] == 403
        log.close()
        assert (await bob.get(f"/jobs/{job}/log.txt")).status == 403
        shown = await bob.stream(f"/stream/jobs/{job}")
        reported = await shown.until(lambda name, _: name == "job")
        shown.close()
        assert "secret" not in json.dumps(reported)
        assert facts(stage) == before


async def test_its_owner_and_an_operator_change_a_job(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        first, second = await a_job(stage), await a_job(stage)
        ann, olga = await stage.logged_in("ann"), await stage.logged_in("olga")
        assert (await ann.post(f"/jobs/{first}/hold")).status == 200
        assert (await olga.post("/jobs", {"verb": "cancel", "ids": [second]})).json == {"done": 1, "refused": {}}
        shown = await stage.master.ask.ShowJob(client_pb2.JobRequest(job_id=first), metadata=stage.bearer("ann"))
        assert shown.held_by == "user"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_csrf": ""}, 403),
        ({"x_csrf": "A" * 32}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "https://127.0.0.1:{port}"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": "text/plain"}, 415),
        ({"host": "evil.example:{port}"}, 421),
        ({"host": "127.0.0.1:1"}, 421),
        ({"host": "127.0.0.1"}, 421),
    ],
)
async def test_a_change_that_no_page_of_ours_asked_for_is_refused(tmp_path, monkeypatch, headers, status):
    async with a_stage(tmp_path, monkeypatch) as stage:
        job, ann = await a_job(stage), await stage.logged_in("ann")
        before = facts(stage)
        given = {name: value.replace("{port}", str(stage.port)) for name, value in headers.items()}
        if "x_csrf" in given and not given["x_csrf"]:
            ann.csrf = ""
        needs_session = {path for _, path in closed_routes_of(stage)}
        posts = [path for path, methods in routes_of(stage).items() if "POST" in methods]
        assert len(posts) > 4
        for path in posts:
            if "x_csrf" in given and path not in needs_session:
                continue  # there is no session yet whose secret a page could have
            reply = await ann.post(filled(path, job), {"verb": "cancel", "ids": [job]}, **given)
            assert reply.status == status, path
        assert facts(stage) == before
        assert (await ann.get("/me")).status == 200, "it is still logged in"


async def test_under_the_name_of_another_host_no_route_answers(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        job, ann = await a_job(stage), await stage.logged_in("ann")
        for path in routes_of(stage):
            for host in (f"evil.example:{stage.port}", "127.0.0.1:1", "127.0.0.1", ""):
                assert (await ann.get(filled(path, job), host=host)).status in (400, 421), (path, host)


async def test_the_csrf_token_of_somebody_else_is_no_proof(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        job, ann, bob = await a_job(stage), await stage.logged_in("ann"), await stage.logged_in("bob")
        ann.csrf = bob.csrf
        assert (await ann.post(f"/jobs/{job}/cancel")).status == 403


async def test_reading_changes_nothing_and_there_are_no_other_methods(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        job, ann = await a_job(stage), await stage.logged_in("ann")
        before = facts(stage)
        for route in routes_of(stage):
            path = filled(route, job)
            if "stream" not in path:
                assert (await ann.get(path)).status in (200, 303, 400, 403, 404, 405, 409), path
            for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
                assert (await ann.ask(method, path)).status == 405
        assert facts(stage) == before


async def test_too_large_a_body_is_refused_unread(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        assert (await ann.post("/jobs", {"verb": "x" * 40_000})).status == 413
        assert (await ann.ask("POST", "/jobs", {}, content_length="", transfer_encoding="chunked")).status == 413


async def test_a_body_that_says_two_lengths_is_refused_unread_without_a_session_too(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        body = b"9c40\r\n" + b" " * 0x9C40 + b"\r\n0\r\n\r\n"
        lengths = {"content_length": "5", "transfer_encoding": "chunked"}
        _, writer, status, _ = await stage.visitor().send("POST", "/login/token", body, **lengths)
        writer.close()
        assert status == 413


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"verb": "explode", "ids": ["1"]}, "verb: is none of suspend"),
        ({"verb": "cancel", "ids": []}, "ids: is not a list of 1 to 200 jobs"),
        ({"verb": "cancel", "ids": ["1"] * 201}, "ids: is not a list of 1 to 200 jobs"),
        ({"verb": "cancel", "ids": ["../../etc"]}, "id: is not a job's id"),
        ({"verb": "priority", "ids": ["1"], "priority": 0}, "priority: is not a number from 1 to 99"),
        ({"verb": "resize", "ids": ["1"], "gpus": "many"}, "gpus: is not a number such as 2"),
        ({"verb": "resize", "ids": ["1"], "gpus": "1/0"}, "gpus: shares of a GPU"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(tmp_path, monkeypatch, fields, words):
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        reply = await ann.post("/jobs", fields)
        assert reply.status == 400
        assert words in reply.json["error"]
        assert (await ann.ask("POST", "/jobs", [1])).json["error"] == "the body is not an object"


# --- logging in ---


async def test_a_link_logs_in_once_as_the_account_that_runs_the_dashboard(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        code, visitor = stage.links.make(), stage.visitor()
        reply = await visitor.log_in("code", code)
        assert (reply.status, reply.json) == (200, {"user": "ada"})
        cookie = reply.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert (await stage.visitor().log_in("code", code)).status == 401


async def test_a_link_is_not_valid_for_long(tmp_path):
    moment = [1000.0]
    links = sessions.Links(tmp_path / "links", lambda: moment[0])
    code = links.make()
    moment[0] = time.time() + sessions.CODE_S + 5
    assert not links.use(code)
    assert list((tmp_path / "links").iterdir()) == []


def test_a_code_is_in_no_file_and_leads_out_of_no_directory(tmp_path):
    links = sessions.Links(tmp_path / "links")
    code = links.make()
    assert code not in str(list((tmp_path / "links").iterdir()))
    assert (tmp_path / "links").stat().st_mode & 0o777 == 0o700
    (tmp_path / "other").write_text("")
    for text in ("", "../other", "/etc/passwd", code + "A", code[:-1], "é" * 22):
        assert not links.use(text)
    assert (tmp_path / "other").exists()


async def test_after_some_failures_only_a_link_logs_in_for_a_minute(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        statuses = [(await stage.visitor().log_in("token", "ebb_wrong")).status for _ in range(sessions.FAILURES)]
        assert statuses == [401] * sessions.FAILURES
        assert (await stage.visitor().log_in("token", stage.tokens["ann"])).status == 429
        for _ in range(2):
            assert (await stage.visitor().log_in("code", "A" * 22)).status == 429
        assert (await stage.visitor().log_in("code", stage.links.make())).status == 200
        assert (await stage.visitor().log_in("token", stage.tokens["ann"])).status == 429
        assert not stage.dashboard.failures.too_many("10.0.0.9"), "another address may"
        stage.dashboard.failures._now = lambda: time.monotonic() + sessions.FAILURES_S
        assert (await stage.visitor().log_in("token", stage.tokens["ann"])).status == 200


def test_however_many_logins_fail_only_those_are_remembered_that_count():
    moment = [0.0]
    failures = sessions.Failures(lambda: moment[0])
    for _ in range(1000):
        failures.add("10.0.0.9")
    assert len(failures._at["10.0.0.9"]) == sessions.FAILURES
    assert failures.too_many("10.0.0.9")
    moment[0] += sessions.FAILURES_S
    assert not failures.too_many("10.0.0.9")


@pytest.mark.parametrize("character", ["é", "\n", "\ud800"])
async def test_what_cannot_be_a_token_is_a_failure_without_a_word_to_the_master(tmp_path, monkeypatch, character):
    async with a_stage(tmp_path, monkeypatch) as stage:
        text = stage.tokens["ann"].replace("_", character)
        replies = [await stage.visitor().log_in("token", text) for _ in range(sessions.FAILURES)]
        assert {(reply.status, reply.json["error"]) for reply in replies} == {(400, "this is not a token")}
        assert (await stage.visitor().log_in("token", stage.tokens["ann"])).status == 429


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"token": 7}', b"[" * 10_000])
async def test_a_login_that_makes_no_sense_is_refused_in_words(tmp_path, monkeypatch, body):
    async with a_stage(tmp_path, monkeypatch) as stage:
        for kind in ("code", "token"):
            _, writer, status, _ = await stage.visitor().send("POST", f"/login/{kind}", body)
            writer.close()
            assert status in (400, 401), kind


async def test_a_session_has_a_token_of_its_own_which_ends_with_it(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        asked = user_pb2.ListTokensRequest()
        made = (await stage.master.ask.ListTokens(asked, metadata=stage.bearer("ann"))).tokens
        assert [token.label for token in made] == ["", "dashboard"]
        assert made[1].expires - time.time() == pytest.approx(sessions.SESSION_S, abs=60)
        assert (await ann.post("/logout")).status == 200
        left = (await stage.master.ask.ListTokens(asked, metadata=stage.bearer("ann"))).tokens
        assert [token.label for token in left] == [""]
        assert (await ann.get("/me")).status == 401


async def expire(stage, user: str) -> None:
    for session in stage.dashboard.sessions.all():
        if session.user == user:
            session.ends = time.monotonic() - 1


@pytest.mark.parametrize("end", [revoke_token_of, expire])
async def test_a_token_that_is_revoked_or_over_ends_every_stream_and_the_session(tmp_path, monkeypatch, end):
    monkeypatch.setattr(dashboards, "CHECKED_S", 0.2)
    async with a_stage(tmp_path, monkeypatch) as stage:
        agent = await stage.master.agent_with(stage.tokens["ada"])
        job, ann, bob = await a_job(stage), await stage.logged_in("ann"), await stage.logged_in("bob")
        await agent.receive("launch")
        await agent.report(job, 1, RUNNING)
        answering = asyncio.create_task(answer_reads(agent, b"a line\n"))
        tasks = client_pb2.SubmitRequest(spec=make_spec(), tasks=[client_pb2.ArrayTask(index=0)])
        array = (await stage.master.ask.Submit(tasks, metadata=stage.bearer("ann"))).job_id
        streams = [filled(path, job, array) for _, path in closed_routes_of(stage) if path.startswith("/stream")]
        assert len(streams) == 11
        open_ = [await ann.stream(path) for path in streams]
        theirs = await bob.stream("/stream/cluster")
        for stream in [*open_, theirs]:
            await stream.next()
        await end(stage, "ann")
        for stream in open_:
            assert (await stream.ends())[-1] == "over"
            stream.close()
        answering.cancel()
        assert (await ann.get("/me")).status == 401
        assert (await bob.get("/me")).status == 200
        await a_job(stage)
        await theirs.until(lambda name, data: "sums" in data["cells"])
        theirs.close()


@pytest.mark.parametrize("end", [revoke_token_of, expire])
async def test_a_token_that_is_revoked_or_over_breaks_off_the_download_of_a_log(tmp_path, monkeypatch, end):
    monkeypatch.setattr(dashboards, "CHECKED_S", 0.2)
    async with a_stage(tmp_path, monkeypatch) as stage:
        agent = await stage.master.agent_with(stage.tokens["ada"])
        job, ann = await a_job(stage), await stage.logged_in("ann")
        await agent.receive("launch")
        own = await ann.stream(f"/stream/jobs/{job}")
        await agent.report(job, 1, RUNNING)
        await own.until(lambda name, data: name == "job" and data["state"] == "RUNNING")
        own.close()
        answering = asyncio.create_task(answer_reads(agent, b"the first line\n", ends=False))
        path = f"/jobs/{job}/log.txt"
        assert b"the first line" in await ann.broken_off(path, lambda: end(stage, "ann"))
        answering.cancel()


async def test_the_dashboard_ends_the_tokens_that_it_made(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        await stage.logged_in("ann")
        await stage.dashboard.end_sessions()
        asked = user_pb2.ListTokensRequest(all=True)
        left = (await stage.master.ask.ListTokens(asked, metadata=stage.bearer("ada"))).tokens
        assert "dashboard" not in [token.label for token in left]


async def test_a_dashboard_that_stops_ends_the_tokens_of_all_its_sessions(tmp_path, monkeypatch):
    home, listening = tmp_path / "home", listen(None)
    home.mkdir(mode=0o700)
    async with a_master(home, guarded=True) as master:
        tokens = await tokens_of_users(master)
        async with a_dashboard(home, tmp_path / "links", lambda: tokens["ada"], monkeypatch, listening):
            ann, bob = Visitor(listening), Visitor(listening)
            for visitor, name in ((ann, "ann"), (bob, "bob")):
                assert (await visitor.log_in("token", tokens[name])).status == 200
            page = await ann.stream("/stream/cluster")
            await page.next()
        assert (await page.ends())[-1] == "over"
        page.close()
        bearer = (("authorization", f"Bearer {tokens['ada']}"),)
        left = (await master.ask.ListTokens(user_pb2.ListTokensRequest(all=True), metadata=bearer)).tokens
        assert "dashboard" not in [token.label for token in left]


async def test_who_logs_in_again_and_again_ends_their_own_oldest_session_and_takes_no_place_of_others(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 4)
    monkeypatch.setattr(sessions, "MOST_OF_A_USER", 2)
    async with a_stage(tmp_path, monkeypatch) as stage:
        bob = await stage.logged_in("bob")
        visitors = [await stage.logged_in("ann") for _ in range(3)]
        assert [(await ann.get("/me")).status for ann in visitors] == [401, 200, 200]
        asked = user_pb2.ListTokensRequest()
        made = (await stage.master.ask.ListTokens(asked, metadata=stage.bearer("ann"))).tokens
        assert [token.label for token in made].count("dashboard") == 2
        for _ in range(5):
            await stage.logged_in("ann")
            revoked = user_pb2.RevokeTokenRequest(id=stage.dashboard.sessions.all()[-1].token_id)
            await stage.master.ask.RevokeToken(revoked, metadata=stage.bearer("ann"))
        await stage.logged_in("olga")
        assert (await bob.get("/me")).status == 200


async def test_all_sessions_of_a_user_together_look_at_a_bounded_number_of_different_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(feeds, "MOST_TOPICS_OF_A_USER", 2)
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann, again, bob = [await stage.logged_in(name) for name in ("ann", "ann", "bob")]
        first, second = await ann.stream("/stream/queue?q=a"), await ann.stream("/stream/queue?q=b")
        for stream in (first, second):
            await stream.next()
        refused = await again.get("/stream/queue?q=c")
        assert refused.status == 429
        assert refused.json["error"] == "2 different pages of yours are open already: close one"
        theirs = [await again.stream("/stream/queue?q=a"), await bob.stream("/stream/queue?q=c")]
        for stream in theirs:
            await stream.next()
        second.close()
        async with asyncio.timeout(30):
            while (fresh := await again.stream("/stream/queue?q=c")).status == 429:
                fresh.close()
                await asyncio.sleep(0.01)
        for stream in (first, fresh, *theirs):
            stream.close()
        async with asyncio.timeout(30):
            while stage.dashboard.feed._seen_by:
                await asyncio.sleep(0.01)


async def test_a_session_has_a_bounded_number_of_streams(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "MOST_STREAMS", 2)
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        streams = [await ann.stream("/stream/cluster") for _ in range(2)]
        for stream in streams:
            await stream.next()
        job = await a_job(stage)
        for path in [filled(path, job) for _, path in closed_routes_of(stage) if path.startswith("/stream")]:
            assert (await ann.get(path)).status == 429
        for stream in streams:
            stream.close()
        async with asyncio.timeout(30):
            while any(session.streams for session in stage.dashboard.sessions.all()):
                await asyncio.sleep(0.01)


# --- what browsers are reported ---


async def test_every_answer_tells_browsers_what_they_may_do(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        job, ann = await a_job(stage), await stage.logged_in("ann")
        replies = [await stage.visitor().page("/login"), await stage.visitor().get("/"), await ann.page("/")]
        replies += [await ann.page(path) for path in ("/queue", f"/jobs/{job}", "/jobs/99", "/static/app.js", "/none")]
        replies += [
            await ann.page(path)
            for path in ("/nodes", "/nodes/n1", "/nodes/n1/facts", "/events", "/timeline", "/usage", "/usage.csv")
        ]
        replies += [await ann.page(path) for path in ("/whatif", "/admin", "/admin/facts")]
        replies += [await ann.get("/", host="evil.example")]
        for reply in replies:
            for name, value in HEADERS:
                assert reply.headers[name.decode()] == value.decode()
        policy = dict(HEADERS)[b"content-security-policy"].decode()
        assert "unsafe" not in policy
        assert "*" not in policy


async def test_no_page_has_a_script_or_a_style_of_its_own(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        job, ann = await a_job(stage), await stage.logged_in("ann")
        for path in (
            "/",
            "/queue",
            f"/jobs/{job}",
            "/jobs/99",
            f"/arrays/{job}",
            "/nodes",
            "/nodes/n1",
            "/events",
            "/timeline",
            "/usage",
            "/whatif",
            "/admin",
        ):
            text = (await ann.page(path)).body.decode()
            assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
            assert re.findall(r"<style|\bstyle=|\son\w+=|javascript:", text) == []
