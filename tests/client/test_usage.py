"""`ebb usage` against a master that answers, and what may be written for a time."""

from datetime import datetime

import pytest
from ebbtide_cli.times import days_between, parse_time
from ebbtide_protos.v1 import usage_pb2

NOON = datetime(2026, 11, 23, 12).timestamp()


def unix(text):
    return datetime.fromisoformat(text).timestamp()


@pytest.fixture
def answered(master):
    """Two users, one of whom wasted a quarter of an hour."""
    ann = {"jobs": 2, "allocated_gpu_s": 7200, "computing_gpu_s": 7200, "unknown_gpu_s": 1800, "waiting_s": 90}
    bob = {"jobs": 1, "allocated_gpu_s": 3600, "computing_gpu_s": 3000, "leaving_gpu_s": 600, "lost_gpu_s": 300}
    accounts = [
        usage_pb2.UsageAccount(key=["ann"], **ann),
        usage_pb2.UsageAccount(key=["bob"], wasted_gpu_s=900, **bob),
    ]
    total = usage_pb2.UsageAccount(jobs=3, allocated_gpu_s=10800, wasted_gpu_s=900)
    gpus = usage_pb2.GpuUsage(gpus=2, known_gpu_s=21600, allocated_gpu_s=10800, idle_gpu_s=10800)
    answer = usage_pb2.UsageReply(accounts=accounts, total=total, gpus=gpus, foreign_gpu_s={"eve": 60}, until=NOON)
    master.usage = [usage_pb2.UsageReply(done=0.5), answer]
    return master


def test_a_line_says_what_each_user_had_and_the_last_what_became_of_all_gpus(ebb, answered):
    out = ebb("usage").out.splitlines()
    assert out[0].split() == [
        "USER", "JOBS", "GPU", "HOURS", "LOST", "UNKNOWN", "LEAVING", "IDLE", "WASTED", "WAITING", "SUSPENDED",
    ]  # fmt: skip
    assert out[1].split() == ["ann", "2", "2.00", "-", "0.50", "-", "-", "-", "0.03", "-"]
    assert out[2].split() == ["bob", "1", "1.00", "0.08", "-", "0.17", "-", "0.25", "(25%)", "-", "-"]
    assert out[3].split()[:3] == ["all", "3", "3.00"]
    assert out[-2:] == ["2 GPUs, 6.00 hours: 50% allocated, 50% idle", "GPU time past the cluster: eve 1m"]


def test_json_has_the_seconds_of_each_account_and_of_all_gpus(ebb, answered):
    facts = ebb("usage", "--json").json
    assert facts["by"] == ["user"]
    assert [account["user"] for account in facts["accounts"]] == ["ann", "bob"]
    assert facts["accounts"][1]["lost_gpu_s"] == 300
    assert facts["accounts"][0]["unknown_gpu_s"] == 1800
    assert (facts["total"]["jobs"], facts["gpus"]["idle_gpu_s"], facts["foreign_gpu_s"]) == (3, 10800, {"eve": 60})
    assert (facts["until"], facts["problems"]) == (NOON, [])


def test_days_are_asked_for_by_their_edges_and_shown_by_their_dates(ebb, master):
    account = usage_pb2.UsageAccount(key=["1", "ann"], jobs=1)
    master.usage = [usage_pb2.UsageReply(accounts=[account], total=account)]
    since = ("--since", "2026-11-20 18:00", "--until", "2026-11-22 06:00")
    facts = ebb("usage", "--by", "day", "--by", "user", *since, "--json").json
    assert (facts["accounts"][0]["day"], facts["accounts"][0]["user"]) == ("2026-11-21", "ann")
    [request] = master.sent("Usage")
    edges = ["2026-11-20 18:00", "2026-11-21", "2026-11-22", "2026-11-22 06:00"]
    assert list(request.edges) == [unix(edge) for edge in edges]
    assert list(request.by) == ["day", "user"]


def test_books_that_are_wrong_are_said_to_be(ebb, master):
    master.usage = [usage_pb2.UsageReply(problems=["GPU a0 of node a: 5.0 s are accounted for, of 9.0 s"])]
    assert ebb("usage").complaint.endswith("please report it: GPU a0 of node a: 5.0 s are accounted for, of 9.0 s")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--since", "soon"), "usage: --since: 'soon' is not a time: write '2026-11-23 09:00', 2026-11-23, 09:00"),
        (("--since", "1h", "--until", "2h"), "usage: --since: "),
        (("--since", "800000d"), "usage: --since: '800000d' is too far from now: times are from the year 2 to 9998"),
        (("--by", "day", "--since", "800000d"), "usage: --since: '800000d' is too far from now"),
        (("--by", "day", "--since", "30000d"), "usage: --since: 30000 days are over the limit of 999 for --by day"),
        (("--by", "day", "--since", "now", "--until", "9999-12-31 12:00"), "usage: --since: 29"),
        (("--by", "moon"), "usage: Invalid value for '--by': 'moon' is none of"),
    ],
)
def test_what_cannot_be_meant_is_refused(ebb, master, options, complaint):
    result = ebb("usage", *options)
    assert result.code == 2
    assert result.complaint.startswith(complaint)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-20", "2026-11-20 00:00"),
        ("2026-11-20 09:30", "2026-11-20 09:30"),
        ("2026-11-20T09:30:15", "2026-11-20 09:30:15"),
        ("09:30", "2026-11-24 09:30"),
        ("15:30", "2026-11-23 15:30"),
        ("now", "2026-11-23 12:00"),
        ("1d2h", "2026-11-24 14:00"),
    ],
)
def test_a_time_is_a_date_a_time_of_day_or_a_duration_from_now(text, time):
    assert parse_time(text, NOON) == unix(time)


def test_for_what_was_a_duration_is_how_long_ago():
    assert parse_time("2h", NOON, ago=True) == unix("2026-11-23 10:00")
    assert parse_time("09:30", NOON, ago=True) == unix("2026-11-23 09:30")


@pytest.mark.parametrize(("text", "ago"), [("800000d", True), ("3000000d", False), ("9" * 31 + "d", False)])
def test_a_duration_that_leads_beyond_all_dates_is_refused(text, ago):
    with pytest.raises(ValueError, match="too far from now"):
        parse_time(text, NOON, ago=ago)


def test_the_last_day_that_can_be_written_ends_a_window():
    start, end = unix("9999-12-30 12:00"), unix("9999-12-31 12:00")
    assert days_between(start, end) == [start, unix("9999-12-31"), end]


def test_a_window_within_one_day_is_one_period():
    assert days_between(NOON, NOON + 3600) == [NOON, NOON + 3600]
