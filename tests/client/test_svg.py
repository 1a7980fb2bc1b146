"""The picture that `ebb demo --svg` writes."""

import xml.etree.ElementTree as ET
from pathlib import Path

from ebbtide_cli.demo.svg import WIDTH, write_svg
from rich.text import Text

from tests.client.runs import Ebb


def test_what_is_drawn_is_in_the_picture_which_needs_nothing_but_itself(tmp_path: Path) -> None:
    path = tmp_path / "demo.svg"
    write_svg(path, lambda canvas: canvas.print(Text("a < b  c", "green")))
    text = path.read_text()
    assert "a < b  c" in "".join(ET.fromstring(text).itertext()).replace("\xa0", " ")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_lines_are_as_wide_as_the_picture(tmp_path: Path) -> None:
    path = tmp_path / "demo.svg"
    write_svg(path, lambda canvas: canvas.print("x" * WIDTH))
    assert "x" * WIDTH in path.read_text()


def test_a_picture_that_could_not_be_written_is_refused_before_the_demo_runs(ebb: Ebb, tmp_path: Path) -> None:
    result = ebb("demo", "--svg", str(tmp_path / "nowhere" / "demo.svg"))
    assert (result.code, result.out) == (2, "")
    assert result.complaint.endswith("nowhere/demo.svg: its directory does not exist")
