# SPDX-License-Identifier: Apache-2.0
"""An open version of a checkpoint, as the functions of the library take it."""
from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import warnings
from ctypes import byref, c_int, c_uint64, c_void_p
from typing import Any, Callable, ContextManager, Optional, Union

from ._lib import Config, DcpfsError, bare, call, encoded, text
from .classes import Classes, makers
from .comm import TIMEOUT, Comm, milliseconds, together
from .shown import shown

IO = ("auto", "buffered", "direct", "mount", "gds")
EXCHANGE = ("auto", "never", "node", "all")


def choice(words: tuple[str, ...], word: str, what: str) -> int:
    if word not in words:
        raise ValueError(f"{what}: {word!r} is none of {', '.join(words)}")
    return words.index(word)


def text_of(rules: str) -> str:
    """Rules as the library takes them: the text of a file, or a name. OSError: the file cannot be read."""
    if "/" not in rules and not os.path.exists(rules):
        return rules
    with open(rules, encoding="utf-8") as f:
        return f.read() + "\n"


class NotThere(DcpfsError, FileNotFoundError):
    """There is no such checkpoint, or no such version of it."""


class Handle:
    """The handle of dcpload_open(); calls with it are made one at a time, under _lock. Arguments as dcpfs.open()."""

    def __init__(self, source: Union[str, os.PathLike[str]], version: Optional[str] = "latest", *, comm: Optional[Comm] = None,
                 io: str = "auto", exchange: str = "auto", threads: int = 0, staging: int = 0, timeout: float = TIMEOUT,
                 cache: Optional[str] = None, rules: Optional[str] = None,
                 assets: Union[str, os.PathLike[str], None] = None, part: Optional[str] = None, device: Optional[str] = None,
                 coordinator_rank: int = 0, classes: Classes = (), progress: Optional[Callable[[int, int], None]] = None) -> None:
        self._handle = c_void_p()
        self._lock = threading.RLock()
        self._maps: dict[tuple[int, int], memoryview] = {}
        self.comm = comm
        self.makers = makers(classes)
        self._how: dict[str, Any] = {"io": io, "exchange": exchange, "threads": threads, "staging": staging, "timeout": timeout,
                                     "cache": cache, "rules": rules, "assets": assets, "part": part, "device": device, "classes": classes}
        self.device, self.progress = device, progress
        with self.together():
            self.source = os.fspath(source)
            path = encoded(self.source, "a path")
            config = Config(ctypes.sizeof(Config), choice(IO, io, "io"), choice(EXCHANGE, exchange, "exchange"), threads, staging,
                            milliseconds(timeout), 0, None if version is None else encoded(str(version), "a version"),
                            None if cache is None else encoded(cache, "a path"),
                            None if device is None else encoded(str(device), "a device"),
                            None if rules is None else encoded(text_of(rules), "rules"),
                            None if assets is None else encoded(os.fspath(assets), "a path"),
                            None if part is None else encoded(part, "a part"), coordinator_rank)
        try:
            call("open", comm.pointer if comm else None, path, byref(config), byref(self._handle))
        except DcpfsError as e:
            raise (NotThere(e.code, e.text, e.rank) if e.code == errno.ENOENT else e) from None
        passed = bare("passed_over", self._handle)
        if passed:
            warnings.warn(shown(f"{text(passed)}; taking {text(bare('version', self._handle))}"), stacklevel=3)

    @property
    def handle(self) -> c_void_p:
        if not self._handle:
            raise ValueError(f"{shown(self.source)} is closed")
        return self._handle

    def together(self) -> ContextManager[None]:
        """Collective if ranks opened it together. A failure inside on one rank fails all ranks."""
        return together(self.comm, self._how["timeout"])

    def close(self) -> None:
        """Arrays in memory stay valid; tensors cannot be read any more. A second call does nothing."""
        with self._lock:
            handle, self._handle = self._handle, c_void_p()
            self._maps.clear()
            if handle:
                bare("close", handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def mapped(self, key: str, nbytes: int, itemsize: int) -> Optional[memoryview]:
        """The bytes of a tensor as private pages of the file that has them as one run; each file is mapped once. None: no file has them so.
        DcpfsError: it cannot be read."""
        number, at = c_int(-1), c_uint64()
        with self._lock:
            try:
                call("run", self.handle, encoded(key), byref(number), byref(at))
            except DcpfsError as e:
                if e.code == errno.ENOTSUP:
                    return None
                raise
            fd, start = number.value, at.value
            try:
                of = os.fstat(fd)
                if start % max(itemsize, 1) or start + nbytes > of.st_size:
                    return None
                file = self._maps.get((of.st_dev, of.st_ino))
                if file is None or len(file) != of.st_size:
                    file = memoryview(mmap.mmap(fd, of.st_size, access=mmap.ACCESS_COPY))
                    self._maps[of.st_dev, of.st_ino] = file
                return file[start:start + nbytes]
            except (OSError, ValueError):  # a file system without mappings, or too little memory to promise
                return None
            finally:
                os.close(fd)

    def find(self, name: str, key: str, *out: Any) -> None:
        """Call dcpload_NAME, which looks up a key. KeyError names the nearest key."""
        if not isinstance(key, str) or "\0" in key:
            raise KeyError(key)
        try:
            call(name, self.handle, encoded(key), *out)
        except DcpfsError as e:
            if e.code == errno.ENOENT:
                raise KeyError(e.text) from None
            raise
