#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install a wheel of dcpfs and use all that is in it. Run by tools/wheel.sh, in a root that has python3-venv and fuse3.
#
# usage: wheel.sh WHEEL CHECKPOINT
set -eux
wheel=$1 ckpt=$2
work=$(mktemp -d)
cd "$work"
python3 -m venv v
v/bin/pip install -q "$wheel" numpy
export PATH="$work/v/bin:$PATH" HOME="$work"

dcpfs version
# An index is kept, which libraries of the system that are too old could not do.
dcpfs index "$ckpt" 20 2>&1 | tee said
if grep memory said; then exit 1; fi
python3 -m dcpfs version --json
test "$(python3 -m dcpfs ls "$ckpt" --json | md5sum)" = "$(dcpfs ls "$ckpt" --json | md5sum)"
python3 -m dcpfs export "$ckpt" 20 hf --as safetensors --verify
dcpload "$ckpt" 20 --layout fsdp2 --rank 1 --dump rank1
dcpsave "$ckpt" 20 again
dcpfs ls again
# Compressed: by the wheel's own libarchive.
python3 -c 'import sys, tarfile
with tarfile.open("run.tar.xz", "w:xz") as t: t.add(sys.argv[1] + "/step-20", "step-20")' "$ckpt"
dcpfs export run.tar.xz unpacked --as safetensors
dcpfs version | grep '^io_uring built in'
# A program that fails says so by its code.
if python3 -m dcpfs ls /nowhere; then exit 1; fi

python3 - "$ckpt" <<'END'
import sys
import dcpfs, dcpfs._lib, numpy
assert dcpfs._lib.library()._name.startswith(sys.prefix), dcpfs._lib.library()._name
ckpt = dcpfs.open(sys.argv[1])
made = dcpfs.open("hf")
same = [k for k in ckpt if k in made and ckpt[k].read().tobytes() == made[k].read().tobytes()]
assert len(same) > 10, same
dcpfs.save({"w": numpy.arange(12.0).reshape(3, 4)}, "saved", "safetensors")
mine = dcpfs.load(sys.argv[1], "fsdp2", 1)
assert mine
END

if [ -c /dev/fuse ] && (: <>/dev/fuse) 2>/dev/null; then
	mkdir mnt
	dcpfs mount "$ckpt" mnt
	python3 -c 'import numpy; assert numpy.load("mnt/latest/npy/model.patch.bias.npy").shape'
	dcpfs umount mnt
fi
echo used
