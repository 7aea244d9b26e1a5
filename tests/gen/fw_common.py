# SPDX-License-Identifier: Apache-2.0
"""Helpers shared by the generators in this folder (numpy only).

Values are a pure function of (salt, key, dtype, shape): the writer ranks, the truth reader and a human can all recompute them.
"""
import hashlib
import json
import os
import shutil
import zlib

import numpy as np

ST = {  # our dtype word -> (safetensors name, numpy storage dtype)
    "float64": ("F64", "<f8"), "float32": ("F32", "<f4"), "float16": ("F16", "<f2"), "bfloat16": ("BF16", "<u2"),
    "int64": ("I64", "<i8"), "int32": ("I32", "<i4"), "int16": ("I16", "<i2"), "int8": ("I8", "i1"), "uint8": ("U8", "u1"),
    "bool": ("BOOL", "?"), "complex64": ("C64", "<c8"), "complex128": ("C128", "<c16"),
    "float8_e4m3fn": ("F8_E4M3", "u1"), "float8_e5m2": ("F8_E5M2", "u1"),
}


def f32_to_bf16(a):
    """round to nearest even, NaN kept"""
    u = np.asarray(a, np.float32).view(np.uint32)
    r = ((u.astype(np.uint64) + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(np.asarray(a, np.float32)), np.uint16(0x7FC0), r)


def value(salt, key, dtype, shape):
    """random numbers with a NaN, both infinities, -0.0 and a subnormal where they fit"""
    rng = np.random.default_rng(zlib.crc32(f"{salt}|{key}|{dtype}|{tuple(shape)}".encode()))
    n = int(np.prod(shape, dtype=np.int64))
    st = ST[dtype][1]
    if dtype in ("float32", "float64", "float16", "bfloat16"):
        a = rng.standard_normal(n) * np.exp2(rng.integers(-8, 8, n))
        if n >= 12:
            p = rng.permutation(n)[:6]
            a[p[0]], a[p[1]], a[p[2]], a[p[3]] = np.nan, np.inf, -np.inf, -0.0
        a = f32_to_bf16(a.astype(np.float32)) if dtype == "bfloat16" else a.astype(st)
        if n >= 12:
            u = a.view({2: "<u2", 4: "<u4", 8: "<u8"}[a.dtype.itemsize])
            u[p[4]] = 1
            u[p[5]] = 3
    elif dtype in ("complex64", "complex128"):
        a = (rng.standard_normal(n) + 1j * rng.standard_normal(n)).astype(st)
    elif dtype == "bool":
        a = rng.integers(0, 2, n).astype(bool)
    elif dtype.startswith("float8"):
        a = rng.integers(0, 0x78, n).astype(np.uint8) | (rng.integers(0, 2, n).astype(np.uint8) << 7)
    else:
        ii = np.iinfo(st)
        a = rng.integers(ii.min, ii.max, n, endpoint=True, dtype=st)
    return a.reshape(shape)


def sha(b):
    return hashlib.sha256(b).hexdigest()


def entry(key, path, dtype, arr, **more):
    """arr: numpy array in the storage dtype of `dtype` (our word)"""
    name, st = ST[dtype]
    a = np.asarray(arr)
    shape = [int(x) for x in a.shape]          # before ascontiguousarray, which makes 0-d 1-d
    b = np.ascontiguousarray(a).astype(st, copy=False).tobytes() if a.dtype != np.dtype(st) else np.ascontiguousarray(a).tobytes()
    d = {"key": key, "path": [str(p) for p in path], "dtype": name, "shape": shape, "nbytes": len(b), "sha256": sha(b)}
    d.update(more)
    return d


def dumps(o, depth=0, keep=4):
    """JSON with one line per tensor: indented down to depth `keep`, compact below"""
    if depth >= keep or not isinstance(o, (dict, list)) or not o:
        return json.dumps(o, ensure_ascii=False, separators=(",", ":"))
    pad = " " * (depth + 1)
    if isinstance(o, dict):
        return "{\n" + ",\n".join(pad + json.dumps(k, ensure_ascii=False) + ": " + dumps(v, depth + 1, keep) for k, v in o.items()) + "\n" + " " * depth + "}"
    return "[\n" + ",\n".join(pad + dumps(v, depth + 1, keep) for v in o) + "\n" + " " * depth + "]"


def write_manifest(path, m):
    for v in m.get("versions", []):
        for o in v.get("objects", []):
            if len(json.dumps(o.get("json"))) > 4000:      # RNG states and the like
                o["json_sha256"] = sha(json.dumps(o["json"], ensure_ascii=False, separators=(",", ":")).encode())
                o["json"], o["json_omitted"] = None, True
    with open(path, "w", encoding="utf-8") as f:
        f.write(dumps(m) + "\n")


def fresh(d):
    shutil.rmtree(d, ignore_errors=True)
    os.makedirs(d)
    return d
