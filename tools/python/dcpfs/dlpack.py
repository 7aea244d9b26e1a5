# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules of memory that a Python object owns."""
from __future__ import annotations

import ctypes
import sys
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any, Sequence

CPU = (1, 0)
CUDA = 2  # with the number of the GPU


class Managed(ctypes.Structure):
    """DLManagedTensor with its DLTensor, device and dtype laid out flat."""


DELETER = CFUNCTYPE(None, POINTER(Managed))
Managed._fields_ = [
    ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
    ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
    ("byte_offset", c_uint64), ("manager_ctx", c_void_p), ("deleter", DELETER)]

# What capsules and their consumers hold, by address: the struct, its arrays, the owner of the memory.
_held: dict[int, tuple[Any, ...]] = {}

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = c_int, [ctypes.py_object, c_char_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]


def _release(managed: Any) -> None:
    _held.pop(ctypes.addressof(managed.contents), None)


_delete = DELETER(_release)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_delete))  # consumers may outlive this module
# Capsules that may not have been consumed yet. A destructor would be Python code, called perhaps while an exception
# of the consumer is raised; so they are swept when the next capsule is made.
_waiting: list[Any] = []


def _sweep() -> None:
    for i in reversed(range(len(_waiting))):
        consumed = not _is_valid(_waiting[i], b"dltensor")
        if consumed or sys.getrefcount(_waiting[i]) == 2:  # the list and this call
            if not consumed:
                _held.pop(_pointer(_waiting[i], b"dltensor"), None)
            del _waiting[i]


def capsule(owner: Any, address: int, dtype: tuple[int, int, int], shape: Sequence[int],
            device: tuple[int, int] = CPU) -> Any:
    """A capsule "dltensor" of row-major memory at @address, which lives as long as @owner is referenced."""
    ndim = len(shape)
    sizes, strides, step = (c_int64 * max(ndim, 1))(*shape), (c_int64 * max(ndim, 1))(), 1
    for d in reversed(range(ndim)):
        strides[d], step = step, step * shape[d]
    code, bits, lanes = dtype
    m = Managed(data=address, device_type=device[0], device_id=device[1], ndim=ndim, code=code, bits=bits, lanes=lanes,
                shape=sizes, strides=strides, deleter=_delete)
    at = ctypes.addressof(m)
    _held[at] = (m, sizes, strides, owner)
    _sweep()
    _waiting.append(_new(byref(m), b"dltensor", None))
    return _waiting[-1]
