"""Puts into the wheel of `ebbtide` what is not source: the pages of the documentation, and a compiled core if asked to.

`make bundle` builds the site of the documentation first, and names its folder in EBB_DOCS_SITE. `make compiled-wheel`
sets EBB_COMPILE.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Contents(BuildHookInterface[Any]):
    """Says which files go where; an editable installation uses those of the repository, and compiles nothing."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add docs/**/*.md, the site if there is one, and the extension modules if the core is to be compiled."""
        self._compiled: Path | None = None
        if version == "editable":
            return
        included: dict[str, str] = build_data["force_include"]
        docs = Path(self.root, "docs")
        included.update({str(page): f"ebbtide_cli/docs/{page.relative_to(docs)}" for page in docs.rglob("*.md")})
        if site := os.environ.get("EBB_DOCS_SITE"):
            included[str(Path(site).resolve())] = "ebbtide_cli/site"
        if os.environ.get("EBB_COMPILE"):
            self._compiled = folder = Path(tempfile.mkdtemp(prefix="ebbtide-compiled-"))
            subprocess.run([sys.executable, str(Path(self.root, "scripts/compile_core.py")), str(folder)], check=True)
            included.update({str(path): str(path.relative_to(folder)) for path in sorted(folder.rglob("*.so"))})
            # The wheel is one of this platform and this Python.
            build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled files, which are in the wheel by now."""
        if self._compiled is not None:
            shutil.rmtree(self._compiled)
