"""Build the documentation with Sphinx: the Markdown pages as GitHub shows them, and the SDK's docstrings.

`make docs` builds the site and fails at any warning; what a reader opens loads nothing from a network.
"""

import runpy
from pathlib import Path
from typing import Any, ClassVar

import mermaidx
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

DOCS = Path(__file__).parent
ROOT = DOCS.parent

project = "Ebbtide"
copyright = "the authors of Ebbtide, Apache-2.0"
release = version = runpy.run_path(str(ROOT / "protos/ebbtide_protos/version.py"))["VERSION"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"Ebbtide {release}"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
# The Markdown is GitHub's: its anchors of headings, and its fences for diagrams.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
# Docstrings set names in single backticks.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# It is imported for its docstrings only.
autodoc_mock_imports = ["accelerate", "lightning", "pytorch_lightning", "tensorboard", "torch", "transformers"]


class Diagram(Directive):
    """Draw a Mermaid diagram when the site is built, so that no page needs a script for it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the drawing."""
        source = "\n".join(self.content)
        drawing = mermaidx.render(source).svg
        return [nodes.raw("", f'<div class="diagram">{drawing}</div>', format="html")]


class LinksIntoTheSource(SphinxTransform):
    """Show a link that leads out of the docs, to code or a test, as the path in the source tree that it names."""

    default_priority: ClassVar[int] = 2

    def apply(self, **ignored: Any) -> None:
        """Replace these links by their text; the path is shown to whoever points at it."""
        page = Path(self.env.doc2path(self.env.docname))
        for link in [
            *self.document.findall(addnodes.download_reference),
            *self.document.findall(addnodes.pending_xref),
        ]:
            target = (page.parent / link["reftarget"].partition("#")[0]).resolve()
            if (
                link.get("refdomain") in (None, "", "doc")
                and target.is_relative_to(ROOT)
                and not target.is_relative_to(DOCS)
            ):
                path = target.relative_to(ROOT).as_posix()
                text = nodes.inline("", "", *link.children, classes=["source"])
                text["path"] = path
                link.replace_self(text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add what is defined here."""
    app.add_directive("mermaid", Diagram)
    app.add_transform(LinksIntoTheSource)
    return {"parallel_read_safe": True}
