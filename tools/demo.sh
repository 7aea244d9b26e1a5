#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Install, build, mount a real checkpoint, and look at it with ordinary tools.
#
#   tools/demo.sh [--keep]      --keep: leave it mounted at the end
set -euo pipefail
cd "$(dirname "$0")/.."

keep=no
case "${1-}" in
"") ;;
--keep) keep=yes ;;
*) echo "usage: tools/demo.sh [--keep]" >&2; exit 2 ;;
esac

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] && [ -z "${NO_COLOR-}" ] || say() { printf '\n%s\n' "$*"; }
show() { # a command line, then what it prints
    printf '$ %s\n' "$*"
    bash -c "$*"
}

say "Installing what is missing, and building"
tools/packages.sh build
[ -f build/demo/build.ninja ] || meson setup build/demo --buildtype=release >/dev/null
ninja -C build/demo tools/dcpfs | tail -n 1
export PATH="$PWD/build/demo/tools:$PATH"

src=tests/golden/dcp-fsdp2/ckpt
mnt=$(mktemp -d "${TMPDIR:-/tmp}/dcpfs-demo.XXXXXX")
export mnt src
trap 'dcpfs umount "$mnt" 2>/dev/null || true; rmdir "$mnt" 2>/dev/null || true' EXIT

say "A run of three saves by torch.distributed.checkpoint: four FSDP ranks, bf16, AdamW; the last save died"
show "ls -A $src $src/step-20"

say "One command mounts it"
show "dcpfs $src $mnt"
show "ls -l $mnt"
show "cat $mnt/.dcpfs/incomplete.json"

say "Every version is a directory, every key a file"
show "cat $mnt/latest/README.txt"
show "ls $mnt/latest/npy | head -n 8"

say "Exact bits, numbers, safetensors: the same tensor three ways"
show "ls -l $mnt/latest/*/model.norm.weight.*"
show "od -A d -t f4 -N 32 $mnt/latest/raw/model.norm.weight.bin"
show "head -c 200 $mnt/latest/safetensors/model.embed_tokens.weight.safetensors | strings | head -n 2"

say "What is not a tensor is JSON, decoded and never executed"
show "cat $mnt/latest/objects/optimizer.param_groups.0.betas.json $mnt/latest/objects/train.info.json"

say "The same checkpoint as rank 1 of 3 would hold it: cut on the fly, and all of it as one safetensors file"
show "ls -l $mnt/latest/npy/model.embed_tokens.weight.npy $mnt/latest/shard/fsdp3/1/npy/model.embed_tokens.weight.npy"
show "ls -l $mnt/latest/shard/fsdp3/1"

if command -v jq >/dev/null; then
    say "index.json knows where every byte is stored"
    show "jq -c '.tensors[] | select(.key==\"model.embed_tokens.weight\") | {key,dtype,shape,pieces}' $mnt/latest/index.json"
fi
if python3 -c 'import numpy' 2>/dev/null; then
    say "Plain numpy, no torch: a bf16 weight, memory-mapped"
    show "python3 -c \"import numpy as np; a = np.load('$mnt/latest/npy/model.embed_tokens.weight.npy', mmap_mode='r'); print(a.dtype, a.shape, a[0, :4])\""
fi

say "The same without a mount"
show "dcpfs ls $src"
show "dcpfs show $src model.layers.0.self_attn.q_proj.weight"

if [ "$keep" = yes ]; then
    trap - EXIT
    say "Still mounted on $mnt; unmount with:  dcpfs umount $mnt"
else
    say "Unmounting"
    show "dcpfs umount $mnt"
    rmdir "$mnt"
    trap - EXIT
fi
