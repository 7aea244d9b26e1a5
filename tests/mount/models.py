# SPDX-License-Identifier: Apache-2.0
"""Model directories as a mount shows them, read by the real safetensors package."""
import json
import os

import arrays
from lib import check, equal, read

import safetensors

YOUNG = {"F4", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"}


def model_files(at):
    return sorted(n for n in os.listdir(at) if n.endswith(".safetensors"))


def tensors_of(at):
    """{key: (dtype, shape, bytes)} of all model files, as the package reads them; no key is in two."""
    out = {}
    for name in model_files(at):
        data = read(at / name)
        equal(arrays.parse_safetensors(data)[1].get("format"), "pt", f"metadata of {name}")
        start = 8 + int.from_bytes(data[:8], "little")
        equal(start % 8, 0, f"{name}: alignment of the first tensor")
        for key, t in arrays.parse_safetensors(data)[0].items():
            check(key not in out, f"{key} is in two files")
            out[key] = t
        if any(dtype in YOUNG for dtype, _, _ in out.values()):
            continue  # the package's release may not know them
        equal({k: (t["dtype"], t["shape"], bytes(t["data"])) for k, t in safetensors.deserialize(data)},
              {k: t for k, t in out.items() if k in json.loads(data[8:start])}, f"{name}, as the package reads it")
        with safetensors.safe_open(at / name, framework="np") as f:
            equal(set(f.keys()), set(json.loads(data[8:start])) - {"__metadata__"}, f"{name} mapped: keys")
    return out


def checkpoint(directory, tensors):
    """A DCP checkpoint of three shards."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    arrays.write_sharded(directory, tensors)
    return directory
