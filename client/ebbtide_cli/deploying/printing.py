"""Print what happened on each host: a table, or an object for each."""

import sys
from collections.abc import Sequence
from typing import Any, Final

from ebbtide_cli.deploying.deployment import HostReport, Result
from ebbtide_cli.terminal.output import StatusLine
from ebbtide_cli.terminal.text import plural

TITLES: Final = ("HOST", "NODE", "RESULT", "KEPT BY", "WHAT HAPPENED")
KEEPERS: Final = {
    "systemd": "systemd",
    "systemd-user": "systemd of the account",
    "background": "nobody (a background process)",
}
DONE: Final = {
    "send": "sent",
    "install": "installed",
    "join": "joined",
    "start": "started",
    "drain": "drained",
    "remove": "removed",
    "forget": "forgotten",
}


def show_progress(line: StatusLine, reports: Sequence[HostReport]) -> None:
    """Show how many hosts have been worked on, and at which step some of the others are."""
    left = [report for report in reports if report.result is Result.INTERRUPTED]
    busy = [f"{report.host.target}: {report.step}" for report in left if report.step]
    ended = len(reports) - len(left)
    line.show(f"{ended} of {plural(len(reports), 'host')} done;", ", ".join(busy[:4]), done=ended / len(reports))


def report_facts(report: HostReport) -> dict[str, Any]:
    """Return what happened on one host, for ``--json``."""
    failed = report.result in (Result.FAILED, Result.INTERRUPTED)
    return {
        "host": report.host.target,
        "node": report.host.node,
        "result": report.result.value,
        "changes": report.done,
        "kept_by": report.fact("keeper") or None,
        "home": report.fact("home") or None,
        "step": report.step if failed else None,
        "reason": report.why or None,
        "doctor": report.findings,
    }


def print_reports(reports: Sequence[HostReport]) -> None:
    """Print a line for each host."""
    from ebbtide_cli.terminal.drawing import print_table

    rows = []
    for report in reports:
        keeper = KEEPERS.get(report.fact("keeper"), "-")
        rows.append((report.host.target, report.host.node, report.result.value, keeper, _words(report)))
    print_table(TITLES, rows)
    if any(report.fact("keeper") == "background" and report.result is Result.UP for report in reports):
        print("After a reboot, nobody starts an agent that is a background process: run this again.", file=sys.stderr)


def _words(report: HostReport) -> str:
    done = ", ".join(DONE.get(step, step) for step in report.done)
    match report.result:
        case Result.PLANNED:
            return f"would {', '.join(report.done)}" if report.done else "nothing to change"
        case Result.FAILED:
            return "; ".join(filter(None, (done, f"{report.step}: {report.why}")))
        case Result.INTERRUPTED:
            return "; ".join(filter(None, (done, f"interrupted at {report.step}" if report.step else "not begun")))
        case Result.REMOVED:
            return done or "nothing was there"
        case Result.UP | Result.PROBLEM:
            return f"{done or 'nothing to change'}; doctor: {_doctor(report)}"


def _doctor(report: HostReport) -> str:
    if problems := report.problems():
        return "; ".join(f"{finding['check']}: {finding['text']}" for finding in problems)
    warnings = sum(finding["level"] == "warning" for finding in report.findings)
    return f"no problem, {plural(warnings, 'warning')}" if warnings else "no problem"
