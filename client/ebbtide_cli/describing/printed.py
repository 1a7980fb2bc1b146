"""Describe a job's snapshot and what is done with its output, for ``--json`` and ``ebb show``."""

from collections.abc import Iterator
from typing import Any, Final

from ebbtide_protos.v1 import job_pb2

from ebbtide_cli.values import format_size

LOG_ACTIONS: Final = {
    job_pb2.LOG_ACTION_IGNORE: "ignore",
    job_pb2.LOG_ACTION_NOTIFY: "notify",
    job_pb2.LOG_ACTION_NO_RETRY: "no-retry",
    job_pb2.LOG_ACTION_EXCLUDE_GPU: "exclude-gpu",
    job_pb2.LOG_ACTION_EXCLUDE_NODE: "exclude-node",
}


def printed_facts(spec: job_pb2.JobSpec) -> dict[str, Any]:
    """Return the facts on the snapshot and the output in a job's request."""
    rules = [{"pattern": rule.pattern, "action": LOG_ACTIONS.get(rule.action, "")} for rule in spec.log_rules]
    notify = [{"events": list(rule.moments), "target": rule.target} for rule in spec.notify]
    held = {"digest": spec.snapshot.digest, "bytes": spec.snapshot.bytes} if spec.HasField("snapshot") else None
    return {
        "snapshot": held,
        "output": spec.output or None,
        "prefix_ranks": spec.prefix_ranks,
        "log_rules": rules,
        "notify": notify,
    }


def printed_words(spec: job_pb2.JobSpec) -> Iterator[tuple[str, str]]:
    """Yield the same facts in words, each with its title."""
    if spec.HasField("snapshot"):
        yield "snapshot", f"{spec.snapshot.digest[:12]}, {format_size(spec.snapshot.bytes)} as it was at submit"
    yield "output", spec.output
    for rule in spec.log_rules:
        yield "on log", f"{rule.pattern}: {LOG_ACTIONS.get(rule.action, '')}"
    for notice in spec.notify:
        yield "notify", f"{notice.target} when {', '.join(notice.moments)}"
