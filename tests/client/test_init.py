"""`ebb init`: what it writes, what it says, and that it writes over nothing unasked."""

import ast
from pathlib import Path

import pytest
from ebbtide_cli.verbs import init

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"


def files(folder: Path) -> dict[str, str]:
    """Every file below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to be in."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("template", init.STARTERS)
def test_what_is_written_is_the_example_under_its_new_name(ebb, place, template):
    starter = init.STARTERS[template]
    assert ebb("init", "--template", template).code == 0
    written = files(place)
    own, source = written.pop("train.py"), (EXAMPLES / starter.script).read_text()
    assert own == source.replace(f"examples/{starter.script}", "train.py")
    assert own != source
    assert ast.dump(ast.parse(own)).replace("train.py", "") == ast.dump(ast.parse(source)).replace(
        f"examples/{starter.script}", ""
    )
    assert written == {name: (EXAMPLES / name).read_text() for name in ("ebbtide.toml", *starter.data)}


@pytest.mark.parametrize("template", init.STARTERS)
def test_the_packages_of_a_template_are_those_that_its_script_and_our_integrations_import(template):
    starter = init.STARTERS[template]
    tree = ast.parse((EXAMPLES / starter.script).read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert set(starter.packages) - {"accelerate", "tensorboard"} <= imported
    assert imported <= {*starter.packages, "ebbtide", "argparse", "os", "pathlib", "signal", "typing"}


def test_it_says_what_it_wrote_and_how_to_go_on(ebb, place):
    result = ebb("init", "my first")
    assert result.out.splitlines() == [
        "wrote my first/ebbtide.toml",
        "wrote my first/train.py",
        "Next:",
        "  cd 'my first'",
        "  ebb up --config ebbtide.toml  # unless you have a cluster",
        "  ebb submit --gpus 1 --name digits -- python train.py --steps 600",
    ]


def test_json_has_the_same_facts(ebb, place):
    facts = ebb("init", "lm", "--template", "hf", "--json").json
    assert facts["template"] == "hf"
    assert facts["files"] == ["lm/ebbtide.toml", "lm/train.py", "lm/data/tides.txt"]
    assert facts["next"][0] == "cd lm"
    assert sorted(files(place / "lm")) == ["data/tides.txt", "ebbtide.toml", "train.py"]


@pytest.mark.parametrize("name", ["ebbtide.toml", "train.py"])
def test_a_file_that_exists_is_written_over_only_with_force(ebb, place, name):
    (place / name).write_text("mine\n")
    refused = ebb("init")
    assert (refused.code, refused.complaint) == (1, f"init: {name} exists already; --force writes over it")
    assert files(place) == {name: "mine\n"}
    assert ebb("init", "--force").code == 0
    assert "mine\n" not in files(place).values()
    assert sorted(files(place)) == ["ebbtide.toml", "train.py"]


def test_a_link_that_leads_nowhere_counts_as_a_file_and_force_replaces_the_link_itself(ebb, place):
    (place / "train.py").symlink_to(place / "elsewhere")
    assert ebb("init").code == 1
    assert ebb("init", "--force").code == 0
    assert not (place / "train.py").is_symlink()
    assert not (place / "elsewhere").exists()


@pytest.mark.parametrize("blocked", ["work", "work/data"])
def test_what_cannot_be_written_is_one_line_and_nothing_is_left_half_done(ebb, place, blocked):
    (place / blocked).parent.mkdir(exist_ok=True)
    (place / blocked).write_text("a file\n")
    before = files(place)
    result = ebb("init", "work", "--template", "hf")
    assert result.code == 1
    assert result.complaint == f"{blocked}: File exists"
    assert files(place) == before


def test_an_interrupt_leaves_no_file_and_no_draft(ebb, place, monkeypatch):
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert ebb("init").code == 130
    assert files(place) == {}


def test_a_package_that_the_script_needs_and_that_is_missing_is_named(ebb, place, monkeypatch):
    starter = init.STARTERS["plain"]._replace(packages=("numpy", "no_such_package_of_anybody"))
    monkeypatch.setitem(init.STARTERS, "plain", starter)
    result = ebb("init", "--template", "plain")
    assert result.code == 0
    assert result.complaint == ("warning: train.py needs no_such_package_of_anybody: pip install 'ebbtide[examples]'")
    assert ebb("init", "--template", "plain", "--force", "--json").json["missing"] == ["no_such_package_of_anybody"]
