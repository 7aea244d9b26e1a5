#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs export --as Paddle's and numpy's formats: what comes out is read back with equal digests."""
from cli import GOLDEN, SCRATCH, check, data, equal, finish

# source, version
SOURCES = [("hf-llama", "llama"), ("hf-llama", "dtypes"), ("paddle-plain", "p4"), ("paddle-plain", "nested@p4.pdz"),
           ("paddle-plain", "odd@all_p4"), ("paddle-dist", None), ("torch-save", "types.pt"), ("torch-save", "dtypes.pt"),
           ("numpy", None), ("dcp-plain", None), ("composer", None)]
# format, name of OUT: "" is a directory
FORMATS = [("paddle", ""), ("paddle", ".pdopt", "--protocol", "2"), ("paddle", ".pdparams", "--protocol", "3"),
           ("paddle-binary", ""), ("paddle-dist", ""), ("paddle-dist", "", "--layout", "fsdp3"), ("paddle-dist-3.1", ""),
           ("npy", ""), ("npz", ""), ("npz", ".npz")]

# dtypes that a format has not
NUMPY = {"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "F4", "C32"}
PADDLE = {"F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "F4", "C32", "U16", "U32", "U64"}
MISSING = {"paddle": PADDLE | {"F8_E4M3", "F8_E5M2"}, "paddle-binary": PADDLE - {"U32", "U64"},
           "paddle-dist": PADDLE, "paddle-dist-3.1": PADDLE, "npy": NUMPY, "npz": NUMPY}


def source(name, version):
    return [GOLDEN / name / "ckpt"] + ["--version", version or "latest"]


def digests(*args):
    return data("show", "--digest", "--json", *args)


def may_miss(t, form):
    """Can the format not hold that tensor?"""
    nameless = not t["key"] and form in ("paddle-binary", "npz", "npy")
    return t["dtype"] in MISSING[form] or nameless or form == "npy" and len(t["key"]) > 242


def named(form, key):
    return key.replace("%", "%25").replace("/", "%2F") if form == "npy" else key


def there_and_back():
    for n, (name, version) in enumerate(SOURCES):
        want = digests(*source(name, version))
        tensors = data("ls", "--json", *source(name, version))["tensors"]
        for k, (form, ending, *options) in enumerate(FORMATS):
            out = SCRATCH / f"{n}-{k}{ending}"
            what = f"{name} {version} as {form} {options}"
            report = data("export", *source(name, version), out, "--as", form, "--json", *options)
            left = {x["key"] for x in report["left_out"] if x["kind"] == "tensor"}
            equal(left, {t["key"] for t in tensors if may_miss(t, form)}, f"{what}: left out")
            equal(digests(out), {named(form, key): d for key, d in want.items() if key not in left}, what)


there_and_back()
finish()
