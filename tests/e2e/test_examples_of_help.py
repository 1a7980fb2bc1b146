"""Every example in the help of every verb, run as it stands, by a shell, on a real cluster; JSON as it is published."""

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.test_examples_of_help import EXAMPLES, commands, parts_of
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.conftest import a_home
from tests.e2e.jobs_of_examples import CROWDING, clear, job
from tests.e2e.stage import Stage, furnished
from tests.json_schema import check_json
from tests.master.notify.servers import a_hook, a_mail_server
from tests.ports import free_port
from tests.postgres import Server

LEFT_OUT = {
    "demo": "test_demo.py runs it, with all that it claims",
    "deploy": "test_deploying.py runs it, with hosts to deploy to",
    "supply": "tests/slurm/test_supply.py runs it, with a Slurm to borrow from",
}
"""Verbs whose examples are not run here, and why."""


@dataclass(frozen=True)
class Way:
    """How an example is run: in which states the jobs are that it names, and how it ends."""

    jobs: tuple[str, ...] = ()
    shows: str = ""
    """What it prints before it is interrupted, or before ``keys`` are typed."""
    writes: str = ""
    """The file that it has begun to write before it is interrupted."""
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
    return Way(jobs, shows=shows, ends=ends, code=code)


def typed(shows: str, keys: str, *jobs: str) -> Way:
    return Way(jobs, shows=shows, keys=keys)


A_PAST = "ebb submit --wait --time 1h -- true && ebb submit --wait --time 2h -- true"
A_PAST_OF_WAITS = (
    "ebb submit --wait --array 0-9 --time 1h -- true && ebb submit --gpus 4 -- sleep 9 &&"
    " ebb submit --gpus 4 -- sleep 9 && ebb submit --wait --gpus 4 --time 2h -- true"
)
"""In which there are enough starts, and whoever asked for more waited longer."""
A_CERTIFICATE = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=login.lab.example -keyout lab.key -out lab.pem"
A_USER = Way(first="ebb user add anna || true")
A_TOKEN = """$(ebb token create --json | grep -o '"id": "[0-9a-f]*"' | cut -d'"' -f4)"""

AN_ARRAY = Way(first="ebb submit --cpu-only --array 0-9 -- echo up > array", names=(("17.0-9", "$(cat array).0-9"),))

PROMPT = "$ " if os.getuid() else "# "
WAYS: dict[str, Way] = {
    "top": until("GPU"),
    "ebb top --once": Way(),
    "ebb top --json --once": Way(),
    "dashboard": until("/login#code="),
    "ebb dashboard --link --json": Way(code=3),  # none runs here
    "ebb dashboard --shared login.lab.example --cert lab.pem --key lab.key": Way(
        first=A_CERTIFICATE, shows="https://login.lab.example:", ends=signal.SIGINT
    ),
    "ebb dashboard --shared login.lab.example --socket /run/ebb/web.sock --group www-data --base-path /ebb": Way(
        shows="https://login.lab.example/ebb/login#code=",
        ends=signal.SIGINT,
        names=(("/run/ebb/web.sock", "$EBB_HOME/web.sock"), ("www-data", "$(id -gn)")),
    ),
    "ebb reserve-gpus --cancel 3": Way(first="ebb reserve-gpus --gpus 1 --start 9h --for 1h"),
    "ebb events --tail 20 --follow --json": until('"sequence"', code=130),
    "show": with_jobs("twice"),
    "ebb show --sort loss 17": with_jobs("array that trains"),
    "explain": with_jobs("crowded out"),
    "story": with_jobs("twice"),
    "logs": with_jobs("twice"),
    "ebb logs -f @": Way(first="ebb submit --cpu-only -- python train.py", shows="loss", ends=signal.SIGINT, code=130),
    "ebb logs -f 17.0-9": AN_ARRAY,
    "ebb logs --since 10m 17.0-9": AN_ARRAY,
    "ebb logs --node right 17": with_jobs("on two nodes"),
    "ebb logs --rank 1 17": with_jobs("on two nodes"),
    "wait": with_jobs("ending", "ending", "ending"),
    "ebb wait --any 17 18": with_jobs("running", "ending"),
    "ebb shell": typed(PROMPT, "exit\n"),
    "ebb shell --gpus 2 --time 4h": typed(PROMPT, "exit\n"),
    "ebb shell --cpu-only -- ipython": typed(PROMPT, "exit\n"),
    "ebb shell --attach 17": typed(PROMPT, "exit\n", "left"),
    "exec": with_jobs("running"),
    "notebook": until("http://127.0.0.1"),
    "tensorboard": until("http://127.0.0.1", "running", "completed"),
    "tunnel": until("127.0.0.1:", "serving"),
    "ebb tunnel 17": until("127.0.0.1:", "notebook"),
    "cp": with_jobs("twice"),
    "observe": Way(
        first="rm -f lab.csv*",
        writes="lab.csv",
        ends=signal.SIGINT,
        names=(("observe", "observe --gpus 4xA100-40GB --node left"),),
    ),
    "ebb simulate --workload lab.csv --nodes 1x4 --policy fitgpp": Way(first="cp jobs.csv lab.csv"),
    "ebb replay --policy fifo --policy malleable-equipartition": Way(first=A_PAST),
    "ebb replay --export-to last-week.jsonl": Way(first=A_PAST),
    "ebb reserve --dist history:runs.txt --fit journal.db --beta 1": Way(
        first=A_PAST_OF_WAITS, names=(("journal.db", "$EBB_HOME/journal.db"),)
    ),
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
    "rm": with_jobs("completed", "completed"),
    "ebb rm @~1": Way(first="ebb submit --wait -- true && ebb submit --wait -- true"),
    "hold": with_jobs("waiting", "waiting"),
    "cat invitation.txt | ebb login": Way(first="ebb token create --invite > invitation.txt"),
    "ebb login  # and paste the line": Way(code=2),  # nobody does
    "logout": Way(first="ebb token create | ebb login"),
    "ebb user import --group ml --dry-run": Way(names=(("ml", "root"),)),
    "ebb token create --user anna --expires 30d": A_USER,
    "ebb token create --user anna --invite login.lab.example:7077": A_USER,
    "ebb token revoke 0123456789abcdef": Way(names=(("0123456789abcdef", A_TOKEN),)),
    "release": with_jobs("held", "held"),
    "ebb replay --policy fitgpp --since 7d --until 1d --nodes 4x8": Way(code=2),
    "ebb node leave spot7 --ends-in 110s": Way(first="ebb node leave --stay", names=(("spot7", "right"),)),
    "ebb node leave spot7 --stay": Way(names=(("spot7", "right"),)),
    "ebb node remove ws3": Way(code=1),
    "ebb node confirm-dead ws3": Way(code=2),
    "ebb node confirm-dead ws3 --yes": Way(code=1),
    "ebb node end-stray ws3 17.2": Way(code=1),
    "ebb node end-stray ws3 17.2 --grace 0s": Way(code=1),
    "ebb node believe-silence": Way(code=1),
}
"""By verb or, for one that differs from the others of its verb, by example; the others need nothing, and end by 0."""
OF_DAEMONS = ("up", "down", "master", "agent", "fake")
"""Verbs that get homes of their own, because of what they do to a cluster."""
SUBVERBS_OF_MASTER = tuple(f"ebb master {verb}" for verb in ("check", "backup", "restore", "compact", "reload"))
ABOUT_JOURNAL = SUBVERBS_OF_MASTER[:4]
RELOAD = "ebb master reload"
WITH_TLS = ("ebb master init", "ebb agent join", "ebb node invite", "ebb node revoke")
"""What test_between_machines.py runs, where there are two."""
IN_SLURM = "srun "
"""How the examples begin that test_pilot.py is about, where there is a Slurm."""
ON_THE_CLUSTER = [name for name, _ in commands() if " " not in name and name not in LEFT_OUT and name not in OF_DAEMONS]
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
        stage = furnished(cluster, tmp_path_factory.mktemp("stage"))
        (cluster.home / "ebbtide.toml").write_text(CONFIG.format(port=mail.port, url=hook.url))
        cluster.up("4xA100-40GB", "--node", "left")
        cluster.add_workstation("right", "4xA100-40GB", None, "--label", "zone=east")
        cluster.add_workstation("ws3", "none", None, "--taint", "gold")
        yield stage


def of(verb: str) -> list[str]:
    """The examples of a verb and of what is below it, of which one prints JSON for each that can."""
    lines = []
    for name, command in commands():
        if name.split()[0] != verb:
            continue
        own = [example.line for example in EXAMPLES if example.command == name]
        lines += own
        if any("--json" in option.opts for option in command.params) and not any(map(prints_json, own)):
            lines.append(own[0].replace(f"ebb {name}", f"ebb {name} --json", 1))
    return [line for line in dict.fromkeys(lines) if not any(words in line for words in WITH_TLS)]


def prints_json(line: str) -> bool:
    """Whether what it prints is JSON, and nothing else reads it."""
    return "--json" in line and len(line.split("|")) == 1


def check(line: str, out: str) -> None:
    """Hold what a line printed against the published schema, if it is JSON."""
    if prints_json(line):
        (words,) = parts_of(line)
        check_json(tuple(words), out)


def perform(stage: Stage, line: str) -> None:
    """Run one example in its way."""
    way = WAYS.get(line) or WAYS.get(line.replace(" --json", "")) or WAYS.get(line.split()[1], Way())
    ids = dict.fromkeys(re.findall(r"(?<![\w.-])1[789](?![\w.]|:\d)", line))
    if way.first:
        stage.perform(way.first)
    names, taken = {**stage.masters(), **stage.ports, **dict(way.names)}, ()
    for id, kind in zip(ids, way.jobs, strict=False):
        names[id] = job(stage, kind, taken)
        taken += (names[id],)
    assert all(id in names for id in ids), f"{line}: which job is {' and '.join(ids)}?"
    adapted = stage.adapted(line, names)
    if way.keys:
        stage.type(adapted, way.shows, way.keys, code=way.code)
    elif way.ends:
        file = stage.folder / way.writes
        out = stage.interrupt(adapted, lambda text: way.shows in text and file.exists(), way.ends, code=way.code)
        check(line, out)
    else:
        check(line, stage.perform(adapted, code=way.code))
    if set(way.jobs) & set(CROWDING):
        clear(stage)


def test_there_is_a_way_only_for_verbs_and_examples_that_there_are() -> None:
    assert set(WAYS) <= set(ON_THE_CLUSTER) | {line for verb in ON_THE_CLUSTER for line in of(verb)}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ON_THE_CLUSTER)
def test_the_examples_of_a_verb_do_what_they_say(stage: Stage, verb: str) -> None:
    for line in of(verb):
        perform(stage, line)
    clear(stage)


@pytest.mark.slow
def test_the_examples_of_master_reload_have_it_read_its_configuration_again(stage: Stage) -> None:
    for line in of("master"):
        if line.startswith(RELOAD):
            perform(stage, line)


@pytest.mark.slow
@pytest.mark.parametrize("line", of("up"))
def test_the_examples_of_up_bring_a_cluster_up(idle_cluster: Cluster, tmp_path: Path, line: str) -> None:
    stage = furnished(idle_cluster, tmp_path)
    if "--foreground" in line:
        stage.interrupt(line, lambda text: "node" in text, signal.SIGINT)
    else:
        check(line, stage.perform(stage.adapted(line, {})))
        assert idle_cluster.nodes_up()


@pytest.mark.slow
def test_the_examples_of_down_leave_nothing_running(idle_cluster: Cluster, tmp_path: Path) -> None:
    stage = furnished(idle_cluster, tmp_path)
    for line in of("down"):
        idle_cluster.up()
        check(line, stage.perform(line))
        wait_for("nothing is left running", lambda: not idle_cluster.leftovers())


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [line for line in of("master") if not line.startswith(SUBVERBS_OF_MASTER) and "--store" not in line]
)
def test_the_examples_of_master_serve(idle_cluster: Cluster, tmp_path: Path, line: str) -> None:
    serve(idle_cluster, tmp_path, line)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("line", [line for line in of("master") if "--store" in line])
def test_the_examples_of_master_with_a_database_serve(
    idle_cluster: Cluster, postgres: Server, tmp_path: Path, line: str
) -> None:
    serve(idle_cluster, tmp_path, line.replace("postgresql://ebbtide@db1/ebbtide", f"'{postgres.database()}'"))


def serve(idle_cluster: Cluster, tmp_path: Path, line: str) -> None:
    """Start a master by this line, ask it, and end it."""
    stage = furnished(idle_cluster, tmp_path)
    adapted = stage.adapted(line, {"7077": str(free_port())})
    record = idle_cluster.home / "master.json"
    stage.interrupt(adapted, lambda _: record.exists() and idle_cluster.facts("nodes") == [], signal.SIGTERM)


@pytest.mark.slow
def test_the_examples_of_master_check_back_up_and_restore(idle_cluster: Cluster, tmp_path: Path) -> None:
    stage = furnished(idle_cluster, tmp_path)
    idle_cluster.up("none")
    names = {"/mnt/safe": str(tmp_path)}
    lines = [line for line in of("master") if line.startswith(ABOUT_JOURNAL)]
    offline = ("restore", "compact")
    for line in sorted(lines, key=lambda line: any(verb in line for verb in offline)):
        if any(verb in line for verb in offline):
            idle_cluster.ebb("down")
        check(line, stage.perform(stage.adapted(line, names)))
    idle_cluster.up("none")


@pytest.mark.slow
def test_the_examples_of_agent_join(idle_cluster: Cluster, tmp_path: Path) -> None:
    stage = furnished(idle_cluster, tmp_path)
    (idle_cluster.home / "ebbtide.toml").write_text("[pools.a100]\n")
    idle_cluster.up("none", "--node", "first")
    for line in (line for line in of("agent") if not line.startswith(IN_SLURM)):
        adapted = stage.adapted(line, {**stage.masters(), "0,1": "0,1 --gpus 2xRTX4090"})
        stage.interrupt(adapted, lambda _: len(idle_cluster.nodes_up()) == 2, signal.SIGTERM)
        wait_for("it is gone", lambda: len(idle_cluster.nodes_up()) == 1)


@pytest.mark.slow
def test_the_examples_of_fake_break_and_heal(idle_cluster: Cluster, tmp_path: Path) -> None:
    stage = furnished(idle_cluster, tmp_path)
    idle_cluster.up()
    for line in of("fake"):
        if "fake foreign" in line:
            code = 130 if "--for" in line else 0
            stage.interrupt(line, lambda text: "holds" in text, signal.SIGINT, code=code)
        else:
            check(line, stage.perform(line))
