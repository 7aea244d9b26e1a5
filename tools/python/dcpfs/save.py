# SPDX-License-Identifier: Apache-2.0
"""Writing checkpoints, by one process or the ranks of a job together."""
from __future__ import annotations

import ctypes
import errno
import itertools
import os
import warnings
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_int64, c_uint32, c_void_p
from typing import Any, ContextManager, Iterator, Optional, Sequence, Union

from ._lib import DcpfsError, SaveConfig, SaveObject, SaveReport, SaveTensor, bare, call, encoded, numbers, text
from .comm import TIMEOUT, Comm, milliseconds, together
from .load import as_comm
from .objects import encode
from .piece import device_of, is_tensor, pieces
from .shown import shown
from .view import Report

Path = Union[str, os.PathLike[str]]
REPLACE, ASYNC, PARTIAL, SAME_KEYS, FILE, DIRECT, OVERWRITE = 1, 2, 4, 8, 16, 32, 64


class Saving:
    """A checkpoint that is written: dcpfs.save() makes it.

    wait(): collective, returns when it is complete. done: this rank has nothing left to wait for. left: {key: why} of items that the format
    cannot hold (empty if strict). gather_to: ranks that each write a file of all ranks' items, in rounds of max_grouped bytes. report: what
    happened on this rank, in bytes and nanoseconds. Without wait(), or if it is closed before, nothing of the checkpoint stays. A context
    manager: leaving it waits.
    """

    def __init__(self, path: Path, format: str, comm: Optional[Comm] = None, *, flags: int = 0, threads: int = 0,
                 staging: int = 0, timeout: float = TIMEOUT, max_shard: int = 0, protocol: int = 0,
                 gather_to: Sequence[int] = (), max_grouped: int = 0, device: Optional[str] = None) -> None:
        self._handle, self._keep, self.comm = c_void_p(), list[Any](), comm
        self._ours: Optional[Comm] = None
        self._flags, self._timeout, self._device = flags, timeout, device
        self._tensors: Optional[set[str]] = None
        self._name = f"{path}, {format}"
        with self.together():
            self.path = os.fspath(path)
            place = encoded(self.path, "a path")
            config = SaveConfig(ctypes.sizeof(SaveConfig), flags, threads, milliseconds(timeout), protocol, 0,
                                encoded(format, "a format"), staging, max_shard, numbers(gather_to, c_uint32), len(gather_to),
                                max_grouped, encoded(device, "a device") if device else None)
        self._call("open", comm.pointer if comm else None, place, byref(config), byref(self._handle))

    def _call(self, name: str, *args: Any) -> None:
        """call(), and its error says which option helps."""
        try:
            call(name, *args, of="dcpsave")
        except DcpfsError as e:
            hint = ("replace=True replaces it" if e.code == errno.EEXIST and not self._flags & REPLACE else
                    "strict=False leaves it out" if e.code == errno.ENOTSUP and not self._flags & (PARTIAL | FILE) else "")
            raise (DcpfsError(e.code, f"{e.text}; {hint}", e.rank) if hint else e) from None

    @property
    def handle(self) -> c_void_p:
        """struct dcpsave. ValueError: it is closed."""
        if not self._handle:
            raise ValueError(f"{shown(self.path)} is closed")
        return self._handle

    def add(self, key: str, value: Any, path: Sequence[Any] = ()) -> None:
        """Add a tensor, or the parts of it that this rank holds: of numpy, torch, a DTensor, dcpfs.Box, or any array that dcpfs has read."""
        if self._tensors is not None:
            self._tensors.add(key)
        for p in pieces(value, key, self._device):
            words = _words(path)
            t = SaveTensor(ctypes.sizeof(SaveTensor), len(p.shape), encoded(key), words, len(path), encoded(p.dtype),
                           numbers(p.shape), numbers(p.lo), None if p.lo is None else numbers(p.len),
                           numbers(p.stride, c_int64), p.address)
            self._keep.append(p.keep)
            call("add", self.handle, byref(t), of="dcpsave")

    def add_object(self, key: str, value: Any, path: Sequence[Any] = ()) -> None:
        """Add Python data. TypeError: it contains a value that could not be read again without executing code."""
        json, kind, classes = encode(value, key)
        o = SaveObject(ctypes.sizeof(SaveObject), 0, encoded(key), _words(path), len(path), encoded(kind), json.encode(), classes.encode())
        call("add_object", self.handle, byref(o), of="dcpsave")

    def together(self) -> ContextManager[None]:
        """Collective. What fails inside on one rank fails on all."""
        return together(self.comm, self._timeout)

    def write(self) -> Saving:
        """Collective. Write the added items, or begin to."""
        self._call("plan", self.handle)
        if self._tensors is not None:
            with self.together():
                left = self.left
                for key in self._tensors & left.keys():
                    raise DcpfsError(errno.ENOTSUP, f"{key}: {left[key]}; strict=False leaves it out")
            if left:
                key = next(iter(left))
                warnings.warn(f"{shown(self._name)} has {len(left)} object{'s' * (len(left) > 1)} less, as {shown(key)}: {shown(left[key])}; strict=True makes that an "
                              "error, strict=False says nothing", stacklevel=3)
        self._call("write", self.handle)
        self._keep.clear()
        return self

    @property
    def done(self) -> bool:
        """This rank has nothing left to wait for."""
        return not self._handle or bool(bare("poll", self.handle, of="dcpsave"))

    def wait(self) -> Saving:
        """Collective. DcpfsError: the same on all ranks, whichever failed; nothing is left then."""
        call("wait", self.handle, of="dcpsave")
        return self

    @property
    def left(self) -> dict[str, str]:
        """{key: why} of items that the format cannot hold."""
        key, why, out = c_char_p(), c_char_p(), dict[str, str]()
        for i in itertools.count():
            if bare("left", self.handle, i, byref(key), byref(why), of="dcpsave") < 0:
                return out
            out[text(key.value)] = text(why.value)
        return out

    @property
    def report(self) -> Report:
        """What happened on this rank, in bytes and nanoseconds; the names are those of struct dcpsave_report."""
        r = SaveReport(size=ctypes.sizeof(SaveReport))
        bare("report", self.handle, byref(r), of="dcpsave")
        return Report((name, int(getattr(r, name))) for name, *_ in SaveReport._fields_ if name != "size")

    def close(self) -> None:
        """Nothing of an incomplete checkpoint stays. A second call does nothing."""
        handle, self._handle = self._handle, c_void_p()
        if handle:
            bare("close", handle, of="dcpsave")
        ours, self._ours = self._ours, None
        if ours:
            ours.close()

    def __repr__(self) -> str:
        return f"Saving({shown(self._name)}: {'closed' if not self._handle else self.report if self.done else 'being written'})"

    def __enter__(self) -> Saving:
        return self

    def __exit__(self, kind: Any, *exc: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()


def _words(path: Sequence[Any]) -> Any:
    return (c_char_p * max(len(path), 1))(*(encoded(str(w)) for w in path))


# ---- state dicts ----

def flat(state: Mapping[Any, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Leaves by their paths, as torch flattens state dicts: dicts are opened, and lists in which a dict or tensor lies."""
    for word, value in state.items():
        at = (*path, word)
        if isinstance(value, Mapping):
            yield from flat(value, at)
        elif _is_opened(value):
            yield from flat(dict(enumerate(value)), at)
        else:
            yield at, value


def _is_opened(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(v, Mapping) or is_tensor(v) or _is_opened(v) for v in value)


def fill(saving: Saving, state: Mapping[Any, Any], strict: Optional[bool]) -> None:
    """Add all of a state dict. TypeError: it is no state dict. ValueError: two leaves have one key."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state_dict is a {type(state).__name__}, not a dict")
    seen = set[str]()
    for path, value in flat(state):
        key = ".".join(map(str, path))
        if key in seen:
            raise ValueError(f"two leaves are called {shown(key)}")
        seen.add(key)
        if is_tensor(value):
            saving.add(key, value, path)
        elif strict is not False or encodable(value):
            saving.add_object(key, value, path)


def encodable(value: Any) -> bool:
    try:
        encode(value, "")
        return True
    except TypeError:
        return False


def save(state_dict: Mapping[Any, Any], path: Path, format: str = "torch-dcp", *, comm: Any = "auto", replace: bool = False,
         asynchronous: bool = False, strict: Optional[bool] = None, same_keys: bool = False, direct: bool = False, **how: Any) -> Saving:
    """Collective. Write this rank's @state_dict as a checkpoint of @format (dcpfs.formats()) at @path.

    Nested dicts, and lists with dicts or tensors in them, are flattened to keys joined by dots. Tensors are arrays of numpy, tensors,
    DTensors and ShardedTensors of torch, arrays of dcpfs.open(), and dcpfs.Box for a part of a tensor; other values are objects and
    must be plain data. Ranks may give the same items (written once), parts of a tensor (together the whole) and keys of their own.

    comm: "auto", "env" (torchrun), "mpi", "alone" (or None), a dcpfs.Comm, or a process group of torch.distributed.
    replace: an existing checkpoint is replaced when the new checkpoint is complete.
    asynchronous: copy memory, at most how["staging"] bytes (the rest is written at once). wait() of the result, which is collective,
    completes the checkpoint; a communicator of the caller must live until then.
    strict: None: objects that a format of tensors cannot hold are left out, listed in the result and named in a warning, as by
    `dcpfs export`; a tensor that it cannot hold, or an object that is not plain data, is an error. True: each of these is an error.
    False: each of these is left out and listed.
    same_keys: keys that only some ranks give are an error.
    direct: write past the page cache, which takes less CPU time; the next load then reads from the disk.
    device: the GPU whose memory is read in place, "cuda:0"; default: that of the first tensor on a GPU.
    how: threads, staging, timeout, max_shard, protocol.

    DcpfsError: the same on all ranks, whichever failed; nothing is left then.
    """
    ranks, ours = as_comm(comm, how.get("timeout", TIMEOUT))
    flags = (REPLACE * replace | ASYNC * asynchronous | PARTIAL * (strict is False) | SAME_KEYS * same_keys | DIRECT * direct)
    saving: Optional[Saving] = None
    flags |= PARTIAL * (strict is None)
    try:
        with together(ranks, how.get("timeout", TIMEOUT)):
            leaves = flat(state_dict) if isinstance(state_dict, Mapping) else ()
            how.setdefault("device", next(filter(None, (device_of(v) for _, v in leaves)), None))
        saving = Saving(path, format, ranks, flags=flags, **how)
        if strict is None:
            saving._tensors = set()
        with saving.together():
            fill(saving, state_dict, strict)
        saving.write()
    except BaseException:
        if saving:
            saving.close()
        if ours:
            ranks.close()
        raise
    if ours and asynchronous:
        saving._ours = ranks
    elif ours:
        ranks.close()
    return saving


def formats() -> dict[str, str]:
    """Names of formats that can be written, and their descriptions."""
    name, what, out = c_char_p(), c_char_p(), dict[str, str]()
    for i in itertools.count():
        if bare("format_at", i, byref(name), byref(what), of="dcpsave") < 0:
            return out
        out[text(name.value)] = text(what.value)
    return out
