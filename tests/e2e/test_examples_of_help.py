"""Every example in the help of every verb, run as it stands, by a shell, on a real cluster."""

import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.docs.test_examples_of_help import EXAMPLES, commands
from tests.e2e.conftest import a_home
from tests.e2e.jobs_of_examples import clear, job
from tests.e2e.stage import Stage
from tests.master.notify.servers import a_hook, a_mail_server

LEFT_OUT = {"demo": "test_demo.py runs it, with all that it claims"}
"""Verbs whose examples are not run here, and why."""


@dataclass(frozen=True)
class Way:
    """How an example is run: in which states the jobs are that it names, and how it ends."""

    jobs: tuple[str, ...] = ()
    shows: str = ""
    """What it prints before it is interrupted, or before ``keys`` are typed."""
    ends: signal.Signals | None = None
    keys: str = ""
    code: int = 0
    first: str = ""
    """What is run before it."""
    names: tuple[tuple[str, str], ...] = ()
    """What stands for what the example says."""


def with_jobs(*kinds: str) -> Way:
    return Way(jobs=kinds)


def until(shows: str, *jobs: str, ends: signal.Signals = signal.SIGINT, code: int = 0) -> Way:
    return Way(jobs, shows, ends, code=code)


def typed(shows: str, keys: str, *jobs: str) -> Way:
    return Way(jobs, shows, keys=keys)


PROMPT = "$ "
OBSERVED = (("observe", "observe --gpus 4xA100-40GB"),)
WAYS: dict[str, Way] = {
    "top": until("GPU"),
    "ebb top --once": Way(),
    "ebb top --json --once": Way(),
    "ebb reserve-gpus --cancel 3": Way(first="ebb reserve-gpus --gpus 1 --start 9h --for 1h"),
    "ebb events --follow --json": until("JobSubmitted", code=130),
    "show": with_jobs("twice"),
    "explain": with_jobs("crowded out"),
    "story": with_jobs("twice"),
    "logs": with_jobs("twice"),
    "ebb logs -f 17": until("loss", "running", code=130),
    "ebb logs --node right 17": with_jobs("on two nodes"),
    "ebb logs --rank 1 17": with_jobs("on two nodes"),
    "wait": with_jobs("ending", "ending", "ending"),
    "ebb wait --any 17 18": with_jobs("running", "ending"),
    "ebb shell": typed("$ ", "exit\n"),
    "ebb shell --gpus 2 --time 4h": typed("$ ", "exit\n"),
    "ebb shell --cpu-only -- ipython": typed("$ ", "exit\n"),
    "ebb shell --attach 17": typed("$ ", "exit\n", "left"),
    "exec": with_jobs("running"),
    "notebook": until("http://127.0.0.1"),
    "tensorboard": until("http://127.0.0.1", "running", "completed"),
    "tunnel": until("127.0.0.1:", "running"),
    "ebb tunnel 17": until("127.0.0.1:", "notebook"),
    "cp": with_jobs("twice"),
    "observe": until("GPU-hours"),
    "ebb simulate --workload lab.csv --nodes 1x4 --policy fitgpp": Way(),
    "suspend": with_jobs("running", "running"),
    "resume": with_jobs("suspended"),
    "drill": with_jobs("running"),
    "ebb resize 17 --gpus 4": with_jobs("elastic"),
    "ebb resize 17 18 --gpus 1-8 --wait": with_jobs("elastic", "elastic"),
    "ebb requeue 17": with_jobs("running"),
    "ebb requeue --failed 18": Way(("array that failed",)),
    "set": with_jobs("waiting", "waiting"),
    "ebb set 17 --max-concurrent 4": with_jobs("array"),
    "cancel": with_jobs("running", "running"),
    "hold": with_jobs("waiting", "waiting"),
    "release": with_jobs("held", "held"),
}
"""By verb or, for one that differs from the others of its verb, by example; the others need nothing, and end by 0."""
OF_DAEMONS = ("up", "down", "master", "agent", "fake")
"""Verbs that get a home of their own, because of what they do to a cluster."""
ON_THE_CLUSTER = [
    name for name, _ in commands() if " " not in name and name not in LEFT_OUT and name not in OF_DAEMONS
]
CONFIG = """
[pools.a100]

[notify.smtp]
host = "127.0.0.1"
port = {port}
from = "ebb@example.org"
tls = "none"

[notify.targets.team]
webhook = "{url}"
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with a_home() as cluster, a_hook() as hook, a_mail_server() as mail:
        stage = Stage(cluster, tmp_path_factory.mktemp("stage"))
        stage.furnish()
        (cluster.home / "ebbtide.toml").write_text(CONFIG.format(port=mail.port, url=hook.url))
        cluster.up("4xA100-40GB", "--node", "left")
        cluster.add_workstation("right", "2xA100-40GB")
        cluster.add_workstation("ws3", "none", None, "--taint", "gold")
        yield stage


def of(verb: str) -> list[str]:
    """The examples of a verb and of what is below it."""
    return list(dict.fromkeys(example.line for example in EXAMPLES if example.command.split()[0] == verb))


def perform(stage: Stage, line: str) -> None:
    """Run one example in its way."""
    way = WAYS.get(line) or WAYS.get(line.split()[1], Way())
    ids = dict.fromkeys(re.findall(r"(?<![\w.-])1[789](?![\w.])", line))
    if way.first:
        stage.perform(way.first)
    names, taken = dict(way.names), ()
    for id, kind in zip(ids, way.jobs, strict=False):
        names[id] = job(stage, kind, taken)
        taken += (names[id],)
    assert all(id in names for id in ids), f"{line}: which job is {' and '.join(ids)}?"
    adapted = stage.adapted(line, names)
    if way.keys:
        stage.type(adapted, way.shows, way.keys, code=way.code)
    elif way.ends:
        stage.interrupt(adapted, lambda text: way.shows in text, way.ends, code=way.code)
    else:
        stage.perform(adapted, code=way.code)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("verb", ON_THE_CLUSTER)
def test_the_examples_of_a_verb_do_what_they_say(stage: Stage, verb: str) -> None:
    for line in of(verb):
        perform(stage, line)
    clear(stage)
