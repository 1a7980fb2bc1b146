"""The page of an array: what is asked for it, what it shows, and what of it to others."""

import json
import math

from ebbtide_protos.v1 import client_pb2, job_pb2
from ebbtide_web.pages import array as array_page
from ebbtide_web.pages.array import LETTERS, WantedTasks

from tests.dashboard.stage import a_stage
from tests.dashboard.test_access import a_job
from tests.master.world import make_spec


async def an_array(stage, *rates: str) -> str:
    tasks = [client_pb2.ArrayTask(index=index, params={"lr": rate}) for index, rate in enumerate(rates)]
    request = client_pb2.SubmitRequest(spec=make_spec(name="sweep"), tasks=tasks)
    return (await stage.master.ask.Submit(request, metadata=stage.bearer("ann"))).job_id


def test_every_state_of_a_job_has_a_letter_of_its_own():
    names = {name.removeprefix("JOB_STATE_") for name in job_pb2.JobState.DESCRIPTOR.values_by_name} - {"UNSPECIFIED"}
    assert set(LETTERS) == names
    assert len(set(LETTERS.values())) == len(names)


def test_an_address_names_a_param_a_metric_and_a_page_and_what_makes_no_sense_is_left_out():
    wanted = WantedTasks.read({"param": "lr", "metric": "loss", "page": "3"})
    assert wanted == WantedTasks("lr", "loss", 3)
    request = wanted.request("17")
    assert (request.first, request.limit) == (3 * array_page.PAGE, array_page.PAGE)
    assert WantedTasks.read({"param": "a\0", "metric": "\u202e", "page": "-1"}) == WantedTasks()
    assert WantedTasks.read({"page": "9" * 9}) == WantedTasks()


def test_what_is_no_number_is_none_and_no_column_is_left_out():
    reply = client_pb2.ShowArrayReply(
        indices=[0, 1], states=bytes([job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_FAILED]), x=[1.0, math.nan],
        y=[math.inf, 2.0],
    )  # fmt: skip
    found = array_page.array_facts(reply, WantedTasks())
    assert (found["states"], found["x"], found["y"], found["pages"]) == ("rf", [1.0, None], [None, 2.0], 1)


async def test_an_array_is_followed_as_its_tasks_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(array_page, "ARRAY_S", 0.05)
    async with a_stage(tmp_path, monkeypatch) as stage:
        array, ann = await an_array(stage, "0.1", "0.2"), await stage.logged_in("ann")
        stream = await ann.stream(f"/stream/arrays/{array}")
        reported = await stream.until(lambda name, _: name == "array")
        assert (reported["states"], reported["param"], reported["x"]) == ("pp", "lr", [0.1, 0.2])
        await ann.post(f"/jobs/{array}.1/cancel")
        reported = await stream.until(lambda name, data: name == "array" and data["states"] == "px")
        assert reported["rows"][1]["state"] == "CANCELLED"
        stream.close()


async def test_the_page_of_an_array_as_a_job_has_its_first_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(array_page, "PAGE", 2)
    async with a_stage(tmp_path, monkeypatch) as stage:
        array, ann = await an_array(stage, "0.1", "0.2", "0.3"), await stage.logged_in("ann")
        found = (await ann.get(f"/jobs/{array}/tasks")).json
        assert (found["id"], found["left_out"], [task["params"] for task in found["tasks"]]) == (
            array, 1, [{"lr": "0.1"}, {"lr": "0.2"}],
        )  # fmt: skip
        some = (await ann.get(f"/jobs/{array}.1-2/tasks")).json
        assert [task["index"] for task in some["tasks"]] == [1, 2]


async def test_of_the_array_of_somebody_else_states_are_shown_but_not_what_its_tasks_stand_for(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        array, bob = await an_array(stage, "secret-1", "secret-2"), await stage.logged_in("bob")
        stream = await bob.stream(f"/stream/arrays/{array}")
        reported = await stream.until(lambda name, _: name == "array")
        stream.close()
        assert (reported["states"], reported["params"], reported["x"]) == ("pp", [], [])
        assert "secret" not in json.dumps(reported)


async def test_what_is_no_array_is_refused_in_the_masters_words(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        job, ann = await a_job(stage), await stage.logged_in("ann")
        for id, status, words in ((job, 409, f"job {job} is not an array"), ("99", 404, "99")):
            page = await ann.page(f"/arrays/{id}")
            assert (page.status, words in page.body.decode()) == (status, True)
        assert (await ann.get("/arrays/a%20b")).status == 400
