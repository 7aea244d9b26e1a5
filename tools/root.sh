# SPDX-License-Identifier: Apache-2.0
# Read by wheel.sh and deb.sh: directories that hold a bare Debian, and commands inside them. Needs root.
# A suite is downloaded once, into build/roots/; each use works on a copy.

say() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
}

# Check the needs of all scripts that read this.
root_check() {
	[ "$(id -u)" = 0 ] || { say "needs root: it makes a bare Debian and works inside it"; exit 3; }
	command -v debootstrap >/dev/null || { say "debootstrap is missing: tools/packages.sh packaging"; exit 3; }
	# The mirror of this machine's packages; otherwise that of debootstrap.
	mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1)
}

# root_make PLACE SUITE: make a fresh root
root_make() {
	local bare="$top/build/roots/$2"
	if [ ! -e "$bare.complete" ]; then
		rm -rf "$bare"
		mkdir -p "$bare"
		say "downloading a bare Debian: $2"
		quiet "$bare.log" debootstrap --variant=minbase "$2" "$bare" ${mirror:+"$mirror"}
		touch "$bare.complete"
	fi
	: "${mirror:=$(sed -n 's/^deb \([^ ]*\) .*/\1/p' "$bare/etc/apt/sources.list" | head -n 1)}"
	root_end "$1"
	mkdir -p "$1"
	cp -a --reflink=auto "$bare/." "$1"
	cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
	# The certificates that pip needs on this machine, under a path that no package overwrites.
	[ ! -e "${PIP_CERT:-}" ] || cp -L "$PIP_CERT" "$1/etc/pip.pem"
	chmod 755 "$1"
}

# root_run PLACE COMMAND...: run it in the root, in a mount namespace of its own, so that nothing stays mounted
root_run() {
	local place=$1
	shift
	unshare --mount --propagation unchanged sh -c '
		place=$1; shift
		mount --make-rprivate / 2>/dev/null || :
		mount -t proc proc "$place/proc" && mount --rbind /dev "$place/dev" && mount -t tmpfs tmpfs "$place/tmp" || exit 3
		exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
			DEBIAN_FRONTEND=noninteractive SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" PIP_ROOT_USER_ACTION=ignore \
			${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} ${PIP_CERT:+PIP_CERT=/etc/pip.pem} chroot "$place" "$@"' sh "$place" "$@" </dev/null
}

# root_sh PLACE LOG SCRIPT: run a script in the root; its output is shown only when it fails
root_sh() {
	quiet "$2" root_run "$1" sh -euc "$3"
}

# root_boot PLACE LOG SCRIPT: the same after systemd of the root has started; returns SCRIPT's exit code. 77: this machine has no
# systemd-nspawn, or no FUSE.
root_boot() {
	command -v systemd-nspawn >/dev/null && (: <>/dev/fuse) 2>/dev/null || return 77
	mkdir -p "$1/boot-once"
	printf '#!/bin/sh\nexec >/boot-once/said 2>&1\n(set -eu\n%s\n)\necho $? >/boot-once/code\nsystemctl poweroff\n' "$3" >"$1/boot-once/run"
	printf '[Unit]\nAfter=multi-user.target\n[Service]\nType=exec\nExecStart=/bin/sh /boot-once/run\n[Install]\nWantedBy=multi-user.target\n' \
		>"$1/etc/systemd/system/boot-once.service"
	mkdir -p "$1/etc/systemd/system/multi-user.target.wants"
	ln -sf ../boot-once.service "$1/etc/systemd/system/multi-user.target.wants/"
	: >"$1/etc/machine-id"
	timeout 600 systemd-nspawn --quiet --register=no --keep-unit --boot --directory="$1" --bind=/dev/fuse \
		--property='DeviceAllow=/dev/fuse rwm' --capability=all </dev/null >>"$2" 2>&1 || :
	cat "$1/boot-once/said" >>"$2" || :
	return "$(cat "$1/boot-once/code" || echo 3)"
}

root_end() {
	rm -rf --one-file-system "$1"
}

quiet() {
	local log=$1
	shift
	mkdir -p "${log%/*}"
	if ! "$@" >>"$log" 2>&1; then
		tail -n 30 "$log" >&2
		say "failed; all of it is in $log"
		exit 1
	fi
}

# Copy the files of the work tree that git does not ignore to a directory.
copy_source() {
	mkdir -p "$1"
	git -C "$top" ls-files -z --cached --others --exclude-standard |
		tar -C "$top" --null --ignore-failed-read -T - -cf - 2>/dev/null | tar -C "$1" -xf -
	"$top/tools/commit.sh" >"$1/.commit"
}

top=$(cd "$(dirname "$0")/.." && pwd)
SOURCE_DATE_EPOCH=$(git -C "$top" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
