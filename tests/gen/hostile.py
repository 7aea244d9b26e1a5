# SPDX-License-Identifier: Apache-2.0
"""hostile/: a sample of damaged and malicious checkpoints with what a good reader must do for each. There are many more ways.

Packages: torch==2.15.0 numpy.  Run: python hostile.py
Only the healthy base is ever loaded.
"""
import json
import os
import shutil
import struct

import torch

import fixlib
from hostlib import CMD, Call, Ckpt, P, item, st_file, tensor_item, tensor_pickle

OUT = fixlib.here() / "hostile"
CASES = []
NAMES = ("layer.weight", "ids", "loss", "config")


def dcp(name, expect, why, bad=(), setup=None, **attrs):
    c = Ckpt("pub", names=NAMES, shape=(6, 5))
    for k, v in attrs.items():
        setattr(c, k, v)
    if setup:
        setup(c)
    c.write(OUT / name)
    good = c.sha([k for k in c.full if k not in bad]) if expect != "refuse" else {}
    CASES.append({"case": name, "path": name, "kind": "torch-dcp", "expect": expect, "why": why, "bad": list(bad), "good": good})
    return c


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    W = NAMES[0]
    dcp("base", "read", "the healthy checkpoint")
    dcp("call-in-modules", "either", "a REDUCE of os.popen among the module names of storage_meta", hook=lambda m: m.storage_meta.modules.append(Call(os.popen, CMD)))
    dcp("call-as-root", "refuse", "the whole pickle is runpy._run_code", raw=b"\x80\x04crunpy\n_run_code\n(" + P("import os; os.system('touch PWNED')") + b"}tR.")
    dcp("long-name-length", "refuse", "SHORT_BINUNICODE that runs past the end", raw=b"\x80\x04}\x8c\xffabc")
    dcp("negative-rows", "keys", "a chunk of -3 rows", [W], lambda c: c.chunks.__setitem__(W, [((0, 0), (-3, 5)), ((3, 0), (3, 5))]))
    dcp("rows-wrap", "keys", "2^60 x 2^5 elements wrap to 2^65 bytes", [W], lambda c: c.shape.__setitem__(W, (2**60, 2**5)))
    dcp("climbing-path", "keys", "relative_path ../base/__1_0.distcp", [W], paths={(W, (3, 0)): "../base/__1_0.distcp"})
    dcp("past-the-end", "keys", "the item ends 1 byte past the file", ["loss"], lambda c: c.where.__setitem__(("loss", ()), (None, len(c.items[4][3]) + 1)))
    h = fixlib.raw_bytes(Ckpt("pub", names=NAMES, shape=(6, 5)).full[W][3:])
    dcp("storage-short", "keys", "15 elements claimed, 40 bytes stored", [W], lambda c: c.items[3].__setitem__(3, tensor_item(h[:40], numel=15, size=(3, 5), stride=(5, 1))))
    dcp("call-in-item", "keys", "the tensor's data.pkl calls nt.system", [W], lambda c: c.items[3].__setitem__(3, tensor_item(h, pkl=b"\x80\x02cnt\nsystem\n" + P(CMD) + b"\x85R.")))
    c = Ckpt("pub", names=NAMES, shape=(6, 5))
    c.write(OUT / "cut-metadata")
    (OUT / "cut-metadata" / ".metadata").write_bytes(c.data[: len(c.data) * 2 // 3])
    CASES.append({"case": "cut-metadata", "path": "cut-metadata", "kind": "torch-dcp", "expect": "refuse", "why": ".metadata cut at two thirds", "bad": [], "good": {}})
    t = fixlib.rnd("pst", (3, 3))
    d = OUT / "safetensors-overlap"
    d.mkdir()
    (d / "model.safetensors").write_bytes(st_file({"a": {"dtype": "F32", "shape": [3, 3], "data_offsets": [0, 36]}, "b": {"dtype": "F32", "shape": [3], "data_offsets": [24, 36]}}, fixlib.raw_bytes(t)))
    CASES.append({"case": d.name, "path": d.name, "kind": "hf-safetensors", "expect": "refuse", "why": "two tensors share bytes", "bad": ["a", "b"], "good": {}})
    head = {"name": "hostile", "always": ["no file named PWNED appears, nothing is executed", "nothing outside the case's directory is opened", "no crash, no hang (10 s), less than 256 MiB of memory", "the other versions stay usable"],
            "expect": {"refuse": "refused with an error that names version, file and byte", "keys": "each key in 'bad' gives an error, each key in 'good' reads with that sha256 of its raw bytes", "either": "refuse or keys; 'good' keys, if readable, have that sha256", "read": "all of 'good' reads"}}
    (OUT / "manifest.json").write_text(json.dumps(head, indent=1)[:-2] + ',\n "cases": [\n  ' + ",\n  ".join(json.dumps(c) for c in CASES) + "\n]}\n")
    json.loads((OUT / "manifest.json").read_text())
    print(len(CASES), "cases")


if __name__ == "__main__":
    main()
