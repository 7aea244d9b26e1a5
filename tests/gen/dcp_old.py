# SPDX-License-Identifier: Apache-2.0
"""dcp-old-<torch version>: the same state saved by older torch releases.

Packages: torch==1.13.1 (python 3.7, pickle protocol 3) | 2.1.2 (python 3.10) | 2.4.1 (python 3.11), 'numpy<2'.  Run under each: python dcp_old.py
"""
import random
import sys

import torch
import torch.distributed as dist

import fixlib
from trainer_types import Phase, RunInfo

rnd = fixlib.rnd
VER = torch.__version__.split("+")[0]
NAME = "dcp-old-" + VER


def sharded(key, shape, dtype, rank, world, salt):
    """DTensor where the release has one, else ShardedTensor."""
    full = rnd(key, shape, dtype, salt=salt)
    try:
        from torch.distributed._tensor import DeviceMesh, Shard, distribute_tensor
        return distribute_tensor(full, DeviceMesh("cpu", list(range(world))), [Shard(0)])
    except ImportError:
        return sharded_tensor(full, rank, world)


def sharded_tensor(full, rank, world):
    from torch.distributed._shard.sharded_tensor import Shard as S, ShardMetadata, init_from_local_shards
    step = -(-full.shape[0] // world)
    lo, hi = min(full.shape[0], rank * step), min(full.shape[0], (rank + 1) * step)
    loc = []
    if hi > lo:
        loc = [S(full[lo:hi].clone(), ShardMetadata([lo] + [0] * (full.dim() - 1), [hi - lo] + list(full.shape[1:]), f"rank:{rank}/cpu"))]
    return init_from_local_shards(loc, *full.shape)


def state(rank, world, salt):
    d = {
        "model": {"w": sharded("w", (7, 5), torch.float32, rank, world, salt), "wb": sharded("wb", (13, 2, 3), torch.float16, rank, world, salt), "st": sharded_tensor(rnd("st", (11, 3), torch.float64, salt=salt), rank, world),
                  "tiny": sharded_tensor(rnd("tiny", (2, 3), torch.bfloat16, salt=salt), rank, world), "conv": rnd("conv", (2, 3, 1, 2, 5), salt=salt), "t": rnd("t", (5, 3), salt=salt).t(), "zero_dim": torch.tensor(2.5), "empty": torch.empty(0, 3)},
        "optim": {"state": {0: {"step": torch.tensor(4.0), "exp_avg": rnd("ea", (7, 5), salt=salt)}}, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.99), "params": [0, 1]}]},
        "meta": {"step": 12, "names": ["a", "ü"], "none": None, "tuple": (1, "x"), "nested": {"k": {"only": "scalars"}}, "blob": b"\xff\x00", "phase": Phase.WARMUP, "info": RunInfo(), "mixed": {"t": rnd("mx", (2,), torch.int64, salt=salt), "s": "text"}, "empty": {}, "list_of_dicts": [{"a": 1}, {"b": 2}], "list_of_tensors": [rnd("l0", (2,), salt=salt), 5]},
        "rng": {"torch": torch.get_rng_state(), "python": random.Random(3).getstate()[1][:5]},
        "a/b c": rnd("odd", (1, 2), torch.bool, salt=salt),
    }
    return d


def worker(rank, world, root):
    torch.manual_seed(4)
    if VER[0] == "1":
        import torch.distributed._shard.checkpoint as dcp
        for name, salt, one in (("step_100", "a", True), ("step_200", "b", False)):
            s = state(rank, world, salt)
            s.update({"model." + k: t for k, t in s.pop("model").items()})      # 1.13 does not flatten: nested dicts become one object
            (root / name).mkdir(parents=True, exist_ok=True)
            dcp.save_state_dict(s, dcp.FileSystemWriter(str(root / name), single_file_per_rank=one))
        return
    import torch.distributed.checkpoint as dcp
    for name, salt, kw in (("step_100", "a", {}), ("step_200", "b", {"single_file_per_rank": False}), ("step_300", "c", {"single_file_per_rank": True, "thread_count": 2})):
        where = root / name
        where.mkdir(parents=True, exist_ok=True)
        w = dcp.FileSystemWriter(where, **kw)
        s = state(rank, world, salt)
        if hasattr(dcp, "save"):
            dcp.save(s, storage_writer=w)
        else:
            dcp.save_state_dict(s, w)


def load_113(path):
    import torch.distributed._shard.checkpoint as dcp
    from torch.distributed._shard.checkpoint.metadata import TensorStorageMetadata
    md = dcp.FileSystemReader(str(path)).read_metadata()
    assert md.planner_data is None
    sd = {k: (torch.empty(v.size, dtype=v.properties.dtype) if isinstance(v, TensorStorageMetadata) else "<bytes>") for k, v in md.state_dict_metadata.items()}
    dcp.load_state_dict(sd, dcp.FileSystemReader(str(path)), no_dist=True)
    v = {"name": path.name, "complete": True, "tensors": [], "objects": [], "aliases": [], "shards": []}
    for key in sorted(sd):
        if isinstance(sd[key], torch.Tensor):
            v["tensors"].append(fixlib.tensor_entry(key, (key,), sd[key]))
        else:
            v["objects"].append(fixlib.object_entry(key, (key,), sd[key]))
    return v


def main():
    root = fixlib.fresh(NAME)
    fixlib.spawn(worker, 3, root)
    out = fixlib.publish(NAME, root)
    vs = [load_113(d) if VER[0] == "1" else fixlib.dcp_version(d, d.name) for d in sorted((out / "ckpt").iterdir())]
    fixlib.finish(NAME, f"Written by torch {VER} on 3 ranks: DTensor and ShardedTensor shards, plain tensors, optimizer by index, objects. step_100 default options, step_200 one file per item, step_300 two threads. 1.13 (module path _shard.checkpoint) does not flatten nested dicts.", "torch-dcp", vs)


if __name__ == "__main__":
    main()
