"""``ebb replay``: simulate the jobs of a live cluster under other policies."""

from pathlib import Path

import click

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.output import StatusLine, print_json
from ebbtide_cli.verb import DURATION, SETTING, examples, json_option
from ebbtide_cli.verbs.simulate import print_notes, print_reports, simulator_errors
from ebbtide_cli.writing import replaced


@click.command(
    epilog=examples(
        "ebb replay --policy fifo --policy malleable-equipartition",
        "ebb replay --export-to last-week.jsonl",
        "ebb replay --export last-week.jsonl --policy fitgpp --policy-option s=8 --json",
    )
)
@click.option(
    "--journal", metavar="FILE", help="Journal of a master, which is only read (default: the one in EBB_HOME)."
)
@click.option("--export", metavar="FILE", help="File that --export-to wrote, instead of a journal.")
@click.option("--export-to", metavar="FILE", help="Write the journal to this file as JSON lines, without a simulation.")
@click.option("--policy", "policies", metavar="NAME", multiple=True, help="Policy to simulate; may be repeated.")
@click.option("--policy-option", "options", metavar="K=V", type=SETTING, multiple=True, help="Option of the policies.")
@click.option(
    "--restart-cost",
    metavar="TIME",
    type=DURATION,
    help="Seconds that a relaunch costs (default: the measured median).",
)
@json_option
def command(
    journal: str | None,
    export: str | None,
    export_to: str | None,
    policies: tuple[str, ...],
    options: tuple[tuple[str, str], ...],
    restart_cost: float | None,
    as_json: bool,
) -> None:
    """Simulate a cluster's past under other policies: the jobs of its journal on its nodes, beside what happened.

    Jobs arrive when they did, compute as long as they did, and checkpoint as fast as they did.
    """
    with simulator_errors():
        from ebbtide_sim.engine import SimulatedWorld
        from ebbtide_sim.replay import read_export, read_journal, reconstruct, write_export
        from ebbtide_sim.simulate import Scenario, simulate

        if journal and export:
            raise Failure("--export: is instead of --journal, not beside it", USAGE)
        path = Path(export or journal or Home.current().root / "journal.db")
        lines = read_export(path) if export else read_journal(path)
        if export_to:
            with replaced(export_to) as target, target.open("w", encoding="utf-8") as out:
                write_export(lines, out)
            return
        if not policies:
            raise Failure("--policy: name at least one to try", USAGE)
        with StatusLine() as status:
            status.show(f"reading {path} …")
            past = reconstruct(lines)
            world = SimulatedWorld(restart_cost_s=past.restart_cost_s if restart_cost is None else restart_cost)
            results = [({"policy": "what happened"}, past.live)]
            for number, policy in enumerate(policies):
                status.show(f"simulating {policy}", done=number / len(policies))
                scenario = Scenario(
                    workload=past.workload, nodes=past.nodes, policy=policy, options=dict(options), world=world
                )
                results.append(({"policy": policy}, simulate(scenario)))
    if as_json:
        simulated = [report.to_json() for _, report in results[1:]]
        print_json({"live": past.live.to_json(), "simulated": simulated, "restart_cost_s": world.restart_cost_s})
        return
    print_reports(results)
    print_notes(past.workload)
