# SPDX-License-Identifier: Apache-2.0
"""Files as paddle.save() writes them, byte for byte, with one tensor at a time in memory."""
from __future__ import annotations

import copyreg
import io
import os
import pickle
import tempfile
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import paddle

from .shown import shown


NAMES, BIG = "StructuredToParameterName@@", "UnpackBigParamInfor@@"
MOST = 2**30 - 1  # bytes of an array in protocols 2 and 3


def write(obj: Any, path: Union[str, io.BytesIO], protocol: int = 4, use_binary_format: bool = False) -> None:
    """Write as paddle.save() does, with one tensor at a time in memory."""
    if not isinstance(use_binary_format, bool):
        raise TypeError(f"use_binary_format is a bool, not {use_binary_format!r}")
    if not isinstance(protocol, int) or not 2 <= protocol <= 4:
        raise ValueError(f"protocol is 2, 3 or 4, not {protocol!r}")
    if isinstance(path, io.BytesIO):
        put(obj, path, protocol, use_binary_format)
        return
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(f"a file or a BytesIO is needed, not {type(path)}")
    folder, name = os.path.split(os.fspath(path))
    if not name:
        raise ValueError(f"{shown(str(path))} names no file")
    os.makedirs(folder or ".", exist_ok=True)
    fd, part = tempfile.mkstemp(prefix=f".{name}.", suffix=".dcpfs-part", dir=folder or ".")
    try:
        with open(fd, "wb") as f:
            put(obj, f, protocol, use_binary_format)
            f.flush()
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(f.fileno(), 0o666 & ~mask)
            os.fsync(f.fileno())
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
    fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def put(obj: Any, f: Any, protocol: int, binary: bool) -> None:
    if binary or isinstance(obj, paddle.static.Program):
        whole = io.BytesIO()
        paddle.save(obj, whole, use_binary_format=binary)
        f.write(whole.getbuffer())
    elif is_state(obj):
        Pickler(f, protocol).dump(in_parts(named(obj), protocol))
    else:
        Pickler(f, protocol).dump(obj)


def has_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(has_tensor, value.values()))
    if isinstance(value, (list, tuple, set)):
        return any(map(has_tensor, value))
    return isinstance(value, paddle.Tensor)


def is_state(obj: Any) -> bool:
    """Is it a state dict: do its values consist of tensors, and dicts without tensors?"""
    return isinstance(obj, dict) and all(isinstance(v, paddle.Tensor) or (isinstance(v, dict) and not has_tensor(v)) for v in obj.values())


class Late(NamedTuple):
    """Elements [first, last) of a tensor, or all, that become an array when they are written."""

    value: Any
    first: Optional[int] = None
    last: Optional[int] = None

    def array(self) -> np.ndarray:
        a = array_of(self.value)
        return a if self.first is None else a.reshape(-1)[self.first:self.last]


def array_of(value: Any) -> np.ndarray:
    if not value.value().get_tensor()._is_initialized():
        raise ValueError(f"the tensor {value.name} has no memory; of group sharded models see save_group_sharded_model")
    return np.array(value.cpu())


def named(state: dict[Any, Any]) -> dict[Any, Any]:
    tensors = {k: v for k, v in state.items() if not isinstance(v, dict)}
    return {**{k: v if isinstance(v, dict) else Late(v) for k, v in state.items()}, NAMES: {k: v.name for k, v in tensors.items()}}


def in_parts(state: dict[Any, Any], protocol: int) -> dict[Any, Any]:
    """Protocols 2 and 3: arrays that are longer than MOST cut."""
    table, parts = {}, {}
    for k, v in list(state.items()):
        if protocol > 3 or not isinstance(v, Late):
            continue
        a = v.value
        n, one = int(np.prod(a.shape, dtype=np.int64)), MOST // a.element_size()
        if n > one:
            names = [f"{k}@@.{i}" for i in range(-(-n // one))]
            parts.update({name: Late(v.value, i * one, min(n, (i + 1) * one)) for i, name in enumerate(names)})
            table[k] = {"OriginShape": tuple(a.shape), "slices": names}
            del state[k]
    return {**state, **parts, **({BIG: table} if table else {})}


Base: Any = getattr(pickle, "_Pickler")  # the one in Python


class Pickler(Base):  # type: ignore[misc]
    """The pickler in C keeps all arrays in memory until it ends, as they might be referred to again. This pickler does not."""

    def __init__(self, f: Any, protocol: int) -> None:
        super().__init__(f, protocol)
        self._inside = 0
        self.dispatch_table = copyreg.dispatch_table.copy()
        for kind in (paddle.Tensor, paddle.base.framework.EagerParamBase):
            self.dispatch_table[kind] = lambda v: (tuple, ((v.name, Late(v)),))

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, paddle.nn.Layer):
            raise ValueError("a paddle.nn.Layer cannot be saved: save its state_dict()")
        if isinstance(obj, Late):
            self._inside += 1
            super().save(obj.array(), save_persistent_id)
            self._inside -= 1
        else:
            super().save(obj, save_persistent_id)

    def memoize(self, obj: Any) -> None:
        passing = self._inside and (isinstance(obj, (np.ndarray, tuple)) or isinstance(obj, (bytes, str)) and len(obj) > 64)
        super().memoize(Passing() if passing else obj)


class Passing:
    """A memo entry for an object that is not referred to again."""
