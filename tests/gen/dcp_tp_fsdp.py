# SPDX-License-Identifier: Apache-2.0
"""dcp-tp-fsdp: 2-D meshes. tp/: FSDP2 x TP (colwise, rowwise, sequence-parallel norm) with _StridedShard; hsdp/: replicate x shard.

Packages: torch==2.15.0 numpy.  Run: python dcp_tp_fsdp.py
"""
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import fixlib

NAME = "dcp-tp-fsdp"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(29, 14)
        self.up = nn.Linear(14, 23)         # colwise: dim 0 over tp then fsdp: strided; 23 rows over 2x2
        self.gate = nn.Linear(14, 3)        # fewer rows than ranks
        self.down = nn.Linear(23, 14)       # rowwise: dim 1 over tp, dim 0 over fsdp
        self.norm = nn.LayerNorm(14)
        self.plain = nn.Conv2d(3, 7, (3, 2))
        self.one = nn.Parameter(torch.ones(1))


def fill(t, key, salt):
    full = fixlib.rnd(key, t.shape, t.dtype, salt=salt)
    with torch.no_grad():
        t.copy_(distribute_tensor(full, t.device_mesh, t.placements, src_data_rank=None) if isinstance(t, DTensor) else full)


def save(model, root, name):
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for n, p in model.named_parameters():
        p.grad = torch.zeros_like(p)
    opt.step()
    for n, p in model.named_parameters():
        fill(p, n, "w" + name)
        fill(opt.state[p]["momentum_buffer"], n, "m" + name)
    dcp.save({"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, opt), "epoch": 3},
             storage_writer=dcp.FileSystemWriter(root / name))


def worker(rank, world, root):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(1)
    m = Net()
    parallelize_module(m, mesh["tp"], {"tok": RowwiseParallel(input_layouts=Replicate()), "up": ColwiseParallel(), "gate": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(m, mesh=mesh["dp"])
    if rank == 0:
        for n, p in m.named_parameters():
            print("tp", n, tuple(p.shape), p.placements)
    save(m, root, "tp")

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    m = Net()
    fully_shard(m, mesh=mesh)
    save(m, root, "hsdp")


def main():
    root = fixlib.fresh(NAME)
    fixlib.spawn(worker, 4, root)
    out = fixlib.publish(NAME, root)

    def place(key, t):      # another 2-D layout: tp 3 (rows or columns), dp 2 on dim 0
        if "down.weight" in key or "tok" in key:
            return [Shard(0), Shard(1)]
        if "up" in key or "gate" in key:
            return [Replicate(), Shard(0)]
        return [Shard(0), Replicate()]
    two = {"name": "mesh dp=2 tp=3: *down.weight *tok* shard(0)@dp shard(1)@tp; *up* *gate* shard(0)@tp; * shard(0)@dp", "mesh": (2, 3), "names": ("dp", "tp"), "place": place}

    def strided(key, t):    # FSDP2 over TP on one dimension: rows split by tp first, then by dp
        from torch.distributed.tensor.placement_types import _StridedShard
        return [_StridedShard(0, split_factor=2), Shard(0)] if "up.weight" in key or "tok" in key else None
    st = {"name": "mesh dp=2 tp=2: *up.weight *tok* _StridedShard(0, split_factor=2)@dp Shard(0)@tp", "mesh": (2, 2), "names": ("dp", "tp"), "place": strided}
    v = [fixlib.dcp_version(out / "ckpt" / n, n, [two, st, fixlib.fsdp(3), fixlib.dim(1, 3)]) for n in ("hsdp", "tp")]
    fixlib.finish(NAME, "2-D meshes on 4 ranks. tp: FSDP2 x TP, colwise weights are [_StridedShard(0, sf=2), Shard(0)] with 23 rows, rowwise [Shard(0), Shard(1)]. "
                  "hsdp: [Replicate, Shard(0)], one copy of each shard stored. SGD momentum.", "torch-dcp", v)


if __name__ == "__main__":
    main()
