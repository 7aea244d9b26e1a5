# SPDX-License-Identifier: Apache-2.0
"""torch-checkpointing: torch_checkpointing's own saves, one file for each item and rank.

Packages: torch==2.15.0 numpy safetensors torch_checkpointing==0.1.1; OLD names a directory with torch_checkpointing 0.1.0
unpacked in it.  Run: OLD=... python torch_items.py

The truth is what was cut up. It is compared with what the package loads: into whole tensors in one process where a
metadata.pkl lets it, else into the same cut, rank by rank. Its metadata is gathered over CUDA; here over gloo.
"""
import dataclasses
import os
import pickle
import sys

sys.path[:0] = [os.environ["OLD"]] if os.environ.get("USE_OLD") else []
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import torch_checkpointing as tc
from torch_checkpointing.checkpoint_layout import JsonSerialization, LayoutInfo, RawSerialization, SafetensorsSerialization, TorchSerialization
from torch_checkpointing.checkpoint_manager import CheckpointManager
from torch_checkpointing.metadata_manager import DefaultMetadataManager
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

try:
    from torch_checkpointing.default_metadata import DefaultShardingMetadata
    from torch_checkpointing.default_resharder import DefaultResharder as Resharder
except ImportError:
    from torch_checkpointing.dtensor_resharder import DTensorResharder as Resharder

import fixlib
import ranks

rnd = fixlib.rnd
NAME = "torch-checkpointing"


def gather(self, data, group=None):
    out = [None] * dist.get_world_size(group)
    dist.all_gather_object(out, data, group=group)
    return dict(enumerate(out))


DefaultMetadataManager._all_gather_pickled_data = gather


# ---------------------------------------------------------------- what is saved

SHAPES = {"emb": (23, 6), "w1": (7, 10), "norm": (5,), "tiny": (1, 4)}


def weight(key, salt, shape=None):
    return rnd(key, shape or SHAPES[key], torch.bfloat16 if key == "emb" else torch.float32, salt=salt)


def model(salt):
    return {"layers": {k: weight(k, salt) for k in SHAPES}, "buffers": [rnd("inv_freq", (3,), salt=salt), {"count": 3}], "scale": rnd("scale", (), torch.float64, salt=salt)}


def optimizer(salt):
    """As the package's optimizer_transform_pre leaves it."""
    return {"state": {f"layers.{k}": {"step": torch.tensor(5.0), "exp_avg": rnd(f"a.{k}", SHAPES[k], salt=salt)} for k in ("w1", "norm")},
            "param_groups": [{"param_names": ["layers.w1", "layers.norm"], "lr": 0.5, "betas": (0.9, 0.99), "foreach": None}], "_optimizer_state_format_version": 1}


def cut(tree, mesh, placements):
    """Every tensor that has dimensions and lies under a str key, as a DTensor."""
    if isinstance(tree, dict):
        return {k: cut(v, mesh, placements) for k, v in tree.items()}
    if isinstance(tree, torch.Tensor) and tree.dim():
        return distribute_tensor(tree, mesh, placements(tree), src_data_rank=None)
    return tree


def rows(tree, mesh):
    return cut(tree, mesh, lambda t: [Shard(0)])


def empty(tree):
    """The same with zeros in it."""
    if isinstance(tree, dict):
        return {k: empty(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(empty(v) for v in tree)
    return torch.zeros_like(tree) if isinstance(tree, torch.Tensor) else tree


def whole(tree):
    if isinstance(tree, dict):
        return {k: whole(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(whole(v) for v in tree)
    return tree.full_tensor() if isinstance(tree, DTensor) else tree


def same(a, b, where=()):
    if isinstance(b, dict):
        assert a.keys() == b.keys(), where
        for k in b:
            same(a[k], b[k], (*where, k))
    elif isinstance(b, (list, tuple)):
        for i, v in enumerate(b):
            same(a[i], v, (*where, i))
    elif isinstance(b, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and fixlib.sha(a) == fixlib.sha(b), where
    else:
        assert a == b, (where, a, b)


# ---------------------------------------------------------------- saving and loading

def manager(items, **more):
    c = CheckpointManager.Config.with_sync_save()
    c.items = items
    c.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)
    for k, v in more.items():
        setattr(c, k, v)
    return CheckpointManager(c)


def save(path, state, items=None, **more):
    m = manager(items or {}, **more)
    done = m.save(str(path), state)
    if done is not None:
        done.result()
    dist.barrier()
    m.close()


def check_same_cut(path, state, truth, items=None):
    """Load into the cut it was saved in, and compare the whole."""
    m = manager(items or {})
    got = m.load(str(path), into=empty(state))
    same(whole(dict(got)), truth)
    m.close()


def check_whole(path, truth, items):
    """Load into whole tensors, in one process."""
    m = manager(items)
    got = m.load(str(path), into=empty(truth))
    for k in truth:
        same(got[k], truth[k], (k,))
    m.close()


def spec(**more):
    return tc.ItemSpec(resharder=Resharder(), **more)


BOTH = {"model": spec(), "optimizer": spec(required=False)}


class Rows(torch.Tensor):
    """A plain tensor that says which rows of which tensor it holds, in two pieces."""

    @staticmethod
    def of(full, first, second):
        t = torch.cat([full[slice(*first)], full[slice(*second)]]).as_subclass(Rows)
        rest = tuple(full.shape[1:])
        zero = (0,) * len(rest)
        n = first[1] - first[0]
        t.global_shape = tuple(full.shape)
        t.global_offsets = ((first[0], *zero), (second[0], *zero))
        t.local_offsets = ((0, *zero), (n, *zero))
        t.local_sizes = ((n, *rest), (second[1] - second[0], *rest))
        return t


class RowsResharder(Resharder):
    def extract_sharding_metadata(self, key, value):
        return {(k,): DefaultShardingMetadata.from_tensor(t) for k, t in value.items()}


def save_four(rank, world, root):
    one = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    two = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))

    state = {"model": rows(model("f"), one), "optimizer": rows(optimizer("f"), one), "step": 1000, "rng": {"seed": rank, "state": torch.arange(4) + rank}}
    save(root / "1-fsdp", state, BOTH)
    state["rng"] = {"seed": 0, "state": torch.arange(4) + rank}
    save(root / "2-no-metadata", state)
    check_same_cut(root / "2-no-metadata", state, {"model": model("f"), "optimizer": optimizer("f"), "step": 1000, "rng": {"seed": 0, "state": torch.arange(4) + rank}})

    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    m = nn.Sequential(nn.Linear(6, 11, bias=True), nn.Linear(11, 5, bias=False))
    for n, p in m.named_parameters():
        p.data = rnd(n, p.shape, salt="s")
    parallelize_module(m, two["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(m, mesh=two["dp"])
    save(root / "3-fsdp2-tp", {"model": dict(m.state_dict())}, BOTH)

    # stages of a pipeline, each on half of the ranks, which stand in the mesh in another order
    mesh = DeviceMesh("cpu", [[2, 0], [1, 3]], mesh_dim_names=("pp", "dp"))
    stage = 0 if rank in (0, 2) else 1
    mine = {f"stage{stage}.{k}": distribute_tensor(weight(k, f"p{stage}"), mesh["dp"], [Shard(0)], src_data_rank=None) for k in SHAPES}
    mine["shared"] = distribute_tensor(weight("w1", "p"), mesh, [Replicate(), Shard(1)], src_data_rank=None)
    save(root / "4-stages", {"model": mine}, BOTH)

    # a save that dies before its directory is renamed: tmp_9-killed
    m = manager(BOTH, pre_finalize_callback=stop)
    try:
        m.save(str(root / "9-killed"), state)
    except InterruptedError:
        dist.barrier()


def stop(args):
    raise InterruptedError


def save_two(rank, world, root):
    mesh = init_device_mesh("cpu", (world,))
    ways = {
        "model": spec(layout=LayoutInfo("weights/model-{rank}.safetensors", SafetensorsSerialization(metadata={"who": "test"}))),
        "optimizer": spec(layout=LayoutInfo("rank_{rank}/opt.pt", TorchSerialization())),
        "ema": spec(layout=LayoutInfo("ema_{rank}.safetensors", SafetensorsSerialization())),
        "config": tc.ItemSpec(layout=LayoutInfo("config_{rank}.json", JsonSerialization())),
        "loader": tc.ItemSpec(layout=LayoutInfo("rank_{rank}/loader.pt", TorchSerialization())),
        "vocab": tc.ItemSpec(layout=LayoutInfo("vocab-{rank}.bytes", RawSerialization())),
    }
    ema = {k: weight(k, "e") for k in SHAPES}
    state = {"model": rows({k: weight(k, "w") for k in SHAPES}, mesh), "optimizer": rows(optimizer("w"), mesh), "ema": rows(ema, mesh),
             "config": CONFIG, "loader": {"position": rank}, "vocab": b"a\0b\xff"}
    save(root / "5-layouts", state, ways)
    from torch_checkpointing.hf.consolidation import consolidate_hf_safetensors_checkpoint
    consolidate_hf_safetensors_checkpoint(str(root / "5-layouts"), item_key="ema", storage_config=LocalFileSystemStorageConfig(use_direct_io=False))
    dist.barrier()

    from torch_checkpointing.config import AsyncCheckpointSaverConfig
    from torch_checkpointing.staging import CheckpointStagerConfig
    quiet = AsyncCheckpointSaverConfig(staging_config=CheckpointStagerConfig(use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False))
    save(root / "6-async", {"model": rows(model("a"), mesh), "step": 7}, BOTH, save=quiet)

    grid = rnd("grid", (9, 4), torch.float16, salt="b")
    parts = Rows.of(grid, *(((0, 2), (5, 9)) if rank == 0 else ((2, 3), (3, 5))))
    save(root / "7-own-boxes", {"model": {"grid": parts}, "step": 8}, {"model": tc.ItemSpec(resharder=RowsResharder())})

    # version 1.0, which the package reads and no longer writes; it names the files of all items
    raw = LayoutInfo("vocab-{rank}.bytes", RawSerialization())
    save(root / "8-version-1.0", {"model": rows(model("o"), mesh), "step": 9, "vocab": b"a\0b\xff"}, {**BOTH, "vocab": tc.ItemSpec(layout=raw)})
    dist.barrier()
    if rank == 0:
        flatten(root / "8-version-1.0" / "metadata.pkl", world)


def flatten(path, world):
    """A metadata.pkl of version 2.0 as one of version 1.0."""
    m = pickle.loads(path.read_bytes())
    flat = {"metadata": {}, "rank_to_layout_info_mappings": {r: {} for r in range(world)}, "world_size": world}
    for item, v in m["metadata"].items():
        for p, groups in v["nested_path_to_metadata"].items():
            flat["metadata"][f'["{item}",' + p[1:] if p != "[]" else f'["{item}"]'] = groups
        for r, layout in v["rank_to_layout_info"].items():
            flat["rank_to_layout_info_mappings"][r][item] = layout
    for r in range(world):
        flat["rank_to_layout_info_mappings"][r]["step"] = None
        flat["rank_to_layout_info_mappings"][r]["vocab"] = {"file_path": f"vocab-{r}.bytes", "serialization_format": {"type": "RawSerialization"}}
    path.write_bytes(pickle.dumps(flat))


CONFIG = {"hidden": 64, "rope": {"theta": 10000.0, "scaled": False}, "names": ["a", "é"], "empty": {}, "none": None}


def save_old(rank, world, root):
    from torch_checkpointing.barriers import TCPStoreBarrierConfig
    from torch_checkpointing.checkpoint_writer import CheckpointWriterConfig
    from torch_checkpointing.config import SyncCheckpointSaverConfig
    mesh = init_device_mesh("cpu", (world,))
    save(root / "0-release-0.1.0", {"model": rows(model("r"), mesh), "step": 3}, BOTH, save=SyncCheckpointSaverConfig(writer_config=CheckpointWriterConfig()))


def save_one(rank, world, root):
    tied = weight("w1", "1")
    save(root / "10-one-rank", {"model": {"w1": tied, "head": tied, "norm": weight("norm", "1")}, "step": 11, "lr": [0.5, 0.25]})


# ---------------------------------------------------------------- the truth

def plain(tree):
    """Without its tensors: what dcpfs tells below rank<r>."""
    if isinstance(tree, dict):
        return {k: p for k, v in tree.items() if (p := plain(v)) is not None or v is None}
    if isinstance(tree, list) and any(isinstance(v, (dict, torch.Tensor)) for v in tree):
        return {str(i): p for i, v in enumerate(tree) if (p := plain(v)) is not None}
    return None if isinstance(tree, torch.Tensor) else tree


def only_tensors(tree):
    if isinstance(tree, (dict, list)):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {str(k): t for k, v in items if (t := only_tensors(v)) is not None} or None
    return tree if isinstance(tree, torch.Tensor) else None


def parts(tree):
    """What cut() makes a DTensor of."""
    if isinstance(tree, dict):
        return {k: p for k, v in tree.items() if (p := parts(v)) is not None} or None
    return tree if isinstance(tree, torch.Tensor) and tree.dim() else None


def own(tree):
    """What is each rank's own where no metadata.pkl says otherwise."""
    if isinstance(tree, dict):
        return {k: p for k, v in tree.items() if (p := own(v)) is not None or v is None}
    return None if isinstance(tree, torch.Tensor) and tree.dim() else tree


def version(name, shared, per_rank):
    """@shared: item to state whose tensors are whole; @per_rank: rank to what is told below it."""
    return ranks.version(name, **{"": {k: only_tensors(v) for k, v in shared.items()}}, **{f"rank{r}": v for r, v in per_rank.items()})


def make():
    root = fixlib.fresh(NAME)
    fixlib.spawn(save_four, 4, root)
    fixlib.spawn(save_two, 2, root)
    fixlib.spawn(save_one, 1, root)
    os.environ["USE_OLD"] = "1"
    fixlib.spawn(save_old, 2, root)
    fixlib.publish(NAME, root)

    f = {"model": model("f"), "optimizer": optimizer("f")}
    lin = {"0.weight": (11, 6), "0.bias": (11,), "1.weight": (5, 11)}
    tp = {"model": {k: rnd(k, s, salt="s") for k, s in lin.items()}}
    stages = {"model": {**{f"stage{s}.{k}": weight(k, f"p{s}") for s in range(2) for k in SHAPES}, "shared": weight("w1", "p")}}
    ways = {"model": {k: weight(k, "w") for k in SHAPES}, "optimizer": optimizer("w"), "ema": {k: weight(k, "e") for k in SHAPES}}
    a, o, r = {"model": model("a")}, {"model": model("o")}, {"model": model("r")}
    vs = [version("0-release-0.1.0", r, {k: {**plain(r), "step": 3} for k in range(2)}),
          version("1-fsdp", f, {k: {**plain(f), "step": 1000, "rng": {"seed": k, "state": torch.arange(4) + k}} for k in range(4)}),
          version("2-no-metadata", parts(f), {k: {**own(f), "step": 1000, "rng": {"seed": 0, "state": torch.arange(4) + k}} for k in range(4)}),
          version("3-fsdp2-tp", tp, {}),
          version("4-stages", stages, {}),
          version("5-layouts", ways, {k: {"optimizer": plain(ways["optimizer"]), "config": CONFIG, "loader": {"position": k}} for k in range(2)}),
          version("6-async", a, {k: {**plain(a), "step": 7} for k in range(2)}),
          version("7-own-boxes", {"model": {"grid": rnd("grid", (9, 4), torch.float16, salt="b")}}, {k: {"step": 8} for k in range(2)}),
          version("8-version-1.0", o, {k: {**plain(o), "step": 9, "vocab": b"a\0b\xff"} for k in range(2)})]
    one = weight("w1", "1")
    vs.append(ranks.version("10-one-rank", **{"": {"model": {"w1": one, "head": one, "norm": weight("norm", "1")}, "step": 11, "lr": [0.5, 0.25]}}))
    vs.append({"name": "tmp_9-killed", "complete": False, "tensors": [], "objects": [], "aliases": [], "shards": []})

    for path, truth in (("1-fsdp", f), ("3-fsdp2-tp", tp), ("4-stages", stages), ("6-async", a), ("8-version-1.0", o), ("0-release-0.1.0", r)):
        check_whole(root / path, truth, BOTH)
    check_whole(root / "5-layouts", ways, {k: spec() for k in ways})
    check_whole(root / "10-one-rank", {"model": {"w1": one, "head": one.clone(), "norm": weight("norm", "1")}, "step": 11}, {})
    fixlib.finish(NAME, ABOUT, NAME, vs, frameworks={"torch_checkpointing": "0.1.1"})


ABOUT = ("One file for each item and rank. DTensors in uneven rows, FSDP2 over tensor parallel (strided shards), stages of a pipeline on meshes of their own in another order; "
         "with metadata.pkl of version 2.0 and (converted) 1.0, and without; files as safetensors, JSON and raw bytes where layouts put them, with the consolidated twin beside; "
         "saved by the background process; a tensor that describes its own boxes; a save that died. Without a place, tensors and objects are each rank's own.")

if __name__ == "__main__":
    make()
