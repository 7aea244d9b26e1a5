# SPDX-License-Identifier: Apache-2.0
"""Many tensors at once, by one process or the ranks of a job together."""
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Sequence, Union

from . import dtype as dtypes
from .array import Array, address
from .checkpoint import Checkpoint
from .comm import TIMEOUT, Comm
from .plan import PARTIAL, Part, Plan
from .shown import shown
from .strided import changed, extent, is_memory, is_torch, overlaps, plain, shared
from .view import Report


class Loaded(dict[str, Any]):
    """Keys to arrays in memory (dcpfs.Array, or the arrays of into=).

    version: its name; missing: {key: why} of keys that could not be loaded (empty if strict); report: what happened on
    this rank, in bytes and nanoseconds.
    """

    version: str
    missing: dict[str, str]
    report: Report

    def __repr__(self) -> str:
        return f"Loaded({shown(self.version)}: {len(self)} tensors, {len(self.missing)} missing, {self.report})"


class Target(NamedTuple):
    """The destination of a tensor; strides in elements, None: row-major; shape, dtype None: any; stream: work on it may be queued there.
    address None: it is filled by assignment."""

    address: Optional[int]
    dtype: Optional[str]
    shape: Optional[tuple[int, ...]]
    stride: Optional[tuple[int, ...]]
    stream: Optional[int] = None


def _torch_stream(device: Any) -> Optional[int]:
    """The current stream of torch for a GPU: torch's number 0 for the default stream is 1 elsewhere."""
    if device.type != "cuda":
        return None
    import torch

    return torch.cuda.current_stream(device).cuda_stream or 1


def target(data: Any, key: str, device: bool = False) -> Target:
    """The Target of a numpy array, a torch tensor, a dcpfs.Array, a writable buffer (filled as stored, row-major), or an object with a
    __cuda_array_interface__, in the memory of a GPU. With @device the library finds out whose memory it is. TypeError: none of these.
    ValueError: read-only, elements that share memory, or the buffer is not contiguous."""
    if isinstance(data, Array):
        return Target(address(data.buffer), data.dtype, data.shape, None)
    if hasattr(data, "data_ptr"):
        if data.device.type != "cpu" and not device:
            raise TypeError(f"{shown(key)}: memory of {data.device}; dcpfs.torch.load_state_dict() fills it")
        if hasattr(data, "placements"):
            raise TypeError(f"{shown(key)}: into= takes whole tensors, this is a part of one ({type(data).__name__}); "
                            "dcpfs.torch.load_state_dict() fills it")
        return torch_target(plain(data, key) if is_torch(data) else data, key)
    if device and hasattr(data, "__cuda_array_interface__"):
        how = data.__cuda_array_interface__
        name, item = dtypes.BY_NUMPY.get(how["typestr"]), int(how["typestr"][2:])
        if how["data"][1] or name is None:
            raise ValueError(f"{shown(key)}: read-only, or of a dtype that dcpfs does not have: {how['typestr']}")
        steps = how.get("strides")
        if steps is not None and (any(s < 0 or s % item for s in steps) or overlaps(how["shape"], [s // item for s in steps])):
            raise ValueError(f"{shown(key)}: strides of {tuple(steps)} bytes: elements share memory, or are not in a grid of elements")
        return Target(how["data"][0], name, tuple(how["shape"]),
                      None if steps is None else tuple(s // item for s in steps), how.get("stream"))
    if hasattr(data, "__array_interface__"):
        if not data.flags.writeable:
            raise ValueError(f"{shown(key)}: the array is read-only")
        if overlaps(data.shape, [abs(s) for s in data.strides], data.itemsize):
            raise ValueError(f"{shown(key)}: elements of the array share memory (strides of {data.strides} bytes)")
        stride = tuple(s // data.itemsize for s in data.strides)
        grid = all(s >= 0 and s % data.itemsize == 0 for s in data.strides) and data.dtype.byteorder != ">"
        return Target(data.ctypes.data if grid and type(data).__name__ in ("ndarray", "memmap") else None,
                      dtypes.of_numpy(data.dtype), data.shape, stride)
    view = memoryview(data)
    if view.readonly or not view.c_contiguous:
        raise ValueError(f"{shown(key)}: the buffer is read-only or not contiguous")
    return Target(address(view.cast("B")), None, None, None)


def torch_target(local: Any, key: str) -> Target:
    """The Target of a tensor from plain(). TypeError: a checkpoint has no such dtype. ValueError: elements share memory."""
    stream, shape = _torch_stream(local.device), tuple(local.shape)
    memory = is_memory(local)
    if memory and overlaps(shape, local.stride()):
        raise ValueError(f"{shown(key)}: elements of the tensor share memory (shape {shape}, strides {local.stride()}; expand() makes such); "
                         "give it memory of its own: clone()")
    if not memory:
        return Target(None, dtypes.BY_TORCH.get(str(local.dtype).split(".")[-1]), shape, None, stream)
    changed(local)
    return Target(local.data_ptr(), dtypes.of_torch(local.dtype), shape, tuple(local.stride()), stream)


def span(t: Target, nbytes: int = 0) -> int:
    """Bytes of the memory of a target; @nbytes: of a buffer."""
    return nbytes if t.dtype is None or t.shape is None else extent(t.shape, t.stride) * dtypes.DTYPES[t.dtype].size


def after(plan: Plan, streams: set[int]) -> None:
    """Let the plan write after the work that is queued in the streams. ValueError: there is more than one."""
    if len(streams) > 1:
        raise ValueError("the memory to be filled is used by several streams: have one wait for the others, and name it: stream=")
    for handle in streams:
        plan.stream(handle)


def as_comm(comm: Any, timeout: Any = TIMEOUT) -> tuple[Comm, bool]:
    """The communicator, and whether it was opened here and has to be closed. An invalid timeout is an error of the next call."""
    if isinstance(comm, Comm):
        return comm, False
    if comm is None or isinstance(comm, str):
        return Comm(comm or "alone", timeout if isinstance(timeout, (int, float)) and 0 < timeout < 1 << 31 else TIMEOUT), True
    from .group import GroupComm

    return GroupComm(comm), True


def _unknown(ck: Checkpoint, keys: Sequence[str]) -> dict[str, str]:
    """{word: why} for words that are no key, prefix or glob of any tensor."""
    missing = dict[str, str]()
    for word in keys:
        try:
            if word in ck:  # also one that cannot be read
                continue
            every = Plan(ck)
            every.want_layout("fsdp1", 0, [word])
            if next(every.parts(), None) is None:
                ck[word]
        except KeyError as e:
            missing[word] = e.args[0]
    return missing


def _is_cast(ck: Checkpoint, key: str, t: Target, data: Any) -> bool:
    """Does numpy or torch convert the stored dtype to that of @data? The library converts FLOATS into each other."""
    stored = ck[key].dtype if t.dtype and key in ck else None
    if stored in (None, t.dtype, "F4") or stored not in dtypes.DTYPES or {stored, t.dtype} <= dtypes.FLOATS:
        return False
    if hasattr(data, "data_ptr"):
        import torch

        return data.device.type == "cpu" and torch.can_cast(dtypes.torch_dtype(stored), data.dtype)
    if not hasattr(data, "__array_interface__"):
        return False
    import numpy as np

    return np.can_cast(dtypes.DTYPES[stored].numpy or ("<c8" if stored == "C32" else "<f4"), data.dtype, "same_kind")


def _assign(plan: Plan, part: Part, data: Any) -> None:
    if hasattr(data, "data_ptr"):
        data.detach().copy_(plan.array(part).torch())
    elif hasattr(data, "__array_interface__"):
        data[...] = plan.array(part).numpy()
    else:
        to = data.buffer if isinstance(data, Array) else memoryview(data)
        to.cast("B")[:] = plan.array(part).read().buffer


def _add(ck: Checkpoint, plan: Plan, layout: Optional[str], rank: Optional[int], comm: Comm, into: Optional[Mapping[str, Any]],
         keys: Sequence[str], skip: Sequence[str], dtype: Optional[str], stream: Any) -> set[str]:
    """Keys whose data is to be converted afterwards."""
    later = set[str]()
    streams = {getattr(stream, "cuda_stream", getattr(stream, "ptr", stream)) or 1} if stream is not None else set()
    if layout is None and ck.layout:
        layout, rank = ck.layout[0], ck.layout[1] if rank is None else rank
    if layout and rank is None and (n := ck.ranks(layout)) != comm.ranks:
        raise ValueError(f"{shown(layout)} has {n} ranks, {comm.ranks} {'is' if comm.ranks == 1 else 'are'} running: start {n} "
                         f"(torchrun --nproc-per-node {n}, mpirun -np {n}), or load one rank alone with rank=R")
    if into is None:
        plan.want_layout(layout or "fsdp1", (comm.rank if rank is None else rank) if layout else 0, keys, skip, dtype)
        into = {}
    elif layout:
        raise ValueError("memory for a rank of a layout is the library's; into= takes whole tensors")
    targets = {key: target(data, key, bool(ck.device)) for key, data in into.items()}
    common = shared([(t.address or 0, span(t, memoryview(into[key]).nbytes if t.dtype is None else 0) if t.address else 0)
                     for key, t in targets.items()])
    for (key, t), both in zip(targets.items(), common):
        data = into[key]
        if t.dtype is None and key in ck and memoryview(data).nbytes != ck[key].nbytes:
            raise ValueError(f"{shown(key)} has {ck[key].nbytes} bytes, the buffer {memoryview(data).nbytes}")
        cast = _is_cast(ck, key, t, data)
        if both or t.address is None or cast:  # what comes later in the dict is written later
            later.add(key)
            plan.want(key, shape=t.shape, dtype=None if cast or t.address is None and hasattr(data, "data_ptr") else t.dtype)
        else:
            plan.want(key, shape=t.shape, dtype=t.dtype, address=t.address, stride=t.stride, keep=data)
        if stream is None and t.stream is not None:
            streams.add(t.stream)
    after(plan, streams)
    return later


def load(source: Union[str, os.PathLike[str]], layout: Optional[str] = None, rank: Optional[int] = None, *,
         version: Optional[str] = "latest", comm: Any = "auto", keys: Union[str, Sequence[str]] = (),
         skip: Union[str, Sequence[str]] = (), dtype: Optional[str] = None, into: Optional[Mapping[str, Any]] = None, strict: bool = True,
         stream: Any = None, **how: Any) -> Loaded:
    """Collective. Load the part that a rank holds of a checkpoint; each byte is read once for all ranks where that is faster.

    layout: "fsdp8", "tp4:llama", or a file (of regions, *.regions: arrays are named by its lines); None: the layout of the source if
    that is a rank's directory, otherwise whole tensors. rank: of the layout; None: that of this process in a job of as many ranks.
    comm: "auto", "env" (torchrun), "mpi", "alone" (or None), a dcpfs.Comm, or a process group of torch.distributed.
    keys, skip: select keys by names, prefixes or globs, one or several. KeyError: an entry of keys fits no tensor.
    dtype: convert floating-point tensors to it ("BF16").
    into: {key: array of numpy or torch, or a buffer}, to be filled with whole tensors, converted to their dtypes: between
    floating-point dtypes while reading; in the host's memory also by conversions of numpy and torch, from a copy.
    strict: a key that cannot be loaded is an error.
    stream: of torch, of cupy or a number; memory of the GPU is written after the work queued there. None: the stream that into= names
    (torch's current stream, "stream" of __cuda_array_interface__). When this returns, everything is written, for all streams.
    how: io, exchange, threads, staging, timeout, cache, coordinator_rank, device (dcpfs.open); with device="cuda" tensors are
    dcpfs.DeviceArray, and into= may have memory of that GPU.

    Arrays share memory that is freed with the last of them. DcpfsError: the same on all ranks, whichever failed.
    """
    keys, skip = ([keys] if isinstance(keys, str) else keys), ([skip] if isinstance(skip, str) else skip)
    ranks, ours = as_comm(comm, how.get("timeout", TIMEOUT))
    try:
        with Checkpoint(source, version, comm=ranks, **how) as ck:
            plan = Plan(ck, 0 if strict else PARTIAL)
            with ck.together():
                unknown = _unknown(ck, keys)
                if unknown and strict:
                    raise KeyError(next(iter(unknown.values())))
                later = _add(ck, plan, layout, rank, ranks, into, keys, skip, dtype, stream)
            plan.finish().execute()
            if into is None:
                into = {p.name: plan.array(p) for p in plan.parts()}
            else:
                with ck.together():
                    for part in plan.parts() if later else ():
                        if part.key in later and part.complete:
                            _assign(plan, part, into[part.key])
            got = Loaded(into)
            got.version, got.report = ck.version, plan.report
            got.missing = unknown | {k: why for name, found in plan.problems.items() if name != "unexpected" for k, why in found.items()}
            return got
    finally:
        if ours:
            ranks.close()
