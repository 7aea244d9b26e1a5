# SPDX-License-Identifier: Apache-2.0
"""Manifest helpers for torch objects."""
import datetime, json, enum
import numpy as np
import torch
from fw_common import sha

NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32", torch.int16: "I16",
         torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64", torch.complex128: "C128"}
for n, k in (("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2"), ("uint16", "U16"), ("uint32", "U32"), ("uint64", "U64")):
    if hasattr(torch, n):
        NAMES[getattr(torch, n)] = k


def tbytes(t):
    t = t.detach().cpu().contiguous()
    if t.numel() == 0:
        return b""
    t = t.reshape(-1) if t.dim() else t.reshape(1)
    return t.view(torch.uint8).numpy().tobytes() if t.dtype not in (torch.bool, torch.uint8) else t.numpy().tobytes()


def tentry(key, path, t, **more):
    b = tbytes(t)
    d = {"key": key, "path": [str(p) for p in path], "dtype": NAMES[t.dtype], "shape": list(t.shape), "nbytes": len(b), "sha256": sha(b)}
    d.update(more)
    return d


def js(o):
    if isinstance(o, (str, int, float, bool)) or o is None:
        return o if not isinstance(o, float) or o == o and abs(o) != float("inf") else repr(o)
    if isinstance(o, dict):
        return {str(k): js(v) for k, v in o.items()}
    if isinstance(o, (list, tuple, set, frozenset)):
        return [js(v) for v in o]
    if isinstance(o, np.ndarray):
        return o.tolist()
    if isinstance(o, (np.generic,)):
        return o.item()
    if isinstance(o, datetime.timedelta):
        return o.total_seconds()
    if isinstance(o, enum.Enum):
        return js(o.value)
    if isinstance(o, torch.Size):
        return list(o)
    if isinstance(o, torch.Tensor):
        return {"tensor": list(o.shape)}
    return "<" + type(o).__module__ + "." + type(o).__name__ + ">"


def typename(o):
    t = type(o)
    return t.__name__ if t.__module__ == "builtins" else t.__module__ + "." + t.__name__


def walk(o, path, tens, objs, sep="/", seen=None, aliases=None):
    """tensors and leaves of nested dicts and lists; tuples and anything else are leaves unless they hold tensors"""
    key = sep.join(map(str, path))
    if isinstance(o, torch.Tensor):
        tens.append(tentry(key, path, o))
        if seen is not None and o.numel():
            k = (o.untyped_storage().data_ptr() if hasattr(o, "untyped_storage") else o.storage().data_ptr(), o.storage_offset(), tuple(o.shape), tuple(o.stride()), o.dtype)
            if k in seen:
                aliases.append([seen[k], key])
            else:
                seen[k] = key
    elif isinstance(o, dict):
        if not o:
            objs.append({"key": key, "path": [str(p) for p in path], "json": {}, "type": typename(o)})
        for k, v in o.items():
            walk(v, path + [k], tens, objs, sep, seen, aliases)
    elif isinstance(o, list) or (isinstance(o, tuple) and any(isinstance(x, torch.Tensor) for x in o)):
        if not o:
            objs.append({"key": key, "path": [str(p) for p in path], "json": [], "type": typename(o)})
        for i, v in enumerate(o):
            walk(v, path + [i], tens, objs, sep, seen, aliases)
    else:
        objs.append({"key": key, "path": [str(p) for p in path], "json": js(o), "type": typename(o)})
