"""What is said of nodes that end."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_cli.commands.verb import run
from ebbtide_cli.describing.draining import loan_words
from ebbtide_cli.describing.facts import node_facts
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.verbs import node_leave
from ebbtide_machine.process import Identity
from ebbtide_protos.v1 import agent_pb2, client_pb2

from tests.client.scripted_master import ScriptedMaster


def test_a_node_that_ends_says_when_and_who_lends_it() -> None:
    soon = loan_words(agent_pb2.Loan(until=time.time() + 7205.0, owner="ann\x1b"))
    assert re.fullmatch(r"until (\S+ )?\d\d:\d\d \(in 2 ?h[^)]*\), lent by ann\W?", soon), soon
    far = loan_words(agent_pb2.Loan(until=time.time() + 40 * 86_400.0))
    assert re.fullmatch(r"until \d{4}-\d\d-\d\d \d\d:\d\d \(in [^)]+\)", far), far
    over = loan_words(agent_pb2.Loan(until=time.time() - 5.0))
    assert re.fullmatch(r"ended at (\S+ )?\d\d:\d\d", over), over


def test_the_facts_of_a_node_have_its_end_or_null() -> None:
    ends = client_pb2.Node(name="a", loan=agent_pb2.Loan(until=5.0))
    assert node_facts(ends)["loan"] == {"until": 5.0, "owner": None}
    assert node_facts(client_pb2.Node(name="a"))["loan"] is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["spot7"], "NODE needs either --ends-in or --stay, and no other option"),
        (["spot7", "--ends-in", "5m", "--stay"], "NODE needs either --ends-in or --stay, and no other option"),
        (["spot7", "--ends-in", "5m", "--within", "5m"], "NODE needs either --ends-in or --stay, and no other option"),
        (["--ends-in", "5m", "--stay"], "--ends-in: not together with --stay"),
        (["--json"], "--json and --master need NODE"),
    ],
)
def test_options_of_node_leave_that_do_not_go_together_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(Failure) as failure:
        run(["node", "leave", *words])
    assert (str(failure.value), failure.value.code) == (f"node leave: {says}", USAGE)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--until", "2199-01-01", "--ends-in", "5m"], "--ends-in: not together with --until"),
        (["--until", "2001-01-01"], "--until: that time is over"),
        (["--owner", "ann"], "--owner: needs --until or --ends-in"),
        (["--ends-in", "5m", "--owner", "a\nb"], "--owner: is not a name of at most 64 printable characters"),
    ],
)
def test_an_end_that_no_node_can_have_is_refused_before_the_agent_starts(words: list[str], says: str) -> None:
    with pytest.raises(Failure) as failure:
        run(["agent", *words])
    assert (str(failure.value), failure.value.code) == (f"agent: {says}", USAGE)


@pytest.fixture
def heard(home: Path) -> Iterator[list[int]]:
    """What the agent of node n1 is signalled; this process stands for it."""
    signals = list[int]()
    before = {one: signal.signal(one, lambda one, _: signals.append(one)) for one in (signal.SIGUSR1, signal.SIGUSR2)}
    agent = Identity.of(os.getpid())
    assert agent is not None
    (home / "nodes/n1").mkdir(parents=True)
    (home / "nodes/n1/agent.json").write_text(json.dumps(agent.to_json()))
    yield signals
    for one, handler in before.items():
        signal.signal(one, handler)


def test_what_was_announced_of_a_machine_holds_until_it_is_taken_back(
    home: Path, heard: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_leave, "HEARD_S", 0.0)
    notice = home / "nodes/n1/notice.json"
    run(["node", "leave", "--ends-in", "1h"])
    announced = notice.read_text()
    run(["node", "leave", "--within", "10m"])
    assert notice.read_text() == announced
    run(["node", "leave", "--ends-in", "2h"])
    assert notice.read_text() != announced
    run(["node", "leave", "--stay"])
    assert not notice.exists()
    assert heard == [signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2]


def test_nodes_that_ended_are_counted_and_listed_only_if_that_is_asked_for(master: ScriptedMaster, capsys) -> None:
    master.nodes = [client_pb2.Node(name="a", state="up"), client_pb2.Node(name="b", state="ended")]
    run(["nodes"])
    shown = capsys.readouterr().out
    assert "b  ended" not in shown
    assert shown.endswith("1 node that ended: 'ebb nodes --all'\n")
    run(["nodes", "--all"])
    assert "b  ended" in capsys.readouterr().out
