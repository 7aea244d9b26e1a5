# SPDX-License-Identifier: Apache-2.0
"""Names of dtypes, and what numpy, torch, DLPack and memoryview call them."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional

from .shown import shown


class Dtype(NamedTuple):
    """Bytes per stored element, and names of the dtype; None: it has none there."""

    size: int
    torch: Optional[str]
    numpy: Optional[str]  # None: numpy shows it widened
    format: str  # of memoryview; unsigned integers where Python has no such dtype; "": none so wide
    dlpack: Optional[tuple[int, int, int]]  # code, bits, lanes


DTYPES = {
    "F64": Dtype(8, "float64", "<f8", "d", (2, 64, 1)),
    "F32": Dtype(4, "float32", "<f4", "f", (2, 32, 1)),
    "F16": Dtype(2, "float16", "<f2", "H", (2, 16, 1)),
    "BF16": Dtype(2, "bfloat16", None, "H", (4, 16, 1)),
    "F8_E4M3": Dtype(1, "float8_e4m3fn", None, "B", (10, 8, 1)),
    "F8_E5M2": Dtype(1, "float8_e5m2", None, "B", (12, 8, 1)),
    "F8_E4M3FNUZ": Dtype(1, "float8_e4m3fnuz", None, "B", (11, 8, 1)),
    "F8_E5M2FNUZ": Dtype(1, "float8_e5m2fnuz", None, "B", (13, 8, 1)),
    "F8_E8M0": Dtype(1, "float8_e8m0fnu", None, "B", (14, 8, 1)),
    "F4": Dtype(1, "float4_e2m1fn_x2", None, "B", (17, 4, 2)),
    "I64": Dtype(8, "int64", "<i8", "q", (0, 64, 1)),
    "I32": Dtype(4, "int32", "<i4", "i", (0, 32, 1)),
    "I16": Dtype(2, "int16", "<i2", "h", (0, 16, 1)),
    "I8": Dtype(1, "int8", "|i1", "b", (0, 8, 1)),
    "U64": Dtype(8, "uint64", "<u8", "Q", (1, 64, 1)),
    "U32": Dtype(4, "uint32", "<u4", "I", (1, 32, 1)),
    "U16": Dtype(2, "uint16", "<u2", "H", (1, 16, 1)),
    "U8": Dtype(1, "uint8", "|u1", "B", (1, 8, 1)),
    "BOOL": Dtype(1, "bool", "|b1", "?", (6, 8, 1)),
    "C32": Dtype(4, "complex32", None, "I", (5, 32, 1)),
    "C64": Dtype(8, "complex64", "<c8", "Q", (5, 64, 1)),
    "C128": Dtype(16, "complex128", "<c16", "", (5, 128, 1)),
}
FLOATS = {"F32", "F16", "BF16"}  # the library converts these into each other; frameworks do the rest
BY_TORCH = {d.torch: name for name, d in DTYPES.items()}
BY_NUMPY = {d.numpy: name for name, d in DTYPES.items() if d.numpy}


def torch_dtype(name: str) -> Any:
    """torch.bfloat16 for "BF16". TypeError: this torch has no such dtype."""
    import torch

    row = DTYPES.get(name)
    found = getattr(torch, row.torch, None) if row and row.torch else None
    if found is None:
        raise TypeError(f"torch {torch.__version__} has no dtype for {shown(name)}; read() gives the bytes")
    return found


def of_torch(dtype: Any) -> str:
    """ "BF16" for torch.bfloat16. TypeError: dcpfs has no such dtype."""
    name = BY_TORCH.get(str(dtype).split(".")[-1])
    if name is None:
        raise TypeError(f"no dtype of a checkpoint is {dtype}")
    return name


def of_numpy(dtype: Any) -> str:
    """ "F32" for numpy.float32, ml_dtypes' too. TypeError: dcpfs has no such dtype."""
    name = BY_NUMPY.get(dtype.str) or BY_TORCH.get(dtype.name)
    if name is None:
        raise TypeError(f"no dtype of a checkpoint is numpy's {dtype}")
    return name


def _small(bits: int, exponent: int, mantissa: int, bias: int, kind: str) -> list[float]:
    """All values of a small float, by code. kind: "ieee" has infinities, "fn" has none, "fnuz" has no negative zero either."""
    values = []
    for code in range(1 << bits):
        sign = -1.0 if code >> (exponent + mantissa) else 1.0
        e, m = code >> mantissa & ((1 << exponent) - 1), code & ((1 << mantissa) - 1)
        top = e == (1 << exponent) - 1
        if kind == "fnuz" and sign < 0 and not e and not m or kind == "fn" and top and m == (1 << mantissa) - 1:
            values.append(float("nan"))
        elif kind == "ieee" and top:
            values.append(float("nan") if m else sign * float("inf"))
        else:
            values.append(sign * ((m / (1 << mantissa) + (e > 0)) * 2.0 ** (max(e, 1) - bias)))
    return values


def widened(name: str, raw: Any) -> Any:
    """The bytes @raw as a flat array of numpy: float32, or complex64, with the same values. TypeError: not a known dtype."""
    import numpy as np

    if name == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    if name == "C32":
        return np.frombuffer(raw, "<f2").astype("<f4").view("<c8")
    codes = np.frombuffer(raw, "|u1")
    if name == "F4":
        return np.array(_small(4, 2, 1, 1, "finite"), "<f4")[np.stack([codes & 15, codes >> 4], -1)].reshape(-1)
    table = {
        "F8_E4M3": lambda: _small(8, 4, 3, 7, "fn"),
        "F8_E5M2": lambda: _small(8, 5, 2, 15, "ieee"),
        "F8_E4M3FNUZ": lambda: _small(8, 4, 3, 8, "fnuz"),
        "F8_E5M2FNUZ": lambda: _small(8, 5, 2, 16, "fnuz"),
        "F8_E8M0": lambda: [2.0 ** (c - 127) for c in range(255)] + [float("nan")],
    }.get(name)
    if table is None:
        raise TypeError(f"numpy has no dtype for {shown(name)}; read() gives the bytes")
    return np.array(table(), "<f4")[codes]
