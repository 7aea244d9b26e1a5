#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs stats, diff and verify beside numpy doing the same, in turns: CPU seconds a GB, and memory. Prints a table.

tests/bench/trust.py DCPFS [--gb GB] [--runs N], by a Python that has numpy. Files are warm; both sides of a diff count.
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy

TENSORS = 8
# What a numpy script does: bf16 widened tensor by tensor, sums in float64.
SCRIPT = '''
import json, struct, sys
import numpy
def tensors(path):
    m = numpy.memmap(path, "u1", "r")
    n = struct.unpack("<Q", m[:8].tobytes())[0]
    for k, t in json.loads(m[8:8 + n].tobytes()).items():
        a, b = (8 + n + x for x in t["data_offsets"])
        yield k, m[a:b].view("<u2")
def wide(x):
    return (x.astype("<u4") << 16).view("<f4")
if sys.argv[1] == "stats":
    for k, x in tensors(sys.argv[2]):
        y = wide(x)
        f = y[numpy.isfinite(y)]
        print(k, f.min(), f.max(), f.mean(dtype="f8"), f.std(dtype="f8"), (y == 0).sum(), numpy.isnan(y).sum(), numpy.isinf(y).sum())
else:
    for (k, x), (_, y) in zip(tensors(sys.argv[2]), tensors(sys.argv[3])):
        n = (x != y).sum()
        a, b = wide(x), wide(y)
        d = numpy.abs(a - b)
        print(k, n, d.max(), d.mean(dtype="f8"), numpy.sqrt(numpy.square(d, dtype="f8").sum() / numpy.square(a, dtype="f8").sum()))
'''


def write(path, arrays):
    header, at = {}, 0
    for key, x in arrays.items():
        header[key] = {"dtype": "BF16", "shape": [len(x) // 4096, 4096], "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in arrays.values():
            f.write(x.tobytes())


def data(top, gb):
    n = int(gb * 1e9 / 2 / TENSORS) // 4096 * 4096
    random = numpy.random.default_rng(1)
    a = {f"layers.{i}.weight": (random.standard_normal(n, "f4").view("<u4") >> 16).astype("<u2") for i in range(TENSORS)}
    write(f"{top}/a/model.safetensors", a)
    write(f"{top}/same/model.safetensors", a)
    for key in a:
        a[key][random.integers(0, n, n // 50)] ^= 1
    write(f"{top}/changed/model.safetensors", a)


def run(env, words):
    """CPU seconds and greatest memory in MiB."""
    p = subprocess.Popen(list(map(str, words)), env=env, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(p.pid, 0)
    if os.waitstatus_to_exitcode(status) > 1:
        sys.exit(f"{words}: {status}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("dcpfs")
    a.add_argument("--gb", type=float, default=1)
    a.add_argument("--runs", type=int, default=3)
    a = a.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/tmp")) as top:
        maker = os.fork()  # whose memory is not that of the programs which are started later
        if maker == 0:
            data(top, a.gb)
            os._exit(0)
        os.waitpid(maker, 0)
        env = dict(os.environ, XDG_CACHE_HOME=f"{top}/cache", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        file = {name: f"{top}/{name}/model.safetensors" for name in ("a", "same", "changed")}
        numpys = [sys.executable, "-c", SCRIPT]
        works = {
            "nothing but indexes": ([a.dcpfs, "ls", top + "/a"], None, 1),
            "stats": ([a.dcpfs, "stats", "--cache-limit", "1GB", top + "/a"], [*numpys, "stats", file["a"]], 1),
            "diff of equal sides": ([a.dcpfs, "diff", top + "/a", top + "/same"], [*numpys, "diff", file["a"], file["same"]], 2),
            "diff, 2 % changed": ([a.dcpfs, "diff", top + "/a", top + "/changed"], [*numpys, "diff", file["a"], file["changed"]], 2),
            "verify": ([a.dcpfs, "verify", top + "/a"], None, 1),
        }
        for name in file:
            run(env, [a.dcpfs, "ls", f"{top}/{name}"])
        best = {}
        for _ in range(a.runs):
            for name, (ours, theirs, _) in works.items():
                for side, words in ("dcpfs", ours), ("numpy", theirs):
                    for kept in os.scandir(f"{top}/cache/dcpfs"):  # or a second call reads nothing
                        if kept.name.endswith(".kept"):
                            os.unlink(kept.path)
                    if words:
                        got = run(env, words)
                        best[name, side] = min(best.get((name, side), got), got)
        print("| | dcpfs, CPU s/GB a side | MiB | numpy | MiB |\n| --- | --- | --- | --- | --- |")
        for name, (_, _, sides) in works.items():
            cells = [f"{best[name, s][0] / a.gb / sides:.2f} | {best[name, s][1]:.0f}" if (name, s) in best else " | " for s in ("dcpfs", "numpy")]
            print(f"| {name} | {cells[0]} | {cells[1]} |")


main()
