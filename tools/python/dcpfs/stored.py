# SPDX-License-Identifier: Apache-2.0
"""Where tensors and objects of a checkpoint are stored."""
from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t
from typing import NamedTuple

from ._lib import PieceStruct, text
from .checkpoint import Checkpoint


class Stored(NamedTuple):
    """A part of a tensor: elements of the box at @lo, maybe not all of them, in a file of the version. Of an object: no box."""

    file: str
    lo: tuple[int, ...]
    shape: tuple[int, ...]


def pieces(ck: Checkpoint, key: str) -> list[Stored]:
    """The pieces, in the order of the checkpoint; empty: it shares its bytes with another key, or cannot be read. KeyError names the
    nearest key."""
    found, n = ctypes.POINTER(PieceStruct)(), c_size_t()
    ndim = len(ck[key].shape) if key in ck else 0
    with ck._lock:
        ck.find("pieces", key, byref(found), byref(n))
        return [Stored(text(p.file), tuple(p.lo[:ndim]), tuple(p.len[:ndim])) for p in found[:n.value]]
