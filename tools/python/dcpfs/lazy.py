# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch that are read on the first computation; only the region that was cut out is read."""
from __future__ import annotations

import math
from typing import Any, Callable, Optional

import torch

from .dtype import torch_dtype
from .tensor import Tensor

aten = torch.ops.aten
Index = tuple[Any, ...]  # a slice or an integer for each dimension of what is stored


class Lazy(torch.Tensor):
    """A region of @stored. Cutting (narrow(), slices, one row) makes a smaller region; every other operation reads the region first. @count
    is called with the bytes read."""

    _stored: Tensor
    _index: Index
    _count: Optional[Callable[[int], None]]

    @staticmethod
    def __new__(cls, stored: Tensor, index: Optional[Index] = None, count: Optional[Callable[[int], None]] = None) -> Lazy:
        index = tuple(slice(0, n) for n in stored.shape) if index is None else index
        shape = [i.stop - i.start for i in index if isinstance(i, slice)]
        made: Lazy = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch_dtype(stored.dtype), device="cpu")  # type: ignore
        made._stored, made._index, made._count = stored, index, count
        return made

    def __repr__(self, **_: Any) -> str:  # torch's would read it
        return f"Lazy({self._stored!r}, {self._index})"

    def counted(self, count: Callable[[int], None]) -> Lazy:
        """The same; @count is called with the bytes read."""
        return Lazy(self._stored, self._index, count)

    def cut(self, dim: int, by: Any) -> Lazy:
        """@by: a slice with both ends, within the region, or an integer."""
        at = [d for d, i in enumerate(self._index) if isinstance(i, slice)][dim]
        start = self._index[at].start
        by = slice(start + by.start, start + by.stop) if isinstance(by, slice) else start + by
        return Lazy(self._stored, (*self._index[:at], by, *self._index[at + 1:]), self._count)

    def read(self) -> torch.Tensor:
        """The elements of the region. DcpfsError: it cannot be read."""
        if self._count:
            self._count(math.prod(self.shape) * self._stored.itemsize)
        got = self._stored.read() if self.shape == self._stored.shape else self._stored[self._index]
        return got.torch()  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self = args[0] if args else None
        if isinstance(self, Lazy) and not kwargs:
            if func is aten.slice.Tensor:
                dim, start, stop, step = (*args[1:], *(0, None, None, 1)[len(args) - 1:])
                start, stop, step = slice(start, stop, step).indices(self.shape[dim])
                if step == 1:
                    return self.cut(dim, slice(start, max(start, stop)))
            elif func is aten.select.int and -self.shape[args[1]] <= args[2] < self.shape[args[1]]:
                return self.cut(args[1], args[2] % self.shape[args[1]])
            elif func in (aten.detach.default, aten.alias.default):
                return Lazy(self._stored, self._index, self._count)
        args, kwargs = torch.utils._pytree.tree_map_only(Lazy, Lazy.read, (args, kwargs or {}))
        return func(*args, **kwargs)
