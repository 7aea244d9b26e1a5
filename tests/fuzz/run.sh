#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fuzz for real: clang, libFuzzer, sanitizers.
#
#   tests/fuzz/run.sh [SECONDS [TARGET...]]     60 seconds for each target of tests/fuzz/targets
#
# Starts from tests/bad/<target>, tests/fuzz/corpus/<target> and the seeds in the list; what
# libFuzzer learns stays in build/fuzz/learnt/<target> for the next time. A find is kept in
# build/fuzz/found/ and makes the exit code 1: minimise it, name it after its fault, move it to
# tests/bad/<target>/ with the fix.
set -u
cd "$(dirname "$0")/../.." || exit 3
root=$PWD
top=$root/build/fuzz
list=$root/tests/fuzz/targets
seconds=${1:-60}
[ $# -eq 0 ] || shift
case $seconds in
*[!0-9]* | '')
	sed -n 's/^# \{0,1\}//; 3,10p' "$0" >&2
	exit 2
	;;
esac
[ $# -gt 0 ] || set -- $(sed -n 's/^\([a-z0-9_]\{1,\}\) .*/\1/p' "$list")

mkdir -p "$top/found"
if [ ! -e "$top/obj/build.ninja" ]; then
	CC=clang meson setup "$top/obj" "$root" -Dfuzz=true -Db_sanitize=address,undefined \
		-Db_lundef=false >"$top/setup.log" 2>&1 || {
		tail -n 20 "$top/setup.log" >&2
		exit 3
	}
fi

export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
bad=0
for name in "$@"; do
	line=$(grep "^$name " "$list") || {
		printf '%s: not in %s\n' "$name" "$list" >&2
		exit 2
	}
	ninja -C "$top/obj" "tests/fuzz/fuzz_$name" >"$top/$name.ninja.log" 2>&1 || {
		tail -n 30 "$top/$name.ninja.log" >&2
		exit 3
	}
	rm -rf "$top/seeds/$name"
	mkdir -p "$top/seeds/$name" "$top/learnt/$name"
	max=$(echo "$line" | cut -d' ' -f2)
	n=0
	for seed in $(cd "$root/tests" && find "bad/$name" "fuzz/corpus/$name" \
		$(echo "$line" | cut -s -d' ' -f3-) -type f 2>/dev/null); do
		n=$((n + 1))
		cp "$root/tests/$seed" "$top/seeds/$name/$n"
	done
	printf 'fuzz %s: %s s, %s seeds, at most %s bytes\n' "$name" "$seconds" "$n" "$max"
	if "$top/obj/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -max_len="$max" \
		-timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
		-artifact_prefix="$top/found/$name-" \
		"$top/learnt/$name" "$top/seeds/$name" >"$top/$name.log" 2>&1; then
		grep -E '^(stat::number_of_executed_units|#[0-9]+[[:space:]]+DONE)' "$top/$name.log"
	else
		bad=1
		grep -E 'ERROR:|runtime error|SUMMARY|Test unit written|^    #[0-9] ' "$top/$name.log" | head -n 25
		printf 'fuzz %s: FOUND SOMETHING, kept in %s, log %s\n' "$name" "$top/found/" "$top/$name.log"
	fi
done
exit $bad
