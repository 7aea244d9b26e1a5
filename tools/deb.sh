#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build the Debian packages twice in a bare Debian, compare the two, check them with lintian, and run their tests in another
# bare Debian where they are installed. As root.
#
#   tools/deb.sh OUT [SUITE]     SUITE: bookworm, trixie, ...; default bookworm
set -eu
. "$(dirname "$0")/root.sh"

[ $# = 1 ] || [ $# = 2 ] || { sed -n 's/^# \{0,1\}//; 6p' "$0" >&2; exit 2; }
root_check
mkdir -p "$1"
out=$(cd "$1" && pwd)
suite=${2:-bookworm}
work=$top/build/deb
log=$work/build.log
rm -rf "$log" "$work/use.log"

if [ ! -e "$work/needs.$suite" ] || ! cmp -s "$work/needs.$suite" "$top/debian/control"; then
	root_make "$work/root" "$suite"
	copy_source "$work/root/build/dcpfs"
	say "installing what building needs in $suite"
	root_sh "$work/root" "$log" 'apt-get -q update
		apt-get -qy install --no-install-recommends build-essential lintian
		cd /build/dcpfs && apt-get -qy --no-install-recommends build-dep .'
	cp "$top/debian/control" "$work/needs.$suite"
fi
# In two directories, because builds most often differ by a path.
rm -rf "$work/source"
copy_source "$work/source"
for place in build built/again; do
	say "building in /$place"
	rm -rf "$work/root/$place"
	mkdir -p "$work/root/$place"
	cp -a "$work/source" "$work/root/$place/dcpfs"
	root_sh "$work/root" "$log" "cd /$place/dcpfs && dpkg-buildpackage -us -uc"
done
for deb in "$work/root/build/"*.deb "$work/root/build/"*.dsc "$work/root/build/"*.tar.*; do
	cmp "$deb" "$work/root/built/again/${deb##*/}" || { say "two builds of ${deb##*/} differ"; exit 1; }
done
say 'both builds are equal; lintian'
root_sh "$work/root" "$log" 'cd /build && lintian --fail-on error,warning --tag-display-limit 0 --allow-root *.changes'
cp "$work/root/build/"*.deb "$work/root/build/"*.dsc "$work/root/build/"*.tar.* "$work/root/build/"*.changes "$work/root/build/"*.buildinfo "$out/"

say 'installing them elsewhere'
root_make "$work/bare" "$suite"
mkdir "$work/bare/debs"
cp "$out/"*.deb "$work/bare/debs/"
root_sh "$work/bare" "$work/use.log" 'apt-get -q update
	apt-get -qy install --no-install-recommends /debs/*.deb fuse3 gcc libc6-dev pkgconf python3-numpy man-db systemd-sysv dbus'
copy_source "$work/bare/src"
# As autopkgtest does, but without another machine: each test alone, in the source tree.
for test in programs mount libraries service; do
	code=0
	case $test in
	service) root_boot "$work/bare" "$work/use.log" "cd /src && sh -x debian/tests/$test" || code=$? ;;
	*) root_run "$work/bare" sh -euc "cd /src && debian/tests/$test" >>"$work/use.log" 2>&1 || code=$? ;;
	esac
	case $code in
	0) say "debian/tests/$test: passed" ;;
	77) say "debian/tests/$test: skipped, no FUSE here, or for service no systemd-nspawn" ;;
	*) tail -n 20 "$work/use.log" >&2; say "debian/tests/$test: failed; see $work/use.log"; exit 1 ;;
	esac
done
root_end "$work/bare"
say "$out:" "$(cd "$out" && echo *.deb)"
