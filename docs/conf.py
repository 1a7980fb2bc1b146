"""Build the documentation with Sphinx: the Markdown pages as GitHub shows them, and the SDK's docstrings.

`make docs` builds the site and fails at any warning. A built page loads nothing from a network.
"""

import base64
import re
import runpy
from pathlib import Path
from typing import Any, ClassVar

import mermaidx
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

project = "Ebbtide"
copyright = "the authors of Ebbtide, Apache-2.0"
release = version = runpy.run_path(str(ROOT / "protos/ebbtide_protos/version.py"))["VERSION"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"Ebbtide {release}"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_domain_indices = False
# The Markdown is GitHub's: its anchors of headings, and its fences for diagrams.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
# Docstrings set names in single backticks.
default_role = "literal"
autodoc_member_order = "bysource"

LISTED = re.compile(r"^- \[[^\]]*\]\(([^)#:\s]+)\.md\)", re.MULTILINE)
"""A page in a list."""


def list_in_sidebar(app: Sphinx, name: str, source: list[str]) -> None:
    """Have the sidebar show the pages that an index page lists, below the headings of that page."""
    if not name.endswith("index"):
        return
    heading, *sections = re.split(r"^## (.*)$", source[0], flags=re.MULTILINE)
    captions = ["", *sections[::2]]
    for caption, text in zip(captions, [heading, *sections[1::2]], strict=True):
        if pages := LISTED.findall(text):
            head = f":caption: {caption}\n" if caption and name.count("/") == 0 else ""
            source[0] += "\n".join(["\n```{toctree}\n:hidden:", head + "", *pages, "```\n"])


class Diagram(Directive):
    """Draw a Mermaid diagram when the site is built, so that no page needs a script for it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the drawing."""
        drawing = base64.b64encode(mermaidx.render("\n".join(self.content)).svg().encode()).decode()
        image = f'<img alt="a diagram" style="background: white" src="data:image/svg+xml;base64,{drawing}">'
        return [nodes.raw("", image, format="html")]


class LinksIntoTheSource(SphinxTransform):
    """Show a link that leads out of the docs, to code or a test, as text: the site has no copy of the source."""

    default_priority: ClassVar[int] = 2

    def apply(self, **ignored: Any) -> None:
        """Replace these links by what they say."""
        page = Path(self.env.doc2path(self.env.docname))
        for kind in (addnodes.download_reference, addnodes.pending_xref):
            for link in list(self.document.findall(kind)):
                target = (page.parent / link["reftarget"].partition("#")[0]).resolve()
                there = target.exists() or target.with_suffix(".md").exists()  # of a page, only the name is left
                if there and target.is_relative_to(ROOT) and not target.is_relative_to(DOCS):
                    link.replace_self(nodes.inline("", "", *link.children))


def setup(app: Sphinx) -> dict[str, bool]:
    """Add what is defined here."""
    app.connect("source-read", list_in_sidebar)
    app.add_directive("mermaid", Diagram)
    app.add_transform(LinksIntoTheSource)
    return {"parallel_read_safe": True}
