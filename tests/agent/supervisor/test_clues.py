"""What a request to leave shows of why a job did not save, by real processes."""

import sys

import pytest
from ebbtide_agent.processes.launchers import ProcessKind
from ebbtide_agent.processes.stop_propagation import LiveProcess, Reaction, StopStep
from ebbtide_agent.supervisor.clues import WireClue, of_killing, of_request
from ebbtide_protos.v1 import agent_pb2, job_pb2

CATCHES = """
import os, signal, sys, time
signal.signal(signal.Signals[sys.argv[1]], lambda *_: os._exit(int(sys.argv[2])))
print("up", flush=True)
while True:
    time.sleep(0.05)
"""
# Catches the signal and computes on, without a word to the script below it.
KEEPS_IT = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: None)
child = subprocess.Popen([sys.executable, "-S", "-c", *sys.argv[1:]])
while child.poll() is None:
    pass
"""
HANDLER = Reaction.HANDLER


def python(code, *arguments):
    return [sys.executable, "-S", "-c", code, *arguments]


@pytest.mark.parametrize(
    ("command", "options", "clues"),
    [
        (python(CATCHES, "SIGUSR1", "85"), {}, [agent_pb2.CLUE_CATCHES_USR1]),
        (python(CATCHES, "SIGTERM", "85"), {"signal": "SIGUSR1"}, [agent_pb2.CLUE_CATCHES_TERM]),
        (python(CATCHES, "SIGTERM", "85"), {}, []),
        (python("print('up', flush=True); import time; time.sleep(600)"), {}, []),
        (python(KEEPS_IT, CATCHES, "SIGTERM", "85"), {}, [agent_pb2.CLUE_NOT_ASKED]),
        (
            ["bash", "-c", 'trap : TERM; "$@"; while :; do :; done', "bash", *python(CATCHES, "SIGTERM", "85")],
            {"signal_target": job_pb2.SIGNAL_TARGET_LEADER},
            [agent_pb2.CLUE_NOT_ASKED],
        ),
    ],
    ids=["another signal", "the usual signal", "handled", "none", "kept above", "only the leader is told"],
)
async def test_what_stands_in_the_way_is_seen(agent, command, options, clues):
    async with agent() as node:
        await node.launch(command, **options)
        await node.running(line="up")
        grace_s = 2.0 if clues == [agent_pb2.CLUE_NOT_ASKED] else 30.0
        assert list((await node.stop(grace_s)).exit.clues) == clues


def test_who_is_asked_below_a_launcher_is_hidden_by_it():
    tree = {
        1: LiveProcess(1, 0, kind=ProcessKind.LAUNCHER, reaction=HANDLER),
        2: LiveProcess(2, 1, reaction=HANDLER),
        3: LiveProcess(3, 0, reaction=HANDLER),
    }
    assert list(of_request(tree, StopStep(signal=(2,), handlers=(2,)), 15)) == [WireClue.LAUNCHER]
    assert list(of_request(tree, StopStep(signal=(3,), handlers=(3,)), 15)) == []
    assert list(of_request(tree, StopStep(tell=(2,), handlers=(2,)), 15)) == []


def test_a_launcher_that_alone_catches_the_signal_hides_how_those_below_it_end():
    tree = {1: LiveProcess(1, 0, kind=ProcessKind.LAUNCHER, reaction=HANDLER), 2: LiveProcess(2, 1)}
    assert list(of_request(tree, StopStep(signal=(1,), handlers=(1,)), 15)) == [WireClue.LAUNCHER]
    assert list(of_request(tree, StopStep(signal=(1, 2)), 15)) == []


def test_data_loaders_that_are_signalled_below_who_could_save_are_seen():
    tree = {1: LiveProcess(1, 0, reaction=HANDLER), 2: LiveProcess(2, 1, kind=ProcessKind.WORKER)}
    assert list(of_request(tree, StopStep(signal=(1, 2), handlers=(1,)), 15)) == [WireClue.WORKERS_SIGNALLED]
    assert list(of_request(tree, StopStep(signal=(1,), handlers=(1,)), 15)) == []


def test_a_copy_of_who_was_asked_was_not_left_out():
    asked, copy = LiveProcess(1, 0, reaction=HANDLER, image=(7,)), LiveProcess(2, 1, reaction=HANDLER, image=(7,))
    other = LiveProcess(3, 1, reaction=HANDLER, image=(8,))
    assert list(of_killing({1: asked, 2: copy}, [1])) == []
    assert list(of_killing({1: asked, 3: other}, [1])) == [WireClue.NOT_ASKED]
