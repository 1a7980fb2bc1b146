#!/bin/sh
# Install Ebbtide from the wheels beside this file, without a network.
#
#   sh install.sh [FOLDER]      (default: /opt)
#
# It goes into FOLDER/ebbtide-VERSION, and FOLDER/ebbtide becomes a link to it: what runs goes on with the version that it
# was started from, and the way back is to point the link at the folder of before.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-/opt}
version=$(cat "$here/VERSION")
needed=$(cat "$here/PYTHON")
python=${PYTHON:-python$needed}
target=$folder/ebbtide-$version

command -v "$python" >/dev/null || { echo "install.sh: Python $needed is needed: name it with PYTHON=..." >&2; exit 1; }
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$found" = "$needed" ] || { echo "install.sh: the wheels are for Python $needed, and $python is $found" >&2; exit 1; }
[ ! -e "$target" ] || { echo "install.sh: $target exists: remove it first" >&2; exit 1; }

mkdir -p "$folder"
# pip comes from its own wheel: Debian's Python has none in a fresh environment.
"$python" -m venv --without-pip "$target"
"$target/bin/python" -I "$(echo "$here"/wheels/pip-*.whl)/pip" --isolated install --quiet --no-cache-dir --no-index \
    --find-links "$here/wheels" pip 'ebbtide[dashboard,postgres]'
ln -sfn "ebbtide-$version" "$folder/.ebbtide.new"
mv -T "$folder/.ebbtide.new" "$folder/ebbtide"
"$folder/ebbtide/bin/ebb" --version
