# SPDX-License-Identifier: Apache-2.0
"""Bytes in memory that have a dtype and a shape, for numpy, torch, DLPack and memoryview."""
from __future__ import annotations

import abc
import ctypes
import math
import mmap
from typing import Any, Callable, Optional

from . import dlpack
from .dtype import DTYPES, torch_dtype, widened
from .shown import shown


Memory = memoryview  # the type, inside a class that has a method of that name


def room(nbytes: int) -> memoryview:
    """Memory of @nbytes bytes, freed with its last user."""
    return memoryview(mmap.mmap(-1, nbytes) if nbytes >= 1 << 20 else bytearray(nbytes))


def address(buffer: Any) -> int:
    """Address of the first byte of a writable buffer; 0: it is empty."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) if len(buffer) else 0


class Readable(abc.ABC):
    """A tensor that can be read into memory: dtype is a name such as "BF16", shape counts elements."""

    dtype: str
    shape: tuple[int, ...]
    itemsize: int
    nbytes: int

    @abc.abstractmethod
    def read(self) -> Array:
        """The whole tensor, in memory. DcpfsError: it cannot be read."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError("is it true? Ask its shape, or what numpy() gives")

    def numpy(self) -> Any:
        """numpy.ndarray of this shape. Dtypes that numpy does not have become float32 with the same values, as in the
        .npy files of a mount (BF16, F8_*, F4 with its last dimension doubled), C32 becomes complex64.
        TypeError: there is no such dtype. DcpfsError: it cannot be read."""
        import numpy as np

        row, shape = DTYPES.get(self.dtype), self.shape
        got = self.read()
        if row and row.numpy:
            return np.frombuffer(got.buffer, row.numpy).reshape(shape)
        if self.dtype == "F4":
            shape = (*shape[:-1], shape[-1] * 2) if shape else (2,)
        return widened(self.dtype, got.buffer).reshape(shape)

    def torch(self, device: Any = None) -> Any:
        """torch.Tensor of this shape and dtype; without a copy on the CPU. TypeError: torch has no such dtype.
        DcpfsError: it cannot be read."""
        import torch

        dtype = torch_dtype(self.dtype)
        got = self.read()
        t = torch.frombuffer(got.buffer, dtype=dtype) if got.nbytes else torch.empty(0, dtype=dtype)
        t = t.reshape(self.shape)
        return t if device is None else t.to(device)

    def memoryview(self) -> Memory:
        """A memoryview of this shape, in a format of Python's struct. Other dtypes are seen as unsigned integers of the same size (BF16,
        F16: "H"); wider or unknown dtypes as bytes in another dimension."""
        got, row = self.read(), DTYPES.get(self.dtype)
        if not got.nbytes:
            return got.buffer
        if row is None or not row.format:
            return got.buffer.cast("B", (*self.shape, self.itemsize))
        cast: Callable[..., Memory] = got.buffer.cast
        return cast(row.format, self.shape)

    def tolist(self) -> Any:
        """Nested lists of Python's numbers."""
        return self.numpy().tolist()

    def item(self) -> Any:
        """The only element. ValueError: there is not exactly one."""
        return self.numpy().item()

    def __buffer__(self, flags: int) -> Memory:
        return self.memoryview()

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        a = self.numpy()
        if dtype is not None and a.dtype != dtype:
            if copy is False:
                raise ValueError(f"{shown(self.dtype)} becomes {dtype} by a copy only")
            return a.astype(dtype)
        return a.copy() if copy and isinstance(self, Array) else a

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        """A capsule; the memory lives as long as its consumer. BufferError: DLPack has no such dtype, or the device is not
        the CPU."""
        row = DTYPES.get(self.dtype)
        if row is None or row.dlpack is None:
            raise BufferError(f"DLPack has no dtype for {shown(self.dtype)}")
        if dl_device is not None and tuple(dl_device) != dlpack.CPU:
            raise BufferError("the memory is the CPU's")
        got = self.read()
        buffer = bytearray(got.buffer) if copy else got.buffer
        return dlpack.capsule(buffer, address(buffer), row.dlpack, self.shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU


class Array(Readable):
    """A tensor, or a region of one, in memory: row-major, little-endian.

    buffer: its bytes, a writable memoryview of "B".
    """

    def __init__(self, dtype: str, shape: tuple[int, ...], itemsize: int, buffer: memoryview) -> None:
        self.dtype, self.shape, self.itemsize, self.buffer = dtype, shape, itemsize, buffer
        self.nbytes = len(buffer)

    def read(self) -> Array:
        return self

    def tobytes(self) -> bytes:
        """A copy of its bytes, row-major."""
        return self.buffer.tobytes()

    def __repr__(self) -> str:
        return f"Array({shown(self.dtype)}{list(self.shape)}, {self.nbytes} bytes)"


class DeviceArray(Readable):
    """A tensor in the memory of a GPU: row-major. cupy, numba, torch and others use it where it is, by __cuda_array_interface__
    or DLPack; numpy(), read() and the like copy it.

    address, device: where it is; it lives as long as this object or a tensor made from it.
    """

    def __init__(self, dtype: str, shape: tuple[int, ...], itemsize: int, address: int, device: int,
                 fetch: Callable[[], memoryview]) -> None:
        self.dtype, self.shape, self.itemsize, self.address, self.device = dtype, shape, itemsize, address, device
        self.nbytes = math.prod(shape) * itemsize
        self._fetch = fetch  # keeps the memory, too

    def read(self) -> Array:
        return Array(self.dtype, self.shape, self.itemsize, self._fetch())

    def torch(self, device: Any = None) -> Any:
        """torch.Tensor on the GPU, without a copy. TypeError: torch has no such dtype."""
        import torch

        dtype = torch_dtype(self.dtype)
        whole = DeviceArray("U8", (self.nbytes,), 1, self.address, self.device, self._fetch)
        t = torch.utils.dlpack.from_dlpack(whole).view(dtype).reshape(self.shape)
        return t if device is None else t.to(device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Dtypes that numpy does not have are unsigned integers of the same size. Everything is written already."""
        row = DTYPES.get(self.dtype)
        if row is None or not (row.numpy or row.size in (1, 2, 4, 8)):
            raise AttributeError(f"numpy has no dtype for {shown(self.dtype)}")
        return {"shape": self.shape, "typestr": row.numpy or ("|u1" if row.size == 1 else f"<u{row.size}"),
                "data": (self.address, False), "strides": None, "version": 3, "stream": None}

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        """A capsule; the memory lives as long as its consumer. @stream need not wait, as everything is written already. BufferError: DLPack
        has no such dtype, or another device or a copy is asked for."""
        row = DTYPES.get(self.dtype)
        if row is None or row.dlpack is None:
            raise BufferError(f"DLPack has no dtype for {shown(self.dtype)}")
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"the memory is that of cuda:{self.device}, and it is not copied")
        return dlpack.capsule(self, self.address, row.dlpack, self.shape, self.__dlpack_device__())

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __repr__(self) -> str:
        return f"DeviceArray({shown(self.dtype)}{list(self.shape)}, {self.nbytes} bytes on cuda:{self.device})"
