# SPDX-License-Identifier: Apache-2.0
"""Any checkpoint with the interface of safetensors.safe_open."""
from __future__ import annotations

import json
import os
from typing import Any, Optional, Union

from .array import Readable
from .checkpoint import Checkpoint
from .tensor import Tensor

BACKENDS = ("mmap", "pread")
FRAMEWORKS = {"np": "np", "numpy": "np", "pt": "pt", "torch": "pt", "pytorch": "pt"}


class safe_open:  # the name of the class it replaces
    """Reads as `safetensors.safe_open(filename, framework, device)` does, but any checkpoint.

    framework: "pt" gives torch tensors on @device, "np" numpy arrays (float32 for dtypes that numpy does not have). backend:
    accepted, it changes nothing here. ValueError: another framework or backend. DcpfsError: it cannot be opened;
    FileNotFoundError, too, if it is not there.
    """

    def __init__(self, filename: Union[str, os.PathLike[str]], framework: str = "np", device: Any = "cpu",
                 version: Optional[str] = "latest", *, backend: str = "mmap", **how: Any) -> None:
        if framework not in FRAMEWORKS:
            raise ValueError(f"framework {framework!r} is none of {', '.join(FRAMEWORKS)}")
        if backend not in BACKENDS:
            raise ValueError(f"backend {backend!r} is none of {', '.join(BACKENDS)}")
        self._framework, self._device = FRAMEWORKS[framework], device
        self._of = Checkpoint(filename, version, **how)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *exc: object) -> None:
        self._of.close()

    def keys(self) -> list[str]:
        """Keys, sorted by name. ValueError: it is closed."""
        return sorted(self.offset_keys())

    def offset_keys(self) -> list[str]:
        """Keys in the order of the checkpoint. ValueError: it is closed."""
        self._of.handle
        return list(self._of)

    def metadata(self) -> Optional[dict[str, str]]:
        """For safetensors, the metadata of the (first) file. Otherwise "format" names the framework, as save_pretrained() writes it. Facts
        of dcpfs begin with "dcpfs."."""
        own = self._of.fact("metadata")
        if own is not None:
            return dict(json.loads(own))
        return {"format": self._framework, **{f"dcpfs.{k}": v for k, v in self._of.facts.items()}}

    def get_tensor(self, name: str) -> Any:
        """The whole tensor. KeyError names the nearest key; DcpfsError: it cannot be read."""
        return self._made(self._of[name])

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by their keys, in the order of the checkpoint. DcpfsError: a tensor cannot be read."""
        return {key: self.get_tensor(key) for key in self.offset_keys()}

    def get_slice(self, name: str) -> Slice:
        """Reads nothing yet. KeyError names the nearest key."""
        return Slice(self, self._of[name])

    def _made(self, data: Readable) -> Any:
        return data.numpy() if self._framework == "np" else data.torch(None if str(self._device) == "cpu" else self._device)


class Slice:
    """A tensor that is read by regions: slice[2:4, :, ::2]. For an index with lists or arrays the whole tensor is read first."""

    def __init__(self, of: safe_open, tensor: Tensor) -> None:
        self._of, self._tensor = of, tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """"BF16" and the like, as in a safetensors header."""
        return self._tensor.dtype

    def __getitem__(self, index: Any) -> Any:
        """Reads that region only. IndexError, TypeError: not such an index. DcpfsError: it cannot be read."""
        try:
            return self._of._made(self._tensor[index])
        except TypeError:
            return self._of._made(self._tensor)[index]
