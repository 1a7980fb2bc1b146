"""A pilot joins with its invitation, also if the master is away just then."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ebbtide_agent.link.joining import JoinError, MasterAwayError
from ebbtide_cli.errors import INTERRUPTED
from ebbtide_cli.verbs import agent_pilot
from ebbtide_protos.invitation import Invitation, encode

from tests.client.runs import Ebb, Result

Pilot = Callable[..., Result]
AWAY = MasterAwayError("no master at m1:7077: Connection refused")


class Joining:
    """A cluster that answers the tries of a pilot to join with these errors, and lets it join then."""

    def __init__(self, *answers: JoinError) -> None:
        self.answers = list(answers)
        self.tries = 0

    async def join(self, *_: Any) -> None:
        self.tries += 1
        if self.answers:
            raise self.answers.pop(0)


class Clock:
    """Goes on by a minute whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 60.0
        return self.now


@pytest.fixture
def pilot(home: Path, ebb: Ebb, monkeypatch: pytest.MonkeyPatch) -> Pilot:
    """Run a pilot whose agent ends at once, with an invitation to that cluster."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr("ebbtide_agent.main.run", lambda options: 0)
    (home / "loan").write_text(encode(Invitation("m1:7077", "a secret", "a certificate")))
    (home / "loan").chmod(0o600)

    def run(joining: Joining, *options: str) -> Result:
        monkeypatch.setattr("ebbtide_agent.link.joining.join", joining.join)
        return ebb("agent", "pilot", "--name", "n1", "--invitation", str(home / "loan"), *options)

    return run


def test_a_pilot_that_starts_while_the_master_is_away_joins_once_it_is_back_and_says_what_it_waits_for(
    home: Path, pilot: Pilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_pilot, "AGAIN_S", 0.0)
    joining = Joining(AWAY, AWAY)
    monkeypatch.setattr(agent_pilot, "time", Clock())
    done = pilot(joining)
    assert (done.code, joining.tries, (home / "loan").exists()) == (0, 3, False)
    assert done.complaint == f"agent pilot: {AWAY}; it tries again for 9m"


def test_a_pilot_that_hears_something_else_says_for_how_long_it_still_tries(
    pilot: Pilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_pilot, "AGAIN_S", 0.0)
    monkeypatch.setattr(agent_pilot, "time", Clock())
    lines = pilot(Joining(AWAY, AWAY, MasterAwayError("it is not well"))).err.splitlines()
    assert [line.rpartition("; ")[2] for line in lines] == ["it tries again for 9m", "it tries again for 7m"]


def test_a_pilot_that_is_asked_to_end_while_it_tries_to_join_ends(
    home: Path, pilot: Pilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(Joining):
        async def join(self, *_: Any) -> None:
            self.tries += 1
            os.kill(os.getpid(), signal.SIGTERM)
            raise AWAY

    def missed(*_: object) -> None:
        pytest.fail("SIGTERM is left to its default, which the first process of a container never feels")

    before = signal.signal(signal.SIGTERM, missed)
    try:
        joining = Ended()
        done = pilot(joining)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (done.code, joining.tries, (home / "loan").exists()) == (INTERRUPTED, 1, True)


@pytest.mark.parametrize(
    ("answer", "options"),
    [(AWAY, ("--ends-in", "4s")), (JoinError("the invitation was used"), ())],
    ids=["its node ends before the next try", "the master refuses it"],
)
def test_a_pilot_that_cannot_join_any_more_ends(
    home: Path, pilot: Pilot, answer: JoinError, options: tuple[str, ...]
) -> None:
    joining = Joining(answer)
    done = pilot(joining, *options)
    assert (done.code, joining.tries, (home / "loan").exists()) == (1, 1, True)
    assert done.complaint == f"agent pilot: {answer}"
