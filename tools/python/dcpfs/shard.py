# SPDX-License-Identifier: Apache-2.0
"""The part of one rank of a layout."""
from __future__ import annotations

from collections.abc import Mapping
from ctypes import byref
from typing import Iterator

from ._lib import TensorStruct
from .array import Array, DeviceArray, Readable
from .handle import Handle
from .plan import PARTIAL, Part, Plan
from .shown import shown


class ShardTensor(Readable):
    """A rank's part of a tensor: shape is the part's, global_shape the tensor's. The part is read as a whole, on each access."""

    def __init__(self, of: Shard, part: Part) -> None:
        self._of, self._name, self.key, self.dtype = of, part.name, part.key, part.dtype
        self.shape, self.global_shape = part.shape, part.global_shape
        self.itemsize, self.nbytes = part.itemsize, part.nbytes

    def read(self) -> Array:
        """DcpfsError: it cannot be read."""
        plan = Plan(self._of.checkpoint)
        plan.want_layout(self._of.layout, self._of.rank, [self.key])
        plan.finish().execute()
        array = next(plan.array(p) for p in plan.parts() if p.name == self._name)
        return array.read() if isinstance(array, DeviceArray) else array

    def __repr__(self) -> str:
        return f"ShardTensor({shown(repr(self._name))}, {shown(self.dtype)}{list(self.shape)} of {list(self.global_shape)})"


class Shard(Mapping[str, ShardTensor]):
    """Keys to a rank's parts of tensors, in the order of the checkpoint; for a layout from a file of regions, its lines instead of keys.

    errors: {key: why} of unreadable parts. The checkpoint must have been opened by this process alone.
    """

    def __init__(self, checkpoint: Handle, layout: str, rank: int) -> None:
        if checkpoint.comm and checkpoint.comm.ranks > 1:
            raise ValueError("ranks opened this checkpoint together: dcpfs.load() loads a layout together")
        self.checkpoint, self.layout, self.rank = checkpoint, layout, rank
        plan = Plan(checkpoint, PARTIAL)
        plan.want_layout(layout, rank)
        self._parts = {p.name: ShardTensor(self, p) for p in plan.parts()}
        self.errors = plan.problems["broken"]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, key: str) -> ShardTensor:
        """Reads nothing yet. KeyError: the rank holds nothing of the tensor, or there is no such key."""
        if key not in self._parts:
            self.checkpoint.find("tensor", key, byref(TensorStruct()))
            raise KeyError(f"rank {self.rank} of {shown(self.layout)} holds nothing of {shown(key)}")
        return self._parts[key]

    def __repr__(self) -> str:
        total = sum(t.nbytes for t in self._parts.values())
        return f"Shard({shown(repr(self.layout))}, {self.rank}: {len(self)} tensors, {total} bytes)"
