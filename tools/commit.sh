#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Print the commit of the source tree, with a + if files differ from it; nothing if it is not known.
#
#   tools/commit.sh          print it
#   tools/commit.sh --dist   write it into the tree of a release that meson makes, which has no history
set -eu
root=$(dirname "$0")/..
commit() {
	if [ -e "$root/.commit" ]; then
		cat "$root/.commit"
	elif [ -e "$root/.git" ]; then
		# The checkout may belong to another user, as in a container.
		git -c safe.directory='*' -C "$root" describe --always --abbrev=12 --dirty=+ --exclude='*' 2>/dev/null || :
	fi
}
case ${1-} in
--dist) commit >"$MESON_DIST_ROOT/.commit" ;;
*) commit ;;
esac
