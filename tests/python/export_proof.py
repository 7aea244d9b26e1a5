#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dcpfs export writes, read by torch and safetensors themselves: every tensor has the bytes that the framework which
saved the golden checkpoint read back, and the state is nested as torch nests it.

Needs torch and safetensors; tests/run.sh --frameworks runs it.

usage: export_proof.py DCPFS [FOLDER...]
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import needs

needs.modules("DCPFS_TEST_TORCH", "torch", "safetensors")
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

DCPFS = os.path.abspath(sys.argv[1])
GOLDEN = pathlib.Path("tests/golden")
FOLDERS = sys.argv[2:] or ["dcp-fsdp2", "dcp-plain", "dcp-tp-fsdp", "hf-bin", "hf-llama", "hf-moe", "megatron-dist", "deepspeed-z3", "paddle-dist-32",
                           "numpy", "torch-save", "composer-ranks"]
wrong = checked = 0


def check(good, message):
    global wrong, checked
    checked += 1
    if not good:
        wrong += 1
        print(message)


def sha(t):
    flat = t.detach().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"").hexdigest()


def get(state, item):
    """By its path, below the name of the file where several have the same paths."""
    whole = ".".join(item["path"])
    file = item["key"].removesuffix(whole).removesuffix(".") if item["key"].endswith(whole) else ""
    for c in ([file] if file else []) + item["path"]:
        state = state[int(c)] if isinstance(state, list) or c not in state else state[c]
    return state


def compare(what, want, left, find):
    for t in want:
        if t["key"] in left:
            continue
        try:
            got = find(t)
        except (KeyError, IndexError, TypeError, ValueError) as why:
            check(False, f"{what}: {t['key']}: {why!r}")
            continue
        shape = list(got.shape)
        check(shape == t["shape"] and sha(got) == t["sha256"], f"{what}: {t['key']}: {shape} of {t['shape']}, other bytes")


def values(what, objects, left, find):
    for o in objects:
        if o["key"] in left or not isinstance(o.get("json"), (int, str, bool, float, type(None))):
            continue
        try:
            got = find(o)
        except (KeyError, IndexError, TypeError, ValueError) as why:
            check(False, f"{what}: {o['key']}: {why!r}")
            continue
        check(o["json"] is None or got == o["json"], f"{what}: {o['key']}: {got!r} is not {o['json']!r}")


def load_dcp(path):
    """As dcp_to_torch_save does: nested by the planner's data."""
    state = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def load_in_place(what, path, want, left):
    """dcp.load() into tensors that are there already."""
    reader = dcp.FileSystemReader(path)
    meta = reader.read_metadata().state_dict_metadata
    flat = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in meta.items() if hasattr(m, "size")}
    dcp.load(flat, storage_reader=reader, no_dist=True)
    compare(what, want, left, lambda t: flat[t["key"]])


def load_safetensors(path):
    out = {}
    for file in [path] if path.is_file() else sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as f:
            for k in f.keys():
                out[k] = f.get_tensor(k)
    return out


def version(source, v, scratch):
    want, objects = v["tensors"], v.get("objects", [])
    for form, ending, *more in (("safetensors", ""), ("safetensors", "", "--max-shard-size", "2KiB"), ("torch-dcp", ""), ("torch-dcp", "", "--layout", "fsdp3"),
                                ("torch-save", ".pt")):
        out = pathlib.Path(tempfile.mkdtemp(dir=scratch)) / f"out{ending}"
        said = f"{source} {v['name']} as {form} {' '.join(more)}"
        got = subprocess.run([DCPFS, "export", "--json", "--as", form, *more, source, v["name"], out], capture_output=True)
        check(got.returncode == 0 or b"TorchScript" in got.stderr, f"{said}: {got.stderr.decode()}")
        if got.returncode:
            continue
        report = json.loads(got.stdout)
        left = {x["key"] for x in report["left_out"]}
        if form == "safetensors":
            state = load_safetensors(out)
            compare(said, want, left, lambda t: state[t["key"]])
        elif form == "torch-dcp":
            try:
                state = load_dcp(out)
            except RuntimeError as why:
                check(False, f"{said}: {why}")
                continue
            compare(said, want, left, lambda t: get(state, t))
            values(said, objects, left, lambda o: get(state, o))
            load_in_place(said, out, want, left)
        else:
            state = torch.load(out, weights_only=not report["asks"])
            compare(said, want, left, lambda t: get(state, t))
            values(said, objects, left, lambda o: get(state, o))


for folder in FOLDERS:
    manifest = json.loads((GOLDEN / folder / "manifest.json").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["DCPFS_CACHE"] = scratch + "/cache"
        for each in manifest["versions"]:
            if each["complete"] and "/" not in each["name"]:  # else it is a file of a version
                version(GOLDEN / folder / "ckpt", each, scratch)
print(f"torch {torch.__version__}: {checked} checks, {wrong} wrong")
sys.exit(1 if wrong or not checked else 0)
