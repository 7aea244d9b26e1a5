#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Install, build, mount two checkpoints, and look at them with ordinary tools.
#
#   tools/demo.sh [--keep]      --keep: leave them mounted at the end
set -euo pipefail
cd "$(dirname "$0")/.."

keep=no
case "${1-}" in
"") ;;
--keep) keep=yes ;;
*) echo "usage: tools/demo.sh [--keep]" >&2; exit 2 ;;
esac

bold='' plain=''
[ -t 1 ] && [ -z "${NO_COLOR-}" ] && bold=$'\033[1m' plain=$'\033[0m'
say() { printf '\n%s[%3d s] %s%s\n' "$bold" "$SECONDS" "$*" "$plain"; }
show() { # a command line, then what it prints
    printf '$ %s\n' "$*"
    bash -c "$*"
}
timed() { # the same, and how long it took
    local from=${EPOCHREALTIME/[.,]/} to
    show "$*"
    to=${EPOCHREALTIME/[.,]/}
    printf '(%d ms)\n' $(((to - from) / 1000))
}

# A python that has numpy: that of a venv made here, or Debian's.
numpy() {
    local venv=build/demo/venv log=build/demo/venv.log
    tools/packages.sh venv >"$log" 2>&1 || true
    python3 -m venv "$venv" >>"$log" 2>&1 &&
        "$venv/bin/pip" -q --disable-pip-version-check --timeout 10 --retries 1 install numpy >>"$log" 2>&1 &&
        python="$PWD/$venv/bin/python" && return
    tools/packages.sh numpy >>"$log" 2>&1 || true
    python3 -c 'import numpy' 2>>"$log" && python=python3 && return
    echo "numpy cannot be had: $log says why. Going on without."
}

say "Installing what is missing, and building"
tools/packages.sh build
[ -f build/demo/build.ninja ] || meson setup build/demo --buildtype=release -Dtests=false >/dev/null
if [ -t 1 ]; then
    ninja -C build/demo tools/dcpfs
elif ! ninja -C build/demo tools/dcpfs >build/demo/build.log 2>&1; then
    grep -A 10 '^FAILED' build/demo/build.log >&2 || tail -n 20 build/demo/build.log >&2
    exit 1
fi
export PATH="$PWD/build/demo/tools:$PATH" DCPFS_CACHE="$PWD/build/demo/cache"
python=''
numpy

src=tests/golden/dcp-fsdp2/ckpt
run=build/demo/run
mnt=$(mktemp -d "${TMPDIR:-/tmp}/dcpfs-demo.XXXXXX")
mkdir "$mnt/small" "$mnt/llama"
export mnt src
end() {
    dcpfs umount "$mnt/small" 2>/dev/null || true
    dcpfs umount "$mnt/llama" 2>/dev/null || true
    rmdir "$mnt/small" "$mnt/llama" "$mnt" 2>/dev/null || true
}
trap end EXIT

say "A run of three saves by torch.distributed.checkpoint: four FSDP ranks, bf16, AdamW; the last save died"
show "ls -A $src $src/step-20"

say "One command mounts it"
show "dcpfs $src $mnt/small"
show "ls -l $mnt/small"
show "cat $mnt/small/.dcpfs/incomplete.json"

say "Every version is a directory, every key a file"
show "cat $mnt/small/latest/README.txt"
show "ls $mnt/small/latest/npy | head -n 8"

say "Exact bits, numbers, safetensors: the same tensor three ways"
show "ls -l $mnt/small/latest/*/model.norm.weight.*"
show "od -A d -t f4 -N 32 $mnt/small/latest/raw/model.norm.weight.bin"
show "head -c 200 $mnt/small/latest/safetensors/model.embed_tokens.weight.safetensors | strings | head -n 1"

say "What is not a tensor is JSON, decoded and never executed"
show "cat $mnt/small/latest/objects/optimizer.param_groups.0.betas.json $mnt/small/latest/objects/train.info.json"

if command -v jq >/dev/null; then
    say "index.json knows where every byte is stored"
    show "jq -c '.tensors[] | select(.key==\"model.embed_tokens.weight\") | {key,dtype,shape,pieces}' $mnt/small/latest/index.json"
fi

say "A model of a real shape: a small llama, saved twice by four FSDP ranks (written here, without torch)"
rm -rf "$run"
show "tools/demo_model.py $run"
show "ls -s --block-size=1K $run/step-2000"
timed "dcpfs $run $mnt/llama"
timed "ls $mnt/llama/latest/npy | head -n 4"
timed "cat $mnt/llama/latest/raw/lm_head.weight.bin | wc -c"

key=model.layers.5.self_attn.q_proj.weight
say "Rank 1 of a job that was never run: tensor parallel over two, cut on the fly out of the four ranks' files"
show "ls -l $mnt/llama/latest/npy/$key.npy $mnt/llama/latest/shard/tp2:llama/1/npy/$key.npy"
timed "cat $mnt/llama/latest/shard/tp2:llama/1/model.safetensors | wc -c"

say "One tensor over two versions"
show "ls -l $mnt/llama/by-key/$key"

if [ -n "$python" ]; then
    say "Both with plain numpy, no torch, memory-mapped: the rank has the rows that are its own, and how far training moved the tensor"
    cat >build/demo/look.py <<'PYTHON'
import sys

import numpy as np

at, key = sys.argv[1:]
old, new = (np.load(f"{at}/by-key/{key}/step-{n}.npy", mmap_mode="r") for n in (1000, 2000))
rank = np.load(f"{at}/latest/shard/tp2:llama/1/npy/{key}.npy", mmap_mode="r")
print(new.dtype, new.shape, "->", rank.shape, "equal:", np.array_equal(rank, new[len(new) // 2:]))
print("std of the weights %.4f, of the change %.4f" % (new.std(), (new - old).std()))
PYTHON
    timed "$python build/demo/look.py $mnt/llama $key"
fi

say "The same without a mount"
show "dcpfs ls $run"
show "dcpfs show $run $key"

if [ "$keep" = yes ]; then
    trap - EXIT
    say "Still mounted on $mnt/small and $mnt/llama; unmount each with: dcpfs umount"
else
    say "Unmounting"
    show "dcpfs umount $mnt/small && dcpfs umount $mnt/llama"
    end
    trap - EXIT
fi
say "Done"
