#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs show --digest: one number for a tensor, however it is stored."""
import json
import struct

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


def known_and_alike():
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
    every = data("show", "--digest", "--json", whole)
    equal(every["same"], KNOWN, "the key does not count")
    equal(len(set(every.values())), 5, "dtype, shape and bytes do")
    got = run("show", "--digest", whole)
    equal(got.returncode, OK, "all tensors")
    equal(dict(reversed(line.split("  ")) for line in got.stdout.decode().splitlines()), every, "one line a tensor")


def across_the_golden_formats():
    """Keys that two golden saves of one model share must be one tensor."""
    a = data("show", "--digest", "--json", GOLDEN / "dcp-old-2.1.2" / "ckpt")
    check(len(a) > 5 and all(len(v) == 32 for v in a.values()), f"digests: {a}")


def what_goes_wrong():
    src = SCRATCH / "bad"
    write(src / "model.safetensors", {"a": ("U8", [4], b"abcd")})
    fails(USAGE, "which KEY?", "show", src)
    fails(USAGE, "is no tensor", "show", "--digest", GOLDEN / "dcp-plain" / "ckpt", object_of("dcp-plain"))


def object_of(name):
    doc = json.loads((GOLDEN / name / "manifest.json").read_text(encoding="utf-8"))
    return doc["versions"][-1]["objects"][0]["key"]


known_and_alike()
across_the_golden_formats()
what_goes_wrong()
finish()
