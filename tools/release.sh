#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Make every artefact of a release from the commit that is checked out, and check each. As root, some 40 minutes.
#
#   tools/release.sh OUT
#   tools/release.sh --numbers     only compare the version numbers
set -eu
cd "$(dirname "$0")/.."

say() {
	printf 'release.sh: %s\n' "$*" >&2
}

version=$(sed -n "s/^  version: '\(.*\)',/\1/p" meson.build)
same() { # FILE PATTERN-WITH-ONE-GROUP
	found=$(sed -n "s/$2/\1/p" "$1" | head -n 1)
	[ "$found" = "$version" ] || { say "$1 has version $found, meson.build has $version"; exit 1; }
}
same tools/python/pyproject.toml '^version = "\(.*\)"'
same debian/changelog '^dcpfs (\(.*\)) .*'
same CHANGELOG.md '^## \[\([0-9].*\)\] - .*'
same tools/dcpfs.spec '^Version: *\(.*\)'
case ${1-} in
--numbers) exit 0 ;;
'' | -*) sed -n 's/^# \{0,1\}//; 5,6p' "$0" >&2; exit 2 ;;
esac
[ -z "$(git status --porcelain --untracked-files=no)" ] || { say 'files differ from the commit'; exit 1; }
mkdir -p "$1"
out=$(cd "$1" && pwd)

tools/packages.sh build test packaging
say 'sources'
[ -e build/release/build.ninja ] || meson setup build/release --buildtype=release >/dev/null
meson dist -C build/release --formats xztar >/dev/null
cp "build/release/meson-dist/dcpfs-$version.tar.xz" "$out/"
say 'documentation'
ninja -C build/release >/dev/null
# By Debian's python, for which packages.sh has installed modules; the first in the path may be another.
/usr/bin/python3 tools/site.py build/site build/release/tools/dcpfs
tar -C build --sort=name --mtime="@$(git log -1 --format=%ct)" --owner=0 --group=0 --numeric-owner --transform "s,^site,dcpfs-$version-doc," \
	-cJf "$out/dcpfs-$version-doc.tar.xz" site
rpmspec --parse tools/dcpfs.spec >/dev/null
tools/wheel.sh "$out"
tools/tarball.sh "$out"
tools/image.sh
tools/deb.sh "$out"
(cd "$out" && sha256sum -- *.* >SHA256SUMS)
say "$out:" "$(ls "$out")"
