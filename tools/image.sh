#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Do what tools/service/Dockerfile says, without docker: each stage in a bare Debian. Then use the result as the image's user, and print
# the size of the image. As root.
#
#   tools/image.sh
set -eu
. "$(dirname "$0")/root.sh"

[ $# = 0 ] || { sed -n 's/^# \{0,1\}//; 6p' "$0" >&2; exit 2; }
root_check
work=$top/build/image
log=$work.log
most=60000000 # bytes, compressed
rm -rf "$work" "$log"
mkdir -p "$work"

stage= at=/ user=root entry=
follow() { # INSTRUCTION REST
	case $1 in
	FROM)
		stage=$work/last at=/
		[ "${2#* AS }" = "$2" ] || stage=$work/${2#* AS }
		suite=${2#debian:} suite=${suite%%-slim*}
		root_make "$stage" "$suite"
		;;
	WORKDIR) at=$2 ;;
	RUN)
		say "in ${stage##*/}: $(printf %.60s "$2") ..."
		root_sh "$stage" "$log" "cd $at; $2"
		;;
	COPY)
		case $2 in
		--from=*)
			from=${2#--from=} to=${from##* } path=${from#* }
			cp -a "$work/${from%% *}${path%% *}/." "$stage$to"
			;;
		'. '*) copy_source "$stage${2#. }" ;;
		*) say "COPY $2: not known here"; exit 1 ;;
		esac
		;;
	ARG) ;; # the source that is copied knows its commit
	USER) user=$2 ;;
	ENTRYPOINT) entry=$(printf %s "$2" | tr -d '[]",') ;;
	*) say "$1: not known here"; exit 1 ;;
	esac
}

# Each instruction on one line.
sed -e '/^#/d' -e '/^$/d' -e ':a' -e '/\\$/{N;s/\\\n[[:space:]]*//;ba' -e '}' "$top/tools/service/Dockerfile" >"$work/lines"
while read -r word rest <&3; do
	follow "$word" "$rest"
done 3<"$work/lines"
[ "$user" != root ] || { say 'its user is root'; exit 1; }

say "using it as $user"
cp -a "$top/tests/golden/dcp-fsdp2/ckpt" "$stage/source"
as() {
	root_sh "$stage" "$log" "cd /tmp; ldconfig; runuser -u $user -- $entry $*"
}
as version
as ls /source
as export /source 20 /tmp/made --as safetensors --verify
as doctor --quiet '|| [ $? = 1 ]'
root_sh "$stage" "$log" 'ldd /usr/bin/dcpfs | grep "not found" && exit 1 || :'
rm -rf "$stage/source"
# Without the files that the slim image leaves out.
size=$(tar -C "$stage" --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale --exclude=./usr/share/info \
	--exclude=./var/cache --exclude=./var/lib/apt --exclude=./var/log -cf - . | gzip | wc -c)
say "compressed $size bytes"
[ "$size" -lt $most ] || { say "that is more than $most"; exit 1; }
root_end "$work"
