# SPDX-License-Identifier: Apache-2.0
"""dcp-async-dedup: save options. dcp-sharded-tensor: FSDP1. dcp-rank-local: use_collectives=False. dcp-hf: the HuggingFace writer. dcp-experimental: _experimental checkpointer.

Packages: torch==2.15.0 numpy safetensors; zstandard for the zstd version (found at run time).  Run: python dcp_tools.py [name ...]
"""
import json
import os
import shutil
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import fixlib

rnd = fixlib.rnd


def dt(key, shape, dtype, mesh, pl, salt=""):
    return distribute_tensor(rnd(key, shape, dtype, salt=salt), mesh, pl)


def sample(rank, world, salt=""):
    """Sharded, replicated and per-rank things."""
    mesh = init_device_mesh("cpu", (world,))
    return {
        "w": {"s0": dt("s0", (7, 5), torch.float32, mesh, [Shard(0)], salt), "s1": dt("s1", (3, 11), torch.bfloat16, mesh, [Shard(1)], salt), "s2": dt("s2", (2, 2, 1), torch.float16, mesh, [Shard(2)], salt),
              "t": dt("t", (6, 9), torch.float32, mesh, [Shard(1)], salt), "rep": dt("rep", (4, 3), torch.float64, mesh, [Replicate()], salt), "int": dt("int", (5,), torch.int32, mesh, [Shard(0)], salt),
              "bool": dt("bool", (13,), torch.bool, mesh, [Shard(0)], salt), "f8": rnd("f8", (3, 3), torch.float8_e4m3fn, salt=salt), "none_left": dt("none_left", (1, 4), torch.float32, mesh, [Shard(0)], salt)},
        "plain": {f"ddp{i}": rnd(f"ddp{i}", (i + 1, 3), salt=salt) for i in range(5)},       # the same on every rank: replicated, stored once, on any rank
        f"only_on_{rank}": rnd(f"only{rank}", (rank + 1,), torch.int64, salt=salt),
        "note": {"text": "shared", "n": [1, 2, 3], f"rank{rank}": rank},
    }


# ---------------------------------------------------------------- dcp-async-dedup

def async_dedup(rank, world, root):
    W = dcp.FileSystemWriter
    dcp.save(sample(rank, world, "a"), storage_writer=W(root / "1-default"))
    dcp.save(sample(rank, world, "b"), storage_writer=W(root / "2-lowest-rank"), planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True))
    dcp.save(sample(rank, world, "c"), storage_writer=W(root / "3-threads", thread_count=3, sync_files=False))
    dcp.save(sample(rank, world, "d"), storage_writer=W(root / "4-file-per-item", single_file_per_rank=False))
    f = dcp.async_save(sample(rank, world, "e"), storage_writer=W(root / "5-async"))
    f.result()
    try:
        from torch.distributed.checkpoint._extension import ZStandard
        dcp.save(sample(rank, world, "f"), storage_writer=W(root / "6-zstd", _extensions=[ZStandard()]))
    except ValueError as e:
        if rank == 0:
            print("no zstd:", e)
    # saved over an older checkpoint of more ranks: stale unreferenced files stay
    dcp.save(sample(rank, world, "g"), storage_writer=W(root / "7-overwritten", thread_count=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(sample(rank, world, "h"), storage_writer=W(root / "7-overwritten"))


def make_async_dedup():
    name = "dcp-async-dedup"
    root = fixlib.fresh(name)
    fixlib.spawn(async_dedup, 3, root)
    out = fixlib.publish(name, root)
    v = [fixlib.dcp_version(out / "ckpt" / d.name, d.name, [fixlib.fsdp(2, lambda k: k[:2] == "w.")] if d.name[0] == "5" else []) for d in sorted((out / "ckpt").iterdir())]
    fixlib.finish(name, "3 ranks, one version per save option: default, dedup_save_to_lowest_rank, thread_count=3 (3 files per rank, some empty), single_file_per_rank=False (one file per item), async_save, "
                  "zstd stream extension (transform_descriptors), and a save over an older one (unreferenced files left behind).", "torch-dcp", v)


# ---------------------------------------------------------------- dcp-sharded-tensor

class Old(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(13, 7)
        self.b = nn.Linear(7, 5, bias=False)
        self.c = nn.Linear(5, 1)
        self.emb = nn.Embedding(17, 13)
        self.register_buffer("run", torch.ones(3))


def fsdp1(rank, world, root):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardedStateDictConfig, ShardedOptimStateDictConfig, StateDictType
    torch.manual_seed(0)
    m = Old()
    for n, p in m.named_parameters():
        p.data = rnd(n, p.shape, salt="fsdp1")
    m = FSDP(m, device_id=torch.device("cpu"), use_orig_params=True)
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)
    for n, p in m.named_parameters():
        p.grad = torch.ones_like(p) * 0.5
    opt.step()
    FSDP.set_state_dict_type(m, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(_use_dtensor=False), ShardedOptimStateDictConfig(_use_dtensor=False))
    sd = {"model": m.state_dict(), "optim": FSDP.optim_state_dict(m, opt)}
    if rank == 0:
        print("fsdp1 leaf:", type(sd["model"]["a.weight"]).__name__)
    dcp.save(sd, storage_writer=dcp.FileSystemWriter(root / "epoch_1"))
    # a ShardedTensor made by hand: shards in the wrong order, two per rank, grid of a 2-D tensor
    from torch.distributed._shard.sharded_tensor import Shard as SShard, ShardMetadata, init_from_local_shards
    full = rnd("grid", (6, 10), torch.float64, salt="grid")
    boxes = [(0, 0, 4, 3), (0, 3, 4, 7), (4, 0, 2, 9), (4, 9, 2, 1), (0, 0, 0, 0), (0, 0, 0, 0)]
    mine = {0: [3, 0], 1: [2], 2: [1]}[rank]
    loc = [SShard(full[boxes[i][0]:boxes[i][0] + boxes[i][2], boxes[i][1]:boxes[i][1] + boxes[i][3]].clone(), ShardMetadata(list(boxes[i][:2]), list(boxes[i][2:]), f"rank:{rank}/cpu")) for i in mine]
    st = init_from_local_shards(loc, 6, 10)
    dcp.save({"grid": st, "step": 4}, storage_writer=dcp.FileSystemWriter(root / "epoch_2"))


def make_sharded():
    name = "dcp-sharded-tensor"
    root = fixlib.fresh(name)
    fixlib.spawn(fsdp1, 3, root)
    out = fixlib.publish(name, root)
    v = [fixlib.dcp_version(out / "ckpt" / n, n) for n in ("epoch_1", "epoch_2")]
    full = rnd("grid", (6, 10), torch.float64, salt="grid")
    assert v[1]["tensors"][0]["sha256"] == fixlib.sha(full)
    fixlib.finish(name, "epoch_1: FSDP1 SHARDED_STATE_DICT (ShardedTensor leaves) with optim_state_dict, 3 ranks. epoch_2: a 6x10 ShardedTensor in four unequal boxes, two of them on one rank in reverse order.", "torch-dcp", v)


# ---------------------------------------------------------------- dcp-rank-local

def rank_local(rank, world, root):
    dcp.save(sample(rank, world, "rl"), storage_writer=dcp.FileSystemWriter(root / "step-5"), use_collectives=False)


def make_rank_local():
    name = "dcp-rank-local"
    root = fixlib.fresh(name)
    fixlib.spawn(rank_local, 3, root)
    out = fixlib.publish(name, root)
    # The stock reader cannot merge rank-local metadata; the truth is what was saved.
    v = {"name": "step-5", "complete": True, "tensors": [], "objects": [], "aliases": [], "shards": []}
    shapes = {"w.s0": ((7, 5), torch.float32), "w.s1": ((3, 11), torch.bfloat16), "w.s2": ((2, 2, 1), torch.float16), "w.t": ((6, 9), torch.float32), "w.rep": ((4, 3), torch.float64), "w.int": ((5,), torch.int32),
              "w.bool": ((13,), torch.bool), "w.f8": ((3, 3), torch.float8_e4m3fn), "w.none_left": ((1, 4), torch.float32)}
    for i in range(5):
        shapes[f"plain.ddp{i}"] = ((i + 1, 3), torch.float32)
    for k, (s, d) in sorted(shapes.items()):
        v["tensors"].append(fixlib.tensor_entry(k, k.split("."), rnd(k.split(".")[1], s, d, salt="rl")))
    for r in range(3):
        v["tensors"].append(fixlib.tensor_entry(f"only_on_{r}", [f"only_on_{r}"], rnd(f"only{r}", (r + 1,), torch.int64, salt="rl")))
        v["objects"].append(fixlib.object_entry(f"note.rank{r}", ["note", f"rank{r}"], r))
    v["objects"] += [fixlib.object_entry("note.text", ["note", "text"], "shared"), fixlib.object_entry("note.n", ["note", "n"], [1, 2, 3])]
    fixlib.finish(name, "use_collectives=False on 3 ranks: __0.metadata .. __2.metadata, no .metadata; replicated tensors stored by every rank. Truth is the saved state (the stock loader reads only its own rank's file).", "torch-dcp", [v])


# ---------------------------------------------------------------- dcp-hf

def hf_state(rank, world, salt):
    mesh = init_device_mesh("cpu", (world,))
    return {"model.embed.weight": dt("e", (19, 6), torch.bfloat16, mesh, [Shard(0)], salt), "model.layers.0.q.weight": dt("q", (6, 10), torch.float32, mesh, [Shard(1)], salt), "model.layers.0.bias": dt("b", (2,), torch.float16, mesh, [Shard(0)], salt),
            "model.norm.weight": dt("n", (6,), torch.float32, mesh, [Replicate()], salt), "lm_head.weight": dt("h", (19, 6), torch.bfloat16, mesh, [Shard(0)], salt), "conv": dt("c", (2, 3, 2, 1, 5), torch.float64, mesh, [Shard(4)], salt)}


def hf(rank, world, root):
    from torch.distributed.checkpoint import HuggingFaceStorageWriter as HW
    idx = {"model.embed.weight": 1, "model.layers.0.q.weight": 2, "model.layers.0.bias": 2, "model.norm.weight": 2, "lm_head.weight": 3, "conv": 3}
    dcp.save(hf_state(rank, world, "1"), storage_writer=HW(str(root / "1-sharded"), save_distributed=True))
    dcp.save(hf_state(rank, world, "2"), storage_writer=HW(str(root / "2-sharded-indexed"), fqn_to_index_mapping=idx, save_distributed=True))
    dcp.save(hf_state(rank, world, "3"), storage_writer=HW(str(root / "3-consolidated"), fqn_to_index_mapping=idx, save_distributed=True, enable_consolidation=True))
    full = {k: (t.full_tensor() if hasattr(t, "full_tensor") else t) for k, t in hf_state(rank, world, "4").items()}
    if rank == 0:       # several ranks would overwrite each other's files
        dcp.save(full, storage_writer=HW(str(root / "4-full"), fqn_to_index_mapping=idx), no_dist=True)
        dcp.save(full, storage_writer=HW(str(root / "5-one-file")), no_dist=True)


def make_hf():
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    name = "dcp-hf"
    root = fixlib.fresh(name)
    fixlib.spawn(hf, 3, root)
    out = fixlib.publish(name, root)
    vs = []
    for d in sorted((out / "ckpt").iterdir()):
        sd = {}
        _load_state_dict(sd, storage_reader=HuggingFaceStorageReader(str(d)), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
        vs.append({"name": d.name, "complete": True, "tensors": [fixlib.tensor_entry(k, [k], t) for k, t in sorted(sd.items())], "objects": [], "aliases": [], "shards": []})
    fixlib.finish(name, "DCP HuggingFaceStorageWriter on 3 ranks: save_distributed (shards with DCP_SHARDING_INFO, no index), the same with an fqn-to-file mapping, consolidated (sharded/ below the full files), "
                  "and rank-0 full with index.json. Shard(0), Shard(1), Shard(4), replicated, empty shards.", "dcp-hf-safetensors", vs)


# ---------------------------------------------------------------- dcp-experimental

def experimental(rank, world, root):
    from torch.distributed.checkpoint._experimental.builder import make_sync_checkpointer
    from torch.distributed.checkpoint._experimental.config import CheckpointerConfig
    from torch.distributed.checkpoint._experimental.types import RankInfo
    mesh = init_device_mesh("cpu", (world,))
    c = make_sync_checkpointer(CheckpointerConfig(), RankInfo(global_rank=rank, global_world_size=world))
    sd = {"model": {"w": dt("x", (5, 3), torch.float32, mesh, [Shard(0)], "exp").to_local(), "rep": rnd("rep", (4,), torch.bfloat16, salt="exp")}, "step": 9, f"r{rank}": [rank, {"t": rnd(f"t{rank}", (rank + 1, 2), salt="exp")}]}
    c.save(str(root / "step-9"), sd)
    c.close()


def make_experimental():
    import torch_save
    name = "dcp-experimental"
    root = fixlib.fresh(name)
    fixlib.spawn(experimental, 2, root)
    out = fixlib.publish(name, root)
    vs = []
    d = out / "ckpt" / "step-9"
    for f in sorted(d.iterdir()):
        vs.append(torch_save.version(torch.load(f, weights_only=False), "step-9/" + f.name))
    fixlib.finish(name, "torch.distributed.checkpoint._experimental (the prototype of DCP v2 inside torch 2.15): one torch.save file checkpoint_<rank>.pt per rank with local tensors, no metadata at all. "
                  "Each manifest version is one rank's file.", "torch-save", vs)


ALL = {"dcp-async-dedup": make_async_dedup, "dcp-sharded-tensor": make_sharded, "dcp-rank-local": make_rank_local, "dcp-hf": make_hf, "dcp-experimental": make_experimental}

if __name__ == "__main__":
    for n in sys.argv[1:] or ALL:
        ALL[n]()
