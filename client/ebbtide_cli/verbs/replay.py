"""``ebb replay``: simulate the jobs of a live cluster under other policies."""

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ebbtide_cli.commands.time_options import TIME_AGO
from ebbtide_cli.commands.verb import DURATION, SETTING, examples, json_option
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.terminal.output import StatusLine, print_json
from ebbtide_cli.values import format_duration
from ebbtide_cli.verbs.simulate import print_notes, print_reports, simulator_errors
from ebbtide_cli.writing import replaced

if TYPE_CHECKING:
    from ebbtide_sim.metrics import Report
    from ebbtide_sim.simulate import Scenario

Show = Callable[[str, float], None]
"""Shows in words what is done, and how much of all is, from 0 to 1."""


@click.command(
    epilog=examples(
        "ebb replay --policy fifo --policy malleable-equipartition",
        "ebb replay --policy tide --since 7d",
        "ebb replay --policy fitgpp --since 7d --until 1d --nodes 4x8",
        "ebb replay --export-to last-week.jsonl",
        "ebb replay --export last-week.jsonl --policy fitgpp --policy-option s=8 --json",
    )
)
@click.option(
    "--journal", metavar="FILE", help="Journal of a master, which is only read (default: the one in EBB_HOME)."
)
@click.option(
    "--export", metavar="FILE", help="File that --export-to wrote, instead of a journal; '-': standard input."
)
@click.option("--export-to", metavar="FILE", help="Write the journal to this file as JSON lines, without a simulation.")
@click.option("--policy", "policies", metavar="NAME", multiple=True, help="Policy to simulate; may be repeated.")
@click.option("--policy-option", "options", metavar="K=V", type=SETTING, multiple=True, help="Option of the policies.")
@click.option(
    "--restart-cost",
    metavar="TIME",
    type=DURATION,
    help="Seconds that a relaunch costs (default: the measured median).",
)
@click.option(
    "--since",
    metavar="TIME",
    type=TIME_AGO,
    help="Begin here: 7d (ago), 09:00 (today), or '2026-11-23 09:00' (default: the first job).",
)
@click.option("--until", metavar="TIME", type=TIME_AGO, help="End here (default: with the last event of the journal).")
@click.option(
    "--nodes", metavar="NxG", help="Simulate N nodes of the largest kind with G GPUs each, not those of the journal."
)
@click.option("--progress", is_flag=True, help="Write how much is done to standard error, a JSON object a line.")
@json_option
def command(
    journal: str | None,
    export: str | None,
    export_to: str | None,
    policies: tuple[str, ...],
    options: tuple[tuple[str, str], ...],
    restart_cost: float | None,
    since: float | None,
    until: float | None,
    nodes: str | None,
    progress: bool,
    as_json: bool,
) -> None:
    """Simulate a cluster's past under other policies: the jobs of its journal on its nodes, beside what happened.

    Jobs arrive when they did, compute as long as they did, and checkpoint as fast as they did. A job that was there
    before --since arrives then, with what it still computed.
    """
    with simulator_errors():
        from ebbtide_sim.engine import SimulatedWorld
        from ebbtide_sim.replay import STDIN, JournalSpan, read_export, read_journal, reconstruct, write_export
        from ebbtide_sim.simulate import Scenario

        if journal and export:
            raise Failure("--export: is instead of --journal, not beside it", USAGE)
        end = math.inf if until is None else min(until, time.time())  # nothing is known of what is to come
        span = JournalSpan(0.0 if since is None else since, end)
        if span.since >= span.until:
            raise Failure("--since: is not before --until", USAGE)
        path = Path(export or journal or Home.current().root / "journal.db")
        lines = read_export(path) if export else read_journal(path)
        if export_to:
            with replaced(export_to) as target, target.open("w", encoding="utf-8") as out:
                write_export(lines, out)
            return
        if not policies:
            raise Failure("--policy: name at least one to try", USAGE)
        with StatusLine(wanted=not progress) as status:
            show = _show_json if progress else lambda words, done: status.show(words, done=done)
            status.show("reading standard input …" if path == STDIN else f"reading {path} …")
            past = reconstruct(lines, span)
            world = SimulatedWorld(restart_cost_s=past.restart_cost_s if restart_cost is None else restart_cost)
            machines = past.machines(nodes)
            results = [({"policy": "what happened"}, past.live)]
            for number, policy in enumerate(policies):
                scenario = Scenario(
                    workload=past.workload, nodes=machines, policy=policy, options=dict(options), world=world
                )
                share = number / len(policies), 1 / len(policies)
                results.append(({"policy": policy}, _simulated(scenario, show, *share)))
    if as_json:
        print_json(
            {
                "live": past.live.to_json(),
                "simulated": [report.to_json() for _, report in results[1:]],
                "restart_cost_s": world.restart_cost_s,
                "since": past.began,
                "until": past.ended,
                "gpus": [sum(node.gpus for node in each) for each in (past.nodes, machines)],
                "skipped": dict(past.workload.skipped),
                "notes": list(past.workload.notes),
            }
        )
        return
    print_reports(results)
    print_notes(past.workload)


def _simulated(scenario: "Scenario", show: Show, before: float, share: float) -> "Report":
    """Simulate, and show how many of the jobs have come; ``before`` and ``share`` are its part of all, from 0 to 1."""
    from ebbtide_sim.metrics import Metrics
    from ebbtide_sim.simulate import simulate

    metrics, total = Metrics(), max(1, len(scenario.workload.jobs))

    def progress(now: float, events: int) -> None:
        words = f"simulating {scenario.policy}: {format_duration(now)}, {events} events"
        show(words, before + share * min(1.0, len(metrics.tallies) / total))

    show(f"simulating {scenario.policy}", before)
    return simulate(scenario, progress=progress, metrics=metrics)


def _show_json(words: str, done: float) -> None:
    print(json.dumps({"words": words, "done": round(done, 3)}), file=sys.stderr, flush=True)
