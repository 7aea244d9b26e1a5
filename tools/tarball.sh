#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build an archive of the programs that needs nothing installed but the C library: the other libraries are inside them. Libraries that are
# opened when they are needed (libcurl, libarchive, ncurses, CUDA) are the system's, if it has them. Built twice and compared, then used in
# bare Debians. As root.
#
#   tools/tarball.sh OUT
set -eu
. "$(dirname "$0")/root.sh"

[ $# = 1 ] || { sed -n 's/^# \{0,1\}//; 7p' "$0" >&2; exit 2; }
root_check
mkdir -p "$1"
out=$(cd "$1" && pwd)
work=$top/build/tarball
log=$work/build.log
version=$(sed -n "s/^  version: '\(.*\)',/\1/p" "$top/meson.build")
name=dcpfs-$version-linux-$(uname -m)
rm -rf "$log" "$work/use.log"

if [ ! -e "$work/needs" ] || ! cmp -s "$work/needs" "$top/tools/packages.sh"; then
	root_make "$work/root" bookworm
	copy_source "$work/root/src"
	say 'installing what building needs'
	root_sh "$work/root" "$log" 'apt-get -q update; /src/tools/packages.sh build optional; apt-get -qy install xz-utils'
	cp "$top/tools/packages.sh" "$work/needs"
fi
rm -rf "$work/source" "$work/root/out"
copy_source "$work/source"
for place in build built/again; do
	say "building in /$place"
	rm -rf "$work/root/$place"
	mkdir -p "$work/root/$place/out"
	cp -a "$work/source" "$work/root/$place/src"
	root_sh "$work/root" "$log" "cd /$place/src
		export CFLAGS='-ffile-prefix-map=/$place/src=.'
		meson setup /$place/b --buildtype=release --prefix=/usr -Dprefer_static=true -Dtests=false -Dmpi=disabled
		# Our shared libraries are left out: static libraries cannot be linked into them.
		ninja -C /$place/b tools/dcpfs \$(ninja -C /$place/b -t targets all | sed -n 's,^\(tools/dcpfs-[a-z]*\.1\):.*,\1,p; s,^\(tools/_*dcpfs[.a-z]*sh\|tools/_dcpfs\):.*,\1,p')
		cd /$place/out
		man=$name/share/man/man1 units=$name/lib/systemd/system
		mkdir -p $name/licenses $name/bin $name/share/completions \$man \$units
		cp ../b/tools/dcpfs $name/bin/
		for p in dcpload dcpsave; do ln -s dcpfs $name/bin/\$p; done
		cp ../src/tools/dcpfs.1 ../b/tools/dcpfs-*.1 \$man/
		cp ../b/tools/dcpfs.bash ../b/tools/_dcpfs ../b/tools/dcpfs.fish $name/share/completions/
		cp ../src/tools/service/dcpfs@.service \$units/
		sed -i s,@bindir@,/usr/local/bin, \$units/dcpfs@.service
		strip $name/bin/dcpfs
		cp ../src/LICENSE ../src/README.md ../src/CHANGELOG.md $name/
		for p in libfuse3-3 libsqlite3-0 libjansson4 libxxhash0 libnettle8 zlib1g libpcre2-8-0 liburing2; do
			cp -L /usr/share/doc/\$p/copyright $name/licenses/\$p
		done
		if ldd $name/bin/dcpfs | grep -vE 'linux-vdso|/(libc|libm)\\.so|ld-linux'; then echo 'these are not inside it'; exit 1; fi
		tar --sort=name --mtime=@\$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner --mode=u+w,go-w,a+rX -cJf $name.tar.xz $name"
done
cmp "$work/root/build/out/$name.tar.xz" "$work/root/built/again/out/$name.tar.xz" || { say 'two builds differ'; exit 1; }
cp "$work/root/build/out/$name.tar.xz" "$out/"
say "both builds are equal: $(stat -c %s "$out/$name.tar.xz") bytes"

for suite in bookworm trixie; do
	say "using it in a bare $suite"
	root_make "$work/bare" $suite
	tar -C "$work/bare" -xf "$out/$name.tar.xz"
	cp -a "$top/tests/golden/dcp-fsdp2/ckpt" "$work/bare/ckpt"
	root_sh "$work/bare" "$work/use.log" "export PATH=/$name/bin:\$PATH HOME=/tmp
		cd /tmp
		dcpfs version
		dcpfs ls /ckpt
		dcpfs export /ckpt 20 made --as safetensors --verify
		dcpload /ckpt 20 --layout fsdp2 --rank 1
		dcpsave /ckpt 20 again
		[ -c /dev/fuse ] && (: <>/dev/fuse) || exit 0
		mkdir mnt
		dcpfs /ckpt mnt
		cmp mnt/step-20/raw/model.patch.bias.bin mnt/latest/raw/model.patch.bias.bin
		dcpfs status mnt --interval 0
		dcpfs umount mnt"
	root_end "$work/bare"
done
say "$out/$name.tar.xz works in bookworm and trixie, where nothing is installed"
