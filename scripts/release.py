"""Builds the wheels and source archives of both distributions, and checks whether a commit can be released.

python scripts/release.py --build dist   # build what is in the tree, into dist/
python scripts/release.py --check        # print a line for each item of the checklist; exit code 1 if one fails

A build takes its times from the commit, or from SOURCE_DATE_EPOCH, so the same commit gives the same bytes.
The checklist builds from copies of the commit, and leaves the tree and dist/ as they are.
"""

import argparse
import filecmp
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = {"ebbtide": "protos/ebbtide_protos/version.py", "ebbtide-sdk": "sdk/ebbtide/version.py"}
"""Where each distribution reads its version."""
FOLDERS = {"ebbtide": ".", "ebbtide-sdk": "sdk"}
GENERATED = ("scripts/generate_protos.py", "scripts/reference.py")
"""The scripts that say with --check whether what they generate is current."""


class Unfit(Exception):
    """An item of the checklist does not hold; the message says why, in one line."""


@dataclass(frozen=True)
class Item:
    """One line of the checklist; `look` returns what it found, or raises Unfit."""

    name: str
    look: Callable[[], str]


def build(tree: Path, into: Path, epoch: str, **environment: str) -> list[Path]:
    """Build both distributions of the tree, each as a wheel and as a source archive, and return the four files.

    They say that they were made at `epoch`, in seconds since 1970. Raises Unfit if one cannot be built.
    """
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into) as folder:
        for place in FOLDERS.values():
            hatchling(tree / place, Path(folder), SOURCE_DATE_EPOCH=epoch, **environment)
        return [Path(shutil.move(path, into / path.name)) for path in sorted(Path(folder).iterdir())]


def hatchling(place: Path, into: Path, *words: str, **environment: str) -> None:
    """Build what the project in `place` says. Raises Unfit with the last line of the complaint."""
    command = [sys.executable, "-m", "hatchling", "build", *words, "--directory", str(into)]
    done = subprocess.run(command, cwd=place, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        raise Unfit(f"{place.name} cannot be built: {last_line(done.stderr)}")


def commit_time(tree: Path) -> str:
    """Return the time of the tree's commit in seconds since 1970; what SOURCE_DATE_EPOCH says comes first."""
    return os.environ.get("SOURCE_DATE_EPOCH") or git(tree, "log", "-1", "--format=%ct").strip()


def copy_of_commit(tree: Path, into: Path) -> Path:
    """Write the files of the tree's commit into a new folder, and return that."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=tree, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(into, filter="data")
    return into


# --- the items ---


def versions(tree: Path) -> str:
    """Find the one version of both distributions, which the commands' requirement of the SDK names as well."""
    found = {name: version_in(tree / path) for name, path in VERSIONS.items()}
    needed = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["dependencies"]
    [pin] = [each for each in needed if each.startswith("ebbtide-sdk")] or ["nothing"]
    found["the SDK that pyproject.toml requires"] = pin.removeprefix("ebbtide-sdk==")
    if len(set(found.values())) > 1:
        raise Unfit(", ".join(f"{name}: {version}" for name, version in found.items()))
    return found["ebbtide"]


def version_in(path: Path) -> str:
    match = re.search(r'^VERSION = "(.+)"$', path.read_text(), re.MULTILINE)
    if match is None:
        raise Unfit(f"{path.name} has no VERSION")
    return match[1]


def changelog(tree: Path) -> str:
    """Find the date under which the changelog has the version."""
    version = version_in(tree / VERSIONS["ebbtide"])
    match = re.search(rf"^## \[{re.escape(version)}\] - (.+)$", (tree / "CHANGELOG.md").read_text(), re.MULTILINE)
    if match is None:
        raise Unfit(f"CHANGELOG.md has no section [{version}]")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", match[1]):
        raise Unfit(f"CHANGELOG.md says {match[1]!r} of {version}: it needs a date")
    return match[1]


def clean(tree: Path) -> str:
    """See that what is in the tree is the commit."""
    changed = git(tree, "status", "--porcelain").splitlines()
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise Unfit(f"not committed: {changed[0][3:]}{more}")
    return git(tree, "rev-parse", "--short", "HEAD").strip()


def generated(tree: Path) -> str:
    """See that generated files are what the scripts would generate."""
    for script in GENERATED:
        done = subprocess.run([sys.executable, script, "--check"], cwd=tree, capture_output=True, text=True)
        if done.returncode:
            raise Unfit(last_line(done.stderr))
    return ", ".join(Path(script).stem for script in GENERATED)


def reproducible(tree: Path, folder: Path) -> str:
    """See that the commit gives the same bytes in another folder, with other times and modes, in another zone."""
    epoch = commit_time(tree)
    first = build(copy_of_commit(tree, folder / "one"), folder / "built", epoch)
    other = copy_of_commit(tree, folder / "other" / "folder")
    for path in other.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(path.stat().st_mode & 0o700)
    second = build(other, folder / "built again", epoch, TZ="Asia/Kathmandu", PYTHONHASHSEED="7", LC_ALL="C")
    differing = [path.name for path, again in zip(first, second, strict=True) if not filecmp.cmp(path, again, False)]
    if differing:
        raise Unfit(f"built twice, these differ: {', '.join(differing)}")
    return f"{len(first)} files"


def same_from_archives(tree: Path, folder: Path) -> str:
    """See that the source archives hold all that the wheels are built from."""
    built, again, epoch = folder / "built", folder / "from archives", commit_time(tree)
    for archive in sorted(built.glob("*.tar.gz")):
        with tarfile.open(archive) as files:
            files.extractall(folder / "unpacked", filter="data")
        place = folder / "unpacked" / archive.name.removesuffix(".tar.gz")
        hatchling(place, again, "--target", "wheel", SOURCE_DATE_EPOCH=epoch)
    names = sorted(path.name for path in built.glob("*.whl"))
    _, differing, missing = filecmp.cmpfiles(built, again, names, shallow=False)
    if differing or missing:
        raise Unfit(f"the archives build others: {', '.join(differing + missing)}")
    return f"{len(names)} wheels"


def apart(folder: Path) -> str:
    """See that no file is in both wheels: whoever removes one distribution would damage the other."""
    wheels = sorted((folder / "built").glob("*.whl"))
    names = [set(zipfile.ZipFile(wheel).namelist()) for wheel in wheels]
    if shared := sorted(set.intersection(*names)):
        raise Unfit(f"in both wheels: {', '.join(shared)}")
    return " and ".join(f"{len(each)} files" for each in names)


def metadata(folder: Path) -> str:
    """Have twine check what an index would refuse or show wrong."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    twine = shutil.which("twine", path=beside)
    if twine is None:
        raise Unfit("twine is not here: pip install twine, or pipx install twine")
    files = sorted(str(path) for path in (folder / "built").iterdir() if path.is_file())
    done = subprocess.run([twine, "check", "--strict", *files], capture_output=True, text=True)
    if done.returncode:
        raise Unfit(last_line(done.stdout + done.stderr))
    return f"twine check --strict: {len(files)} files"


def checklist(tree: Path, folder: Path) -> Iterator[Item]:
    """Yield the items in order; what is built lies in `folder`, and later items look at it."""
    yield Item("versions agree", lambda: versions(tree))
    yield Item("the changelog has the version", lambda: changelog(tree))
    yield Item("the tree is clean", lambda: clean(tree))
    yield Item("generated files are current", lambda: generated(tree))
    yield Item("wheels and archives are reproducible", lambda: reproducible(tree, folder))
    yield Item("archives build the same wheels", lambda: same_from_archives(tree, folder))
    yield Item("no file is in both wheels", lambda: apart(folder))
    yield Item("metadata is valid", lambda: metadata(folder))


def check(tree: Path) -> bool:
    """Print a line for each item, and return whether all hold."""
    fit = True
    with tempfile.TemporaryDirectory(prefix="ebb-release-") as folder:
        for item in checklist(tree, Path(folder)):
            try:
                sys.stdout.write(f"✓ {item.name}: {item.look()}\n")
            except Unfit as error:
                fit = False
                sys.stdout.write(f"✗ {item.name}: {error}\n")
            sys.stdout.flush()
    return fit


# --- what they share ---


def git(tree: Path, *words: str) -> str:
    """Return what git prints. Raises Unfit if it fails, as where there is no repository."""
    done = subprocess.run(["git", *words], cwd=tree, capture_output=True, text=True)
    if done.returncode:
        raise Unfit(f"git {words[0]}: {last_line(done.stderr)}")
    return done.stdout


def last_line(text: str) -> str:
    """Return the last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it does not say why")


def main() -> int:
    """Do what the arguments ask for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--build", type=Path, metavar="FOLDER", help="build both distributions of the tree into it")
    what.add_argument("--check", action="store_true", help="check whether the commit can be released")
    given = parser.parse_args()
    if given.check:
        return 0 if check(ROOT) else 1
    try:
        built = build(ROOT, given.build.resolve(), commit_time(ROOT))
    except Unfit as error:
        sys.stderr.write(f"release.py: {error}\n")
        return 1
    sys.stdout.writelines(f"{path}\n" for path in built)
    return 0


if __name__ == "__main__":
    sys.exit(main())
