# SPDX-License-Identifier: Apache-2.0
"""torchao: quantized tensors of torchao in sharded DTensors, by DCP, in files of ranks, and in one file.

Packages: torch==2.15.0 torchao==0.18.0 torch_checkpointing==0.1.1 numpy.  Run: python torchao_shards.py
"""
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torchao.optim.subclass_4bit import OptimState4bit
from torchao.optim.subclass_8bit import OptimState8bit
from torchao.optim.subclass_fp8 import OptimStateFp8
from torchao.quantization import Float8Tensor, PerRow, PerTensor
from torchao.quantization.quantize_.workflows import Int8Tensor

import fixlib
import torch_items

WORLD = 2
VERSIONS = {"1-dcp": (), "2-ranks": (), "3-one.pt": (), "4-items": ("model",), "5-plain-items": ("model",)}


def whole():
    """Each tensor as one process holds it, and the dimension that the ranks cut (None: they hold copies)."""
    def w(key, *shape):
        return fixlib.rnd(key, shape, specials=False)

    def state(kind, key, *shape, block=32):
        x = kind.zeros(shape, block_size=block)
        x.copy_(w(key, *shape))
        return x

    return {
        "row": (Float8Tensor.from_hp(w("row", 6, 16), granularity=PerRow()), 0),
        "column": (Float8Tensor.from_hp(w("column", 6, 16), granularity=PerRow()), 1),
        "tensor": (Float8Tensor.from_hp(w("tensor", 6, 16), granularity=PerTensor()), 0),
        "uneven": (Float8Tensor.from_hp(w("uneven", 5, 16), granularity=PerRow()), 0),
        "copied": (Float8Tensor.from_hp(w("copied", 4, 16), granularity=PerRow()), None),
        "exp_avg.8bit": (state(OptimState8bit, "8bit", 4, 32), 0),
        "exp_avg.uneven": (state(OptimState8bit, "8bit-uneven", 3, 32), 0),
        "exp_avg.4bit": (state(OptimState4bit, "4bit", 4, 32), 0),
        "exp_avg.flat": (state(OptimState8bit, "8bit-flat", 128), 0),
        "exp_avg.fp8": (state(OptimStateFp8, "fp8", 4, 32), 0),
        "plain": (w("plain", 6, 4), 0),
        # torchao 0.18 cannot save it by DCP: its Int8Tensor has no view()
        "int8": (Int8Tensor.from_hp(w("int8", 6, 16), granularity=PerRow()), 0),
    }


def parts(t):
    if not hasattr(t, "__tensor_flatten__"):
        return {"": t}
    names = t.tensor_data_names if hasattr(t, "tensor_data_names") else t.tensor_attrs
    return {"." + n: getattr(t, n) for n in names}


def copy_of(t):
    """One that shares nothing with @t: torch.save takes a slice of such a tensor for one with elements of its own."""
    if not hasattr(t, "__tensor_flatten__"):
        return t.clone()
    return type(t).__tensor_unflatten__({n[1:]: p.clone() for n, p in parts(t).items()}, t.__tensor_flatten__()[1], t.shape, t.stride())


def part_of(t, dim, rank, mesh):
    n = t.shape[dim] if dim is not None else 0
    chunk = -(-n // mesh.size())
    local = t if dim is None or mesh.size() == 1 else torch.narrow(t, dim, rank * chunk, min(n, (rank + 1) * chunk) - rank * chunk)
    meta = TensorMeta(t.shape, torch.empty(t.shape, device="meta").stride(), t.dtype)
    place = (Replicate() if dim is None else Shard(dim),)
    return DTensor(copy_of(local), DTensorSpec(mesh, place, tensor_meta=meta), requires_grad=False)


def run(rank, world, root):
    mesh = init_device_mesh("cpu", (world,))
    state = {k: part_of(t, dim, rank, mesh) for k, (t, dim) in whole().items()}
    dcp.save({k: v for k, v in state.items() if k != "int8"}, checkpoint_id=root / "1-dcp")
    (root / "2-ranks").mkdir(exist_ok=True)
    torch.save(state, root / "2-ranks" / f"model_world_size_{world}_rank_{rank}.pt")
    (root / "composer").mkdir(exist_ok=True)
    items = {"model": state, "step": 5}
    torch_items.save(root / "4-items", items, torch_items.BOTH)
    torch_items.save(root / "5-plain-items", items)
    torch.save({"state": {"model": state, "optimizers": {}, "timestamp": {"Timestamp": {"epoch": 1}}}, "rng": []}, root / "composer" / f"ep1-ba2-rank{rank}.pt")


def run_alone(rank, world, root):
    mesh = init_device_mesh("cpu", (world,))
    torch.save({k: part_of(t, dim, rank, mesh) for k, (t, dim) in whole().items()}, root / "3-one.pt")


def entries(all_of, *front):
    out = []
    for key, t in sorted(all_of.items()):
        for name, part in parts(t).items():
            out.append(fixlib.tensor_entry(".".join((*front, key + name)), (*front, key, name[1:]) if name else (*front, key), part))
    return out


def main():
    root = fixlib.fresh("torchao")
    fixlib.spawn(run, WORLD, root, port=29687)
    fixlib._entry(0, run_alone, 1, 29688, (root,))
    all_of = {k: t for k, (t, _) in whole().items()}
    # What torch reads is what was cut.
    target = {k: copy_of(t) for k, t in all_of.items() if k != "int8"}
    for t in target.values():
        for name, part in parts(t).items():
            if name != ".qmap":  # which torchao does not copy
                part.zero_()
    dcp.load(target, checkpoint_id=root / "1-dcp", no_dist=True)
    for k, t in target.items():
        for (name, got), want in zip(parts(t).items(), parts(all_of[k]).values()):
            assert fixlib.sha(got) == fixlib.sha(want), (k, name)
    versions = [{"name": n, "complete": True, "more": True, "objects": [], "aliases": [], "shards": [],
                 "tensors": entries({k: t for k, t in all_of.items() if n != "1-dcp" or k != "int8"}, *front)} for n, front in VERSIONS.items()]
    composer = [{**versions[0], "name": "ep1-ba2-rank0.pt", "tensors": entries(all_of, "state", "model")}]
    fixlib.publish("torchao-composer", root / "composer")
    fixlib.finish("torchao-composer", "The tensors of torchao in Composer's files of two ranks.", "composer", composer, frameworks={"torchao": "0.18.0"})
    shutil.rmtree(root / "composer")
    fixlib.publish("torchao", root)
    fixlib.finish("torchao", "2 gloo ranks: torchao's Float8Tensor, Int8Tensor, OptimState8bit, 4bit and Fp8 in DTensors: by DCP, a torch.save file a rank, one "
                  "file of a mesh of one rank, and torch_checkpointing with and without metadata.pkl. The tensors are the parts of the whole ones, which each rank cut.", "torch-dcp", versions, frameworks={"torchao": "0.18.0"})


if __name__ == "__main__":
    main()
