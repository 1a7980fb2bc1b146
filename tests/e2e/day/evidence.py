"""What is known of a day once it is over: the event log, what `ebb` says, and what the jobs wrote down themselves."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide_protos.v1 import client_pb2

from tests.e2e.day.playing import Player
from tests.e2e.day.script import Planned, Script

Facts = dict[str, Any]
AGAIN = " again"
"""Follows the key of a job that is another one's repetition."""


@dataclass(frozen=True)
class Entry:
    """One line of the event log: its time, its kind, whom it is about, and the fact itself."""

    at: float
    kind: str
    job: str
    node: str
    text: str
    fact: Facts


@dataclass(frozen=True)
class Evidence:
    """``ids`` by key of the script; ``witnesses`` are the lines of each job or task, by id.

    ``stories`` are as the master tells them, ``printed`` some of them as `ebb story` does."""

    script: Script
    began: float
    ended: float
    ids: dict[str, str]
    jobs: dict[str, Facts]
    log: list[Entry]
    stories: dict[str, list[Entry]]
    printed: dict[str, list[str]]
    witnesses: dict[str, list[Facts]]
    usage: Facts
    outages: list[tuple[float, str]]
    stops: list[tuple[float, float]]
    notes: list[str]
    home: Path

    @property
    def plans(self) -> dict[str, Planned]:
        """Of each job or task, by its id."""
        plans = {key: job for job in self.script.jobs for key in job.keys}
        return {id: plans[key.removesuffix(AGAIN)] for key, id in self.ids.items() if key.removesuffix(AGAIN) in plans}

    def clock(self, at: float) -> str:
        """A time as seconds of the day."""
        return f"{at - self.began:.2f} s"


def _entry(event: client_pb2.Event) -> Entry:
    return Entry(event.time, event.kind, event.job_id, event.node, event.text, json.loads(event.json))


def _job(id: str) -> client_pb2.JobRequest:
    return client_pb2.JobRequest(job_id=id)


def collect(player: Player) -> Evidence:
    """All of it, while the master still serves."""
    log = [_entry(event) for event in player.line.events()]
    jobs = {job["id"]: job for job in player.cluster.facts("ls", "--all", "--tasks")}
    witnesses = {}
    for path in player.witnesses.glob("*.jsonl"):
        witnesses[path.stem] = [json.loads(line) for line in path.read_text().splitlines()]
    stories = {id: [_entry(event) for event in player.line.ask("ShowStory", _job(id)).events] for id in jobs}
    printed = {id: [line["text"] for line in player.cluster.facts("story", id)] for id in sorted(jobs)[::50]}
    usage = player.cluster.facts("usage", "--since", "1h", "--by", "job")
    player.line.close()
    print(f"seed {player.script.seed}: {len(player.script.ends)} jobs, {player.now:.0f} s, {len(log)} events")
    print("\n".join(player.notes))
    return Evidence(
        player.script, player.began, time.time(), dict(player.ids), jobs, log, stories, printed, witnesses, usage,
        player.outages, player.stops, player.notes, player.cluster.home,
    )  # fmt: skip
