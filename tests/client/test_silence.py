"""What is said of silent nodes: verbs and words."""

import pytest
from ebbtide_cli.commands.verb import run
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.verbs.node_silence import silence_words, stray_words
from ebbtide_protos.v1 import client_pb2

NODE = client_pb2.Node(name="ws3")


def test_nobody_is_taken_at_a_word_that_was_not_said() -> None:
    with pytest.raises(Failure, match=r"^node confirm-dead: there is no terminal to ask on: add --yes$") as failure:
        run(["node", "confirm-dead", "ws3"])
    assert failure.value.code == USAGE


@pytest.mark.parametrize("attempt", ["17", "17.", ".2", "17.x", "17.99999999999"])
def test_a_stray_is_named_by_job_and_attempt(attempt: str) -> None:
    with pytest.raises(Failure, match=r"is not JOB\.ATTEMPT, such as 17\.2$") as failure:
        run(["node", "end-stray", "ws3", attempt])
    assert failure.value.code == USAGE


def test_what_keeps_the_whole_cluster_from_going_on_is_said_with_what_to_do() -> None:
    reply = client_pb2.ListNodesReply(doubted=["a", "b"], unheard=["c"])
    assert list(silence_words(reply)) == [
        "2 nodes fell silent together (a, b): the master may be the one that is cut off, and starts none of their jobs"
        " elsewhere.",
        "  'ebb node believe-silence' if it is not",
        "The journal was restored: nothing starts before these were heard: c",
        "  'ebb node confirm-dead NODE' for those that do not come back",
    ]
    assert list(silence_words(client_pb2.ListNodesReply())) == []


@pytest.mark.parametrize(
    ("stray", "words"),
    [
        (
            client_pb2.Stray(job_id="17", attempt=2, kind="unknown", gpus=["g"]),
            "  set aside: 17.2 is not in the master's journal; 'ebb node end-stray ws3 17.2' ends it",
        ),
        (
            client_pb2.Stray(job_id="17", attempt=2, kind="over", ending=True),
            "  set aside: 17.2 counts as over; it is being ended",
        ),
        (
            client_pb2.Stray(job_id="17", attempt=2, kind="unknown", orphan=True),
            "  set aside: 17.2 is not in the master's journal, and no more is known of it than its processes (its GPUs"
            " are not known); 'ebb node end-stray ws3 17.2' ends it",
        ),
    ],
)
def test_an_attempt_that_is_set_aside_is_told_with_what_can_be_done(stray: client_pb2.Stray, words: str) -> None:
    assert stray_words(NODE, stray) == words
