# SPDX-License-Identifier: Apache-2.0
"""The regions in memory that a process holds of a tensor to be saved, of any kind."""
from __future__ import annotations

from typing import Any, Iterator, NamedTuple, Optional, Sequence

from .array import DeviceArray, Readable, address
from .dtype import of_numpy, of_torch
from .shown import shown


class Box(NamedTuple):
    """A part of a tensor that this rank holds: @data stands at @lo of a tensor of @shape."""

    data: Any
    lo: Sequence[int]
    shape: Sequence[int]


class Piece(NamedTuple):
    """A region in memory; lo None: the whole tensor; strides in elements, None: row-major."""

    dtype: str
    shape: Sequence[int]
    lo: Optional[Sequence[int]]
    len: Sequence[int]
    address: int
    stride: Optional[Sequence[int]]
    keep: Any


def is_tensor(value: Any) -> bool:
    """Is it written as a tensor, not as an object?"""
    if isinstance(value, (Box, Readable)) or hasattr(value, "data_ptr") or hasattr(value, "local_shards"):
        return True
    if type(value).__name__ != "ndarray":
        return False
    try:
        return bool(of_numpy(value.dtype))
    except TypeError:
        return False


def pieces(value: Any, key: str, device: Optional[str] = None) -> Iterator[Piece]:
    """The pieces of a tensor that this process holds; memory of @device ("cuda:0") is not copied. TypeError: checkpoints have no such
    dtype, or it is a wrapper around other tensors. NotImplementedError: its layout."""
    if isinstance(value, Piece):
        yield value
    elif isinstance(value, Box):
        for p in pieces(value.data, key, device):
            if len(p.shape) != len(value.shape) or len(value.lo) != len(value.shape):
                raise ValueError(f"{shown(key)}: a box of {len(p.shape)} dimensions in a tensor of {len(value.shape)}")
            yield p._replace(shape=tuple(value.shape), lo=tuple(value.lo))
    elif isinstance(value, DeviceArray) and device == f"cuda:{value.device}":
        yield Piece(value.dtype, value.shape, None, value.shape, value.address, None, value)
    elif isinstance(value, Readable):
        got = value.read()
        yield Piece(got.dtype, got.shape, None, got.shape, address(got.buffer), None, got)
    elif hasattr(value, "data_ptr") or hasattr(value, "local_shards"):
        yield from _of_torch(value, key, device)
    else:
        yield _of_numpy(value)


def _of_numpy(a: Any) -> Piece:
    if a.dtype.byteorder == ">" or any(s % a.itemsize for s in a.strides):
        a = a.astype(a.dtype.newbyteorder("<")).copy()
    stride = tuple(s // a.itemsize for s in a.strides)
    return Piece(of_numpy(a.dtype), a.shape, None, a.shape, a.__array_interface__["data"][0], stride, a)


def _of_torch(tensor: Any, key: str, device: Optional[str]) -> Iterator[Piece]:
    from .regions import regions, size

    shape = size(tensor)
    dtype = of_torch(tensor.dtype if hasattr(tensor, "dtype") else tensor.metadata().tensor_properties.dtype)
    some = False
    for local, lo in regions(tensor, key):
        some = True
        if local.is_cuda and str(local.device) == device:
            local = local.resolve_conj().resolve_neg().contiguous()
            torch_cuda(local).synchronize()
        else:
            local = local.cpu().resolve_conj().resolve_neg()
        if not local.data_ptr():
            raise TypeError(f"{shown(key)}: a {type(local).__name__} has no memory of its own: give the plain tensor that it stands for (dequantize())")
        yield Piece(dtype, shape, lo, tuple(local.shape), local.data_ptr(), tuple(local.stride()), local)
    if not some and shape:  # others have it, or it is empty
        yield Piece(dtype, shape, (0,) * len(shape), (0,) * len(shape), 0, None, None)


def torch_cuda(tensor: Any) -> Any:
    """The stream in which torch works on it."""
    import torch

    return torch.cuda.current_stream(tensor.device)


def device_of(value: Any) -> Optional[str]:
    """The GPU that has a tensor, "cuda:0"."""
    if isinstance(value, DeviceArray):
        return f"cuda:{value.device}"
    local = getattr(value, "_local_tensor", value)
    return str(local.device) if getattr(local, "is_cuda", False) is True else None
