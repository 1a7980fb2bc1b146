"""Puts the compiled core into a wheel, where a build asks for this hook as `make wheel` does."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledCore(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the core (`scripts/compile_core.py`); the wheel is then one of this platform and this Python."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into a folder of its own, and have its extension modules put beside the sources.

        An editable install runs the sources that are edited, so that nothing is compiled for it.
        """
        if version == "editable":
            return
        folder = self._folder = Path(tempfile.mkdtemp(prefix="ebbtide-compiled-"))
        subprocess.run([sys.executable, str(Path(self.root, "scripts/compile_core.py")), str(folder)], check=True)
        for path in sorted(folder.rglob("*.so")):
            build_data["force_include"][str(path)] = str(path.relative_to(folder))
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder, whose files are in the wheel by now."""
        if version != "editable":
            shutil.rmtree(self._folder)
