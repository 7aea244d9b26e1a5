# SPDX-License-Identifier: Apache-2.0
"""The order in which torch.distributed.checkpoint writes tensors that share memory: the last write stays."""
from __future__ import annotations

from typing import Iterator, NamedTuple, Sequence

import torch
from torch.distributed.checkpoint import metadata as md
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from .checkpoint import Checkpoint
from .stored import Stored, pieces


class Region(NamedTuple):
    """A part of a tensor that a process fills."""

    lo: Sequence[int]
    shape: Sequence[int]


class Write(NamedTuple):
    """The part @at of region @region of want @want."""

    want: int
    region: int
    at: tuple[slice, ...]


def writes(ck: Checkpoint, wants: Sequence[tuple[str, Sequence[Region]]]) -> Iterator[Write]:
    """Writes of torch, in its order. It reads files in the order in which its plan first names them, and each file in the order of the
    plan. The plan has the wants in order; the planner of the installed torch makes its items from regions and stored chunks.

    wants: keys and their regions; an object has none, but its file counts."""
    files = dict[str, list[Write]]()
    for i, (key, regions) in enumerate(wants):
        stored = pieces(ck, key)
        if not regions:
            files.setdefault(stored[0].file if stored else "", [])
            continue
        for region, piece, at in _items(key, ck[key].shape, stored, regions):
            files.setdefault(piece.file, []).append(Write(i, region, at))
    for found in files.values():
        yield from found


def _items(key: str, shape: Sequence[int], stored: Sequence[Stored], regions: Sequence[Region]) -> Iterator[tuple[int, Stored, tuple[slice, ...]]]:
    """Parts of regions, and the piece that each is read from."""
    def chunks(boxes: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[md.ChunkStorageMetadata]:
        return [md.ChunkStorageMetadata(offsets=torch.Size(lo), sizes=torch.Size(n)) for lo, n in boxes]

    whole = md.TensorStorageMetadata(properties=md.TensorProperties(), size=torch.Size(shape), chunks=chunks([(p.lo, p.shape) for p in stored]))
    for item in create_read_items_for_chunk_list(key, whole, chunks(regions)):
        assert item.dest_index.index is not None and item.storage_index.index is not None
        at = tuple(slice(lo, lo + n) for lo, n in zip(item.dest_offsets, item.lengths))
        yield item.dest_index.index, stored[item.storage_index.index], at
