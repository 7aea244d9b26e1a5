# SPDX-License-Identifier: Apache-2.0
"""composer-ranks: what Composer before 0.16 saved of a sharded model: one torch.save file a rank, ShardedTensors inside.

  packages   torch 2.15.0, numpy (the class is pickled the same way since torch 1.13)
  run        python composer_ranks.py
  writes     ../golden/composer-ranks

The state is nested as Composer nests it, and each rank saves it with torch.save; the truth is each ShardedTensor gathered on rank 0.
"""
import os
import shutil
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import Shard, ShardMetadata, init_from_local_shards

import torch_ranks
from fw_common import fresh, write_manifest
from torch_common import walk

RANKS = 3
RUN = os.path.join(tempfile.gettempdir(), "composer-ranks")
OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "composer-ranks")
TENSORS = {"emb.weight": ((11, 4), torch.float32), "out.weight": ((7, 6), torch.bfloat16), "tiny": ((2,), torch.int64), "flat": ((13,), torch.float16)}


def whole(name, salt):
    shape, dtype = TENSORS[name]
    g = torch.Generator().manual_seed(sum(map(ord, name)) + salt)
    return (torch.randn(shape, generator=g) * 100).to(dtype)


def sharded(name, salt, rank):
    t, step = whole(name, salt), -(-TENSORS[name][0][0] // RANKS)
    mine = t[rank * step:(rank + 1) * step].clone()
    lo = [rank * step] + [0] * (t.dim() - 1)
    local = [Shard(mine, ShardMetadata(lo, list(mine.shape), f"rank:{rank}/cpu"))] if len(mine) else []
    return init_from_local_shards(local, *t.shape)


def state(make, batch):
    return {"state": {"model": {**{n: make(n, batch) for n in TENSORS}, "norm.bias": torch.arange(5.0) + batch},
                      "optimizers": {"Adam": {"state": {n: {"exp_avg": make(n, batch + 1), "step": torch.tensor(float(batch))} for n in TENSORS},
                                              "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": list(TENSORS)}]}},
                      "timestamp": {"Timestamp": {"epoch": 1, "batch": batch}}, "run_name": "ranks", "rank_zero_seed": 7},
            "rng": [{"torch": torch.arange(16, dtype=torch.uint8) + r} for r in range(RANKS)]}


def rank_main(ckpt):
    rank = int(os.environ["RANK"])
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    for batch in (2, 4):
        torch.save(state(lambda n, salt: sharded(n, salt, rank), batch), f"{ckpt}/ep1-ba{batch}-rank{rank}.pt")
    dist.destroy_process_group()


def main():
    run = fresh(RUN)
    ckpt = f"{run}/ckpt"
    os.makedirs(ckpt)
    torch_ranks.run(RANKS, [os.path.abspath(__file__), "--rank", ckpt], f"{run}/rank.log")
    versions = []
    for batch in (2, 4):
        tensors, objects, aliases = [], [], []
        walk(state(whole, batch), [], tensors, objects, ".", {}, aliases)
        versions.append({"name": f"ep1-ba{batch}-rank0.pt", "complete": True, "tensors": tensors, "objects": objects, "aliases": aliases})
    shutil.copytree(ckpt, f"{fresh(OUT)}/ckpt")
    write_manifest(f"{OUT}/manifest.json", {
        "name": "composer-ranks", "format": "composer", "frameworks": {"torch": torch.__version__}, "world_size": RANKS,
        "about": "a file a rank: ShardedTensors cut along dim 0 (the last rank has less, or nothing), the rest the same on all ranks", "versions": versions})


if __name__ == "__main__":
    rank_main(sys.argv[2]) if sys.argv[1:2] == ["--rank"] else main()
