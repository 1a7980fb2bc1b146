"""The page for admins and operators: what it shows to whom, and tokens that are made and revoked there."""

import json
import time

import pytest
from ebbtide_protos.v1 import agent_pb2, client_pb2, user_pb2
from ebbtide_web.answers import BadInputError
from ebbtide_web.pages import admin as admin_page
from ebbtide_web.pages.admin import ADMIN_VERBS, admin_change

from tests.dashboard.stage import a_stage
from tests.dashboard.test_access import facts


async def facts_for(visitor):
    reply = await visitor.get("/admin/facts")
    assert reply.status == 200, reply
    return reply.json


async def test_a_user_is_refused_by_the_master_as_it_is_not_theirs_and_has_no_link_to_it(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        ann = await stage.logged_in("ann")
        page = await ann.page("/admin")
        assert page.status == 403
        assert b"looking at the configuration" in page.body
        assert (await ann.get("/admin/facts")).status == 403
        assert b'href="/admin"' not in (await ann.page("/queue")).body
        before = facts(stage)
        assert (await ann.post("/admin/reload")).status == 403
        assert (await ann.post("/admin/create", {"user": "bob"})).status == 403
        assert facts(stage) == before


async def test_an_admin_sees_users_tokens_settings_journal_and_agents(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        await stage.master.agent_with(stage.tokens["ada"])
        ada = await stage.logged_in("ada")
        assert b'href="/admin"' in (await ada.page("/admin")).body
        found = await facts_for(ada)
        assert {user["name"]: user["role"] for user in found["users"]}["olga"] == "operator"
        assert [token["user"] for token in found["tokens"] if token["own"]] == ["ada"]
        (own,) = [token for token in found["tokens"] if token["own"]]
        used = {user["name"]: user["used"] for user in found["users"]}
        assert own["used"] == pytest.approx(time.time(), abs=60)
        assert used["ada"] == pytest.approx(own["used"], abs=60)
        assert used["bob"] is None
        assert {token["user"] for token in found["tokens"]} == {"ann", "bob", "olga", "ada"}
        settings = {one["name"]: (one["value"], one["in_file"]) for one in found["settings"]}
        assert settings["pools.default.policy"] == ("fitgpp", "fitgpp")
        assert (found["problem"], found["changed"], found["needs_restart"]) == ("", [], [])
        assert (found["journal"]["kind"], found["journal"]["has_room"], found["journal"]["damaged"]) == (
            "file",
            True,
            0,
        )
        assert found["journal"]["standbys"] == []
        assert found["journal"]["events"] > 0
        assert [node["name"] for node in found["nodes"]] == ["n1"]
        assert found["cluster"]["pools"][0]["name"] == "default"


async def test_an_operator_sees_the_same_but_of_tokens_only_their_own(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        olga = await stage.logged_in("olga")
        found = await facts_for(olga)
        assert not found["all_tokens"]
        assert {token["user"] for token in found["tokens"]} == {"olga"}
        assert (await olga.post("/admin/reload")).status == 403


async def test_a_new_token_is_shown_once_proves_its_user_and_is_revoked(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        ada = await stage.logged_in("ada")
        made = (await ada.post("/admin/create", {"user": "ann", "label": "laptop", "days": 30})).json
        who = await stage.master.ask.WhoAmI(
            user_pb2.WhoAmIRequest(), metadata=(("authorization", f"Bearer {made['text']}"),)
        )
        assert (who.user.name, who.token.label) == ("ann", "laptop")
        assert who.token.expires - time.time() == pytest.approx(30 * admin_page.DAY_S, abs=60)
        assert made["text"] not in json.dumps(await facts_for(ada))
        assert (await ada.post("/admin/revoke", {"id": made["id"]})).status == 200
        assert made["id"] not in [token["id"] for token in (await facts_for(ada))["tokens"]]


async def test_who_revokes_the_token_of_the_own_session_is_logged_out(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        ada = await stage.logged_in("ada")
        (own,) = [token for token in (await facts_for(ada))["tokens"] if token["own"]]
        assert (await ada.post("/admin/revoke", {"id": own["id"]})).status == 200
        assert (await ada.get("/admin/facts")).status == 401


@pytest.mark.parametrize(
    ("verb", "fields", "words"),
    [
        ("explode", {}, f"verb: is none of {', '.join(ADMIN_VERBS)}"),
        ("create", {"user": "<b>"}, "user: is not a name"),
        ("create", {"label": "x" * 129}, "label: is not a text of at most 128"),
        ("create", {"label": "a\nb"}, "label: is not a text"),
        ("create", {"days": 0}, "days: is not a whole number from 1 to 3650"),
        ("create", {"days": True}, "days: is not"),
        ("revoke", {}, "id: is not the id of a token"),
        ("revoke", {"id": "../x"}, "id: is not the id of a token"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(verb, fields, words):
    with pytest.raises(BadInputError, match=words):
        admin_change(verb, fields)


def test_what_needs_somebody_on_nodes_is_named():
    bad = client_pb2.GpuState.Value("GPU_STATE_UNHEALTHY")
    gpu = client_pb2.NodeGpu(info=agent_pb2.GpuInfo(index=1, unhealthy_reason="Xid 79"), state=bad)
    quarantined = client_pb2.GpuState.Value("GPU_STATE_QUARANTINED")
    held = client_pb2.NodeGpu(info=agent_pb2.GpuInfo(uuid="n2-0", healthy=True), state=quarantined)
    stray = client_pb2.Stray(job_id="7", attempt=1, gpus=["n2-0"])
    nodes = [
        client_pb2.Node(name="n10", state="down"),
        client_pb2.Node(name="n2", state="up", version="1.0", gpus=[held, gpu], strays=[stray]),
        client_pb2.Node(name="n3", state="ended", version="1.0", gpus=[gpu]),
    ]
    found = admin_page.node_facts(client_pb2.ListNodesReply(nodes=nodes))
    assert [(one["node"], one["words"]) for one in found["node_problems"]] == [
        ("n2", "1 attempts are set aside"),
        ("n2", "GPU 1 is unhealthy: Xid 79"),
        ("n10", "silent"),
    ]
    assert found["versions"] == {"1.0": 2, "not known": 1}
