"""The pages of nodes: which rows there are, what one node shows, and who may take one out of service."""

import json
from urllib.parse import parse_qsl

import pytest
from ebbtide_protos.v1 import client_pb2, job_pb2
from ebbtide_web.answers import BadInputError
from ebbtide_web.board.picture import ClusterPicture
from ebbtide_web.pages import nodes as nodes_page
from ebbtide_web.pages.cluster import WantedCluster
from ebbtide_web.pages.node import NODE_VERBS, drain_request, node_change
from ebbtide_web.pages.nodes import WantedNodes

from tests.dashboard.stage import a_stage
from tests.dashboard.test_access import a_job, facts
from tests.master.world import RUNNING, share

IDLE, ALLOCATED, UNHEALTHY = (
    client_pb2.GpuState.Value(f"GPU_STATE_{name}") for name in ("IDLE", "ALLOCATED", "UNHEALTHY")
)


def a_picture(**states: list[int]) -> ClusterPicture:
    """Nodes with GPUs in these states; a node is up if nothing else is said by its name."""
    picture = ClusterPicture()
    nodes, loads = [], []
    for name, gpus in states.items():
        model = "H100" if name.startswith("big") else "A100"
        row = client_pb2.BoardNode(name=name, pool=name[:3])
        for n in range(len(gpus)):
            row.gpus.add(uuid=f"{name}-{n}", index=n, model=model, mem_bytes=100)
        nodes.append(row)
        state = next((state for state in ("drained", "down", "ended") if state in name), "up")
        load = client_pb2.BoardLoad(name=name, state=state, cpus=8)
        for n, gpu in enumerate(gpus):
            row = load.gpus.add(state=gpu, use=0.1 * n, mem_used_bytes=10)
            if gpu == ALLOCATED:
                row.holders.add(job_id=str(n + 1), share=share(1))
        loads.append(load)
    jobs = [client_pb2.BoardJob(job_id=str(n), name=f"job-{n}", user="ann") for n in range(1, 10)]
    picture.take(client_pb2.BoardUpdate(last=True, nodes=nodes, loads=loads, jobs=jobs), 0.0)
    return picture


def rows_of(picture: ClusterPicture, **wanted) -> list[str]:
    return json.loads(WantedNodes(**wanted).cells(picture, {})["page"])["rows"]


def test_nodes_are_ordered_as_people_count_and_filtered_by_name_model_state_and_pool():
    picture = a_picture(gpu10=[IDLE], gpu2=[IDLE, ALLOCATED], big1=[ALLOCATED] * 8, old_drained=[IDLE])
    assert rows_of(picture) == ["big1", "gpu2", "gpu10", "old_drained"]
    assert rows_of(picture, down=True)[0] == "old_drained"
    assert rows_of(picture, text="GPU") == ["gpu2", "gpu10"]
    assert rows_of(picture, text="h100") == ["big1"]
    assert rows_of(picture, state="drained") == ["old_drained"]
    assert rows_of(picture, pool="gpu") == ["gpu2", "gpu10"]
    assert rows_of(picture, sort="use", down=True)[0] == "big1"


def test_the_tabs_tell_nodes_with_room_out_of_service_and_with_problems_apart():
    picture = a_picture(gpu1=[IDLE], gpu2=[ALLOCATED, UNHEALTHY], gpu3_drained=[IDLE], gpu4_down=[IDLE, IDLE])
    found = {tab: rows_of(picture, tab=tab) for tab in nodes_page.TABS}
    assert found == {
        "all": ["gpu1", "gpu2", "gpu3_drained", "gpu4_down"],
        "idle": ["gpu1"],
        "out": ["gpu3_drained"],
        "problems": ["gpu2", "gpu4_down"],
        "ended": [],
    }
    reported = json.loads(WantedNodes().cells(picture, {})["page"])
    assert reported["tabs"] == {tab: len(rows) for tab, rows in found.items()}
    assert rows_of(picture, sort="idle", down=True)[0] == "gpu1", "idle GPUs of a node that is away are on no offer"


def test_a_node_that_has_ended_as_announced_is_in_a_tab_of_its_own_and_counts_nowhere_else():
    picture = a_picture(gpu1=[IDLE], gpu2_ended=[UNHEALTHY, IDLE])
    found = {tab: rows_of(picture, tab=tab) for tab in nodes_page.TABS}
    assert found == {"all": ["gpu1"], "idle": ["gpu1"], "out": [], "problems": [], "ended": ["gpu2_ended"]}
    cells = WantedCluster().cells(picture, {})
    sums = json.loads(cells["sums"])
    assert (sums["nodes"], sums["total"], sums["gpus"]) == (1, 1, {"idle": 1})
    assert [key for key in cells if key.startswith("node:")] == ["node:gpu1"]


def test_a_row_says_what_the_gpus_do_and_who_is_there():
    cells = WantedNodes().cells(a_picture(gpu1=[ALLOCATED, IDLE, UNHEALTHY]), {})
    row = json.loads(cells["row:gpu1"])
    assert (row["cells"], row["counts"]) == ("aiu", {"allocated": 1, "idle": 1, "unhealthy": 1})
    assert row["jobs"] == [{"id": "1", "name": "job-1", "user": "ann"}]
    assert (row["use"], row["gpu_mem"]) == (0.1, [30, 300])


def test_a_page_of_the_nodes_has_at_most_so_many_rows_however_many_nodes_there_are():
    picture = a_picture(**{f"gpu{n}": [IDLE] * 8 for n in range(1000)})
    cells = WantedNodes(page=3).cells(picture, {})
    page = json.loads(cells["page"])
    assert len(cells) == nodes_page.PAGE + 2
    assert (page["total"], page["pages"], page["page"], page["rows"][0]) == (1000, 10, 3, "gpu300")
    made = dict(picture._made)
    WantedNodes(page=3).cells(picture, {})
    assert all(picture._made[key] is cell for key, cell in made.items()), "rows that are as before are not made again"


def test_a_query_of_the_nodes_says_what_it_was_read_from():
    wanted = WantedNodes(tab="problems", text="a b", pool="x", sort="use", down=True, page=2)
    assert WantedNodes.read(dict(parse_qsl(wanted.query()))) == wanted
    assert WantedNodes.read({"page": "-1", "show": "x", "sort": "evil"}) == WantedNodes()


# --- one node ---


async def test_a_node_shows_its_gpus_jobs_and_events_and_follows_a_drain(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        agent = await stage.master.agent_with(stage.tokens["ada"])
        job, olga = await a_job(stage, name="train"), await stage.logged_in("olga")
        await agent.receive("launch")
        await agent.report(job, 1, RUNNING)
        stream = await olga.stream("/stream/nodes/n1")
        reported = await stream.until(lambda name, data: name == "node" and data["jobs"])
        assert (reported["state"], reported["drain"], [gpu["state"] for gpu in reported["gpus"]]) == (
            "up",
            None,
            ["allocated", "idle"],
        )
        reply = await olga.post("/nodes/n1/drain", {"reason": "new fans", "deadline": 3600, "force": False})
        assert reply.json == {"done": "Nothing new starts on node n1."}
        reported = await stream.until(lambda name, data: name == "node" and data["drain"])
        assert (reported["state"], reported["drain"]["user"], reported["drain"]["reason"]) == (
            "draining",
            "olga",
            "new fans",
        )
        assert [(each["id"], each["fate"]) for each in reported["jobs"]] == [(job, "waits")]
        older = (await olga.get("/events/older?node=n1&before=0")).json
        assert older["events"][0]["kind"] == "Node drained"
        await olga.post("/nodes/n1/undrain")
        await stream.until(lambda name, data: name == "node" and data["state"] == "up")
        stream.close()
        assert (await olga.get("/nodes/n1/facts")).json["name"] == "n1"
        missing = await olga.page("/nodes/n9")
        assert (missing.status, b"node n9 does not exist" in missing.body) == (404, True)


async def test_a_preview_of_a_drain_says_what_would_become_of_each_job_and_changes_nothing(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        agent = await stage.master.agent_with(stage.tokens["ada"])
        job, olga = await a_job(stage, suspend=job_pb2.SUSPEND_MODE_NONE), await stage.logged_in("olga")
        await agent.receive("launch")
        await agent.report(job, 1, RUNNING)
        shown = await olga.stream(f"/stream/jobs/{job}")
        await shown.until(lambda name, data: name == "job" and data["state"] == "RUNNING")
        shown.close()
        before = facts(stage)
        found = {
            query: (await olga.get(f"/nodes/n1/preview?{query}")).json["jobs"][0]["fate"]
            for query in ("", "deadline=0", "deadline=0&force=1")
        }
        assert found == {"": "runs_out", "deadline=0": "stays", "deadline=0&force=1": "ends"}
        assert facts(stage) == before
        assert (await olga.get("/nodes/n1/preview?deadline=soon")).status == 400
        assert (await olga.get("/nodes/n1/preview?force=1")).json["error"] == "force: needs a deadline"


async def test_nodes_are_an_operators_to_change(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        await stage.master.agent_with(stage.tokens["ada"])
        ann = await stage.logged_in("ann")
        before = facts(stage)
        for verb in NODE_VERBS:
            reply = await ann.post(f"/nodes/n1/{verb}")
            assert (reply.status, "is for operators: ann is user" in reply.json["error"]) == (403, True), verb
        assert (await ann.get("/nodes/n1/preview")).status == 403
        assert facts(stage) == before


async def test_a_node_that_is_lost_is_removed_and_gone_from_the_list(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        await stage.master.agent_with(stage.tokens["ada"])
        other = await stage.master.agent_with(stage.tokens["ada"], "n2")
        olga = await stage.logged_in("olga")
        page = await olga.stream("/stream/nodes")
        seen = set[str]()  # the second node may come later than the first
        await page.until(lambda name, data: seen.update(data["cells"]) or {"row:n1", "row:n2"} <= seen)
        assert "is connected" in (await olga.post("/nodes/n2/remove")).json["error"]
        other.vanish()
        await page.until(lambda name, data: data["cells"].get("row:n2", {}).get("state") == "down")
        assert (await olga.post("/nodes/n2/confirm-dead")).status == 200
        assert (await olga.post("/nodes/n2/remove")).status == 200
        await page.until(lambda name, data: "row:n2" in data["gone"])
        page.close()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reason": 5}, "reason: is not a text"),
        ({"reason": "x" * 201}, "reason: is not a text of at most 200 printable characters"),
        ({"reason": "a\u202eb"}, "reason: is not a text"),
        ({"deadline": "soon"}, "deadline: is not a number of seconds"),
        ({"deadline": -1}, "deadline: is not a number of seconds from 0"),
        ({"deadline": float("nan")}, "deadline: is not a number of seconds"),
        ({"deadline": True}, "deadline: is not a number of seconds"),
        ({"force": 1, "deadline": 0}, "force: is neither true nor false"),
        ({"force": True}, "force: needs a deadline"),
    ],
)
def test_a_drain_that_makes_no_sense_is_refused_by_name(fields, words):
    with pytest.raises(BadInputError, match=words):
        drain_request("n1", fields)


def test_a_change_of_a_node_names_a_verb_and_a_node():
    with pytest.raises(BadInputError, match="verb: is none of drain, undrain, confirm-dead, remove"):
        node_change("explode", "n1", {})
    for name in ("", "x" * 65, "a\nb"):
        with pytest.raises(BadInputError, match="node: is not a name"):
            node_change("remove", name, {})
