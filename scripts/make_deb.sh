#!/usr/bin/env bash
# Make a package for Debian and Ubuntu of a bundle, for machines that have the Python of its wheels.
#
#   scripts/make_deb.sh BUNDLE.tar.gz [FOLDER]     (default: beside the bundle)
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
bundle=$(realpath "$1")
dist=$(realpath -m "${2:-$(dirname "$bundle")}")
case $(basename "$bundle" .tar.gz) in
    *-x86_64) architecture=amd64 ;;
    *-aarch64) architecture=arm64 ;;
    *) echo "make_deb.sh: the bundle's name ends in no architecture that is known: $bundle" >&2 && exit 1 ;;
esac
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
umask 022
chmod 755 "$tree"
mkdir -p "$tree/DEBIAN" "$tree/usr/lib/ebbtide" "$tree/usr/lib/systemd" "$tree/usr/share/doc/ebbtide" "$dist"
tar --extract --gzip --no-same-owner --file "$bundle" --directory "$tree/usr/lib/ebbtide" --strip-components 1
mv "$tree/usr/lib/ebbtide/systemd" "$tree/usr/lib/systemd/system"
cp "$here/LICENSE" "$tree/usr/share/doc/ebbtide/copyright"
version=$(cat "$tree/usr/lib/ebbtide/VERSION")
for file in control postinst prerm postrm; do
    sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" \
        -e "s/@PYTHON@/$(cat "$tree/usr/lib/ebbtide/PYTHON")/" "$here/deploy/deb/$file" > "$tree/DEBIAN/$file"
done
chmod 755 "$tree"/DEBIAN/p*
dpkg-deb --root-owner-group --build "$tree" "$dist/ebbtide_${version}_$architecture.deb" > /dev/null
echo "$dist/ebbtide_${version}_$architecture.deb"
