# SPDX-License-Identifier: Apache-2.0
"""Who loads together: the ranks of a job."""
from __future__ import annotations

import ctypes
from ctypes import byref
from typing import Any, Optional

from ._lib import CommStruct, bare, call, encoded, text


class Comm:
    """A communicator of the library: "alone", "mpi" (mpirun, srun), "env" (torchrun), or "auto": the first that the
    environment says. Opening it is collective. Close it after all that was opened with it."""

    def __init__(self, how: str = "auto") -> None:
        self._pointer: Optional[Any] = ctypes.POINTER(CommStruct)()
        call("comm_open", encoded(how, "a transport"), byref(self._pointer))

    @property
    def pointer(self) -> Any:
        if not self._pointer:
            raise ValueError("the communicator is closed")
        return self._pointer

    @property
    def name(self) -> str:
        return text(self.pointer.contents.name)

    @property
    def rank(self) -> int:
        return int(self.pointer.contents.rank)

    @property
    def ranks(self) -> int:
        return int(self.pointer.contents.ranks)

    def close(self) -> None:
        pointer, self._pointer = self._pointer, None
        if pointer:
            bare("comm_close", pointer)

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Comm({self.name!r}: rank {self.rank} of {self.ranks})" if self._pointer else "Comm(closed)"
