# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch, and arrays, as strided memory: is a tensor strided memory, and may it be written by address?"""
from __future__ import annotations

import math
import sys
from typing import Any, Optional, Sequence

from .shown import shown


def shared(runs: Sequence[tuple[int, int]]) -> list[bool]:
    """The runs of memory, each an address and a number of bytes, that may share bytes with another run; all runs of a chain in which each
    overlaps the next."""
    found, end, last = [False] * len(runs), 0, -1
    for i in sorted((i for i, (_, n) in enumerate(runs) if n), key=lambda i: runs[i]):
        first, n = runs[i]
        if last >= 0 and first < end:
            found[i] = found[last] = True
        end, last = max(end, first + n), i
    return found


def extent(shape: Sequence[int], stride: Optional[Sequence[int]]) -> int:
    """Elements from the first to the last one of memory with these strides, in elements; None: row-major."""
    if stride is None or not math.prod(shape):
        return math.prod(shape)
    return sum((n - 1) * s for n, s in zip(shape, stride)) + 1


def overlaps(shape: Sequence[int], stride: Sequence[int], width: int = 1) -> bool:
    """May two elements, each @width units of @stride wide, have memory in common? Exact for slices and permutations; other strides, of
    as_strided(), are compared place by place."""
    dims, end = sorted((s, n) for n, s in zip(shape, stride) if n > 1), width
    if not math.prod(shape):
        return False
    for s, n in dims:
        if s < end:
            break
        end += (n - 1) * s
    else:
        return False
    places = [0]
    for s, n in dims:
        places = [at + i * s for at in places for i in range(n)]
    places.sort()
    return any(b - a < width for a, b in zip(places, places[1:]))


def plain(tensor: Any, name: str) -> Any:
    """A tensor of torch without its history. NotImplementedError: it is not dense. ValueError: it has no memory."""
    import torch

    if tensor.is_nested or tensor.layout != torch.strided:
        raise NotImplementedError(f"{shown(name)}: only dense tensors are taken, this is {'nested' if tensor.is_nested else tensor.layout}")
    if tensor.device.type == "meta":
        raise ValueError(f"{shown(name)} is on the meta device: give it memory first (to_empty())")
    local = tensor.detach()
    if type(local) is torch.Tensor and local.numel():
        end = (local.storage_offset() + extent(local.shape, local.stride())) * local.element_size()
        if local._is_zerotensor() or local.untyped_storage().nbytes() < end:
            raise ValueError(f"{shown(name)} has no memory: its storage was freed (resize_(0)), or it is a zero tensor")
    return local


def is_torch(value: Any) -> bool:
    """Is it a tensor of torch, if that is imported?"""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def is_memory(local: Any) -> bool:
    """Does the memory of a tensor from plain() hold its elements? That of a wrapper (a quantized weight, an optimizer's state in 8 bits)
    does not, but copy_() can fill it."""
    if not is_torch(local):  # another library's, which has these attributes
        return bool(local.data_ptr()) or not math.prod(local.shape)
    import torch

    return type(local) is torch.Tensor and not (local.is_quantized or local.is_conj() or local.is_neg())


def changed(local: Any) -> None:
    """Tell autograd that the elements change, so that it refuses to go back through results of the old elements."""
    if not getattr(local, "is_inference", lambda: True)():
        local.as_strided((0,), (1,)).zero_()
