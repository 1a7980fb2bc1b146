#!/usr/bin/env bash
# Put all that a machine without a network needs into dist/: the wheels of the project and those they depend on, the units
# for systemd, the files for containers, and a script that installs it. The wheels are for this architecture and this Python.
#
#   PYTHON=.venv/bin/python scripts/make_bundle.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}
dist=$(realpath -m "${1:-dist}")
read -r version minor machine < <("$python" -c '
import platform, runpy, sys
version = runpy.run_path("protos/ebbtide_protos/version.py")["VERSION"]
print(version, "%d.%d" % sys.version_info[:2], platform.machine())')
name=ebbtide-$version-py$minor-$machine
rm -rf "${dist:?}/$name"
mkdir -p "$dist/$name"
# `make bundle` builds the documentation first; without it, `ebb docs` shows the pages as text.
if [ -f "dist/docs/$version/index.html" ]; then export EBB_DOCS_SITE="dist/docs/$version"; fi
"$python" -m pip wheel --quiet --constraint constraints.txt --wheel-dir "$dist/$name/wheels" ./sdk '.[dashboard,postgres]' pip
cp -r deploy/systemd deploy/container deploy/bundle/install.sh LICENSE "$dist/$name/"
echo "$version" > "$dist/$name/VERSION"
echo "$minor" > "$dist/$name/PYTHON"
tar --create --gzip --owner=0 --group=0 --directory "$dist" --file "$dist/$name.tar.gz" "$name"
echo "$dist/$name.tar.gz"
