"""Generate the Python modules of the wire protocol; with ``--check``, only compare them with what is committed."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "protos"
PACKAGE = Path("ebbtide_protos/v1")


def generate(out: Path) -> None:
    """Write ``*_pb2.py``, ``*_pb2_grpc.py`` and their type stubs below ``out``."""
    protos = [str(path.relative_to(ROOT)) for path in sorted((ROOT / PACKAGE).glob("*.proto"))]
    outs = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", *outs, *protos]
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"protoc failed: {result.stderr.strip()}")


def stale_files() -> list[str]:
    """Names of generated files that differ from what the ``.proto`` files say now."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = {path.name: path.read_bytes() for path in (Path(folder) / PACKAGE).iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / PACKAGE).glob("*_pb2*")}
    return sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))


def main() -> None:
    if "--check" not in sys.argv[1:]:
        generate(ROOT)
    elif stale := stale_files():
        sys.exit(f"generated code is out of date ({', '.join(stale)}): run `make protos`")


if __name__ == "__main__":
    main()
