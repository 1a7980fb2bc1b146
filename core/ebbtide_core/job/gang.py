"""Derives the state of an attempt on several nodes, a gang, from the reports of its members.

The part on the first node is launched alone. Once it runs, that node has chosen where the ranks meet, and the others
are launched. A node that was not launched has nothing to end. The attempt is over when every member has ended, and free
when every member is free.
"""

from dataclasses import replace

from ebbtide_core.events import AttemptExited, AttemptRefused, AttemptStarted
from ebbtide_core.job.facets import Gang, GangMember
from ebbtide_core.job.job import Attempt
from ebbtide_core.job.outcome import describe_exit
from ebbtide_core.model import limits
from ebbtide_core.model.types import Checkpointed, ExitFacts, NodeId, RefusalCause


def of(attempt: Attempt) -> Gang:
    """Return the gang that ``attempt``, which is on several nodes, is."""
    assert attempt.gang is not None, f"attempt {attempt.number} has no parts of its own on its nodes"
    return attempt.gang


def note_launch(attempt: Attempt) -> None:
    """Note that the part on the first node is launched."""
    attempt.gang = Gang({attempt.allocation.nodes[0].node: GangMember()})


def note_start(attempt: Attempt, event: AttemptStarted) -> bool:
    """Note that one member runs; return whether all members run now.

    When the first member runs, the others count as launched, unless the attempt was asked to stop.
    """
    gang = of(attempt)
    gang.members[event.node].started = True
    if event.node == attempt.allocation.node_ids[0]:
        attempt.pid, attempt.resumed_step, gang.port = event.pid, event.resumed_step, event.port
        if attempt.stop is None:
            for node in attempt.allocation.node_ids[1:]:
                gang.members[node] = GangMember()
    members = gang.members.values()
    return len(members) == len(attempt.allocation.nodes) and all(member.started for member in members)


def note_end(attempt: Attempt, event: AttemptExited | AttemptRefused, now: float) -> None:
    """Note that one member has ended; if it failed and was not asked to stop, note that it broke up the gang.

    A node that was dead before its part was launched becomes a member that has ended.
    """
    gang = of(attempt)
    member = gang.members.setdefault(event.node, GangMember())
    member.ended = now
    if isinstance(event, AttemptRefused):
        member.refusal, member.freed = event, True
    else:
        member.exit, member.freed = event.exit, event.freed
    if attempt.stop is None and gang.broken_by is None and not _ended_well(member):
        gang.broken_by = event.node


def is_over(attempt: Attempt) -> bool:
    """Return whether every member has ended."""
    return all(member.ended is not None for member in of(attempt).members.values())


def is_free(attempt: Attempt) -> bool:
    """Return whether the resources of every member are proven free."""
    return all(member.freed for member in of(attempt).members.values())


def refusal(attempt: Attempt) -> AttemptRefused | None:
    """Return the refusal that ended the attempt; None if none did.

    A part that was asked to stop before it ran says nothing where another one ran.
    """
    members = of(attempt).members.values()
    refusals = [member.refusal for member in members if member.refusal is not None]
    ran = any(member.exit is not None for member in members)
    return next((one for one in refusals if not ran or one.cause is not RefusalCause.STOPPED), None)


def exit_of(attempt: Attempt) -> ExitFacts:
    """Return how the attempt ended: as the member that broke it up, else as the first, with the evidence of all.

    The members save together: one that was asked to stop, was killed, or wrote a checkpoint, stands for all.
    """
    gang = of(attempt)
    exits = [member.exit for member in gang.members.values() if member.exit is not None]
    breaker = gang.members[gang.broken_by].exit if gang.broken_by is not None else None
    out_of_memory = any(exit.out_of_memory for exit in exits)
    if breaker is not None:
        return replace(breaker, out_of_memory=True) if out_of_memory else breaker
    saved = {exit.checkpointed for exit in exits}
    return replace(
        exits[0],
        stop_requested=any(exit.stop_requested for exit in exits),
        killed=any(exit.killed for exit in exits),
        checkpointed=_best(saved),
        checkpoint_s=max(exit.checkpoint_s for exit in exits),
        gpu_mem_peak_bytes=max((exit.gpu_mem_peak_bytes for exit in exits if exit.gpu_mem_peak_bytes), default=None),
        out_of_memory=out_of_memory,
        memory_failure=next((exit.memory_failure for exit in exits if exit.memory_failure), ""),
        clues=tuple(dict.fromkeys(clue for exit in exits for clue in exit.clues)),
    )


def _best(found: set[Checkpointed]) -> Checkpointed:
    for value in (Checkpointed.YES, Checkpointed.UNKNOWN):
        if value in found:
            return value
    return Checkpointed.NO


def why_broken(attempt: Attempt) -> str:
    """Return which node broke up the attempt, and how, in words."""
    gang = of(attempt)
    node = gang.broken_by
    assert node is not None
    member = gang.members[node]
    if member.refusal is not None:
        return f"node {node} did not start its part: {member.refusal.reason}"
    assert member.exit is not None
    what = "its part is gone" if member.exit.lost else f"failed with {describe_exit(member.exit)}"
    return f"node {node}: {what}; the other nodes are stopped"


def followed_late(attempt: Attempt, now: float) -> bool:
    """Return whether the first member ended so long ago (`limits.GANG_FOLLOW_S`) that the others are late."""
    first = None if attempt.gang is None else attempt.gang.members.get(attempt.allocation.node_ids[0])
    return first is not None and first.ended is not None and now >= first.ended + limits.GANG_FOLLOW_S


def leader_ended_well(attempt: Attempt) -> bool:
    """Return whether the first member ended by itself, with success."""
    first = of(attempt).members[attempt.allocation.node_ids[0]]
    return first.ended is not None and _ended_well(first)


def _ended_well(member: GangMember) -> bool:
    exit = member.exit
    return exit is not None and not exit.lost and exit.exit_code == 0 and exit.signal == 0


# --- one node's part of any attempt ---


def has_started(attempt: Attempt, node: NodeId) -> bool:
    """Return whether ``node`` reported that its part runs, or ran."""
    member = None if attempt.gang is None else attempt.gang.members.get(node)
    return attempt.first_started is not None or (member is not None and member.started)


def has_ended(attempt: Attempt, node: NodeId) -> bool:
    """Return whether no process of the attempt is left on ``node``; true where no part was launched."""
    if attempt.end is not None:
        return True
    if attempt.gang is None:
        return False
    member = attempt.gang.members.get(node)
    return member is None or member.ended is not None


def is_to_follow(attempt: Attempt, node: NodeId) -> bool:
    """Return whether the part on ``node`` is to be launched once the first node runs."""
    if attempt.gang is None or attempt.end is not None or attempt.stop is not None:
        return False
    return node in attempt.allocation.node_ids and node not in attempt.gang.members


def has_freed(attempt: Attempt, node: NodeId) -> bool:
    """Return whether what the attempt held on ``node`` is proven free; true where no part was launched."""
    if attempt.freed is not None:
        return True
    if attempt.gang is None:
        return False
    member = attempt.gang.members.get(node)
    return member is None or member.freed
