"""What README and docs say is so: their commands run, their links lead somewhere, their tables are the code's."""

import dataclasses
import os
import re
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from ebbtide_agent.contract.environment import gang_environment, job_environment, rank_environment
from ebbtide_agent.contract.intent import AllocatedGpu, Intent, StopSignalTarget
from ebbtide_agent.network import Network
from ebbtide_cli.overview import VERBS
from ebbtide_core.job.job import TRANSITIONS
from ebbtide_core.job.outcome import Ending, read_exit
from ebbtide_core.model.settings import DEFAULT_POLICY
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import Checkpointed, ExitFacts, ExitZero, StopCause
from ebbtide_core.policies.registry import POLICIES

from tests.docs.pages import (
    DOCS,
    PAGES,
    REPOSITORY,
    Block,
    anchors,
    code,
    fenced,
    links,
    marked_blocks,
    page_with,
    section,
    table,
)
from tests.e2e.cluster import Cluster
from tests.scripts.cases import CASES, OUT_OF_DISK

PATIENCE_S = 120.0
PAUSE_S = 0.3
ARCHITECTURE = DOCS / "explanation/architecture.md"
QUICK = "README.md"
"""The page whose commands `make test` runs; those of the others take longer."""
RUNNABLE = [
    pytest.param(page, marks=() if page.name == QUICK else pytest.mark.slow, id=page.relative_to(REPOSITORY).as_posix())
    for page in PAGES
    if marked_blocks(page)
]


def named(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


# --- commands ---


@pytest.mark.timeout(1200)  # a page is one story, with jobs that compute
@pytest.mark.parametrize("page", RUNNABLE)
def test_the_commands_of_a_page_do_what_it_says(page: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        place = Path(folder, "work")
        place.mkdir()
        (place / "examples").symlink_to(REPOSITORY / "examples")
        cluster = Cluster(Path(folder, "home"))
        try:
            for block in marked_blocks(page):
                perform(block, cluster, place)
        finally:
            cluster.close()


def perform(block: Block, cluster: Cluster, place: Path) -> None:
    """Do what a marked block says, in the directory ``place``."""
    if block.action == "file":
        (place / block.argument).write_text(block.text)
        return
    if block.argument:
        wait_until(block.argument, cluster, place)
    for command, shown in block.commands():
        status, output = shell(command, cluster, place)
        assert status == 0, f"{command}\n{output}"
        assert not shown or matches(shown, output), f"{command}\n--- shown\n{shown}\n--- printed\n{output}"


def wait_until(condition: str, cluster: Cluster, place: Path) -> None:
    """Wait until a command succeeds. It is tried at leisure: what it waits for needs the same processors."""
    give_up = time.monotonic() + PATIENCE_S
    while shell(condition, cluster, place)[0]:
        assert time.monotonic() < give_up, f"not in {PATIENCE_S:.0f} s: {condition}"
        time.sleep(PAUSE_S)


def shell(command: str, cluster: Cluster, place: Path) -> tuple[int, str]:
    """Run a command as a user's shell would; its status and what it printed."""
    if os.geteuid() == 0:  # else the agents here would refuse the jobs of whoever runs the tests
        command = command.replace("ebb agent --name", "ebb agent --min-uid 0 --name")
    # Not through a pipe: a command may leave something behind that runs on, and holds its end open.
    with tempfile.TemporaryFile("w+") as output:
        status = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=place,
            env=cluster.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=PATIENCE_S,
        ).returncode
        output.seek(0)
        return status, output.read()


def matches(shown: str, printed: str) -> bool:
    """Whether the output is the one that is shown: ``…`` stands for anything, alone on a line for any lines."""
    lines = [line.rstrip() for line in shown.rstrip().splitlines()]
    pattern = "".join(r"(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in lines)
    return re.fullmatch(pattern, printed.rstrip() + "\n") is not None


def test_shown_output_is_compared_and_an_ellipsis_is_anything():
    assert matches("job 1 RUNNING (…)\n", "job 1 RUNNING (running)\n")
    assert not matches("job 1 RUNNING (…)\n", "job 1 SUSPENDED (…)\n")
    assert matches("…\n2\n…\n", "1\n2\n")
    assert matches("…\n2\n…\n", "2\n3\n4\n")
    assert not matches("1\n", "1\n2\n")
    assert not matches("1 …\n", "1 2\n3\n")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_verb_that_a_page_names_exists(page: Path):
    verbs = {verb for section in VERBS.values() for verb in section}
    words = {word for text in code(page) for word in re.findall(r"(?:^|[\s'(])ebb ([a-z]+)", text)}
    assert words <= verbs


# --- links ---


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path):
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} of {page.name}"
        assert not anchor or anchor in anchors(target), f"{path}#{anchor} of {page.name}"


def test_every_promise_of_the_readme_has_a_test():
    rows = table(REPOSITORY / "README.md", "What is promised, and where it is tested")
    assert len(rows) > 10
    for promise, tests in rows:
        [path] = re.findall(r"\]\((.*?)\)", tests)
        names = re.findall(r"`(\w+)`", tests)
        source = (REPOSITORY / path).read_text()
        assert names, promise
        for name in names:
            assert re.search(rf"^\s*(async def|def|class) {name}\b", source, re.MULTILINE), f"{path}: {name}"


@pytest.mark.parametrize("picture", sorted(DOCS.rglob("*.svg")), ids=named)
def test_a_picture_needs_nothing_but_itself(picture: Path):
    text = picture.read_text()
    assert ET.fromstring(text).tag.endswith("svg")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_picture_of_the_demo_claims_what_held():
    words = "".join(ET.parse(DOCS / "demo.svg").getroot().itertext()).replace("\xa0", " ")
    assert words.count("✓ holds") > 5
    assert "FAILS" not in words


# --- tables and diagrams ---


def test_the_state_diagrams_show_exactly_the_transitions_of_the_code():
    drawn = [
        edge
        for diagram in fenced(ARCHITECTURE, "mermaid")
        if diagram.startswith("stateDiagram-v2")
        for edge in re.findall(r"^\s*([A-Z]+) --> ([A-Z]+)", diagram, re.MULTILINE)
    ]
    assert len(drawn) == len(set(drawn)), "an arrow is drawn twice"
    assert set(drawn) == {(before.value, after.value) for before, after in TRANSITIONS}


def test_the_layers_show_exactly_who_imports_whom():
    [drawing] = [text for text in fenced(ARCHITECTURE, "mermaid") if text.startswith("flowchart")]
    drawn = set(re.findall(r"^\s*(\w+)\S*.*? --> (\w+)", drawing, re.MULTILINE))
    rows = table(ARCHITECTURE, "Layers")
    folders = {name.strip("`"): folder.strip("`/") for folder, name, _ in rows}
    imported = {
        (folder, other)
        for name, folder in folders.items()
        for path in (REPOSITORY / folder / name).rglob("*.py")
        for found in re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        if (other := folders.get(found, folder)) != folder
    }
    assert drawn == imported


SPEC = JobSpec(command=("true",), workdir="/")
SUSPEND = StopCause.SUSPENDED
STOPPED = ExitFacts(stop_requested=True, delivered=True, caught=True)


def asked(**changes: object) -> tuple[ExitFacts, StopCause]:
    """An end after a request to step aside that reached a process with a handler."""
    return dataclasses.replace(STOPPED, **changes), SUSPEND  # type: ignore[arg-type]


EXITS: dict[str, list[tuple[ExitFacts, StopCause | None]]] = {
    "not asked, exit 0": [(ExitFacts(), None)],
    "not asked, exit 75, 85 or 99": [(ExitFacts(exit_code=code), None) for code in (75, 85, 99)],
    "not asked, any other exit code": [(ExitFacts(exit_code=code), None) for code in (1, 2, 84, 143)],
    "not asked, a signal": [(ExitFacts(signal=number), None) for number in (6, 9, 11, 15)],
    "not asked, killed because it used more than its `--mem`": [
        (ExitFacts(signal=9, memory_failure="it used more than its --mem 4 GiB"), None)
    ],
    "asked, but exit 0 before the signal was delivered": [asked(delivered=False, caught=False)],
    "asked, acknowledged through the SDK": [asked(acknowledged=True, exit_code=code) for code in (0, 1, 85)],
    "asked, killed at the end of the grace period": [asked(killed=True, signal=9)],
    "asked, ended by a signal": [asked(signal=number) for number in (6, 9, 11, 15)],
    "asked, exit 75, 85, 99 or 143": [asked(exit_code=code) for code in (75, 85, 99, 143)],
    "asked, any other exit code but 0": [
        asked(exit_code=1),
        asked(exit_code=1, checkpointed=Checkpointed.YES),
        asked(exit_code=2, caught=False),
    ],
    "asked, exit 0, and nothing catches the signal": [asked(caught=False)],
    "asked, exit 0, and the job calls `should_suspend()`": [asked(asked=True)],
    "asked, exit 0, and neither of these": [asked()],
    "cancelled, and not completed before": [
        (dataclasses.replace(STOPPED, exit_code=code), StopCause.CANCELLED) for code in (0, 1, 85)
    ],
    "time limit, and not completed before": [
        (dataclasses.replace(STOPPED, exit_code=code), StopCause.TIME_LIMIT) for code in (0, 1, 85)
    ],
    "more GPU memory than it was given, `--suspend none`, and not completed before": [
        (dataclasses.replace(STOPPED, exit_code=code), StopCause.EXPELLED) for code in (0, 1, 85)
    ],
    "the exit status is not known": [(ExitFacts(lost=True), cause) for cause in (None, SUSPEND)],
    "a GPU of it was lost, and it did not complete": [
        (ExitFacts(exit_code=1, lost_gpu="GPU-0"), None),
        *[(dataclasses.replace(STOPPED, exit_code=code), StopCause.LOST_GPU) for code in (0, 1, 85)],
    ],
}


def test_exits_are_read_as_the_page_says():
    rows = {row[0]: row[1].strip("`") for row in table(DOCS / "reference/exits.md")}
    assert rows.keys() == EXITS.keys()
    for words, exits in EXITS.items():
        for exit, cause in exits:
            assert read_exit(exit, SPEC, cause).ending is Ending[rows[words]], (words, exit)


def test_exit0_completed_changes_the_reading_as_the_page_says():
    spec = dataclasses.replace(SPEC, exit_zero=ExitZero.COMPLETED)
    assert read_exit(STOPPED, spec, SUSPEND).ending is Ending.COMPLETED
    assert read_exit(dataclasses.replace(STOPPED, acknowledged=True), spec, SUSPEND).ending is Ending.SUSPENDED


def test_what_comes_of_each_awkward_script_is_what_its_test_asserts():
    rows = {row[0]: row[2:] for row in table(DOCS / "reference/awkward-scripts.md")}
    assert rows.pop("`finishes.py`")
    assert rows == {
        case.script: [
            f"`{case.ending.name}`",
            case.checkpointed.value,
            case.goes_on_from if case.ending is Ending.SUSPENDED else "–",
        ]
        for case in (*CASES, *OUT_OF_DISK)
    }


def test_every_variable_of_the_environment_is_listed():
    intent = Intent(
        job_id="1", attempt=1, cluster_id="c", command=("true",), workdir="/", env={}, gpus=(AllocatedGpu("GPU-1", 1,
        1, 1),),
        gpu_mem_bytes=0, cpus=1.0, grace_s=1.0, signal="", signal_target=StopSignalTarget.AUTO, ddp=True,
        needs_checkpoint=False, node_rank=0, num_nodes=2, world_size=0, master_addr="",
        node_dir="/n", job_checkpoint_dir="/c", fake_gpu_dir="", network=Network("eth0"),
    )  # fmt: skip
    given = job_environment(intent, checkpoint_dir="/c/1", resume_dir="", socket="/s")
    given |= gang_environment(intent, 1) | rank_environment(intent, 0, 1)
    rows = table(DOCS / "reference/environment.md")
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(listed) == sorted(given)


@pytest.mark.parametrize("name", [name for name, kind in POLICIES.items() if not dataclasses.fields(kind)])
def test_a_policy_without_options_says_so(name: str):
    assert "It has no options." in section(page_with(f"`{name}`"), f"`{name}`").replace("\n", " ")


@pytest.mark.parametrize("name", [name for name, kind in POLICIES.items() if dataclasses.fields(kind)])
def test_the_options_of_each_policy_are_listed_with_their_defaults(name: str):
    def text(value: object) -> str:
        return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    listed = {row[0].strip("`"): row[1].strip("`") for row in table(page_with(f"`{name}`"), f"`{name}`")}
    assert listed == {field.name: text(field.default) for field in dataclasses.fields(POLICIES[name])}


def test_only_policies_that_exist_have_a_section():
    pages = DOCS / "explanation/policies"
    sections = re.findall(r"^## `([\w-]+)`$", "".join(page.read_text() for page in pages.glob("*.md")), re.MULTILINE)
    assert sorted(sections) == sorted(POLICIES)
    assert f"`{DEFAULT_POLICY}` is the default" in (pages / "index.md").read_text()
