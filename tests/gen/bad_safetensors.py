#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/bad/safetensors/: one file for each fault, named after it. Run by hand."""
import json, pathlib, struct, sys

OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/bad/safetensors")


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def put(name, header, data=8, length=None):
    """A file with this header (text, bytes or a dict) and this many bytes of data."""
    if isinstance(header, dict):
        header = json.dumps(header, separators=(",", ":"))
    if isinstance(header, str):
        header = header.encode()
    n = len(header) if length is None else length
    (OUT / f"{name}.safetensors").write_bytes(struct.pack("<Q", n) + header + bytes(data))


OUT.mkdir(parents=True, exist_ok=True)
(OUT / "empty-file.safetensors").write_bytes(b"")
(OUT / "seven-bytes.safetensors").write_bytes(b"\2\0\0\0\0\0\0")
(OUT / "git-lfs.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 12\n")
(OUT / "torch-save.safetensors").write_bytes(b"PK\3\4" + bytes(28))
(OUT / "zeros.safetensors").write_bytes(bytes(64))
put("header-empty", "", 0)
put("header-too-long", "{}", 0, 100_000_001)
put("header-longest-number", "{}", 0, 2**64 - 1)
put("header-past-end", '{"a":', 0, 64)
put("header-not-json", '{"a":}', 0)
put("header-array", "[]", 0)
put("header-space-first", " {}", 0)
put("header-text-behind", "{} x", 0)
put("header-two-objects", "{}{}", 0)
put("header-comma-last", '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},}')
put("header-comma-first", '{,"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}')
put("header-no-comma", '{"__metadata__":{}"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}')
put("header-open", '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}')
put("header-deep", '{"a":' + "[" * 65 + "]" * 65 + "}", 0)
put("name-not-utf8", b'{"\xff":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}')
put("name-open", '{"a', 0)
put("name-number", '{1:{}}', 0)
put("name-twice", '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
                  '"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}', 16)
put("name-twice-escaped", '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
                          '"\\u0061":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}', 16)
put("metadata-twice", '{"__metadata__":{},"__metadata__":{}}', 0)
put("metadata-escaped", '{"\\u005f_metadata__":{}}', 0)
put("metadata-name-twice", '{"__metadata__":{"a":"1","b":"2","a":"3"}}', 0)
put("metadata-number", {"__metadata__": {"step": 5}}, 0)
put("metadata-nested", {"__metadata__": {"step": {"a": "b"}}}, 0)
put("metadata-string", {"__metadata__": "format"}, 0)
put("metadata-open", '{"__metadata__":{"a":"1"', 0)
put("entry-number", {"a": 5}, 0)
put("entry-null", {"a": None}, 0)
put("entry-too-long", {"a": {**entry(), "more": "x" * 65536}})
put("entry-name-twice", '{"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}}')
put("dtype-missing", {"a": {"shape": [2], "data_offsets": [0, 8]}})
put("dtype-number", {"a": entry(dtype=4)})
put("shape-missing", {"a": {"dtype": "F32", "data_offsets": [0, 8]}})
put("shape-string", {"a": {**entry(), "shape": "2"}})
put("shape-negative", {"a": entry(shape=[-2])})
put("shape-fraction", {"a": entry(shape=[2.0])})
put("shape-huge", {"a": entry(shape=[2**63])})
put("shape-overflow", {"a": entry(shape=[2**32, 2**32])})
put("shape-bytes-overflow", {"a": entry(shape=[2**62])})
put("shape-65-dimensions", {"a": entry(shape=[1] * 65, offsets=[0, 4])}, 4)
put("offsets-missing", {"a": {"dtype": "F32", "shape": [2]}})
put("offsets-one", {"a": entry(offsets=[8])})
put("offsets-three", {"a": entry(offsets=[0, 8, 16])})
put("offsets-negative", {"a": entry(offsets=[-8, 0])})
put("offsets-huge", {"a": entry(offsets=[0, 2**64])})
put("offsets-reversed", {"a": entry(offsets=[8, 0])})
put("offsets-past-end", {"a": entry(offsets=[0, 8])}, 7)
put("offsets-far-past-end", {"a": entry(offsets=[2**63 - 9, 2**63 - 1])})
put("size-short", {"a": entry(shape=[3])})
put("size-long", {"a": entry(shape=[1])})
put("size-for-zero-elements", {"a": entry(shape=[0, 5])})
put("f4-half-a-byte", {"a": entry("F4", [3], [0, 2])}, 2)
put("f4-counts-bytes", {"a": entry("F4", [8], [0, 8])})
put("f6-not-whole-bytes", {"a": entry("F6_E2M3", [3], [0, 3])}, 3)
put("f6-size", {"a": entry("F6_E3M2", [4], [0, 4])}, 4)
put("unknown-type-zero-elements", {"a": entry("Q7", [0], [0, 8])})
put("unknown-type-no-bytes", {"a": entry("Q7", [8], [0, 0])}, 0)
put("hole-first", {"a": entry(offsets=[4, 12])}, 12)
put("hole-between", {"a": entry(), "b": entry(offsets=[12, 20])}, 20)
put("hole-last", {"a": entry()}, 11)
put("hole-no-tensors", {}, 1)
put("overlap", {"a": entry(), "b": entry(offsets=[4, 12])}, 12)
put("overlap-same", {"a": entry(), "b": entry()})
put("overlap-empty-inside", {"a": entry(), "b": entry(shape=[0], offsets=[4, 4])})
