# SPDX-License-Identifier: Apache-2.0
"""The part that a process holds of a tensor that torch has distributed."""
from __future__ import annotations

import math
from typing import Any, Iterator, Optional

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from .shown import shown
from .strided import plain


CHUNKS = "__create_chunk_list__"  # torch's protocol for a tensor that is several regions, with __get_tensor_shard__()
FIELDS = ("global_shape", "global_offsets", "local_offsets", "local_sizes")  # its protocol for a tensor with attributes (torch 2.15)


def size(tensor: Any) -> tuple[int, ...]:
    """Shape of the whole tensor."""
    return tuple(tensor.global_shape if _has_fields(tensor) else tensor.size())


def regions(tensor: Any, name: str) -> Iterator[tuple[torch.Tensor, Optional[tuple[int, ...]]]]:
    """Local tensors that are not empty, and the place of each in the whole tensor (None: it is the whole). NotImplementedError: a placement
    or layout that is not one box of strided memory."""
    for local, lo in _regions(tensor, name):
        local = plain(local, name)
        if local.numel():
            yield local, lo


def _regions(tensor: Any, name: str) -> Iterator[tuple[torch.Tensor, Optional[tuple[int, ...]]]]:
    if hasattr(tensor, "local_shards") and not hasattr(tensor, CHUNKS):
        for s in tensor.local_shards():
            yield s.tensor, tuple(s.metadata.shard_offsets)
    elif isinstance(tensor, DTensor) and not hasattr(tensor._local_tensor, CHUNKS):
        lo = offset(tensor, tensor._local_tensor, name)
        if lo is not None:
            yield tensor._local_tensor, lo
    elif hasattr(tensor, CHUNKS):
        if not isinstance(tensor, DTensor) or tensor.device_mesh.get_coordinate() is not None:
            for chunk in tensor.__create_chunk_list__():
                yield tensor.__get_tensor_shard__(MetadataIndex(name, chunk.offsets)), tuple(chunk.offsets)
    elif _has_fields(tensor):
        for lo, at, length in zip(tensor.global_offsets, tensor.local_offsets, tensor.local_sizes):
            yield tensor[tuple(slice(a, a + n) for a, n in zip(at, length))], tuple(lo)
    else:
        yield tensor, None


def _has_fields(tensor: Any) -> bool:
    return all(hasattr(tensor, name) for name in FIELDS)


def offset(tensor: DTensor, local: torch.Tensor, name: str) -> Optional[tuple[int, ...]]:
    """Where the local part begins in the whole tensor. None: this process is not in the mesh."""
    mesh, placements = tensor.device_mesh, tensor.placements
    if mesh.get_coordinate() is None:
        return None
    for i, p in enumerate(placements):
        if p.is_partial():
            raise NotImplementedError(f"{shown(name)} is {p}: a sum of its parts, of which none is stored")
        factor = getattr(p, "split_factor", None)
        if factor is not None:
            dim = getattr(p, "dim")
            cut = [mesh.size(j) for j in range(i + 1, len(placements)) if getattr(placements[j], "dim", None) == dim]
            if factor != math.prod(cut):
                raise NotImplementedError(f"{shown(name)}: {p} of {tuple(placements)} is not one piece of the tensor")
    shape, lo = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    if tuple(shape) != tuple(local.shape):
        raise NotImplementedError(f"{shown(name)}: {tuple(placements)} gives {tuple(shape)}, the local tensor is {tuple(local.shape)}")
    return tuple(lo)
