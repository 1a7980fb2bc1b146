"""Every Python from 3.11.0 on that this machine has: what needs its standard library alone is imported and used."""

import subprocess
from pathlib import Path

import pytest

from tests.interpreters import interpreters

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDERS = ["sdk", "core", "machine", "protos", "master", "agent", "client", "simulator"]
KNOWN = [version for version in interpreters() if version.split(".")[1] != "10"]
OURS = [pytest.param(version, marks=() if version in (KNOWN[0], KNOWN[-1]) else pytest.mark.slow) for version in KNOWN]
IMPORTS = """
import importlib, sys, warnings
from pathlib import Path
warnings.simplefilter("error")
root, *folders = sys.argv[1:]
sys.path += [f"{root}/{folder}" for folder in folders]
packages = {next(Path(root, folder).glob("ebbtide*")).name for folder in folders}
imported = 0
for folder in folders:
    for path in sorted(Path(root, folder).rglob("*.py")):
        words = path.relative_to(Path(root, folder)).with_suffix("").parts
        if words[-1] in ("__main__", "sitecustomize") or "_pb2" in words[-1] or "offered" in words:
            continue
        try:
            importlib.import_module(".".join(words).removesuffix(".__init__"))
            imported += 1
        except ModuleNotFoundError as error:
            if error.name.partition(".")[0] in packages or error.name in sys.stdlib_module_names:
                raise
print(imported)
"""
UNPACKS = """
import io, sys, tarfile
from pathlib import Path
sys.path.append(sys.argv[1])
from ebbtide_cli.channels.extracting import unpack
out = io.BytesIO()
with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
    for name, content in (("0", None), ("0/a", b"one"), ("0/../b", b"two")):
        member = tarfile.TarInfo(name)
        member.size, member.type = (0, tarfile.DIRTYPE) if content is None else (len(content), tarfile.REGTYPE)
        archive.addfile(member, io.BytesIO(content or b""))
done = unpack(io.BytesIO(out.getvalue()), [Path(sys.argv[2])], lambda done: None)
print(done.files, len(done.left_out), Path(sys.argv[2], "a").read_text())
"""


def run(version: str, code: str, *arguments: object) -> str:
    command = [interpreters()[version], "-S", "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@pytest.mark.parametrize("version", OURS)
def test_all_that_needs_the_standard_library_alone_is_imported_without_a_warning(version):
    """What another version has not, has deprecated or reads otherwise shows when it is imported."""
    assert int(run(version, IMPORTS, REPOSITORY, *FOLDERS)) > 350


@pytest.mark.parametrize("version", OURS)
def test_ebb_cp_unpacks_what_comes(version, tmp_path):
    """It crashed on Debian 12's 3.11.2, whose tarfile has no FilterError."""
    assert run(version, UNPACKS, REPOSITORY / "client", tmp_path / "tree") == "1 1 one"
