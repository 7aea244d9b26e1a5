# SPDX-License-Identifier: Apache-2.0
"""Which part of a tensor that torch has distributed a process holds."""
from __future__ import annotations

import math
from typing import Any, Iterator, Optional

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def regions(tensor: Any, name: str) -> Iterator[tuple[torch.Tensor, Optional[tuple[int, ...]]]]:
    """Local tensors that are not empty, and where each begins in the whole tensor (None: it is the whole).
    NotImplementedError: a placement or layout that is not one box of strided memory."""
    if hasattr(tensor, "local_shards"):
        for s in tensor.local_shards():
            yield plain(s.tensor, name), tuple(s.metadata.shard_offsets)
    elif isinstance(tensor, DTensor):
        local = plain(tensor._local_tensor, name)
        lo = offset(tensor, local, name)
        if lo is not None and local.numel():
            yield local, lo
    elif tensor.numel():
        yield plain(tensor.detach(), name), None


def plain(local: torch.Tensor, name: str) -> torch.Tensor:
    if local.layout != torch.strided or local.is_quantized:
        raise NotImplementedError(f"{name}: only dense tensors are filled, this is {local.layout}")
    if local.device.type == "meta":
        raise ValueError(f"{name} is on the meta device: give it memory first (to_empty())")
    return local.detach()


def offset(tensor: DTensor, local: torch.Tensor, name: str) -> Optional[tuple[int, ...]]:
    """Where the local part begins in the whole tensor. None: this process is not in the mesh."""
    mesh, placements = tensor.device_mesh, tensor.placements
    if mesh.get_coordinate() is None:
        return None
    for i, p in enumerate(placements):
        if p.is_partial():
            raise NotImplementedError(f"{name} is {p}: a sum of its parts, of which none is stored")
        factor = getattr(p, "split_factor", None)
        if factor is not None:
            dim = getattr(p, "dim")
            cut = [mesh.size(j) for j in range(i + 1, len(placements)) if getattr(placements[j], "dim", None) == dim]
            if factor != math.prod(cut):
                raise NotImplementedError(f"{name}: {p} of {tuple(placements)} is not one piece of the tensor")
    shape, lo = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    if tuple(shape) != tuple(local.shape):
        raise NotImplementedError(f"{name}: {tuple(placements)} gives {tuple(shape)}, the local tensor is {tuple(local.shape)}")
    return tuple(lo)
