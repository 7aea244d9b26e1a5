# SPDX-License-Identifier: Apache-2.0
"""dcpfs: checkpoints of any training framework as arrays, in any layout, without the framework.

    import dcpfs
    ckpt = dcpfs.open("/data/run1")            # newest version; nothing is read
    w = ckpt["model.layers.0.q_proj.weight"]   # shape, dtype
    w[:16, ::2].numpy()                        # reads that region
"""
from ._lib import DcpfsError
from .array import Array
from .checkpoint import Checkpoint, Version, open
from .comm import Comm
from .plan import Plan
from .shard import Shard
from .tensor import Tensor

__version__ = "0.1.0"
__all__ = ["Array", "Checkpoint", "Comm", "DcpfsError", "Plan", "Shard", "Tensor", "Version", "open"]
