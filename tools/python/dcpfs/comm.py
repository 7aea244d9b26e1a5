# SPDX-License-Identifier: Apache-2.0
"""Communicators: ranks of a job talk by a transport of the library, or by functions of the caller."""
from __future__ import annotations

import contextlib
import ctypes
import errno
from ctypes import byref, c_ubyte
from typing import Any, Callable, Iterator, Optional, Sequence

from ._lib import (ALLGATHER, ALLTOALLV, CLOSE, EXPLAIN, SPLIT, CommConfig, CommStruct, DcpfsError, Error, bare, call, encoded, text)

TIMEOUT = 60.0  # seconds that a collective call waits for other ranks, unless the caller says


def _mixed(kind: type[Exception]) -> type[DcpfsError]:
    name = f"Dcpfs{kind.__name__}"
    made: type[DcpfsError] = type(name, (DcpfsError, kind), {"__module__": __name__, "__doc__": f"A {kind.__name__} on one of several ranks."})
    globals()[name] = made  # where pickle looks for it
    return made


KINDS = (NotImplementedError, RuntimeError, TypeError, ValueError, KeyError, AssertionError, FileNotFoundError)
FAILED: list[type[DcpfsError]] = [*map(_mixed, KINDS), DcpfsError]  # what all ranks raise


def _kind(failure: BaseException) -> int:
    return next((i for i, k in enumerate(KINDS) if isinstance(failure, k)), len(KINDS))


def as_error(failure: BaseException, rank: int) -> DcpfsError:
    """The failure as a DcpfsError, also of the failure's class if that is in KINDS; its rank is @rank unless the failure has a rank."""
    if isinstance(failure, DcpfsError):
        return failure if failure.rank >= 0 or rank < 0 else type(failure)(failure.code, failure.text, rank)
    return FAILED[_kind(failure)](_errno(failure), text(said(failure)), rank)


def as_own(failure: Exception, rank: int) -> DcpfsError:
    """As as_error(), on the rank that failed: also of the failure's class, whatever that is, with its attributes."""
    error = as_error(failure, rank)
    if isinstance(error, type(failure)):
        return error
    try:
        own: DcpfsError = type(type(failure).__name__, (DcpfsError, type(failure)), {})(error.code, error.text, error.rank)
        own.__dict__.update({**failure.__dict__, **own.__dict__})
        return own
    except TypeError:  # two classes that keep their values in different ways
        return error


def _errno(failure: BaseException) -> int:
    return (isinstance(failure, OSError) and failure.errno) or errno.EIO


def _failed(e: Error) -> DcpfsError:
    code = int(e.code)
    return FAILED[code >> 16](code & 0xffff, text(e.text), e.rank)


class Comm:
    """A communicator of the library: "alone", "mpi" (mpirun, srun), "env" (torchrun), or "auto": chosen by the
    environment. Opening it is collective, and waits @timeout seconds for all ranks to come (DCPLOAD_TIMEOUT, if it is set).
    Close it after everything that was opened with it."""

    def __init__(self, how: str = "auto", timeout: float = TIMEOUT) -> None:
        self._pointer: Optional[Any] = ctypes.POINTER(CommStruct)()
        config = CommConfig(ctypes.sizeof(CommConfig), 0, milliseconds(timeout))
        call("comm_open_as", encoded(how, "a transport"), byref(config), byref(self._pointer))

    @property
    def pointer(self) -> Any:
        """struct dcpload_comm. ValueError: it is closed."""
        if not self._pointer:
            raise ValueError("the communicator is closed")
        return self._pointer

    @property
    def name(self) -> str:
        """Of the transport: "alone", "mpi", "torch"."""
        return text(self.pointer.contents.name)

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        return int(self.pointer.contents.rank)

    @property
    def ranks(self) -> int:
        """How many there are."""
        return int(self.pointer.contents.ranks)

    def agree(self, failure: Optional[BaseException], timeout: float = TIMEOUT) -> None:
        """Collective. If any rank has a failure, all ranks raise. A process alone raises its own failure; several ranks raise a DcpfsError
        with the text of the first failure that is also of its class (TypeError and the like). A timeout that is not a number of seconds
        is a failure, too."""
        try:
            ms = milliseconds(timeout)
        except Exception as wrong:
            failure, ms = failure or wrong, milliseconds(TIMEOUT)
        c, mine = self.pointer.contents, Error(rank=self.rank)
        if failure is not None:
            mine.code = _kind(failure) << 16 | _errno(failure)
            mine.text = said(failure)
        every = (Error * self.ranks)()
        rc = c.allgather(c.ctx, ctypes.addressof(mine), ctypes.sizeof(Error), ctypes.addressof(every), ms)
        if isinstance(failure, DcpfsError) and self.ranks > 1 and failure.rank < 0:
            failure.rank = self.rank
        if isinstance(failure, DcpfsError) or failure and self.ranks == 1:
            raise failure
        if failure:
            raise _failed(mine) from failure
        if rc < 0:
            if c.explain:
                c.explain(c.ctx, byref(mine))
            raise DcpfsError(-rc, text(mine.text) or f"{self.name}: another rank does not answer", mine.rank)
        for e in every:
            if e.code:
                raise _failed(e)

    def close(self) -> None:
        """A second call does nothing."""
        pointer, self._pointer = self._pointer, None
        if pointer:
            bare("comm_close", pointer)

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Comm({self.name!r}: rank {self.rank} of {self.ranks})" if self._pointer else "Comm(closed)"


@contextlib.contextmanager
def together(comm: Optional[Comm], timeout: float = TIMEOUT) -> Iterator[None]:
    """Collective. A failure inside on one rank fails all ranks at the end, so that no rank waits later. None: this process alone."""
    failure: Optional[Exception] = None
    try:
        yield
    except Exception as e:
        failure = e
    if comm:
        comm.agree(failure, timeout)
    elif failure:
        raise failure


class OwnComm(Comm):
    """A communicator made of Python functions: derive from it and define gather(), and exchange() unless bulk is False.

    An exception that they raise becomes the error of the collective call: TimeoutError ETIMEDOUT, ConnectionError ECONNRESET,
    others EIO.
    """

    def __init__(self, name: str, rank: int, ranks: int, bulk: bool = True) -> None:
        self._said = b""
        self._struct = CommStruct(
            ctypes.sizeof(CommStruct), rank, ranks, 0, encoded(name), None, ALLGATHER(self._allgather),
            ALLTOALLV(self._alltoallv) if bulk else ALLTOALLV(), SPLIT(), CLOSE(), EXPLAIN(self._explain))
        self._pointer = ctypes.pointer(self._struct)

    def gather(self, mine: memoryview, out: memoryview, timeout: float) -> None:
        """Gather @mine of every rank (the same size on all) into @out, in order of ranks. timeout: seconds."""
        raise NotImplementedError

    def exchange(self, send: Sequence[memoryview], receive: Sequence[memoryview], timeout: float) -> None:
        """Send send[r] to rank r and fill receive[r] from it, for all ranks. timeout: seconds."""
        raise NotImplementedError

    def _guarded(self, work: Callable[[], None]) -> int:
        try:
            work()
            return 0
        except BaseException as e:  # the caller is C
            self._said = said(e)
            timeouts = isinstance(e, TimeoutError) or "timed out" in str(e).lower()
            return -(errno.ETIMEDOUT if timeouts else errno.ECONNRESET if isinstance(e, ConnectionError) else errno.EIO)

    def _allgather(self, ctx: Any, mine: int, n: int, out: int, timeout_ms: int) -> int:
        return self._guarded(lambda: self.gather(at(mine, n), at(out, n * self.ranks), timeout_ms / 1000) if n else None)

    def _alltoallv(self, ctx: Any, send: Any, nsend: Any, receive: Any, nreceive: Any, timeout_ms: int) -> int:
        every = range(self.ranks)
        return self._guarded(lambda: self.exchange([at(send[r], nsend[r]) for r in every],
                                                   [at(receive[r], nreceive[r]) for r in every], timeout_ms / 1000))

    def _explain(self, ctx: Any, err: Any) -> None:
        if self._said:
            err.contents.text = self._said

    def close(self) -> None:
        self._pointer = None


def milliseconds(timeout: float) -> int:
    """As the library takes it. An exception: it is not a number of seconds."""
    return min(max(1, int(timeout * 1000)), (1 << 31) - 1)


def at(address: Optional[int], n: int) -> memoryview:
    return memoryview((c_ubyte * n).from_address(address) if n and address else b"").cast("B")


def said(e: BaseException) -> bytes:
    """The exception as one line, short enough for the library."""
    line = e.text if isinstance(e, DcpfsError) else f"{type(e).__name__}: {e}"
    return " ".join(line.split()).encode()[:1000]
