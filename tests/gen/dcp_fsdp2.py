# SPDX-License-Identifier: Apache-2.0
"""dcp-fsdp2: FSDP2 over 4 gloo ranks, AdamW, two complete steps and a killed third one.

Packages: torch==2.15.0 numpy.  Run: python dcp_fsdp2.py
"""
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

import fixlib
from tinymodel import Norm, TinyLlama
from trainer_types import Phase, RunInfo

NAME = "dcp-fsdp2"


class DyingWriter(dcp.FileSystemWriter):
    """The job is killed after every rank wrote its shards and before the metadata is written."""

    def finish(self, metadata, results):
        raise RuntimeError("killed before commit")


def fill(t, key, salt):
    full = fixlib.rnd(key, t.shape, t.dtype, salt=salt)
    if isinstance(t, DTensor):
        full = distribute_tensor(full, t.device_mesh, t.placements, src_data_rank=None)
    with torch.no_grad():
        t.copy_(full)


def worker(rank, world, root):
    torch.manual_seed(11)
    model = TinyLlama(layers=1)
    mesh = init_device_mesh("cpu", (world,))
    for m in model.modules():
        if isinstance(m, Norm):
            fully_shard(m, mesh=mesh)
    for b in model.layers:
        fully_shard(b, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for p in model.layers[0].self_attn.o_proj.parameters():
        p.requires_grad_(False)     # frozen: has no optimizer state
    groups = [{"params": [p for n, p in model.named_parameters() if p.requires_grad and p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for n, p in model.named_parameters() if p.requires_grad and p.dim() <= 1], "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=100)
    random.seed(5 + rank)
    np.random.seed(7)
    for step in (10, 20, 30):
        for n, p in model.named_parameters():
            if p.requires_grad:
                p.grad = distribute_tensor(fixlib.rnd(n, p.shape, p.dtype, specials=False, salt=f"g{step}"), p.device_mesh, p.placements)
        opt.step()
        sched.step()
        for n, p in model.named_parameters():
            fill(p, n, f"w{step}")
        for n, b in model.named_buffers():
            fill(b, n, f"b{step}")
        state = {
            "model": get_model_state_dict(model),
            "optimizer": get_optimizer_state_dict(model, opt),
            "lr_scheduler": sched.state_dict(),
            "train": {
                "step": step, "tokens": 10**13 + step, "negative": -(2**40), "big": 2**70, "loss": 2.5 / step, "nan": float("nan"), "best": None, "done": False,
                "tags": ["ünïcode", "日本語", ""], "pair": (1, (2.5, "x"), [None, True]), "blob": b"\x00\xff\x80bytes", "empty_list": [], "empty_dict": {},
                "nested": [{"a": 1, "t": fixlib.rnd("nested", (2, 3), salt=str(step))}, {"b": [1, 2]}], "phase": Phase.STABLE, "info": RunInfo(),
                "set": {1, 2}, "intkeys": {0: "zero", 7: "seven"}, "size": torch.Size([3, 4]), "dtype": torch.bfloat16, "device": torch.device("cpu"),
            },
            "rng": {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()},
            "dataloader": {f"rank{rank}": {"epoch": 1, "index": step * 100 + rank, "order": fixlib.rnd(f"order{rank}", (7 + rank,), torch.int32), "worker": {"buf": [[1, 2], [3]]}}},
        }
        where = root / f"step-{step}"
        if step < 30:
            dcp.save(state, storage_writer=dcp.FileSystemWriter(where))
        else:
            try:
                state = {"model": state["model"], "train": state["train"]}
                dcp.save(state, storage_writer=DyingWriter(where))
            except dcp.api.CheckpointException:     # a BaseException, on every rank
                pass


def main():
    root = fixlib.fresh(NAME)
    fixlib.spawn(worker, 4, root)
    out = fixlib.publish(NAME, root)
    versions = []
    for step in (10, 20):
        lay = [fixlib.fsdp(1), fixlib.fsdp(3), fixlib.fsdp(8), fixlib.dim(1, 2)] if step == 20 else []
        versions.append(fixlib.dcp_version(out / "ckpt" / f"step-{step}", f"step-{step}", lay,
                                           shard_keys=lambda k: k.startswith("model.") or "layers.0.mlp" in k and "exp_avg" in k))
    versions.append({"name": "step-30", "complete": False, "tensors": [], "objects": [], "aliases": [], "shards": []})
    fixlib.finish(NAME, "Llama-shaped model, bf16 with float32 norms, FSDP2 over 4 ranks, AdamW with a frozen weight, scheduler, RNG, per-rank dataloader keys, "
                  "Python objects of every kind. Uneven splits, empty shards, 5-D weight. step-30 died before its metadata was written. "
                  "Shards: Shard(0) or Shard(k) by distribute_tensor; 0-dim tensors are replicated; dim1x2 lists only tensors with 2 or more dimensions.",
                  "torch-dcp", versions)


if __name__ == "__main__":
    main()
