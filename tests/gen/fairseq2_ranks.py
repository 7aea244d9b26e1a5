# SPDX-License-Identifier: Apache-2.0
"""fairseq2: directories of steps as its checkpoint manager lays them out, not written by fairseq2.

Packages: torch==2.15.0 numpy.  Run: python fairseq2_ranks.py

fairseq2 saves what FSDP2 keeps of each parameter (DTensor.to_local()) with torch.save, the model with pickle protocol 2
and everything else with 5 (fairseq2/checkpoint/manager.py, fairseq2/nn/fsdp/fsdp2.py). The same is done here by real ranks;
the manifest has the tensors that were cut up, which fairseq2's reshard_tensor() (model_checkpoint/common.py) makes again.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import fixlib
import torch_save

# name: shape, and the dimension that tensor-parallel ranks cut (models/llama/sharder.py)
LAYER = {"self_attn.q_proj.weight": ((12, 6), 0), "self_attn.k_proj.weight": ((4, 6), 0), "self_attn.v_proj.weight": ((4, 6), 0),
         "self_attn.output_proj.weight": ((6, 12), 1), "ffn.gate_proj.weight": ((10, 6), 0), "ffn.inner_proj.weight": ((10, 6), 0),
         "ffn.output_proj.weight": ((6, 10), 1), "ffn.output_proj.bias": ((6,), None), "ffn_layer_norm.weight": ((6,), None)}
KEYS = {"decoder_frontend.embed.weight": ((14, 6), 0), **{f"decoder.layers.0.{k}": v for k, v in LAYER.items()},
        "decoder.layer_norm.weight": ((6,), None), "final_proj.weight": ((14, 6), 0)}


def full(key, salt):
    return fixlib.rnd(key, KEYS[key][0], torch.bfloat16 if "embed" in key or "final" in key else torch.float32, specials=False, salt=salt)


def part(key, salt, tp, of):
    dim = KEYS[key][1]
    return full(key, salt) if dim is None else full(key, salt).chunk(of, dim)[tp].contiguous()


def build(salt, tp, of, tied):
    root = nn.Module()
    for key in KEYS:
        *where, name = key.split(".")
        at = root
        for w in where:
            if not hasattr(at, w):
                at.add_module(w, nn.Module())
            at = getattr(at, w)
        at.register_parameter(name, nn.Parameter(part(key, salt, tp, of)))
    if tied:
        root.final_proj.weight = root.decoder_frontend.embed.weight
    return root


def save(root, path, value, protocol=5):
    f = root / path
    f.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, f, pickle_protocol=protocol)


def local(model, uneven):
    out = {}
    for k, v in model.state_dict().items():
        v = v.detach().to_local() if isinstance(v, DTensor) else v.detach()
        if v.numel() or not uneven:            # FSDP1 leaves out what a rank has nothing of
            out[k] = v
    return out


def grads(model):
    """A step of the optimizer, with gradients that are a function of the key alone."""
    for k, p in model.named_parameters():
        p.grad = torch.zeros_like(p)
        p.grad.to_local().copy_(p.detach().to_local() * 2)


def save_ranks(rank, world, root):
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("sdp", "tp"))
    one = init_device_mesh("cpu", (world,), mesh_dim_names=("sdp",))
    tp, sdp = two["tp"].get_local_rank(), two["sdp"].get_local_rank()
    model = fully_shard(build("a", tp, 2, False), mesh=two["sdp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    where = f"pp_00/tp_{tp:02d}/sdp_{sdp:02d}.pt"
    save(root, f"step_10/model/{where}", local(model, False), 2)
    grads(model)
    optimizer.step()
    save(root, f"step_10/optimizer/{where}", optimizer.state_dict())
    save(root, f"step_10/trainer/rank_{rank:02d}.pt", {"step_nr": 10, "rng": fixlib.rnd("rng", (5,), torch.uint8, salt=str(rank))})
    if tp == 0:
        save(root, f"step_10/data_reader/dp_{sdp:02d}.pt", {"position": 100 + sdp})
    for step, uneven in ((20, False), (30, True)):
        model = fully_shard(build(str(step), 0, 1, step == 20), mesh=one["sdp"])
        save(root, f"step_{step}/model/pp_00/tp_00/sdp_{rank:02d}.pt", local(model, uneven), 2)
    states = {i: {k: (s[k].full_tensor() if isinstance(s[k], DTensor) else s[k]) for k in s} for i, s in optimizer.state_dict()["state"].items()}
    torch.save((states, optimizer.state_dict()["param_groups"]), root.parent / f"fairseq2-{rank}.pt")
    dist.barrier()


def prefixed(v, path, tree):
    one = torch_save.version(tree, "x")
    for kind in ("tensors", "objects"):
        for e in one[kind]:
            e["path"] = [*path, *e["path"]]
            e["key"] = ".".join(e["path"])
            v[kind].append(e)


def make():
    name, world = "fairseq2", 4
    root = fixlib.fresh(name)
    fixlib.spawn(save_ranks, world, root)
    vs = []
    for step in (10, 20, 30):
        v = {"name": f"step_{step}", "complete": True, "tensors": [], "objects": [], "aliases": [], "shards": []}
        for key in KEYS:
            like = "decoder_frontend.embed.weight" if step == 20 and key == "final_proj.weight" else key
            v["tensors"].append(fixlib.tensor_entry(key, [key], full(like, "a" if step == 10 else str(step))))
        if step == 20:
            v["aliases"] = [["decoder_frontend.embed.weight", "final_proj.weight"]]
        vs.append(v)
    for rank in range(world):
        sdp, tp = divmod(rank, 2)
        states, groups = torch.load(root.parent / f"fairseq2-{rank}.pt", weights_only=False)
        at = ["optimizer", "pp_00", f"tp_{tp:02d}"]
        for i, s in states.items():
            if sdp == 0:
                prefixed(vs[0], at, {"state": {str(i): {k: t for k, t in s.items() if k != "step"}}})
            prefixed(vs[0], [*at, f"sdp_{sdp:02d}"], {"state": {str(i): {"step": s["step"]}}})
        prefixed(vs[0], [*at, f"sdp_{sdp:02d}"], {"param_groups": groups})
        prefixed(vs[0], ["trainer", f"rank_{rank:02d}"], {"step_nr": 10, "rng": fixlib.rnd("rng", (5,), torch.uint8, salt=str(rank))})
        if tp == 0:
            prefixed(vs[0], ["data_reader", f"dp_{sdp:02d}"], {"position": 100 + sdp})
    out = fixlib.publish(name, root)
    # Rows of the sharded ranks one after the other, then of the tensor-parallel ranks: as reshard_tensor() has it.
    for key, (shape, dim) in KEYS.items():
        parts = [torch.cat([torch.load(out / f"ckpt/step_10/model/pp_00/tp_{t:02d}/sdp_{s:02d}.pt")[key] for s in range(2)]) for t in range(2)]
        assert torch.equal(parts[0] if dim is None else torch.cat(parts, dim), full(key, "a")), key
    fixlib.finish(name, "Structural, not written by fairseq2: 4 gloo ranks, FSDP2. step_10: 2 tensor-parallel x 2 sharded ranks, with optimizer "
                  "(DTensors), trainer and data reader; step_20: 4 sharded ranks, rows that do not divide, empty parts, tied weights; step_30: "
                  "the same where ranks leave out what they have nothing of.", "fairseq2", vs)


if __name__ == "__main__":
    make()
