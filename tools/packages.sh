#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The one list of Debian packages. Installs those of the named sets that are missing.
#
#   tools/packages.sh build      to compile dcpfs
#   tools/packages.sh test       those, and packages for the whole test suite
#   tools/packages.sh optional   io_uring, MPI, libcurl and ncurses, as far as the distribution has them
#   tools/packages.sh packaging  other packages for tools/release.sh
#   tools/packages.sh site       for tools/site.py
#   tools/packages.sh venv       to make a virtual environment of python, for the demo
#   tools/packages.sh numpy      numpy outside of a virtual environment
#   tools/packages.sh list SET   print the names, install nothing
set -eu

build='build-essential meson ninja-build pkg-config libfuse3-dev fuse3 libsqlite3-dev
	libjansson-dev libarchive-dev libxxhash-dev nettle-dev zlib1g-dev
	libpcre2-dev'
# The unit tests are part of every build.
build="$build libcmocka-dev"
test="attr rsync jq git locales python3 python3-numpy python3-venv zstd lz4 sqlite3 clang clang-format
	libclang-rt-dev man-db nginx-light openssl valgrind zsh fish"
optional='libcurl4-openssl-dev libexpat1-dev libncurses-dev liburing-dev libopenmpi-dev openmpi-bin'
site="mandoc python3-markdown"
packaging="debootstrap rpm systemd-container $site"

say() {
	printf 'packages.sh: %s\n' "$*" >&2
}

names() {
	case $1 in
	build) echo $build ;;
	test) echo $build $test ;;
	optional) echo $optional ;;
	packaging) echo $packaging ;;
	site) echo $site ;;
	venv) echo python3-venv ;;
	numpy) echo python3-numpy ;;
	*)
		say "usage: packages.sh build|test|optional|packaging|site|venv|numpy ..., or: packages.sh list SET"
		exit 2
		;;
	esac
}

missing() {
	for name in "$@"; do
		status=$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) || status=
		[ "$status" = installed ] || echo "$name"
	done
}

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
		sudo "$@"
	else
		say "needs root, or sudo, to install:" $want
		exit 3
	fi
}

# apt-get prints too much: its output is shown only when it fails.
quietly() {
	log=$(mktemp)
	if ! as_root env DEBIAN_FRONTEND=noninteractive "$@" >"$log" 2>&1 </dev/null; then
		cat "$log" >&2
		rm -f "$log"
		return 1
	fi
	rm -f "$log"
}

[ $# -gt 0 ] || names ''
if [ "$1" = list ]; then
	names "${2-}"
	exit
fi
for set in "$@"; do
	all=$(names "$set")
	if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
		say "no apt-get here; the Debian names of what is needed:" $all
		exit 3
	fi
	want=$(missing $all)
	[ -n "$want" ] || continue
	as_root true
	say "installing ($set):" $want
	quietly apt-get -q update || say "apt-get update failed, trying with the lists at hand"
	if [ "$set" = optional ]; then
		for name in $want; do
			quietly apt-get -qy install --no-install-recommends "$name" ||
				say "left out, cannot be had: $name"
		done
	else
		quietly apt-get -qy install --no-install-recommends $want
	fi
done
