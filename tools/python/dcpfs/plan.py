# SPDX-License-Identifier: Apache-2.0
"""The wants of a rank, and their loading: dcpload_plan."""
from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int32, c_int64, c_ubyte, c_uint64, c_void_p
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence, Union

from ._lib import PROGRESS, Hooks, PartStruct, ReportStruct, Select, Want, bare, call, encoded, numbers, text
from .array import Array, DeviceArray, address, room
from .handle import Handle
from .view import Report

STRICT, PARTIAL, SAME_KEYS = 1, 2, 4
LISTS = ("missing", "unexpected", "shape", "dtype", "broken")


class Part(NamedTuple):
    """A want in the plan: shape of the part, global_shape of the tensor, dtype of the data, stored dtype in the checkpoint; address of the
    data, 0 before it is known; complete once all its bytes are there; name is the key, or, for a layout from a file of regions, the
    line, since a rank may hold several regions of a tensor."""

    key: str
    dtype: str
    stored: str
    itemsize: int
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    nbytes: int
    address: int
    complete: bool
    device: int = -1  # number of the GPU; -1: the CPU's memory
    name: str = ""
    number: int = -1  # of the want


class Plan:
    """Add wants, finish() and execute() (both collective), then use parts(). The plan owns the memory that the library
    allocates; arrays made by array() share that memory and keep the plan alive."""

    def __init__(self, checkpoint: Handle, flags: int = 0) -> None:
        self._handle, self.checkpoint = c_void_p(), checkpoint
        self._keep: list[Any] = []
        call("plan_create", checkpoint.handle, flags, byref(self._handle))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            bare("plan_free", self._handle)

    def _open(self) -> c_void_p:
        self.checkpoint.handle  # ValueError when it is closed
        return self._handle

    def want(self, key: str, *, shape: Optional[Sequence[int]] = None, lo: Optional[Sequence[int]] = None,
             length: Optional[Sequence[int]] = None, dtype: Optional[str] = None, address: int = 0,
             stride: Optional[Sequence[int]] = None, keep: Any = None) -> None:
        """Add a region of a tensor. shape: expected of the whole tensor (None: any); lo, length: the region, in elements (lo None:
        all of it); dtype: of the destination (None: as stored); address, stride: the destination, strides in elements (0: memory
        of the plan); keep: what owns that memory, referenced by the plan. DcpfsError."""
        ndim = next((len(v) for v in (shape, lo, stride) if v is not None), 0)
        self._keep.append(keep)
        w = Want(ctypes.sizeof(Want), ndim, encoded(key), numbers(shape), numbers(lo), numbers(length),
                 None if dtype is None else encoded(dtype, "a dtype"), address or None, numbers(stride, c_int64), None)
        with self.checkpoint._lock:
            call("want", self._open(), byref(w))

    def want_layout(self, layout: str, rank: int, keys: Sequence[str] = (), skip: Sequence[str] = (),
                    dtype: Optional[str] = None) -> None:
        """Add the part that a rank of a layout holds of all tensors that match @keys (empty: all) and not @skip: names, prefixes, globs."""
        def listed(words: Sequence[str]) -> Any:
            return (c_char_p * max(len(words), 1))(*map(encoded, words))

        s = Select(ctypes.sizeof(Select), len(keys), len(skip), 0, listed(keys), listed(skip),
                   None if dtype is None else encoded(dtype, "a dtype"))
        with self.checkpoint._lock:
            call("want_layout", self._open(), encoded(layout, "a layout"), rank, byref(s))

    def stream(self, handle: int) -> None:
        """Memory of a GPU is written after the work that is queued on this stream (1: the default stream) when an execution begins."""
        with self.checkpoint._lock:
            bare("plan_stream", self._open(), handle)

    def finish(self) -> Plan:
        """Collective. No wants can be added afterwards. DcpfsError, the same on all ranks; no destination was written to."""
        with self.checkpoint._lock:
            if self.checkpoint.progress is not None:
                self._report(self.checkpoint.progress)
            call("plan_finish", self._open())
        return self

    def _report(self, progress: Callable[[int, int], None]) -> None:
        """Set a function that is called during executions, by one thread at a time."""
        def moved(ctx: Any, done: int, total: int) -> int:
            progress(done, total)
            return 0

        hooks = Hooks(ctypes.sizeof(Hooks), 0, None, None, None, PROGRESS(moved))
        self._keep.append(hooks)
        bare("plan_hooks", self._open(), byref(hooks))

    def execute(self) -> Plan:
        """Collective. Fill all destinations; a second call fills them again. DcpfsError, the same on all ranks."""
        with self.checkpoint._lock:
            call("execute", self._open())
        return self

    def check(self) -> None:
        """Collective. Read everything again, by other code, and compare. DcpfsError with EILSEQ: it differs."""
        with self.checkpoint._lock:
            call("check", self._open())

    def verify(self, record: str) -> None:
        """Collective. Compare memory with a record of `dcpfs verify --record`. DcpfsError with EILSEQ: it differs; ENOKEY: a key is not
        recorded."""
        with self.checkpoint._lock:
            call("verify", self._open(), encoded(record))

    def parts(self) -> Iterator[Part]:
        """The wants, in the order they were added."""
        p, i = PartStruct(), 0
        while bare("part", self._handle, i, byref(p)) == 0:
            yield Part(text(p.key), text(p.dtype), text(p.stored), p.itemsize, tuple(p.shape[:p.ndim]),
                       tuple(p.global_shape[:p.global_ndim]), p.nbytes, p.data or 0, bool(p.complete), self._device(i),
                       text(ctypes.string_at(p.user) if p.user else p.key), i)
            i += 1

    def _device(self, number: int) -> int:
        device = c_int32(-1)
        bare("part_memory", self._handle, number, byref(device))
        return device.value

    def fetch(self, part: Part) -> memoryview:
        """A copy of the bytes of a part."""
        own = room(part.nbytes)
        call("part_read", self._handle, part.number, 0, address(own), part.nbytes)
        return own

    def array(self, part: Part) -> Union[Array, DeviceArray]:
        """The data of a part; the memory lives as long as the array."""
        if part.device >= 0:
            return DeviceArray(part.dtype, part.shape, part.itemsize, part.address, part.device, lambda: self.fetch(part))
        memory = (c_ubyte * part.nbytes).from_address(part.address) if part.nbytes else (c_ubyte * 0)()
        memory.owner = self  # type: ignore[attr-defined]
        return Array(part.dtype, part.shape, part.itemsize, memoryview(memory).cast("B"))

    @property
    def problems(self) -> dict[str, dict[str, str]]:
        """Problems with keys of this rank: {"missing", "unexpected", "shape", "dtype", "broken": {key: why}}."""
        key, why = c_char_p(), c_char_p()
        lists: dict[str, dict[str, str]] = {}
        for number, name in enumerate(LISTS):
            i, lists[name] = 0, {}
            while bare("plan_list", self._handle, number, i, byref(key), byref(why)) == 0:
                lists[name][text(key.value)] = text(why.value)
                i += 1
        return lists

    @property
    def report(self) -> Report:
        """What happened on this rank, in bytes and nanoseconds; the names are those of struct dcpload_report."""
        r = ReportStruct(size=ctypes.sizeof(ReportStruct))
        bare("plan_report", self._handle, byref(r))
        values = {name: getattr(r, name) for name in (f[0] for f in ReportStruct._fields_[1:]) if name != "reserved"}
        return Report((name, text(v) if isinstance(v, bytes) else v) for name, v in values.items())
