"""The page of the usage: its windows, what it adds up, and how seldom the master is asked."""

import asyncio
import csv
import io
import time
from datetime import datetime

import pytest
from ebbtide_protos.v1 import usage_pb2
from ebbtide_web.pages import usage as usage_page
from ebbtide_web.pages.usage import UsageLedger, WantedUsage
from ebbtide_web.reach import AwayError, MasterRefusedError

from tests.dashboard.hostile import CORPUS
from tests.dashboard.stage import a_stage
from tests.dashboard.test_access import a_job
from tests.master.world import RUNNING

NOW = datetime(2026, 3, 30, 15, 30).timestamp()
HOUR_S = 3600.0


class ToldMaster:
    """Says what it was made with, and counts how often it is asked."""

    def __init__(self, *replies: usage_pb2.UsageReply, error: Exception | None = None) -> None:
        self.replies, self.error, self.asked = replies, error, list[usage_pb2.UsageRequest]()
        self.go_on = asyncio.Event()

    async def stream(self, method, request, token):
        assert (method, token) == ("Usage", "anybody's")
        self.asked.append(request)
        yield usage_pb2.UsageReply(done=0.5)
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        for reply in self.replies:
            yield reply


def an_account(key: str, **hours: float) -> usage_pb2.UsageAccount:
    fields = {f"{name}_gpu_s": value * HOUR_S for name, value in hours.items()}
    return usage_pb2.UsageAccount(key=[key] if key else [], jobs=2, waiting_s=60.0, **fields)


def a_reply(*accounts: usage_pb2.UsageAccount) -> usage_pb2.UsageReply:
    return usage_pb2.UsageReply(done=1.0, accounts=accounts, total=an_account("", allocated=5.0), until=NOW)


@pytest.mark.parametrize(("window", "periods"), [("day", 24), ("week", 7), ("month", 30), ("quarter", 90)])
def test_a_window_is_cut_into_hours_or_days_of_the_clock_and_ends_now(window, periods):
    edges = WantedUsage(window).edges(NOW)
    assert (len(edges), edges[-1]) == (periods + 1, NOW)
    assert edges == sorted(set(edges))
    begin = datetime.fromtimestamp(edges[-2])
    assert (begin.hour, begin.minute) == ((15, 0) if window == "day" else (0, 0))
    assert WantedUsage(window).edges(edges[-2])[-1] > edges[-2], "also at the stroke of the hour"


@pytest.mark.parametrize(("window", "first", "last"), [("day", "16:00", "15:00"), ("week", "03-24", "03-30")])
def test_hours_and_days_are_called_by_the_clock_that_they_are_cut_by(window, first, last):
    wanted = WantedUsage(window)
    found = usage_page.usage_facts(wanted, wanted.edges(NOW), a_reply(), a_reply())["periods"]
    assert (found[0]["label"], found[-1]["label"]) == (first, last)


def test_an_address_that_makes_no_sense_is_as_if_it_were_not_there():
    assert WantedUsage.read({"window": "month", "by": "pool"}) == WantedUsage("month", "pool")
    assert WantedUsage.read({"window": "year", "by": "job"}) == WantedUsage("week", "user")


def test_what_was_computed_is_useful_lost_unknown_or_idle_and_the_parts_add_up():
    sums = {
        "allocated": 10.0,
        "starting": 1.0,
        "leaving": 0.5,
        "computing": 8.5,
        "lost": 2.0,
        "unknown": 1.0,
        "idle": 0.5,
    }
    row = usage_page.row_facts(an_account("ann", **sums))
    assert row["useful"] == pytest.approx(5.0 * HOUR_S)
    assert sum(row[part] for part in usage_page.PARTS) == pytest.approx(row["allocated"])


def test_the_users_with_the_most_are_first_and_many_are_cut_but_not_in_the_file():
    accounts = [an_account(f"user{n}", allocated=n, computing=n) for n in range(150)]
    edges = WantedUsage().edges(NOW)
    by_day = a_reply(an_account("0", allocated=1.0, computing=1.0), an_account("6", allocated=2.0, computing=2.0))
    found = usage_page.usage_facts(WantedUsage(), edges, a_reply(*accounts), by_day)
    assert ([row["key"] for row in found["rows"][:2]], len(found["rows"])) == (
        ["user149", "user148"],
        usage_page.MOST_ROWS,
    )
    assert found["more_rows"] == 50
    assert [period["useful"] / HOUR_S for period in found["periods"]] == [1.0, 0, 0, 0, 0, 0, 2.0]
    rows = list(csv.DictReader(io.StringIO(usage_page.csv_text(WantedUsage(), accounts))))
    assert len(rows) == 150
    assert (rows[7]["user"], rows[7]["allocated_gpu_hours"], rows[7]["waiting_hours"]) == ("user7", "7.0000", "0.0167")


def test_no_name_is_a_formula_of_a_spreadsheet_or_breaks_the_file():
    names = [*CORPUS, "=1+1", "+1", "-1", "@x"]
    written = usage_page.csv_text(WantedUsage(), [an_account(name, allocated=1.0) for name in names])
    rows = list(csv.reader(io.StringIO(written)))[1:]
    assert len(rows) == len(names)
    assert {len(row) for row in rows} == {len(usage_page.COLUMNS) + 1}
    assert [row[0] for row in rows if row[0].startswith(("=", "+", "-", "@"))] == []


async def test_all_who_look_at_the_same_get_one_answer_which_is_kept_for_a_while(monkeypatch):
    monkeypatch.setattr(usage_page, "REST", 0)  # however long a busy machine takes for the answer
    began = time.monotonic()
    master = ToldMaster(a_reply(an_account("ann", allocated=5.0)))
    ledger = UsageLedger(master, lambda: "anybody's", lambda: NOW)
    viewers = [asyncio.create_task(ledger.answer(WantedUsage())) for _ in range(20)]
    async for done in ledger.replies(WantedUsage()):
        if done == 0.25:
            break
    master.go_on.set()
    answers = await asyncio.gather(*viewers)
    assert all(answer is answers[0] for answer in answers)
    assert [list(request.by) for request in master.asked] == [["user"], ["day"]]
    assert await ledger.answer(WantedUsage()) is answers[0]
    kept_s = ledger.wait_s(WantedUsage())
    assert usage_page.KEPT_S - (time.monotonic() - began) <= kept_s <= usage_page.KEPT_S
    await ledger.answer(WantedUsage("month"))
    assert len(master.asked) == 4
    await ledger.close()


@pytest.mark.parametrize("error", [AwayError("gone"), MasterRefusedError("too many ledgers", 429)])
async def test_a_question_that_failed_is_asked_again_by_who_comes_next(error):
    master = ToldMaster(a_reply(), error=error)
    master.go_on.set()
    ledger = UsageLedger(master, lambda: "anybody's", lambda: NOW)
    with pytest.raises(type(error)):
        await ledger.answer(WantedUsage())
    master.error = None
    assert (await ledger.answer(WantedUsage())).by_key.total.jobs == 2
    await ledger.close()


async def test_the_page_and_the_file_have_the_gpu_time_of_jobs(tmp_path, monkeypatch):
    async with a_stage(tmp_path, monkeypatch) as stage:
        agent = await stage.master.agent_with(stage.tokens["ada"])
        job, bob = await a_job(stage), await stage.logged_in("bob")
        await agent.receive("launch")
        await agent.report(job, 1, RUNNING)
        stream = await bob.stream("/stream/usage?window=day")
        reported = await stream.until(lambda name, _: name == "usage")
        stream.close()
        assert [(row["key"], row["jobs"]) for row in reported["rows"]] == [("ann", 1)]
        assert (reported["gpus"]["count"], len(reported["periods"])) == (2, 24)
        assert reported["until"] == pytest.approx(time.time(), abs=60)
        assert sum(period["starting"] + period["useful"] for period in reported["periods"]) > 0
        file = await bob.get("/usage.csv?window=day")
        assert (file.status, file.headers["content-type"].partition(";")[0]) == (200, "text/csv")
        assert file.headers["content-disposition"] == 'attachment; filename="usage-day-by-user.csv"'
        assert file.body.decode().splitlines()[1].startswith("ann,1,")
