# SPDX-License-Identifier: Apache-2.0
"""dcpfs: checkpoints of any training framework as arrays, in any layout, without the framework.

    import dcpfs
    ckpt = dcpfs.open("/data/run1")            # newest version; nothing is read
    w = ckpt["model.layers.0.q_proj.weight"]   # shape, dtype
    w[:16, ::2].numpy()                        # reads that region

dcpfs.load() loads many tensors at once, by all ranks of a job together, and dcpfs.save() writes them as a checkpoint of any format;
dcpfs.safe_open() has the interface of safetensors;
dcpfs.torch, dcpfs.paddle and dcpfs.composer (imported on first use) fill what these frameworks load.
"""
import importlib
from typing import Any

from ._lib import DcpfsError
from .array import Array, DeviceArray
from .checkpoint import Checkpoint, Version, open
from .comm import Comm, OwnComm
from .load import Loaded, load
from .piece import Box
from .plan import Plan
from .safetensors import safe_open
from .save import Saving, formats, save
from .shard import Shard
from .tensor import Tensor

__version__ = "0.1.0"
__all__ = ["Array", "Box", "Checkpoint", "Comm", "DcpfsError", "DeviceArray", "Loaded", "OwnComm", "Plan", "Saving", "Shard", "Tensor",
           "Version", "composer", "formats", "load", "open", "paddle", "safe_open", "save", "torch", "transformers"]
FRAMEWORKS = ("composer", "paddle", "torch", "transformers")


def __getattr__(name: str) -> Any:
    if name in FRAMEWORKS:
        return importlib.import_module(f"dcpfs.{name}")
    raise AttributeError(f"module 'dcpfs' has no attribute {name!r}")
