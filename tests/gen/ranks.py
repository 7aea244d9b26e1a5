# SPDX-License-Identifier: Apache-2.0
"""torch-ranks: torch.save files of each rank with DTensor and ShardedTensor. parts: several checkpoints in one directory, as trainers lay them out.

Packages: torch==2.15.0 numpy safetensors.  Run: python ranks.py [name ...]

The layouts are those of verl, Accelerate, the Hugging Face Trainer and Lightning; what is in them is written by torch and
safetensors, not by the trainers, whose own code adds nothing to the bytes.
"""
import json
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import fixlib
import torch_save

rnd = fixlib.rnd


def entry(v, key, path, t):
    v["tensors"].append(fixlib.tensor_entry(key, path, t))


def version(name, **trees):
    """A manifest version of nested states under prefixes ("" for none), as torch_save.version() walks them."""
    v = {"name": name, "complete": True, "tensors": [], "objects": [], "aliases": [], "shards": []}
    for prefix, tree in trees.items():
        one = torch_save.version(tree, name)
        for kind in ("tensors", "objects"):
            for e in one[kind]:
                if prefix:
                    e["key"], e["path"] = f"{prefix}.{e['key']}", [prefix, *e["path"]]
                v[kind].append(e)
    return v


# ---------------------------------------------------------------- torch-ranks

SHAPES = {"emb": (23, 6), "w1": (7, 10), "w2": (10, 7), "norm": (5,), "tiny": (1, 4)}


def full(key, salt):
    return rnd(key, SHAPES[key], torch.bfloat16 if key == "emb" else torch.float32, salt=salt)


def dtensors(mesh, placements, salt):
    return {k: distribute_tensor(full(k, salt), mesh, placements(k), src_data_rank=None) for k in SHAPES}


def save_ranks(rank, world, root):
    one = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    two = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("ddp", "fsdp"))
    tp = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))

    def put(version, stem, value):
        (root / version).mkdir(exist_ok=True)
        torch.save(value, root / version / f"{stem}_world_size_{world}_rank_{rank}.pt")
    put("1-fsdp", "model", {**dtensors(one, lambda k: [Shard(0)], "f"), "inv_freq": rnd("inv", (3,), salt="f")})
    put("2-hsdp", "model", dtensors(two, lambda k: [Replicate(), Shard(0)], "h"))
    put("3-rows-and-columns", "model", {k: t for k, t in dtensors(tp, lambda k: [Shard(0), Shard(min(1, len(SHAPES[k]) - 1))], "c").items() if len(SHAPES[k]) == 2})
    # FSDP2 over tensor parallel: a strided shard, made by the library itself
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    m = nn.Sequential(nn.Linear(6, 11, bias=True), nn.Linear(11, 5, bias=False))
    for n, p in m.named_parameters():
        p.data = rnd(n, p.shape, salt="s")
    parallelize_module(m, tp["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(m, mesh=tp["dp"])
    put("4-fsdp2-tp", "model", {k: v for k, v in m.state_dict().items()})
    for version, shape in (("7-mesh-axis-of-one", (world, 1)), ("8-mesh-axis-of-one-first", (1, world))):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
        put(version, "model", dtensors(mesh, lambda k: [Shard(0), Shard(min(1, len(SHAPES[k]) - 1))], "o"))
    one_rank = init_device_mesh("cpu", (world, 1), mesh_dim_names=("dp", "tp"))["tp"]
    if rank == 0:
        (root / "9-one-rank").mkdir(exist_ok=True)
        torch.save({"model": dtensors(one_rank, lambda k: [Shard(0)], "r"), "step": 4}, root / "9-one-rank" / "checkpoint_0.pt")
    from torch.distributed._shard.sharded_tensor import Shard as Piece, ShardMetadata, init_from_local_shards
    grid = rnd("grid", (6, 10), torch.float64, salt="st")
    boxes = [(0, 0, 4, 3), (0, 3, 4, 7), (4, 0, 2, 9), (4, 9, 2, 1)]
    mine = {0: [3, 0], 1: [2], 2: [1], 3: []}[rank]
    local = [Piece(grid[a:a + h, b:b + w].clone(), ShardMetadata([a, b], [h, w], f"rank:{rank}/cpu")) for a, b, h, w in (boxes[i] for i in mine)]
    (root / "5-sharded-tensor").mkdir(exist_ok=True)
    torch.save({"grid": init_from_local_shards(local, 6, 10), "step": 4}, root / "5-sharded-tensor" / f"state_rank{rank}.pt")
    (root / "6-local-state-dict").mkdir(exist_ok=True)
    flat = init_from_local_shards([Piece(rnd("flat", (5,), salt=str(rank)), ShardMetadata([5 * rank], [5], f"rank:{rank}/cpu"))], 5 * world)
    torch.save({"_fsdp_wrapped_module._flat_param": flat, "step": rank}, root / "6-local-state-dict" / f"pytorch_model_fsdp_rank{rank}.bin")


def make_ranks():
    name, world = "torch-ranks", 4
    root = fixlib.fresh(name)
    fixlib.spawn(save_ranks, world, root)
    out = fixlib.publish(name, root)
    ranks = {f"rank{r}": {"inv_freq": rnd("inv", (3,), salt="f")} for r in range(world)}
    lin = {"0.weight": (11, 6), "0.bias": (11,), "1.weight": (5, 11)}
    vs = [version("1-fsdp", **{"": {k: full(k, "f") for k in SHAPES}}, **ranks),
          version("2-hsdp", **{"": {k: full(k, "h") for k in SHAPES}}),
          version("3-rows-and-columns", **{"": {k: full(k, "c") for k in SHAPES if len(SHAPES[k]) == 2}}),
          version("4-fsdp2-tp", **{"": {k: rnd(k, s, salt="s") for k, s in lin.items()}}),
          version("5-sharded-tensor", **{"": {"grid": rnd("grid", (6, 10), torch.float64, salt="st")}}, **{f"rank{r}": {"step": 4} for r in range(world)}),
          version("6-local-state-dict", **{f"rank{r}": {"step": r} for r in range(world)}),
          version("7-mesh-axis-of-one", **{"": {k: full(k, "o") for k in SHAPES}}),
          version("8-mesh-axis-of-one-first", **{"": {k: full(k, "o") for k in SHAPES}}),
          version("9-one-rank", **{"": {"model": {k: full(k, "r") for k in SHAPES}}, "rank0": {"step": 4}})]
    vs[5]["refused"] = ["_fsdp_wrapped_module._flat_param"]
    # The truth is what was cut up; that the files hold it is checked by putting them together with torch's own arithmetic.
    check = [torch.load(out / "ckpt" / "1-fsdp" / f"model_world_size_{world}_rank_{r}.pt", weights_only=False) for r in range(world)]
    for k in SHAPES:
        assert isinstance(check[0][k], DTensor)
        whole = torch.cat([c[k]._local_tensor for c in check])
        assert fixlib.sha(whole) == fixlib.sha(full(k, "f")), k
    fixlib.finish(name, "4 gloo ranks, one torch.save file a rank. DTensors: FSDP (uneven rows, empty shards), HSDP, a 2 x 2 grid, FSDP2 over tensor parallel (strided shards), meshes with an axis of one rank; ShardedTensor in unequal boxes; "
                  "LOCAL_STATE_DICT (a flat parameter, whose keys are in \"refused\"). Plain tensors and objects are each rank's own.", "torch-ranks", vs)


# ---------------------------------------------------------------- parts

def model(salt):
    return {"model.embed.weight": rnd("e", (11, 4), torch.bfloat16, salt=salt), "model.norm.weight": rnd("n", (4,), salt=salt), "lm_head.weight": rnd("l", (11, 4), torch.bfloat16, salt=salt)}


def optimizer(salt):
    return {"state": {i: {"step": torch.tensor(5.0), "exp_avg": rnd(f"a{i}", (4, i + 1), salt=salt)} for i in range(2)}, "param_groups": [{"lr": 0.5, "betas": (0.9, 0.99), "params": [0, 1]}]}


def rng(rank):
    random.seed(rank)
    np.random.seed(rank)
    return {"python": random.getstate(), "cpu": torch.arange(16, dtype=torch.uint8) + rank, "step": rank}


SCHEDULER = {"base_lrs": [0.5], "last_epoch": 7, "_step_count": 8}
TRAINER = {"global_step": 7, "epoch": 0.5, "log_history": [{"loss": 1.25, "step": 7}], "best_metric": None}


def save_parts(rank, world, root):
    mesh = init_device_mesh("cpu", (world,))

    def sharded(tree):
        return {k: sharded(v) if isinstance(v, dict) else distribute_tensor(v, mesh, [Shard(0)], src_data_rank=None) if isinstance(v, torch.Tensor) and v.dim() else v for k, v in tree.items()}
    W = dcp.FileSystemWriter
    d = root / "2-accelerate"
    dcp.save({"model": sharded(model("acc"))}, storage_writer=W(d / "pytorch_model_fsdp_0"))
    dcp.save({"optimizer": sharded(optimizer("acc"))}, storage_writer=W(d / "optimizer_0"))
    torch.save(rng(rank), d / f"random_states_{rank}.pkl")
    d = root / "3-lightning.ckpt"
    dcp.save({"model": sharded(model("lit"))}, storage_writer=W(d))
    d = root / "4-verl"
    (d / "actor").mkdir(parents=True, exist_ok=True)
    (d / "critic").mkdir(exist_ok=True)
    dist.barrier()
    for who in ("actor", "critic"):
        torch.save(sharded(model(who)), d / who / f"model_world_size_{world}_rank_{rank}.pt")
        torch.save({"lr_scheduler": SCHEDULER, "rng": rng(rank)["cpu"]}, d / who / f"extra_state_world_size_{world}_rank_{rank}.pt")
    d = root / "checkpoint-5"
    dcp.save({"optimizer": sharded(optimizer("tr"))}, storage_writer=W(d))
    d = root / "step_6"
    dcp.save({"model": sharded(model("rl"))}, storage_writer=W(d / "policy" / "weights"))
    dcp.save({"optimizer": sharded(optimizer("rl"))}, storage_writer=W(d / "policy" / "optimizer"))
    if rank:
        return
    from safetensors.torch import save_file
    for i, (k, t) in enumerate(model("tr").items(), 1):
        save_file({k: t}, root / "checkpoint-5" / f"model-{i:05}-of-00003.safetensors", metadata={"format": "pt"})
    torch.save({"sampler": {"seed": 42}, "order": torch.arange(5)}, root / "step_6" / "train_dataloader.pt")
    d = root / "1-hf-trainer"
    d.mkdir()
    save_file(model("hf"), d / "model.safetensors", metadata={"format": "pt"})
    (d / "config.json").write_text(json.dumps({"model_type": "tiny"}))
    torch.save(optimizer("hf"), d / "optimizer.pt")
    torch.save(SCHEDULER, d / "scheduler.pt")
    torch.save({"output_dir": "x", "learning_rate": 0.5}, d / "training_args.bin")
    for r in range(2):
        torch.save(rng(r), d / f"rng_state_{r}.pth")
    (d / "trainer_state.json").write_text(json.dumps(TRAINER, indent=2))
    d = root / "2-accelerate"
    torch.save(SCHEDULER, d / "scheduler.bin")
    torch.save({"epoch": 3}, d / "sampler.bin")
    torch.save({"epoch": 2, "global_step": 9, "loops": {"fit_loop": {"batch": 4}}}, root / "3-lightning.ckpt" / "meta.pt")
    torch.save({"epoch": 1, "sampler": {"seed": 42}}, root / "4-verl" / "data.pt")
    with open(root / "4-verl" / "critic" / "custom_checkpoint_0.pkl", "wb") as f:
        import pickle
        pickle.dump({"numbers": np.arange(3), "seen": {"a", "b"}, "plain": 5}, f)


def make_parts():
    name, world = "parts", 2
    root = fixlib.fresh(name)
    fixlib.spawn(save_parts, world, root)
    fixlib.publish(name, root)
    vs = [version("1-hf-trainer", **{"": model("hf"), "optimizer": optimizer("hf"), "scheduler": SCHEDULER, "training_args": {"output_dir": "x", "learning_rate": 0.5}},
                  **{f"rng_state_{r}": rng(r) for r in range(2)}),
          version("2-accelerate", **{"": {"model": model("acc")}, "optimizer_0": {"optimizer": optimizer("acc")}, "scheduler": SCHEDULER, "sampler": {"epoch": 3}},
                  **{f"random_states_{r}": rng(r) for r in range(2)}),
          version("3-lightning.ckpt", **{"": {"model": model("lit")}, "meta": {"epoch": 2, "global_step": 9, "loops": {"fit_loop": {"batch": 4}}}}),
          version("4-verl", **{"data": {"epoch": 1, "sampler": {"seed": 42}}},
                  **{who: {**model(who), "extra_state": {f"rank{r}": {"lr_scheduler": SCHEDULER, "rng": rng(r)["cpu"]} for r in range(2)}} for who in ("actor", "critic")})]
    vs += [version("checkpoint-5", **{"": {**model("tr"), "optimizer": optimizer("tr")}}),
           version("step_6", **{"": {"model": model("rl")}, "optimizer": {"optimizer": optimizer("rl")}, "train_dataloader": {"sampler": {"seed": 42}, "order": torch.arange(5)}})]
    custom = version("", **{"critic": {"custom_checkpoint_0": {"seen": {"a", "b"}, "plain": 5}}})
    vs[3]["objects"] += custom["objects"]
    vs[0]["objects"].append(fixlib.object_entry("trainer_state", ["trainer_state"], TRAINER))
    entry(vs[3], "critic.custom_checkpoint_0.numbers", ["critic", "custom_checkpoint_0", "numbers"], torch.arange(3))
    fixlib.finish(name, "Parts of one version side by side, laid out as the Hugging Face Trainer, Accelerate (FSDP), Lightning (sharded) and verl do. The name of the part is in front of its keys, "
                  "but for a model that is the only one.", "parts", vs)


ALL = {"torch-ranks": make_ranks, "parts": make_parts}

if __name__ == "__main__":
    for n in sys.argv[1:] or ALL:
        ALL[n]()
