"""The C stub of NVML: compiled, and loaded by the real `pynvml`."""

import ctypes
import os
import subprocess
from pathlib import Path

import pynvml

SOURCES = Path(__file__).parent / "c"
# What a driver of before 2021 does not have yet.
NOT_IN_OLD_DRIVERS = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlEventSetWait_v2",
)
_FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-pthread")


def compile_library(directory: Path, missing: tuple[str, ...] = ()) -> Path:
    """Make `directory` hold libnvidia-ml.so.1 without the missing functions; its path."""
    local = "".join(f"{name}; " for name in missing)
    exports = directory / "exports.map"
    exports.write_text(f"{{ global: nvml*; stub_*; local: {local}*; }};\n")
    library = directory / "libnvidia-ml.so.1"
    sources = sorted(str(path) for path in SOURCES.glob("*.c"))
    command = ["cc", *_FLAGS, "-shared", f"-Wl,--version-script={exports}", "-o", str(library), *sources]
    subprocess.run(command, check=True)
    return library


def compile_cuda(directory: Path) -> Path:
    """Make `directory` hold libcuda.so.1; its path."""
    library = directory / "libcuda.so.1"
    sources = [*map(str, sorted((Path(__file__).parent / "cuda").glob("*.c"))), str(SOURCES / "json.c")]
    subprocess.run(["cc", *_FLAGS, "-shared", "-o", str(library), *sources], check=True)
    return library


def load(library: Path, monkeypatch) -> None:
    """From now on to the test's end, `pynvml` in this process speaks to this library."""
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)


def found_by_children(library: Path, monkeypatch) -> None:
    """Processes that are started from now on find this library where they look for the driver's."""
    path = os.pathsep.join(filter(None, [str(library.parent), os.environ.get("LD_LIBRARY_PATH", "")]))
    monkeypatch.setenv("LD_LIBRARY_PATH", path)
