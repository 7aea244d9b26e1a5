# SPDX-License-Identifier: Apache-2.0
"""One version of a checkpoint: a mapping from keys to tensors that are read on access."""
from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_size_t, c_uint32, c_uint64
from typing import Any, Iterator, NamedTuple, Optional, Union

from . import view
from ._lib import DcpfsError, EntryStruct, TensorStruct, bare, call, encoded, text
from .handle import Handle
from .objects import CALLED, NAMED, Makers, decode
from .shard import Shard
from .shown import shown
from .tensor import Tensor

FACTS = ("format", "framework", "variant", "version", "inferred", "warning", "model_type", "names", "ranks", "parallel",
         "save_id", "replicas", "overlaps", "left_out", "broken_file", "unjoined", "safetensors")


class Version(NamedTuple):
    """name: "step-500"; why: the reason if it is incomplete, or None."""

    name: str
    why: Optional[str]


class Entry(NamedTuple):
    """An entry of .metadata of torch.distributed.checkpoint. item: JSON, class and classes of an object that dcpfs shows under other keys,
    or as a tensor; why: the reason if it cannot be decoded."""

    is_object: bool
    path: Optional[tuple[str, ...]] = None
    item: Optional[tuple[str, str, str]] = None
    why: str = ""


class Checkpoint(Handle, Mapping[str, Tensor]):
    """Keys to lazy tensors, in the order of the checkpoint; `dcpfs.open()` makes one.

    Any thread may use it, but calls are served one at a time: threads that should read in parallel each open their own. It can
    be pickled: the other process opens it again. Close it, use it in `with`, or leave it to the garbage collector.
    """

    _all: Optional[dict[str, Tensor]] = None
    _rows: list[tuple[int, str, bool]]

    # ---- life ----

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.comm:
            raise TypeError("a checkpoint that ranks opened together cannot be pickled")
        return _again, (self.source, self.version, self._how)

    # ---- attributes ----

    @property
    def version(self) -> str:
        """Its name: "step-500"."""
        with self._lock:
            return text(bare("version", self.handle))

    @property
    def versions(self) -> list[Version]:
        """All versions of the source at the time of opening, the oldest first."""
        name, why = c_char_p(), c_char_p()
        found: list[Version] = []
        with self._lock:
            while bare("version_at", self.handle, len(found), byref(name), byref(why)) == 0:
                found.append(Version(text(name.value), text(why.value) if why.value else None))
        return found

    def fact(self, name: str) -> Optional[str]:
        """"format", "framework", ...; None: not known."""
        with self._lock:
            got = bare("fact", self.handle, encoded(name, "a fact"))
            return None if got is None else text(got)

    @property
    def facts(self) -> dict[str, str]:
        """All facts that are known: format, framework and the like."""
        every = ((name, self.fact(name)) for name in FACTS)
        return {name: value for name, value in every if value is not None}

    @property
    def errors(self) -> dict[str, str]:
        """{key: why} of tensors and objects that cannot be read. Looks up every key."""
        wrong = {}
        for names, get in ((list(self), self.__getitem__), (list(self.objects), self.objects.__getitem__)):
            for key in names:
                try:
                    get(key)
                except DcpfsError as e:
                    wrong[key] = e.text
        return wrong

    @property
    def layout(self) -> Optional[tuple[str, int]]:
        """Layout and rank if the source is a rank's directory in a mount, otherwise None."""
        rank = c_uint32()
        with self._lock:
            name = bare("source_layout", self.handle, byref(rank))
            return None if name is None else (text(name), rank.value)

    # ---- keys ----

    def _scan(self) -> dict[str, Tensor]:
        with self._lock:
            if self._all is None:
                at, t, tensors, rows = c_uint64(), TensorStruct(), {}, []
                while call("next_tensor", self.handle, byref(at), byref(t)):
                    key = text(t.key)
                    rows.append((at.value, key, True))
                    tensors[key] = Tensor(self, key, text(t.dtype), tuple(t.shape[:t.ndim]), t.itemsize, t.nbytes)
                self._all, self._rows = tensors, rows
            return self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._scan())

    def __len__(self) -> int:
        return len(self._scan())

    def ordered(self) -> list[tuple[str, bool]]:
        """Keys of tensors and objects in the order of the checkpoint, and whether each is a tensor's."""
        self._scan()
        rows = [*self._rows, *((at, key, False) for at, key in self.objects.rows())]
        return [(key, is_tensor) for _, key, is_tensor in sorted(rows)]

    def __contains__(self, key: object) -> bool:
        try:
            return isinstance(key, str) and self[key] is not None
        except KeyError:
            return False
        except DcpfsError:
            return True

    def __getitem__(self, key: str) -> Tensor:
        """Reads nothing yet. KeyError names the nearest key; DcpfsError: the tensor exists but cannot be read."""
        t = TensorStruct()
        with self._lock:
            self.find("tensor", key, byref(t))
            return Tensor(self, key, text(t.dtype), tuple(t.shape[:t.ndim]), t.itemsize, t.nbytes)

    def path(self, key: str) -> tuple[str, ...]:
        """Components of the key of a tensor or object, as the framework nests them. KeyError names the nearest key."""
        words, n = ctypes.POINTER(c_char_p)(), c_size_t()
        with self._lock:
            self.find("path", key, byref(words), byref(n))
            return tuple(text(words[i]) for i in range(n.value))

    def entries(self) -> dict[str, Entry]:
        """The keys that .metadata of torch.distributed.checkpoint has, and no others; empty: there is no .metadata."""
        at, e, found = c_uint64(), EntryStruct(), dict[str, Entry]()
        with self._lock:
            while call("next_entry", self.handle, byref(at), byref(e)):
                path = tuple(text(e.path[i]) for i in range(e.npath)) if e.path else None
                item = None if e.json is None else (text(e.json), text(e.type), text(e.classes))
                found[text(e.key)] = Entry(bool(e.is_object), path, item, text(e.why))
        return found

    def decoded(self, stored: tuple[str, str, str], named: Makers = NAMED, called: Makers = CALLED, defer: bool = False) -> Any:
        """An object from its JSON, class and classes (Objects.made())."""
        return decode(*stored, {**NAMED, **named}, {**CALLED, **called, **self.makers}, defer)

    @property
    def objects(self) -> Objects:
        """Non-tensor state: a mapping from keys to Python data (of the types that dcpfs.objects lists)."""
        return Objects(self)

    # ---- ranks ----

    def ranks(self, layout: str) -> int:
        """Number of ranks of a layout. DcpfsError: there is no such layout."""
        n = c_uint32()
        with self._lock:
            call("layout_ranks", self.handle, encoded(layout, "a layout"), byref(n))
        return n.value

    def shard(self, layout: str, rank: int) -> Shard:
        """The part of rank @rank of a layout ("fsdp8", "tp4:llama", a file): a mapping from keys to tensors, which are read on access.
        DcpfsError: no such layout or rank."""
        return Shard(self, layout, rank)

    # ---- looks ----

    def __repr__(self) -> str:
        return view.as_text(*self._look())

    def _repr_html_(self) -> str:
        return view.as_html(*self._look())

    def _look(self) -> tuple[str, list[Tensor]]:
        if not self._handle:
            return f"<closed checkpoint {self.source}>", []
        tensors = list(self._scan().values())
        return (f"{self.version} of {self.source}: {self.fact('format') or '?'}, {len(tensors)} tensors, "
                f"{view.size(sum(t.nbytes for t in tensors))}, {len(self.objects)} objects"), tensors


class Objects(Mapping[str, Any]):
    """Keys to Python data, decoded when asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._of = checkpoint

    def __iter__(self) -> Iterator[str]:
        return (key for _, key in self.rows())

    def rows(self) -> Iterator[tuple[int, str]]:
        """Positions of the objects in the checkpoint, and keys."""
        at, key = c_uint64(), c_char_p()
        while True:
            with self._of._lock:
                if not call("next_object", self._of.handle, byref(at), byref(key)):
                    return
                row = at.value, text(key.value)
            yield row

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _get(self, key: str) -> tuple[str, str, str]:
        kind, raw, classes, n = c_char_p(), c_char_p(), c_char_p(), c_size_t()
        with self._of._lock:
            self._of.find("object", key, byref(kind), byref(raw), byref(n))
            json, name = text(raw.value), text(kind.value)
            self._of.find("classes", key, byref(classes))
            return json, name, text(classes.value)

    def __getitem__(self, key: str) -> Any:
        """KeyError names the nearest key; DcpfsError: the object exists but cannot be decoded."""
        return self._of.decoded(self._get(key))

    def made(self, key: str, named: Makers, called: Makers) -> Any:
        """As [key], with functions for more classes (dcpfs.objects.NAMED, CALLED); an object with tensors in it is a dcpfs.classes.Pending."""
        return self._of.decoded(self._get(key), named, called, True)

    def json(self, key: str) -> str:
        """The JSON text of the object, as the library returns it."""
        return self._get(key)[0]

    def raw(self, key: str) -> bytes:
        """The bytes that the object was saved as, for torch.load(io.BytesIO(raw), weights_only=True) and the like. DcpfsError with ENOTSUP:
        it has no bytes of its own, such as a value of a pickle of many values; see dcpload_object_read in dcpload.h."""
        n = c_uint64()
        with self._of._lock:
            self._of.find("object_size", key, byref(n))
            own = bytearray(n.value)
            at = (ctypes.c_ubyte * len(own)).from_buffer(own) if own else None
            self._of.find("object_read", key, 0, at, len(own))
        return bytes(own)

    def type(self, key: str) -> str:
        """Python's name of the class that was saved: "tuple", "trainer.Info"."""
        return self._get(key)[1]

    def __repr__(self) -> str:
        return f"Objects({shown(repr(list(self)))})"


def _again(source: str, version: str, how: dict[str, Any]) -> Checkpoint:
    return Checkpoint(source, version, **how)


def open(source: Union[str, os.PathLike[str]], version: Optional[str] = "latest", **how: Any) -> Checkpoint:
    """Open one version of a checkpoint; no bytes of tensors are read.

    source: a checkpoint, a directory of checkpoints, a file, or a path in a mount of dcpfs.
    version: its name, the number in it, or "latest".
    io: "auto", "buffered", "direct", "mount" or "gds"; threads, staging (bytes), timeout (seconds): as in dcpload.h.
    cache: the directory for indexes ("": none; None: that of dcpfs(1)).
    device: where load() puts tensors: "host" (None), "cuda:0", "cuda" (a GPU for each rank), or "auto" ("cuda", or "host" without a GPU).
    comm: open it together with other ranks (collective). coordinator_rank: the rank that finds the version and builds its index.
    rules: show it as a Hugging Face model, without optimizers: "auto", a preset (`dcpfs rules list`) or a file of rules.
    assets: a directory to search for config.json first. part: take only keys that begin with this name and a dot, and cut that off
    before any rule ("ema" for averaged weights); without rules it implies "auto".
    classes: classes that objects may be made of, by calling them (or a dict from stored names to classes). Of other classes only
    plain data of the standard library, numpy and torch is made.

    The functions that load tensors convert dtypes. DcpfsError: it cannot be opened. ImportError: the library is not found.
    """
    return Checkpoint(source, version, **how)
