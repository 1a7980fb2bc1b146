"""Write what a terminal shows as an SVG file for a page."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path

from rich.console import Console

WIDTH = 124

# rich's own frame names a font on another server; a picture should depend on nothing but itself.
FRAME = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""


def write_svg(path: Path, draw: Callable[[Console], None], verb: str = "demo", width: int = WIDTH) -> None:
    """Write what ``draw`` prints; ``width`` in columns. Raises OSError."""
    console = Console(record=True, file=StringIO(), width=width, highlight=False, force_terminal=False)
    draw(console)
    path.write_text(console.export_svg(title=f"ebb {verb}", code_format=FRAME, unique_id=verb), encoding="utf-8")
