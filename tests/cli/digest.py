#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs show --digest: one number for a tensor, however it is stored."""
import collections
import hashlib
import json
import pickle
import struct
import sys

import numpy

sys.path.insert(0, "tests/mount")
from torch_files import Tensor, torch_save  # noqa: E402
from cli import BAD, DCPFS, GOLDEN, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run  # noqa: F401

# XXH3-128 of b"U8\0", 2 6 4 as eight little-endian bytes each, and the bytes 0 to 23: by xxHash's own program.
KNOWN = "cbd9789583bbb16aa00b47a2e2349bbb"


def write(path, tensors, offsets=None):
    header, body = {}, b""
    for key, (dtype, shape, raw) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    if offsets:
        header["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps({k: {"saved_offsets": o} for k, o in offsets.items()}),
                                  "DCP_VERSION": "1.0", "format": "pt"}
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def digests_depend_on_content_alone():
    whole, cut = SCRATCH / "whole", SCRATCH / "cut"
    raw = bytes(range(24))
    write(whole / "model.safetensors", {"w": ("U8", [6, 4], raw), "same": ("U8", [6, 4], raw),
                                        "other.shape": ("U8", [4, 6], raw), "other.type": ("I8", [6, 4], raw),
                                        "other.bytes": ("U8", [6, 4], raw[::-1]), "empty": ("U8", [0, 4], b"")})
    for i in range(3):
        write(cut / f"shard-0000{i + 1}-model-00001-of-00001.safetensors",
              {"w": ("U8", [2, 4], raw[8 * i:8 * i + 8])}, {"w": [2 * i, 0]})
    equal(data("show", "--digest", "--json", whole, "w"), {"w": KNOWN}, "the digest of a known tensor")
    equal(data("show", "--digest", "--json", cut, "w"), {"w": KNOWN}, "the same tensor in three shards")
    sha = hashlib.sha256(b"U8\0" + struct.pack("<3Q", 2, 6, 4) + raw).hexdigest()
    equal(data("show", "--digest", "--sha256", "--json", cut, "w"), {"w": sha}, "the same by SHA-256")
    equal(run("show", "--sha256", whole, "w").stdout.decode(), f"{sha}  w\n", "--sha256 alone")
    every = data("show", "--digest", "--json", whole)
    equal(every["same"], KNOWN, "the key does not count")
    equal(len(set(every.values())), 5, "dtype, shape and bytes do")
    got = run("show", "--digest", whole)
    equal(got.returncode, OK, "all tensors")
    equal(dict(reversed(line.split("  ")) for line in got.stdout.decode().splitlines()), every, "one line a tensor")


def zero3(path, raw, shape):
    """ZeRO stage 3 of two ranks: each has half of the one parameter's flattening."""
    half = len(raw) // 2
    for r in range(2):
        name = f"zero_pp_rank_{r}_mp_rank_00"
        flat = Tensor(raw[r * half:(r + 1) * half], [half // 4])
        torch_save(path / f"{name}_optim_states.pt",
                   {"optimizer_state_dict": {"zero_stage": 3, "partition_count": 2, "fp32_flat_groups": [flat],
                                             "optimizer_state_dict": {"state": {}, "param_groups": []}},
                    "ds_config": {}, "ds_version": "0.14.5"})
        torch_save(path / f"{name}_model_states.pt",
                   {"module": {"w": Tensor(b"", [0])}, "buffer_names": [], "shared_params": {},
                    "param_shapes": [collections.OrderedDict(w=tuple(shape))], "ds_version": "0.14.5",
                    "dp_world_size": 2, "mp_world_size": 1})


def digests_agree_across_formats():
    """One float32 tensor, saved as five families save it."""
    raw, shape = struct.pack("<24f", *(i / 3 for i in range(24))), [6, 4]
    top = SCRATCH / "formats"
    write(top / "hf" / "model.safetensors", {"w": ("F32", shape, raw)})
    for i in range(3):
        write(top / "dcp" / f"shard-0000{i + 1}-model-00001-of-00001.safetensors",
              {"w": ("F32", [2, 4], raw[32 * i:32 * i + 32])}, {"w": [2 * i, 0]})
    torch_save(top / "torch" / "model.pt", {"w": Tensor(raw, shape)})
    zero3(top / "zero3", raw, shape)
    (top / "paddle").mkdir()
    with open(top / "paddle" / "model.pdparams", "wb") as f:
        pickle.dump({"w": numpy.frombuffer(raw, "<f4").reshape(shape)}, f, 4)
    keys = {"hf": "w", "dcp": "w", "torch": "w", "paddle": "w", "zero3": "fp32.w"}
    got = {name: data("show", "--digest", "--json", top / name, key).get(key) for name, key in keys.items()}
    equal(len(set(got.values())), 1, f"one tensor, one digest: {got}")


def broken_tensors_have_no_digest():
    src = SCRATCH / "bad"
    write(src / "model.safetensors", {"a": ("U8", [4], b"abcd")})
    for broken in "a", "b", "c":  # first, in between, last
        top = SCRATCH / f"bad-{broken}"
        for i, name in enumerate("abc"):
            rows = [0, 4] if name == broken else [0, 2]
            for k, row in enumerate(rows):
                write(top / f"shard-{2 * i + k + 1:05}-model-00001-of-00001.safetensors",
                      {name: ("U8", [2, 4], b"12345678")}, {name: [row, 0]})
        for form in (), ("--json",), ("--tsv",):
            got = fails(BAD, f"{top.name}: {broken}: ", "show", "--digest", *form, top)
            mark = '"{}"' if "--json" in form else "{}\n"
            equal([name for name in "abc" if mark.format(name) in got.stdout.decode()],
                  [name for name in "abc" if name != broken], f"the others' digests, {broken} is broken {form}")
    fails(USAGE, "which KEY?", "show", src)
    fails(USAGE, "is not a tensor", "show", "--digest", GOLDEN / "dcp-plain" / "ckpt", object_of("dcp-plain"))


def object_of(name):
    doc = json.loads((GOLDEN / name / "manifest.json").read_text(encoding="utf-8"))
    return doc["versions"][-1]["objects"][0]["key"]


digests_depend_on_content_alone()
digests_agree_across_formats()
broken_tensors_have_no_digest()
finish()
