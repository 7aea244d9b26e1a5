#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every golden checkpoint behind every kind of server: what is shown, read, loaded, exported and mounted equals the files.

    origins.py DCPFS              the newest version of each checkpoint; loads, exports and mounts of one of each family
    origins.py DCPFS all          all versions, verbs and checkpoints: some 20 minutes
    origins.py DCPFS all NAME...  of these checkpoints
"""
import concurrent.futures
import json
import os
import sys
import time

from cli import check, finish, least, run, sample
from compared import COUNTS, FORMS, ORIGINS, RANKS, exported, loaded, mounted, same
from served import TOP, gs, hf, s3, skip_without_libcurl, web

ALL = sys.argv[2:3] == ["all"]
ORIGINS.update(s3=s3, gs=gs, https=web, hf=hf)
if ALL:
    RANKS.append(4)
    FORMS.append("torch-dcp")
ONE_OF_EACH = ("composer-ranks", "dcp-fsdp2", "deepspeed-3d", "hf-llama", "megatron-dist", "paddle-dist-flat", "torch-ranks")
MOUNTED = ("dcp-fsdp2", "deepspeed-z3", "hf-bin", "paddle-dist-st")
THREADS = 4  # a dcpfs waits for the server most of the time


def sources():
    """Names below the top, of directories that are sources."""
    found = sorted({p.relative_to(TOP).as_posix() for p in TOP.rglob("ckpt") if p.is_dir()} | {"megatron-models/llama", "neox/tp"})
    return [s for s in found if not sys.argv[3:] or s.split("/")[0] in sys.argv[3:]]


def read_all(source):
    """The digests of all bytes of all keys, and the list of them. Goldens that are broken are so everywhere."""
    listed = run("ls", TOP / source, "--json")
    versions = ["latest"]
    if ALL and isinstance(rows := json.loads(listed.stdout or b"0"), list):
        versions = [row["name"] for row in rows]
    read = 0
    for version in versions:
        read += same(source, "verify", "verify", version, "--record", "-")[1].count(b"\n")
        if ALL:
            same(source, "ls", "ls", version, "--json")
    return read


skip_without_libcurl()
began = time.monotonic()
with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
    keys = dict(zip(sample(sources()), pool.map(read_all, sample(sources()))))
    check(sum(n > 1 for n in keys.values()) > least(50) or sys.argv[3:], f"checkpoints with tensors: {keys}")
    print(f"{len(keys)} checkpoints, {sum(keys.values())} lines: {time.monotonic() - began:.1f} s", flush=True)
    for what, names in (loaded, sample(ONE_OF_EACH)), (exported, sample(ONE_OF_EACH, 1)), (mounted, MOUNTED if os.access("/dev/fuse", os.R_OK | os.W_OK) else ()):
        chosen = [s for s in sources() if names and ALL or s.split("/")[0] in names]
        began = time.monotonic()
        list(pool.map(what, chosen))
        print(f"{what.__name__}, {len(chosen)} checkpoints: {time.monotonic() - began:.1f} s", flush=True)
for what, n in sorted(COUNTS.items()):
    print(f"{what}: {n}")
finish()
