#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads through a server that fails in every way it can: all bytes are right, or the read is an error. A file of 256 MiB says at each
place which place that is, so that bytes of another place are found, too.

usage: faults.py [READS [PROCESSES [SHARE]]]: the share of requests that fail, 0.05 unless given
"""
import json
import multiprocessing
import os
import pathlib
import random
import struct
import sys
import tempfile
import time

import base
from base import ROOT, dcpfs, np

sys.path.insert(0, str(ROOT / "tests/origin"))
from server import Server  # noqa: E402

NUMBERS = 1 << 26
FAULTS = (503, 500, 429, "retry-after", "reset", "short", "wrong range", "other size", "no range", "long", "doubled", "duplicated", "shifted", "cut", "stalled",
          "other tag", "compressed", "changed")
PASSING = FAULTS[:15]  # after the others a read is an error, and the file is opened again


def make(path):
    """Two tensors of numbers that count on."""
    about = {"a": {"dtype": "I32", "shape": [NUMBERS // 2], "data_offsets": [0, 2 * NUMBERS]},
             "b": {"dtype": "I32", "shape": [NUMBERS // 2], "data_offsets": [2 * NUMBERS, 4 * NUMBERS]}}
    text = json.dumps(about).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        np.arange(NUMBERS, dtype="<i4").tofile(f)


def reads(url, n, seed, out):
    """(right, wrong, errors)"""
    chance, right, wrong, errors = random.Random(seed), 0, 0, 0
    ck = None
    while right + wrong + errors < n:
        try:
            if ck is None:
                ck = dcpfs.open(url, cache="")
            key = chance.choice("ab")
            many = chance.choice((1, 100, 4096, 60_000)) if chance.random() < 0.99 else 1_000_000
            lo = chance.randrange(NUMBERS // 2 - many)
            got = np.frombuffer(ck[key][lo:lo + many].buffer, dtype="<i4")
            first = lo + (NUMBERS // 2 if key == "b" else 0)
            good = len(got) == many and got[0] == first and got[-1] == first + many - 1 and bool((np.diff(got) == 1).all())
            right, wrong = right + good, wrong + (not good)
        except dcpfs.DcpfsError:
            errors += 1
            if ck is not None:
                ck.close()
            ck = None
    out.put((right, wrong, errors))


def main():
    n, jobs, share = int(sys.argv[1]) if len(sys.argv) > 1 else 300, int(sys.argv[2]) if len(sys.argv) > 2 else 2, 0.05
    share = float(sys.argv[3]) if len(sys.argv) > 3 else share
    with tempfile.TemporaryDirectory() as top:
        path = pathlib.Path(top) / "model.safetensors"
        make(path)
        server = Server(top)
        chance, seen = random.Random(1), dict.fromkeys(FAULTS, 0)

        def fault(r):
            if chance.random() >= share or "list-type" in r.path:
                return None
            one = chance.choice(FAULTS)
            seen[one] += 1
            if one == "changed":  # the same bytes, written over: another content, for all that a server says
                st = path.stat()
                os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns + 1_000_000_000))
                return None
            return one if one not in ("stalled", "retry-after") or chance.random() < 0.02 else "short"
        server.fault = fault
        os.environ.update(AWS_ENDPOINT_URL=server.url, AWS_NO_SIGN_REQUEST="1", DCPFS_STALL="1", DCPFS_TIMEOUT="30")
        out, began = multiprocessing.Queue(), time.monotonic()
        all = [multiprocessing.Process(target=reads, args=("s3://bucket", n // jobs, k, out)) for k in range(jobs)]
        for p in all:
            p.start()
        right, wrong, errors = map(sum, zip(*(out.get(timeout=3000) for _ in all)))
        for p in all:
            p.join()
        took, asked = time.monotonic() - began, len(server.log)
        server.close()
    print(f"{right} reads right, {wrong} wrong, {errors} errors in {took:.0f} s; {asked} requests, {sum(seen.values())} of them failed: {seen}")
    return 1 if wrong or not right or errors > n // 3 or not sum(seen[f] for f in PASSING) else 0


if __name__ == "__main__":
    sys.exit(main())
