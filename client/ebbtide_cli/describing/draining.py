"""Describe nodes that are taken out of service, or that end, in words."""

import time

from ebbtide_protos.v1 import agent_pb2, client_pb2

from ebbtide_cli.describing.facts import node_facts, prospect_facts
from ebbtide_cli.terminal.output import print_json
from ebbtide_cli.terminal.text import printable
from ebbtide_cli.values import format_duration


def drain_words(node: client_pb2.Node) -> str:
    """Say since when a node is out of service, who drained it and why, and by when its jobs must have left."""
    drain, now = node.drain, time.time()
    by = f" by {printable(drain.user)}" if drain.user else ""
    why = f": {printable(drain.reason)}" if drain.reason else ""
    words = f"out of service for {format_duration(max(0.0, now - drain.since))}{by}{why}"
    if not drain.HasField("deadline"):
        return words
    left = drain.deadline - now
    end = "ends jobs that stay" if drain.force else "deadline"
    return f"{words}; {end} in {format_duration(left)}" if left > 0 else f"{words}; its deadline has passed"


def loan_words(loan: agent_pb2.Loan) -> str:
    """Say when a node that ends is gone, and who lends it."""
    now, owner = time.time(), f", lent by {printable(loan.owner)}" if loan.owner else ""
    today = time.localtime(loan.until)[:3] == time.localtime(now)[:3]
    clock = time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", time.localtime(loan.until))
    left_s = loan.until - now
    when = f"until {clock} (in {format_duration(left_s)})" if left_s > 0 else f"ended at {clock}"
    return f"{when}{owner}"


def prospect_words(job: client_pb2.NodeJob) -> str:
    """Say what becomes of a job on a node that is drained or ends."""
    name = printable(f"{job.name}, {job.user}" if job.name else job.user)
    left = job.at - time.time() if job.HasField("at") else 0.0
    when = f", in {format_duration(left)}" if left >= 1.0 else ", now" if job.HasField("at") else ""
    return f"job {job.job_id} ({name}) {job.text}{when}"


def print_node_json(reply: client_pb2.NodeReply) -> None:
    """Print a node and the jobs on it as JSON."""
    print_json({"node": node_facts(reply.node), "jobs": [prospect_facts(job) for job in reply.jobs]})
