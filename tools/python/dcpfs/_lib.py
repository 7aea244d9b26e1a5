# SPDX-License-Identifier: Apache-2.0
"""libdcpload and libdcpsave by ctypes: where they are, their structs and functions as the headers declare them, errors."""
from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from ctypes import (CFUNCTYPE, POINTER, byref, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64,
                    c_void_p)
from typing import Any, Iterator, Optional, Sequence

from .shown import shown

ABI = 1
MAX_NDIM = 64
SONAME = "lib{}.so.0"
BUILDS = ("build", "build/release", "build/demo")  # of a checkout, in this order


class DcpfsError(OSError):
    """An error of the library.

    code: the errno (positive); rank: the rank that failed, -1: the caller itself, or no single rank;
    text: one line: key, file, found, expected, what to do.
    """

    def __init__(self, code: int, text: str, rank: int = -1) -> None:
        text = shown(text)
        super().__init__(code, text)
        self.code, self.text, self.rank = code, text, rank

    def __str__(self) -> str:
        return self.text if self.rank < 0 else f"rank {self.rank}: {self.text}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.text, self.rank)


class Error(ctypes.Structure):
    _fields_ = [("code", c_int32), ("rank", c_int32), ("text", c_char * 1016)]


class CommStruct(ctypes.Structure):
    pass


ALLGATHER = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_int)
ALLTOALLV = CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p), POINTER(c_uint64), POINTER(c_void_p), POINTER(c_uint64), c_int)
SPLIT = CFUNCTYPE(c_int, c_void_p, c_uint32, c_uint32, POINTER(POINTER(CommStruct)), c_int)
CLOSE = CFUNCTYPE(None, c_void_p)
EXPLAIN = CFUNCTYPE(None, c_void_p, POINTER(Error))
CommStruct._fields_ = [
    ("size", c_uint32), ("rank", c_uint32), ("ranks", c_uint32), ("flags", c_uint32), ("name", c_char_p),
    ("ctx", c_void_p), ("allgather", ALLGATHER), ("alltoallv", ALLTOALLV), ("split", SPLIT), ("close", CLOSE),
    ("explain", EXPLAIN)]


class CommConfig(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("flags", c_uint32), ("timeout_ms", c_uint32), ("reserved", c_uint32), ("secret", c_char_p)]


class Config(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("io", c_uint32), ("exchange", c_uint32), ("threads", c_uint32),
                ("staging", c_uint64), ("timeout_ms", c_uint32), ("reserved", c_uint32), ("version", c_char_p),
                ("cache", c_char_p), ("device", c_char_p), ("rules", c_char_p), ("assets", c_char_p),
                ("part", c_char_p), ("coordinator", c_uint32), ("reserved2", c_uint32)]


class TensorStruct(ctypes.Structure):
    _fields_ = [("key", c_char_p), ("dtype", c_char_p), ("itemsize", c_uint32), ("ndim", c_uint32),
                ("nbytes", c_uint64), ("shape", c_uint64 * MAX_NDIM)]


class EntryStruct(ctypes.Structure):
    _fields_ = [("key", c_char_p), ("is_object", c_uint32), ("npath", c_uint32), ("path", POINTER(c_char_p)),
                *((n, c_char_p) for n in ("type", "json", "classes", "why"))]


class PieceStruct(ctypes.Structure):
    _fields_ = [("file", c_char_p), ("lo", POINTER(c_uint64)), ("len", POINTER(c_uint64))]


class Want(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("ndim", c_uint32), ("key", c_char_p), ("shape", POINTER(c_uint64)),
                ("lo", POINTER(c_uint64)), ("len", POINTER(c_uint64)), ("dtype", c_char_p), ("dst", c_void_p),
                ("stride", POINTER(c_int64)), ("user", c_void_p)]


PROGRESS = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)


class Hooks(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("reserved", c_uint32), ("ctx", c_void_p), ("resolve", c_void_p), ("commit", c_void_p),
                ("progress", PROGRESS)]


class Select(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("nkeys", c_uint32), ("nskip", c_uint32), ("reserved", c_uint32),
                ("keys", POINTER(c_char_p)), ("skip", POINTER(c_char_p)), ("dtype", c_char_p)]


class PartStruct(ctypes.Structure):
    _fields_ = [("key", c_char_p), ("dtype", c_char_p), ("stored", c_char_p), ("itemsize", c_uint32),
                ("ndim", c_uint32), ("complete", c_uint32), ("global_ndim", c_uint32), ("data", c_void_p),
                ("nbytes", c_uint64), ("shape", c_uint64 * MAX_NDIM), ("global_shape", c_uint64 * MAX_NDIM),
                ("user", c_void_p)]


class ReportStruct(ctypes.Structure):
    _fields_ = ([(n, c_uint32) for n in ("size", "io", "exchange", "ranks", "local_ranks", "nodes")] +
                [(n, c_uint64) for n in ("parts", "needed", "read", "sent", "received", "unique", "staging", "calls",
                                         "open_ns", "plan_ns", "execute_ns", "read_ns", "wait_ns", "place_ns")] +
                [(n, c_char_p) for n in ("io_why", "exchange_why", "comm")] + [("cpu_ns", c_uint64)] +
                [(n, c_char_p) for n in ("device", "device_why")] +
                [(n, c_uint64) for n in ("pinned", "device_staging")] + [("again", c_char_p), ("nccl", c_uint32), ("reserved", c_uint32), ("registered", c_uint64)])


class SaveConfig(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("flags", c_uint32), ("threads", c_uint32), ("timeout_ms", c_uint32),
                ("protocol", c_uint32), ("withheld", c_uint32), ("format", c_char_p), ("staging", c_uint64),
                ("max_shard", c_uint64), ("gather_to", POINTER(c_uint32)), ("ngather", c_uint64), ("max_grouped", c_uint64),
                ("device", c_char_p)]


class SaveTensor(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("ndim", c_uint32), ("key", c_char_p), ("path", POINTER(c_char_p)), ("npath", c_uint64),
                ("dtype", c_char_p), ("shape", POINTER(c_uint64)), ("lo", POINTER(c_uint64)), ("len", POINTER(c_uint64)),
                ("stride", POINTER(c_int64)), ("data", c_void_p), ("read", c_void_p), ("ctx", c_void_p)]


class SaveObject(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("reserved", c_uint32), ("key", c_char_p), ("path", POINTER(c_char_p)),
                ("npath", c_uint64), ("type", c_char_p), ("json", c_char_p), ("classes", c_char_p)]


class SaveReport(ctypes.Structure):
    _fields_ = ([("size", c_uint32), ("ranks", c_uint32)] +
                [(n, c_uint64) for n in ("files", "bytes", "tensors", "objects", "given", "own", "written", "copied",
                                         "plan_ns", "write_ns", "wait_ns", "rounds", "grouped", "on_device")])


ERR = POINTER(Error)
OUT = POINTER(c_void_p)
TEXT = POINTER(c_char_p)
# By library. Functions that return a negative errno: names without "dcpload_", arguments (ERR last where the function takes it).
FUNCTIONS: dict[str, dict[str, Sequence[Any]]] = {"dcpload": {
    "comm_open_as": (c_char_p, POINTER(CommConfig), POINTER(POINTER(CommStruct)), ERR),
    "open": (POINTER(CommStruct), c_char_p, POINTER(Config), OUT, ERR),
    "version_at": (c_void_p, c_uint64, TEXT, TEXT),
    "layout_ranks": (c_void_p, c_char_p, POINTER(c_uint32), ERR),
    "next_tensor": (c_void_p, POINTER(c_uint64), POINTER(TensorStruct), ERR),
    "next_object": (c_void_p, POINTER(c_uint64), TEXT, ERR),
    "next_entry": (c_void_p, POINTER(c_uint64), POINTER(EntryStruct), ERR),
    "pieces": (c_void_p, c_char_p, POINTER(POINTER(PieceStruct)), POINTER(c_size_t), ERR),
    "tensor": (c_void_p, c_char_p, POINTER(TensorStruct), ERR),
    "object": (c_void_p, c_char_p, TEXT, TEXT, POINTER(c_size_t), ERR),
    "classes": (c_void_p, c_char_p, TEXT, ERR),
    "object_size": (c_void_p, c_char_p, POINTER(c_uint64), ERR),
    "object_read": (c_void_p, c_char_p, c_uint64, c_void_p, c_uint64, ERR),
    "path": (c_void_p, c_char_p, POINTER(TEXT), POINTER(c_size_t), ERR),
    "read": (c_void_p, c_char_p, POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint64), c_void_p, c_uint64, ERR),
    "run": (c_void_p, c_char_p, POINTER(c_int), POINTER(c_uint64), ERR),
    "plan_create": (c_void_p, c_uint32, OUT, ERR),
    "want": (c_void_p, POINTER(Want), ERR),
    "want_layout": (c_void_p, c_char_p, c_uint32, POINTER(Select), ERR),
    "plan_hooks": (c_void_p, POINTER(Hooks)),
    "plan_stream": (c_void_p, c_void_p),
    "plan_finish": (c_void_p, ERR),
    "plan_list": (c_void_p, c_uint32, c_uint64, TEXT, TEXT),
    "execute": (c_void_p, ERR),
    "check": (c_void_p, ERR),
    "verify": (c_void_p, c_char_p, ERR),
    "part": (c_void_p, c_uint64, POINTER(PartStruct)),
    "part_memory": (c_void_p, c_uint64, POINTER(c_int32)),
    "part_read": (c_void_p, c_uint64, c_uint64, c_void_p, c_uint64, ERR),
    "plan_report": (c_void_p, POINTER(ReportStruct)),
}, "dcpsave": {
    "format_at": (c_uint64, TEXT, TEXT),
    "open": (POINTER(CommStruct), c_char_p, POINTER(SaveConfig), OUT, ERR),
    "add": (c_void_p, POINTER(SaveTensor), ERR),
    "add_object": (c_void_p, POINTER(SaveObject), ERR),
    "plan": (c_void_p, ERR),
    "left": (c_void_p, c_uint64, TEXT, TEXT),
    "write": (c_void_p, ERR),
    "wait": (c_void_p, ERR),
    "poll": (c_void_p,),
    "report": (c_void_p, POINTER(SaveReport)),
}}
# Functions that cannot fail: result, arguments.
OTHERS: dict[str, dict[str, tuple[Any, Sequence[Any]]]] = {"dcpload": {
    "abi": (c_uint32, ()),
    "release": (c_char_p, ()),
    "comm_close": (None, (POINTER(CommStruct),)),
    "close": (None, (c_void_p,)),
    "version": (c_char_p, (c_void_p,)),
    "passed_over": (c_char_p, (c_void_p,)),
    "source_layout": (c_char_p, (c_void_p, POINTER(c_uint32))),
    "fact": (c_char_p, (c_void_p, c_char_p)),
    "plan_free": (None, (c_void_p,)),
}, "dcpsave": {
    "abi": (c_uint32, ()),
    "close": (None, (c_void_p,)),
}}


def places(name: str) -> Iterator[str]:
    """Places to look for the library, in order."""
    told = os.environ.get("DCPFS_LIBRARY")
    file, folder = SONAME.format(name), name.removeprefix("dcp")
    if told and name == "dcpload":
        yield told
        return
    if told:
        near = pathlib.Path(told).parent
        yield from map(str, (near / file, near.parent / folder / file))
    here = pathlib.Path(__file__).resolve().parent
    yield str(here / file)
    root = checkout(here)
    for builds in BUILDS if root else ():
        yield str(root / builds / "tools" / folder / file)
    yield file


def checkout(here: pathlib.Path) -> Optional[pathlib.Path]:
    """The source tree that has the package @here; None: it is installed, or was copied elsewhere. Other users may write three directories
    above a package, so libraries there are loaded only from builds of that very tree."""
    root = here.parents[2] if len(here.parents) > 2 else here
    try:
        own = here == root / "tools/python/dcpfs" and "project('dcpfs'" in (root / "meson.build").read_text(encoding="utf-8")
        return root if own and (root / "tools/load/dcpload.h").is_file() and root.stat().st_uid == here.stat().st_uid else None
    except (OSError, ValueError):
        return None


@functools.lru_cache(maxsize=None)
def library(name: str = "dcpload") -> ctypes.CDLL:
    """The library, loaded once. ImportError names the places that were tried."""
    why = []
    for place in places(name):
        if "/" in place and not os.path.exists(place):
            why.append(f"{place}: not there")
            continue
        try:
            lib = ctypes.CDLL(place)
            break
        except OSError as e:
            why.append(str(e) if place in str(e) else f"{place}: {e}")
    else:
        raise ImportError(f"{SONAME.format(name)} is not found; build dcpfs, or say where libdcpload.so.0 is in DCPFS_LIBRARY\n  " +
                          "\n  ".join(why))
    results = {word: (c_int, args) for word, args in FUNCTIONS[name].items()}
    for word, (result, args) in {**results, **OTHERS[name]}.items():
        try:
            function = getattr(lib, f"{name}_{word}")
        except AttributeError:
            raise ImportError(f"{place} is older than this package (no {name}_{word}): build again, or set DCPFS_LIBRARY") from None
        function.argtypes, function.restype = args, result
    abi = getattr(lib, name + "_abi")()
    if abi != ABI:
        raise ImportError(f"{lib._name} has ABI {abi}, this package needs {ABI}")
    return lib


def call(name: str, *args: Any, of: str = "dcpload") -> int:
    """dcpload_NAME(args..., err): its result, or DcpfsError."""
    err = Error(rank=-1)
    rc: int = getattr(library(of), f"{of}_{name}")(*args, byref(err))
    if rc < 0:
        raise DcpfsError(-rc, text(err.text) or os.strerror(-rc), err.rank)
    return rc


def bare(name: str, *args: Any, of: str = "dcpload") -> Any:
    """dcpload_NAME(args...) of a function without an error text: its result."""
    return getattr(library(of), f"{of}_{name}")(*args)


def text(raw: Optional[bytes]) -> str:
    return (raw or b"").decode("utf-8", "replace")


def encoded(word: str, what: str = "a key") -> bytes:
    """@word as bytes for the library. ValueError: it contains a NUL."""
    raw = os.fsencode(word)
    if b"\0" in raw:
        raise ValueError(f"{what} has no NUL in it: {word!r}")
    return raw


def numbers(values: Optional[Sequence[int]], kind: Any = c_uint64) -> Any:
    return None if values is None else (kind * max(len(values), 1))(*values)
