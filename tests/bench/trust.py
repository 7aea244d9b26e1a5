#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs stats, diff and verify beside numpy, torch and model-signing doing the same, in turns: CPU seconds a GB, and memory.
Prints a table.

tests/bench/trust.py DCPFS [--gb GB] [--runs N] [--torch PYTHON] [--signing PYTHON], by a Python that has numpy, and others that
have torch with safetensors, and model-signing. Files are warm; both sides of a diff count.
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

# The same by torch, in float32 where that does; and what people do instead of verify: a hash of each tensor.
TORCH = '''
import hashlib, sys
import torch
from safetensors import safe_open
torch.set_num_threads(1)
def tensors(path):
    with safe_open(path, "pt") as f:
        for k in f.keys():
            yield k, f.get_tensor(k)
if sys.argv[1] == "stats":
    for k, x in tensors(sys.argv[2]):
        y = x.float()
        f = y[torch.isfinite(y)]
        print(k, f.min(), f.max(), f.mean(dtype=torch.float64), f.std(), (y == 0).sum(), torch.isnan(y).sum(), torch.isinf(y).sum())
elif sys.argv[1] == "diff":
    for (k, x), (_, y) in zip(tensors(sys.argv[2]), tensors(sys.argv[3])):
        a, b = x.float(), y.float()
        d = (a - b).abs()
        print(k, (x != y).sum(), d.max(), d.mean(dtype=torch.float64), d.norm() / a.norm())
else:
    for k, x in tensors(sys.argv[2]):
        print(k, hashlib.sha256(x.view(torch.uint8).numpy()).hexdigest())
'''
# Of a directory with a signature by the key beside it; "sign" makes both.
SIGNING = '''
import pathlib, subprocess, sys
from model_signing import hashing, signing, verifying
what, top = sys.argv[1], pathlib.Path(sys.argv[2])
key, public = top.with_suffix(".key"), top.with_suffix(".pub")
how = hashing.Config().set_ignored_paths(paths=[top / "model.sig"])
if what == "sign":
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key], check=True)
    subprocess.run(["openssl", "ec", "-in", key, "-pubout", "-out", public], check=True, stderr=subprocess.DEVNULL)
    signing.Config().use_elliptic_key_signer(private_key=key).set_hashing_config(how).sign(top, top / "model.sig")
else:
    verifying.Config().use_elliptic_key_verifier(public_key=public).set_hashing_config(how).verify(top, top / "model.sig")
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
    a.add_argument("--torch")
    a.add_argument("--signing")
    a = a.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/tmp")) as top:
        maker = os.fork()  # whose memory is not that of the programs which are started later
        if maker == 0:
            data(top, a.gb)
            os._exit(0)
        os.waitpid(maker, 0)
        env = dict(os.environ, XDG_CACHE_HOME=f"{top}/cache", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        file = {name: f"{top}/{name}/model.safetensors" for name in ("a", "same", "changed")}
        os.mkdir(f"{top}/signed")
        os.link(file["a"], f"{top}/signed/model.safetensors")
        if a.signing:
            run(env, [a.signing, "-c", SIGNING, "sign", f"{top}/signed"])
        scripts = {"numpy": [sys.executable, "-c", SCRIPT], "torch": a.torch and [a.torch, "-c", TORCH],
                   "model-signing": a.signing and [a.signing, "-c", SIGNING]}
        sides = ("dcpfs", *(name for name, words in scripts.items() if words))

        def by(words, *names):
            return {name: [*scripts[name], *words] for name in names if scripts[name]}

        works = {
            "nothing but indexes": ([a.dcpfs, "ls", top + "/a"], {}, 1),
            "stats": ([a.dcpfs, "stats", "--cache-limit", "1GB", top + "/a"], by(["stats", file["a"]], "numpy", "torch"), 1),
            "diff of equal sides": ([a.dcpfs, "diff", top + "/a", top + "/same"], by(["diff", file["a"], file["same"]], "numpy", "torch"), 2),
            "diff, 2 % changed": ([a.dcpfs, "diff", top + "/a", top + "/changed"],
                                  by(["diff", file["a"], file["changed"]], "numpy", "torch"), 2),
            "verify": ([a.dcpfs, "verify", top + "/a"], by(["digests", file["a"]], "torch"), 1),
            "verify with model.sig": ([a.dcpfs, "verify", top + "/signed"], by(["verify", f"{top}/signed"], "model-signing"), 1),
        }
        for name in file:
            run(env, [a.dcpfs, "ls", f"{top}/{name}"])
        best = {}
        for _ in range(a.runs):
            for name, (ours, theirs, _) in works.items():
                for side, words in {"dcpfs": ours, **theirs}.items():
                    for kept in os.scandir(f"{top}/cache/dcpfs"):  # or a second call reads nothing
                        if kept.name.endswith(".kept"):
                            os.unlink(kept.path)
                    got = run(env, words)
                    best[name, side] = min(best.get((name, side), got), got)
        print("| CPU s/GB a side, MiB | " + " | ".join(sides) + " |\n| --- |" + " --- |" * len(sides))
        for name, (_, _, n) in works.items():
            cells = [f"{best[name, s][0] / a.gb / n:.2f}, {best[name, s][1]:.0f}" if (name, s) in best else "" for s in sides]
            print(f"| {name} | {' | '.join(cells)} |")


main()
