#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ends early leaves nothing behind: a limit of file sizes, a kill while an archive is decoded.

usage: limits.py DCPFS
"""
import gzip
import json
import os
import resource
import signal
import struct
import subprocess
import time

from cli import DCPFS, ENV, OK, SCRATCH, check, equal, finish, run

MB = 1 << 20
CACHE = SCRATCH / "cache"


def make_source(path, n):
    path.parent.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        f.truncate(8 + len(header) + n)


def limited(*args):
    """With files of one megabyte at most."""
    return subprocess.run([DCPFS, *map(str, args)], env=dict(os.environ, DCPFS_CACHE=str(CACHE)), capture_output=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MB, MB)))


def file_sizes():
    """ulimit -f is an error with a line, not a signal."""
    source = SCRATCH / "source" / "model.safetensors"
    make_source(source, 3 * MB)
    for args in (("export", "--as", "torch-dcp", source.parent, SCRATCH / "out"), ("export", "--as", "npz", source, SCRATCH / "out.npz"),
                 ("save", source, SCRATCH / "out.pdparams"), ("load", "--dump", SCRATCH / "dump", source)):
        got = limited(*args)
        equal(got.returncode, ENV, f"{args}: {got.stderr}")
        check(b"File too large" in got.stderr, f"{args}: {got.stderr}")
    with open(SCRATCH / "raw", "wb") as out:
        got = subprocess.run([DCPFS, "cat", str(source), "w"], stdout=out, stderr=subprocess.PIPE, env=dict(os.environ, DCPFS_CACHE=""),
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MB, MB)))
    check(got.returncode == ENV and b"File too large" in got.stderr, f"cat: {got}")
    left = sorted(str(p.relative_to(SCRATCH)) for p in SCRATCH.rglob("*") if CACHE not in (p, *p.parents))
    equal(left, ["dump", "raw", "source", "source/model.safetensors"], "what is left")


def decoding():
    """Killed while it decodes: at most an empty lock, which the next one that decodes removes."""
    plain, packed = SCRATCH / "big.safetensors", SCRATCH / "packed" / "model.safetensors.gz"
    make_source(plain, 400 * MB)
    packed.parent.mkdir()
    with open(plain, "rb") as f, gzip.open(packed, "wb", 1) as z:
        while part := f.read(8 * MB):
            z.write(part)
    plain.unlink()
    unpacked = CACHE / "unpacked"
    for how in (signal.SIGINT, signal.SIGKILL):
        p = subprocess.Popen([DCPFS, "ls", str(packed)], env=dict(os.environ, DCPFS_CACHE=str(CACHE)), stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
        while p.poll() is None and not list(unpacked.glob("*")):
            time.sleep(0.001)
        p.send_signal(how)
        equal(p.wait(), -how, "it was stopped while it decoded")
        left = [(f.name, f.stat().st_size) for f in unpacked.iterdir()]
        check(all(name.endswith(".lock") and size == 0 for name, size in left), f"{how}: left: {left}")
    equal(run("ls", packed).returncode, OK, "decoded at last")
    names = [f.name for f in unpacked.iterdir()]
    check(len(names) == 1 and names[0].endswith(".bin"), f"the cache then: {names}")


file_sizes()
decoding()
finish()
