"""Which GPU time the page of the usage sums up, and the facts that it shows. Pure."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any, Final

from ebbtide_protos.quantities import printable
from ebbtide_protos.v1 import usage_pb2

WINDOWS: Final[Mapping[str, int]] = {"day": 1, "week": 7, "month": 30, "quarter": 90}
"""Days of each window; that of one day is cut into hours, the others into days."""
BY: Final = ("user", "pool")
MOST_ROWS: Final = 100
"""Users or pools that are shown, those with the most GPU time; the file has all."""
MOST_FOREIGN: Final = 20
HOUR_S: Final = 3600.0
PARTS: Final = ("useful", "unknown", "lost", "idle", "starting", "leaving")
"""What allocated GPU time is made of."""
COLUMNS: Final = ("jobs", "allocated", *PARTS, "waiting", "suspended", "held")


@dataclass(frozen=True, slots=True)
class WantedUsage:
    """Which usage a page shows, as its address says it; viewers with the same share one answer."""

    window: str = "week"
    by: str = "user"

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "WantedUsage":
        """Read the query of an address; what makes no sense is as if it were not there."""
        return cls(
            window=query.get("window", "") if query.get("window") in WINDOWS else "week",
            by=query.get("by", "") if query.get("by") in BY else "user",
        )

    def edges(self, now: float) -> list[float]:
        """Return where the window's hours or days begin, in Unix seconds and the local time, and its end."""
        if self.window == "day":
            end = datetime.fromtimestamp(now).replace(minute=0, second=0, microsecond=0).timestamp()
            return [*(end - HOUR_S * back for back in range(23, -1, -1)), max(now, end + 1.0)]
        today = datetime.fromtimestamp(now).date()
        days = (today - timedelta(days=back) for back in range(WINDOWS[self.window] - 1, -1, -1))
        begins = [datetime.combine(day, time()).timestamp() for day in days]
        return [*begins, max(now, begins[-1] + 1.0)]

    def requests(self, now: float) -> tuple[usage_pb2.UsageRequest, usage_pb2.UsageRequest]:
        """Return the questions to the master: the sums by user or pool, and those by hour or day."""
        edges = self.edges(now)
        by_key = usage_pb2.UsageRequest(edges=(edges[0], edges[-1]), by=[self.by])
        return by_key, usage_pb2.UsageRequest(edges=edges, by=["day"])


def usage_facts(
    wanted: WantedUsage, edges: list[float], by_key: usage_pb2.UsageReply, by_day: usage_pb2.UsageReply
) -> dict[str, Any]:
    """Return what the page shows, in GPU-seconds and seconds of jobs."""
    rows = sorted((row_facts(account) for account in by_key.accounts), key=lambda row: (-row["allocated"], row["key"]))
    periods = {int(account.key[0]): row_facts(account) for account in by_day.accounts}
    gpus, foreign = by_key.gpus, sorted(by_key.foreign_gpu_s.items(), key=lambda each: -each[1])
    return {
        "window": wanted.window,
        "by": wanted.by,
        "since": edges[0],
        "until": by_key.until,
        "known_since": by_key.known_since if by_key.known_since > edges[0] else None,
        "total": row_facts(by_key.total),
        "rows": rows[:MOST_ROWS],
        "more_rows": max(0, len(rows) - MOST_ROWS),
        "periods": [
            {"start": start, **{part: periods[number][part] if number in periods else 0.0 for part in PARTS}}
            for number, start in enumerate(edges[:-1])
        ],
        "gpus": {
            "count": gpus.gpus,
            "known": gpus.known_gpu_s,
            "allocated": gpus.allocated_gpu_s,
            "idle": gpus.idle_gpu_s,
            "foreign": gpus.foreign_gpu_s,
            "unavailable": gpus.unavailable_gpu_s,
        },
        "foreign": [{"user": user, "seconds": seconds} for user, seconds in foreign[:MOST_FOREIGN]],
        "problems": list(by_key.problems),
    }


def row_facts(account: usage_pb2.UsageAccount) -> dict[str, Any]:
    """Return one account; what was computed and neither lost, unknown nor idle is useful."""
    spent = account.lost_gpu_s + account.unknown_gpu_s + account.idle_gpu_s
    return {
        "key": account.key[0] if account.key else "",
        "jobs": account.jobs,
        "allocated": account.allocated_gpu_s,
        "useful": max(0.0, account.computing_gpu_s - spent),
        "unknown": account.unknown_gpu_s,
        "lost": account.lost_gpu_s,
        "idle": account.idle_gpu_s,
        "starting": account.starting_gpu_s,
        "leaving": account.leaving_gpu_s,
        "waiting": account.waiting_s,
        "suspended": account.suspended_s,
        "held": account.held_s,
    }


def csv_text(wanted: WantedUsage, accounts: Iterable[usage_pb2.UsageAccount]) -> str:
    """Return all accounts as a table for spreadsheets, in hours; no cell is a formula there."""
    written = io.StringIO()
    table = csv.writer(written)
    gpu_hours, job_hours = COLUMNS[1 : 2 + len(PARTS)], COLUMNS[2 + len(PARTS) :]
    titles = [*(f"{name}_gpu_hours" for name in gpu_hours), *(f"{name}_hours" for name in job_hours)]
    table.writerow((wanted.by, "jobs", *titles))
    for row in map(row_facts, accounts):
        table.writerow((_plain(row["key"]), row["jobs"], *(f"{row[name] / HOUR_S:.4f}" for name in COLUMNS[1:])))
    return written.getvalue()


def _plain(text: str) -> str:
    found = printable(text)
    return f"'{found}" if found.startswith(("=", "+", "-", "@")) else found
