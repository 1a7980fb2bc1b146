"""What runs on hardware measured, kept in one JSON file: `EBB_GPU_RESULTS`, or gpu-results.json where pytest runs."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import pynvml


def record(name: str, **facts: Any) -> None:
    """Add one result, with the machine that it holds for; one of the same name before it is replaced."""
    path = Path(os.environ.get("EBB_GPU_RESULTS", "gpu-results.json"))
    results = json.loads(path.read_text()) if path.exists() else {}
    results[name] = {**facts, **machine()}
    path.write_text(json.dumps(results, indent=2, default=str) + "\n")


def machine() -> dict[str, str]:
    """Date, driver, GPU and kernel."""
    pynvml.nvmlInit()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "gpu": pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)),
        "kernel": platform.release(),
    }
