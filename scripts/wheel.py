"""Puts the pages of the documentation into a wheel, and the site if one was built: `ebb docs` opens them there."""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Documentation(BuildHookInterface[Any]):
    """Adds docs/**/*.md, and the folder that EBB_DOCS_SITE names, which `make bundle` builds first."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Say which files go where. An editable installation uses those of the repository."""
        if version == "editable":
            return
        docs = Path(self.root, "docs")
        pages = {str(page): f"ebbtide_cli/docs/{page.relative_to(docs)}" for page in docs.rglob("*.md")}
        build_data["force_include"].update(pages)
        if site := os.environ.get("EBB_DOCS_SITE"):
            build_data["force_include"][str(Path(site).resolve())] = "ebbtide_cli/site"
