# SPDX-License-Identifier: Apache-2.0
"""A tensor of a checkpoint that is read on access, all of it or a region."""
from __future__ import annotations

import math
from typing import Any, Optional

from ._lib import call, encoded, numbers
from .array import Array, Readable, address, room
from .handle import Handle
from .region import flipped, region
from .shown import shown


class Tensor(Readable):
    """key, dtype ("BF16"; the framework's name when dcpfs has none), shape and nbytes are known without reading; data that
    is read is not cached. numpy(), torch(), memoryview(), numpy.asarray() and DLPack read all of it each time."""

    def __init__(self, of: Handle, key: str, dtype: str, shape: tuple[int, ...], itemsize: int, nbytes: int) -> None:
        self._of, self.key, self.dtype, self.shape = of, key, dtype, shape
        self.itemsize, self.nbytes = itemsize, nbytes

    def read(self) -> Array:
        """All of it. DcpfsError: it cannot be read."""
        buffer = room(self.nbytes)
        self.read_into(buffer)
        return Array(self.dtype, self.shape, self.itemsize, buffer)

    def mapped(self) -> Optional[Array]:
        """The whole tensor as memory-mapped pages of its file: bytes are read on use, and writes stay in this process. None: no file has it
        as one run (compressed, in several pieces, another byte order, not aligned). A change of the file changes the array; a truncation
        ends the process (SIGBUS)."""
        buffer = self._of.mapped(self.key, self.nbytes, self.itemsize)
        return None if buffer is None else Array(self.dtype, self.shape, self.itemsize, buffer)

    def read_into(self, buffer: Any) -> None:
        """Fill a writable buffer of nbytes bytes, row-major. ValueError: it has another size. DcpfsError."""
        to = memoryview(buffer).cast("B") if self.nbytes else memoryview(b"")
        if to.nbytes != self.nbytes or to.readonly and self.nbytes:
            raise ValueError(f"{shown(self.key)} has {self.nbytes} bytes, the buffer {to.nbytes}" +
                             (" and is read-only" if to.readonly else ""))
        self._fill(to, None, None, None)

    def _fill(self, to: memoryview, lo: Any, length: Any, step: Any) -> None:
        with self._of._lock:
            call("read", self._of.handle, encoded(self.key), numbers(lo), numbers(length), numbers(step), address(to), len(to))

    def __getitem__(self, index: Any) -> Array:
        """Read a region, and only that: integers, slices with any steps, None and an ellipsis, as numpy takes them.
        IndexError, TypeError: not such an index. DcpfsError: it cannot be read."""
        r = region(index, self.shape)
        buffer = room(math.prod(r.box) * self.itemsize)
        if len(buffer):
            self._fill(buffer, r.lo, r.len, r.step)
        for d in r.flip:
            buffer = flipped(buffer, r.box, self.itemsize, d)
        return Array(self.dtype, r.shape, self.itemsize, buffer)

    def __repr__(self) -> str:
        return f"Tensor({shown(repr(self.key))}, {shown(self.dtype)}{list(self.shape)}, {self.nbytes} bytes)"
