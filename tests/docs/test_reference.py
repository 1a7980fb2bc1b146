"""The pages of commands, the man pages and the completions: all made from the help, and all of it there."""

import re
import subprocess
from pathlib import Path

import click
import pytest
from ebbtide_cli.commands.sections import SectionedCommand
from ebbtide_cli.main import main
from ebbtide_cli.overview import VERBS

from scripts import reference
from tests.docs.pages import anchors, links
from tests.docs.test_examples_of_help import commands

ALL = dict(commands())
COMMANDS = reference.REFERENCE / "commands"


def names_of(command: click.Command) -> set[str]:
    """The first name of each option."""
    return {option.opts[0] for option in command.params if isinstance(option, click.Option)}


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    reference.write_share(folder)
    return folder


def test_the_pages_are_what_the_code_says() -> None:
    assert reference.behind_the_code(reference.REFERENCE) == [], "run python scripts/reference.py --write"


def test_the_list_of_commands_has_every_verb_with_its_page() -> None:
    listed = [path for path, _ in links(COMMANDS / "index.md")]
    assert listed == [f"{verb}.md" for verbs in VERBS.values() for verb in verbs]
    assert {page.name for page in COMMANDS.iterdir()} == {"index.md", *listed}


def test_every_verb_has_a_page_with_all_of_its_options() -> None:
    for name, command in ALL.items():
        verb, _, below = name.partition(" ")
        text = "\n" + (COMMANDS / f"{verb}.md").read_text()
        head = f"\n{'##' if below else '#'} ebb {name}\n"
        assert head in text, name
        own = re.split(rf"\n## ebb {verb} ", text.partition(head)[2])[0]
        missing = {option for option in names_of(command) if f"`{option}" not in own and f", {option}" not in own}
        if reference.LIKE_SUBMIT in own:
            missing -= names_of(ALL["submit"])
        assert missing == set(), name


@pytest.mark.parametrize("verb", ["submit", "agent", "simulate"])
def test_each_section_of_the_help_is_a_section_of_the_page(verb: str) -> None:
    command = ALL[verb]
    assert isinstance(command, SectionedCommand)
    found = anchors(COMMANDS / f"{verb}.md")
    for title in command.sections():
        heading = re.sub(r"[^\w\- ]", "", f"ebb {verb}: {title}".lower()).replace(" ", "-")
        assert heading in found


def test_every_verb_has_a_man_page_with_all_of_its_options(share: Path) -> None:
    pages = {path.name: path.read_text().replace("\\-", "-") for path in (share / "man/man1").iterdir()}
    assert set(pages) == {"ebb.1", *(f"ebb-{name.replace(' ', '-')}.1" for name in ALL)}
    for name, command in ALL.items():
        text = pages[f"ebb-{name.replace(' ', '-')}.1"]
        assert {option for option in names_of(command) if option not in text} == set(), name
        assert "\n.B -h, --help\n" in text
    assert all(f".BR ebb-{verb} (1)\n" in pages["ebb.1"] for verbs in VERBS.values() for verb in verbs)


def test_no_text_of_the_help_is_taken_for_a_request_ofroff(share: Path) -> None:
    known = {".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".BR", ".nf", ".fi", '.\\"'}
    for path in (share / "man/man1").iterdir():
        lines = [line for line in path.read_text().splitlines() if line.startswith((".", "'"))]
        assert {line.split()[0] for line in lines} <= known, path.name
    assert reference.roff(".nf of a\\b") == "\\&.nf of a\\eb"


@pytest.mark.programs("groff")
def test_groff_sets_every_man_page_without_a_warning(share: Path) -> None:
    pages = sorted((share / "man/man1").iterdir())
    command = ["groff", "-K", "utf8", "-T", "utf8", "-man", "-ww", *map(str, pages)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    plain = re.sub(r".\x08|\x1b\[[0-9;]*m", "", done.stdout)
    assert "--checkpoint-quota SIZE" in plain
    assert "ebb submit -- python train.py" in plain


@pytest.mark.parametrize("shell", reference.COMPLETIONS)
def test_the_completion_beside_them_is_what_the_verb_prints(
    share: Path, shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    text = (share / reference.COMPLETIONS[shell]).read_text()
    assert text == capsys.readouterr().out
    if shell == "zsh":
        assert text.startswith("#compdef ebb\n")
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_a_page_that_is_behind_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "REFERENCE", tmp_path)
    for option, code in (("--check", 1), ("--write", 0), ("--check", 0)):
        monkeypatch.setattr("sys.argv", ["reference.py", option])
        assert reference.main() == code
    assert "reference.py --write" in capsys.readouterr().err
    (tmp_path / "commands/forgotten.md").write_text("# ebb forgotten\n")
    assert reference.behind_the_code(tmp_path) == ["commands/forgotten.md"]
    reference.write_pages(tmp_path)
    assert not (tmp_path / "commands/forgotten.md").exists()
