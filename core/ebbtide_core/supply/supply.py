"""Decides how many nodes a supply borrows from another scheduler, and keeps what became of each loan.

A loan is one job of the lender, in which a pilot runs: an agent that gives its node back by itself. So the supply only
asks for loans and calls off those that wait in vain. What lender and master say comes in by `NodeSupply.hear`; what is
to be asked of the lender comes out of `NodeSupply.decide`. Nothing here asks anybody.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ebbtide_core.model.frozen import frozen

SUPPLY_LABEL: Final = "supply"
"""Label of each node that a supply has borrowed; its value is the supply's name."""
MOST_NODES: Final = 256
"""The most nodes of one supply."""
BETWEEN_LOANS_S: Final = 5.0
"""Seconds between two requests for a loan."""
KNOWN_S: Final = 90.0
"""Seconds within which the lender lists a loan that was asked for; it is asked every half a minute."""
STARTS_S: Final = 300.0
"""Seconds within which the agent of a loan that the lender has started is attached to the master."""
SILENT_S: Final = 600.0
"""Seconds after which a loan is given back whose node was up and is silent, while the lender says that it runs."""
LEFT_S: Final = 30.0
"""Seconds after which a loan is given back whose node has left, while the lender says that it runs."""
NOT_NEEDED_S: Final = 60.0
"""Seconds after which a loan that the lender has not started, and that nobody needs any more, is called off."""
SETTLES_S: Final = 15.0
"""Seconds after which the lender is believed that a loan has ended: if it is killed and starts again, it goes on with
what it had saved, and may list the loan once more. A slurmctld saves within 5 s."""
AGAIN_S: Final = 60.0
"""Seconds after which the lender is asked again to end a loan that has not ended."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 1800.0
REMEMBERED: Final = 50
"""Ended loans that are kept to be shown, beside those whose nodes the master still lists."""
_FORGOTTEN: Final = "forgotten"
"""The description of loans that say nothing about others any more; no mark is like it."""


class LoanPhase(Enum):
    """How far a loan is."""

    ASKED = "asked"  # it is to be asked for, or was; whether the lender has heard of it is not known
    QUEUED = "queued"
    STARTING = "starting"  # the lender has started it, and its agent is not attached yet
    UP = "up"
    SILENT = "silent"  # it was up, and its agent is not attached any more
    ENDED = "ended"


class LenderState(Enum):
    """What the lender says of a loan."""

    WAITS = "waits"
    NEVER_STARTS = "never starts"  # it waits for something that cannot happen
    RUNS = "runs"
    OVER = "over"


@frozen
class LenderFacts:
    """A loan as the lender sees it: its job there, and why it waits or how it ended, in words.

    ``until`` is when it ends, in Unix seconds. With ``proves_death``, no process of it can be left.
    """

    state: LenderState
    job: str
    reason: str = ""
    until: float | None = None
    proves_death: bool = False


@frozen
class SupplySettings:
    """How much is borrowed: up to ``max_nodes`` at a time, and ``min_nodes`` even if nobody waits.

    ``backlog`` is how many loans may wait for the lender at a time.
    """

    max_nodes: int
    min_nodes: int = 0
    backlog: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.max_nodes <= MOST_NODES:
            raise ValueError(f"max_nodes: is not between 1 and {MOST_NODES}")
        if not 0 <= self.min_nodes <= self.max_nodes:
            raise ValueError(f"min_nodes: is not between 0 and max_nodes, {self.max_nodes}")
        if self.backlog < 1:
            raise ValueError("backlog: is not at least 1")


@dataclass(slots=True)
class BorrowedNode:
    """One loan; ``id`` is its name with the lender, and that of its node.

    It is in its phase since Unix time ``since``. ``job`` is the lender's name for it, empty until that is known;
    ``reason`` says why it waits or how it ended. A ``kept`` one is not given back when it is idle; an ``added`` one was
    asked for by a user. ``called_off`` says why the lender is to end it, as it was asked at ``called_at``. ``proved``
    says that no process of it is left, ``invited`` that an invitation was made for its node, and ``listed`` that the
    lender has listed it since it was asked for. It has ``settled`` once the lender was asked again, `SETTLES_S` or more
    after it ended. It is ``alone`` if the master was away when the lender perhaps started it: its pilot
    may have given up. ``described`` is what `NodeSupply.described` was when it was asked for. It is ``poor`` if nobody
    ever saw its node with all that was asked for; None: nobody has looked.
    """

    id: str
    asked_at: float
    since: float
    kept: bool = False
    added: bool = False
    phase: LoanPhase = LoanPhase.ASKED
    job: str = ""
    reason: str = ""
    until: float | None = None
    was_up: bool = False
    called_off: str = ""
    called_at: float = 0.0
    proved: bool = False
    invited: bool = False
    listed: bool = False
    settled: bool = False
    alone: bool = False
    described: str = ""
    poor: bool | None = None

    @property
    def may_come_back(self) -> bool:
        """Whether it has ended, and the lender may yet list it again."""
        return self.is_over and self.listed and not self.settled

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.phase is LoanPhase.ENDED

    @property
    def comes(self) -> bool:
        """Whether its node is still to come."""
        return self.phase in (LoanPhase.ASKED, LoanPhase.QUEUED, LoanPhase.STARTING) and not self.called_off

    @property
    def waits(self) -> bool:
        """Whether the lender has not started it."""
        return self.phase in (LoanPhase.ASKED, LoanPhase.QUEUED)

    def enter(self, phase: LoanPhase, now: float, reason: str = "") -> None:
        """Note that it is in ``phase`` from now on, and why."""
        if phase is not self.phase:
            self.phase, self.since = phase, now
        self.reason = reason


@frozen
class AskForLoan:
    """Ask the lender for this loan."""

    id: str


@frozen
class CallOff:
    """Ask the lender to end this loan."""

    id: str


Action = AskForLoan | CallOff


@dataclass(slots=True)
class NodeSupply:
    """The loans of one supply, by id, and whether it asks for more.

    After ``failures`` in a row it asks for none until Unix time ``not_before``, because of ``trouble``.
    """

    name: str
    settings: SupplySettings
    loans: dict[str, BorrowedNode] = field(default_factory=dict)
    paused: bool = False
    wanted: int = 0
    """Nodes that a user asked for and that were not asked of the lender yet; no more than there is room for."""
    number: int = 0
    failures: int = 0
    not_before: float = 0.0
    trouble: str = ""
    asked_at: float = 0.0
    looked_at: float = 0.0
    """When the lender was asked about all loans last."""
    needed_at: float = 0.0
    granted: list[str] = field(default_factory=list)
    """The names of the wishes of users that were granted last."""
    failed_at: float = float("-inf")
    described: str = ""
    """A mark of how the nodes that are asked for are described."""
    known: dict[str, object] = field(default_factory=dict)
    """What the `newest` node of that description has, as whoever asks wrote it; empty until there is one."""

    def describe(self, mark: str) -> None:
        """Take in how nodes are described from now on; what is known of others counts no more."""
        for loan in self.loans.values():  # an older supplier did not say how it described its loans
            loan.described = loan.described or self.described or mark
        if mark != self.described:
            self.described, self.known = mark, {}

    def newest(self, up: Collection[str]) -> BorrowedNode | None:
        """Return the newest loan of that description whose node is ``up`` and shows what others have; None if none.

        A poor one may be an exception: it counts only if the last one that came up before it was poor, too.
        """
        found, after_poor = None, False
        for loan in self.loans.values():
            if loan.described == self.described and (loan.id in up or loan.poor is not None):
                if loan.id in up and (after_poor or not loan.poor):
                    found = loan
                after_poor = bool(loan.poor)
        return found

    def resume(self) -> None:
        """Ask for loans again, also after failures; what poor nodes had that came until now counts no more."""
        self.paused = False
        self.failures, self.not_before, self.trouble = 0, 0.0, ""
        seen = [loan for loan in self.loans.values() if loan.described == self.described and loan.poor is not None]
        if all(loan.poor for loan in seen[-2:]):
            self.known = {}
        for loan in seen:
            if loan.poor:
                loan.described = _FORGOTTEN

    def unfinished(self) -> list[BorrowedNode]:
        """Return the loans that have not ended, the oldest first."""
        return [loan for loan in self.loans.values() if not loan.is_over]

    def room(self) -> int:
        """Return how many more loans there may be."""
        return max(0, self.settings.max_nodes - len(self.unfinished()))

    # --- what was heard ---

    def hear(
        self,
        lender: Mapping[str, LenderFacts],
        up: Collection[str] | None,
        now: float,
        silent: Collection[str] = (),
        listed: Collection[str] = (),
    ) -> None:
        """Take in what the lender says of its loans, and the master of their nodes.

        ``up`` are the nodes that are attached to the master, None if it is away; ``silent`` those that it waits for.
        One that was up and is neither has left. ``listed`` are all that the master knows: each was up at some time.
        """
        there = None if up is None else {*up, *silent}
        for id, facts in lender.items():
            if facts.state is not LenderState.OVER:
                self._find(id, there is not None and id not in there, now)
        if up is None:
            self._wait_for_master(now)
        self._see_listed(listed, now)
        for loan in self.unfinished():
            self._hear_of(loan, lender.get(loan.id), there is not None and loan.id not in there, now)
        for loan in self.loans.values():
            loan.settled = loan.is_over and (loan.settled or not 0.0 <= now - loan.since < SETTLES_S)
        if up is not None:
            self.see_up(up, now)
            self._miss(up, now)
            for loan in self.unfinished():
                loan.alone = loan.alone and not loan.waits

    def forget(self, listed: Collection[str] = ()) -> None:
        """Forget the oldest loans that have ended, but none that may come back or whose node the master lists."""
        ended = [loan for loan in self.loans.values() if loan.is_over and not loan.may_come_back]
        over = [loan.id for loan in ended if loan.id not in listed]
        for id in over[: max(0, len(over) - REMEMBERED)]:
            del self.loans[id]

    def _find(self, id: str, is_gone: bool, now: float) -> None:
        """Take a loan back that the lender has, and that was taken for ended.

        A lender that was restored from what it had saved before lists loans that have ended; no node comes of those.
        """
        loan = self.loans.get(id)
        if loan is None or not loan.is_over:
            return
        if not loan.called_off:
            if loan.was_up and is_gone:
                loan.called_off = "it had ended, and the lender has it again"
            elif not self.room():
                loan.called_off = f"there are {self.settings.max_nodes} others"
        loan.phase, loan.since, loan.proved, loan.called_at = LoanPhase.ASKED, now, False, 0.0

    def see_up(self, up: Collection[str], now: float) -> None:
        """Take in which nodes are attached to the master."""
        for loan in self.unfinished():
            if loan.id in up and loan.phase is not LoanPhase.UP:
                loan.enter(LoanPhase.UP, now)
                self._note_up(loan)

    def _note_up(self, loan: BorrowedNode) -> None:
        loan.was_up = True
        self.failures, self.not_before, self.trouble = 0, 0.0, ""

    def _see_listed(self, listed: Collection[str], now: float) -> None:
        """Note which nodes were attached to the master at a time when nobody looked."""
        for loan in self.unfinished():
            if loan.id in listed and not loan.was_up:
                loan.enter(LoanPhase.SILENT, now)
                self._note_up(loan)

    def _miss(self, up: Collection[str], now: float) -> None:
        """Note which nodes were attached to the master and are not any more."""
        for loan in self.unfinished():
            if loan.phase is LoanPhase.UP and loan.id not in up:
                loan.enter(LoanPhase.SILENT, now)

    def _wait_for_master(self, now: float) -> None:
        """Begin anew to count how long nodes are silent, or do not come up, because nobody hears them."""
        for loan in self.unfinished():
            if loan.phase in (LoanPhase.SILENT, LoanPhase.STARTING):
                loan.since = now
            loan.alone = loan.alone or loan.waits

    def _hear_of(self, loan: BorrowedNode, facts: LenderFacts | None, has_left: bool, now: float) -> None:
        if facts is None:
            if loan.listed:
                self._end(loan, "the lender does not know it any more", now)
            elif now - loan.since > KNOWN_S:
                self._end(loan, "the lender never had it", now)
            return
        loan.listed, loan.job, loan.until = True, facts.job, facts.until
        match facts.state:
            case LenderState.WAITS:
                loan.enter(LoanPhase.QUEUED, now, facts.reason)
            case LenderState.NEVER_STARTS:
                loan.enter(LoanPhase.QUEUED, now, facts.reason)
                self._give_up(loan, f"it would never start: {facts.reason}", now)
            case LenderState.RUNS if loan.phase is LoanPhase.UP:
                pass
            case LenderState.RUNS if loan.phase is LoanPhase.SILENT:
                if not loan.called_off and now - loan.since > (LEFT_S if has_left else SILENT_S):
                    loan.called_off = "its node has left" if has_left else f"its node was silent for {SILENT_S:g} s"
            case LenderState.RUNS:
                loan.enter(LoanPhase.STARTING, now, facts.reason)
                if now - loan.since > STARTS_S:
                    self._give_up(loan, f"no agent after {STARTS_S:g} s", now)
            case LenderState.OVER:
                loan.proved = facts.proves_death
                self._end(loan, facts.reason, now)

    def heard_job(self, id: str, job: str, now: float) -> None:
        """Take in that the lender has taken a loan, as its job ``job``."""
        loan = self.loans[id]
        loan.job = job
        loan.enter(LoanPhase.QUEUED, now)

    def unanswered(self, why: str, now: float) -> None:
        """Take in that the lender has not answered a request for a loan, which it has perhaps taken."""
        self._fail(why, now)

    def refused(self, id: str, why: str, now: float) -> None:
        """Take in that the lender has refused a loan."""
        self._end(self.loans[id], why, now)

    def not_asked(self, id: str, why: str, now: float) -> None:
        """Take in that a loan could not be asked for, because the master was away; that is no failure of it."""
        loan = self.loans[id]
        self.wanted += loan.added
        loan.enter(LoanPhase.ENDED, now, why)

    def _end(self, loan: BorrowedNode, why: str, now: float) -> None:
        if not (loan.was_up or loan.alone or loan.called_off):
            self._fail(why, now)
        loan.enter(LoanPhase.ENDED, now, loan.called_off or why)

    def _give_up(self, loan: BorrowedNode, why: str, now: float) -> None:
        if not loan.called_off:
            loan.called_off = why
            self._fail(why, now)

    def _fail(self, why: str, now: float) -> None:
        """Count a failure; several that are found at one time count as one."""
        if now == self.failed_at:
            return
        self.failed_at = now
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(self.failures, 20), LONGEST_PAUSE_S)
        self.failures += 1
        self.not_before, self.trouble = now + pause_s, why

    # --- what users want ---

    def release(self, id: str, why: str) -> None:
        """Call off a loan. Raises KeyError if there is none of that name that has not ended."""
        loan = self.loans[id]
        if loan.is_over:
            raise KeyError(id)
        loan.called_off = why

    # --- what follows ---

    def decide(self, demand: int | None, now: float, *, away: bool = False) -> Iterator[Action]:
        """Yield what is to be asked of the lender, if ``demand`` more nodes are needed; None: that is not known.

        No loan is asked for while the master is ``away``, as no node could join it.
        """
        coming = [loan for loan in self.unfinished() if loan.comes and not loan.added]
        self.wanted = min(self.wanted, self.room())
        if demand is None or demand >= len(coming):
            self.needed_at = now
        elif now - self.needed_at >= NOT_NEEDED_S:
            idle = [loan for loan in coming if loan.waits and not loan.kept]
            for loan in idle[::-1][: len(coming) - demand]:
                loan.called_off = "nobody needs it any more"
        for loan in self.unfinished():
            if loan.called_off and loan.job and not 0.0 <= now - loan.called_at < AGAIN_S:
                loan.called_at = now
                yield CallOff(loan.id)
        if not away and (asked := self._next_loan((demand or 0) > len(coming), now)) is not None:
            yield AskForLoan(asked.id)

    def _next_loan(self, is_short: bool, now: float) -> BorrowedNode | None:
        """Return a new loan that is to be asked for; None if none is now.

        Those that are kept come first, then those that a user adds, then those that jobs need.
        """
        there = [loan for loan in self.unfinished() if not loan.called_off]
        waiting = sum(loan.waits for loan in there)
        taken = sum(loan.may_come_back for loan in self.loans.values())
        if self.room() <= taken or waiting >= self.settings.backlog or self._pauses(now):
            return None
        kept = not self.paused and sum(loan.kept for loan in there) < self.settings.min_nodes
        added = not kept and self.wanted > 0
        if not (kept or added or (is_short and not self.paused)):
            return None
        self.number += 1
        self.asked_at = now
        self.wanted -= added
        loan = BorrowedNode(f"{self.name}-{self.number}", now, now, kept=kept, added=added, described=self.described)
        self.loans[loan.id] = loan
        return loan

    def _pauses(self, now: float) -> bool:
        """Return whether none is asked for yet; a time that is too far ahead is of before the clock was set back."""
        return now < self.not_before <= now + LONGEST_PAUSE_S or 0.0 <= now - self.asked_at < BETWEEN_LOANS_S
