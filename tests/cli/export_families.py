#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs export: a version of every family as every format; what comes out is compared by --verify, and has equal digests.

usage: export_families.py DCPFS
"""
from cli import GOLDEN, SCRATCH, data, equal, finish, sample

# source, version
SOURCES = [("hf-llama", "dtypes"), ("paddle-plain", "nested@p4.pdz"), ("paddle-plain", "odd@all_p4"), ("hf-bin", "gpt2-tied"), ("dcp-plain", None),
           ("paddle-dist", None), ("torch-save", "dtypes.pt"), ("numpy", None), ("composer", None), ("composer-ranks", None),
           ("dcp-rank-local", None), ("deepspeed-universal", None), ("deepspeed-z2", None), ("hf-bin", "sharded"), ("hf-llama", "llama"),
           ("megatron-dist", None), ("megatron-legacy", None), ("parts", None), ("torch-checkpointing", None), ("torch-ranks", "2-hsdp")]
# format: names of OUT ("" is a directory), and options; a source has one of them
FORMATS = {"paddle": [("",), (".pdopt", "--protocol", "2"), (".pdparams", "--protocol", "3")], "paddle-binary": [("",)],
           "paddle-dist": [("",), ("", "--layout", "fsdp3")], "paddle-dist-3.1": [("",)], "npy": [("",)], "npz": [("",), (".npz",)],
           "safetensors": [("",), ("", "--max-shard-size", "2K")], "torch-dcp": [("",), ("", "--layout", "fsdp3")],
           "torch-save": [(".pt",)], "paddle-vars": [("",)], "deepspeed-universal": [("",)]}
RENAMED = ("paddle-vars", "deepspeed-universal")

# dtypes that a format has not
NUMPY = {"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "F4", "C32"}
PADDLE = {"F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "F4", "C32", "U16", "U32", "U64"}
MISSING = {"paddle": PADDLE | {"F8_E4M3", "F8_E5M2"}, "paddle-binary": PADDLE - {"U32", "U64"},
           "paddle-dist": PADDLE, "paddle-dist-3.1": PADDLE, "npy": NUMPY, "npz": NUMPY, "safetensors": {"C32", "C128"}}


def source(name, version):
    return [GOLDEN / name / "ckpt"] + ["--version", version or "latest"]


def digests(*args):
    return data("show", "--digest", "--json", *args)


def may_miss(t, form):
    """Can the format not hold that tensor?"""
    nameless = not t["key"] and form in ("paddle-binary", "npz", "npy")
    return t["dtype"] in MISSING.get(form, ()) or nameless or form == "npy" and len(t["key"]) > 242


def every_family_comes_back():
    for n, (name, version) in enumerate(SOURCES):
        source = [GOLDEN / name / "ckpt"] + ["--version", version or "latest"]
        want = data("show", "--digest", "--json", *source) if n % 4 == 0 else None
        tensors = data("ls", "--json", *source)["tensors"]
        for form, ways in sample(FORMATS.items(), n):
            ending, *options = ways[n % len(ways)]
            out = SCRATCH / f"{n}-{form}{ending}"
            what = f"{name} {version} as {form} {options}"
            report = data("export", *source, out, "--as", form, "--json", *options, *([] if form in RENAMED else ["--verify"]))
            left = {x["key"] for x in report["left_out"] if x["kind"] == "tensor"}
            if form not in RENAMED:
                equal(left, {t["key"] for t in tensors if may_miss(t, form)}, f"{what}: left out")
            if want and form not in RENAMED:
                equal(data("show", "--digest", "--json", out), {key: d for key, d in want.items() if key not in left}, what)


every_family_comes_back()
finish()
