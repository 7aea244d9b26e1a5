#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the data of the benchmark, each set once; sets that are there already stay.

usage: gen.py DIR [SET...]          with a python that has torch and numpy

  model     torch.distributed.checkpoint of 1 GiB of bf16, row-sharded by 8 gloo ranks: one tensor of
            512 MiB, the rest layers of a transformer
  model2    the same by 2 ranks
  giant     one tensor of 1 GiB in one chunk
  keys10k   10,000 keys of 4 KiB in 8 chunks each, all of them real
  whole10k  10,000 keys of 4 KiB in 1 chunk each, all of them real
  keys100k  100,000 keys of 1 KiB in 8 chunks each; the chunks of every 1000th key are real, the others
            are holes: its metadata is what counts (needs 3 GiB of memory while it is written)
  wide      one tensor of 512 MiB in eight row shards of safetensors
  zero3, paddle, many-FAMILY   1.5 GiB, 1 GiB, and 10,000 keys, of families.py
  names     100,000 empty files named as the files that show keys100k, and 10,000 files of 4 KiB

Every value of `model` follows from key and position (bits()), so any reader can check any part of it. DCPFS_BENCH_SCALE=8
makes `model`, `model2` and `giant` an eighth as large: to see that everything runs.
"""
import io
import json
import os
import shutil
import sys
import tempfile
import time
import zlib

RANKS = 8
SCALE = int(os.environ.get("DCPFS_BENCH_SCALE", "1"))
HIDDEN = 2048
BIG = "embed_tokens.weight"
WIDE = (16384, 16384)
SETS = {"keys10k": (10000, 8, 32, 1), "whole10k": (10000, 1, 32, 1), "keys100k": (100000, 8, 8, 1000)}
ROWS = 64                               # of every key in SETS; the third number is its columns


def model_shapes():
    shapes = {BIG: (131072 // SCALE, HIDDEN)}
    for layer in range(max(1, 8 // SCALE)):
        at = f"layers.{layer}."
        for name in ("q", "k", "v", "o"):
            shapes[f"{at}attn.{name}_proj.weight"] = (HIDDEN, HIDDEN)
        shapes[at + "mlp.up_proj.weight"] = (4096, HIDDEN)
        shapes[at + "mlp.down_proj.weight"] = (HIDDEN, 4096)
        shapes[at + "norm.weight"] = (HIDDEN,)
    return shapes


def bits(key, first, count):
    """The values of elements first .. first + count of a tensor's flattening, as 16-bit patterns."""
    import numpy as np
    i = np.arange(first, first + count, dtype=np.uint32)
    i *= np.uint32(2654435761)
    i += np.uint32(zlib.crc32(key.encode()))
    i ^= i >> np.uint32(15)
    return (i & np.uint32(0xBFFF)).astype(np.uint16)      # never an infinity or a NaN


def many_keys(n):
    return [f"model.layers.{i // 384}.block_sparse_moe.experts.{i // 3 % 128}.w{i % 3 + 1}.weight"
            for i in range(n)]


def cut(n, parts, i):
    """Rows of rank i when n rows are cut by torch's rule."""
    each = -(-n // parts)
    return min(n, i * each), min(n, i * each + each)


# ---- model: saved by real ranks ----

def save_rank(rank, ranks, out, meeting):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    state = {}
    for key, shape in model_shapes().items():
        width = shape[1] if len(shape) > 1 else 1
        a, b = cut(shape[0], ranks, rank)
        local = torch.from_numpy(bits(key, a * width, (b - a) * width)).view(torch.bfloat16)
        state[key] = DTensor.from_local(local.reshape(b - a, *shape[1:]), mesh, [Shard(0)], run_check=False,
                                        shape=torch.Size(shape), stride=(width, 1)[-len(shape):])
    dcp.save({"model": state, "step": 1000}, checkpoint_id=out)
    dist.barrier()
    dist.destroy_process_group()


def make_model(out, ranks=RANKS):
    import multiprocessing
    import torch.distributed.checkpoint  # noqa: F401  imported once, before the ranks are forked
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as tmp:
        fork = multiprocessing.get_context("fork")
        jobs = [fork.Process(target=save_rank, args=(r, ranks, out, tmp + "/meeting")) for r in range(ranks)]
        for p in jobs:
            p.start()
        for p in jobs:
            p.join()
    if any(p.exitcode for p in jobs):
        raise SystemExit("a rank failed")


def make_giant(out):
    import torch
    import torch.distributed.checkpoint as dcp
    rows = (1 << 19) // SCALE
    dcp.save({"w": torch.from_numpy(bits("w", 0, rows << 10)).view(torch.bfloat16).reshape(rows, 1 << 10)}, checkpoint_id=out)


# ---- keys: the metadata as torch's own planner and writer leave it, without a rank's time per key ----

def rank_plan(keys, rank, shards, cols):
    import torch
    from torch.distributed.checkpoint import metadata as md, planner as pl
    a, b = cut(ROWS, shards, rank)
    size, plan = torch.Size((ROWS, cols)), []
    for key in keys:
        chunk = md.ChunkStorageMetadata(offsets=torch.Size((a, 0)), sizes=torch.Size((b - a, cols)))
        data = pl.TensorWriteData(chunk=chunk, size=size,
                                  properties=md.TensorProperties(dtype=torch.bfloat16))
        plan.append(pl.WriteItem(index=md.MetadataIndex(key, chunk.offsets),
                                 type=pl.WriteItemType.SHARD, tensor_data=data))
    return pl.SavePlan(plan)


def write_shard(path, rank, count, shape, real_every):
    """One file of a rank: the same small torch.save archive over and over; returns its length."""
    import torch
    item = io.BytesIO()
    torch.save(torch.arange(shape[0] * shape[1]).add_(rank).to(torch.bfloat16).reshape(shape), item)
    item = item.getvalue()
    with open(path, "wb") as f:
        if real_every == 1:
            for _ in range(0, count, 1000):
                f.write(item * 1000)
        else:
            for i in range(0, count, real_every):
                f.seek(i * len(item))
                f.write(item)
        f.truncate(count * len(item))
    return len(item)


def make_keys(out, count, shards, cols, real_every):
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.storage import WriteResult
    os.makedirs(out)
    keys = many_keys(count)
    plans, metadata = create_default_global_save_plan(
        [rank_plan(keys, r, shards, cols) for r in range(shards)])
    metadata.planner_data = {k: tuple(k.split(".", 1)) for k in keys}
    results = []
    for rank, plan in enumerate(plans):
        name = f"__{rank}_0.distcp"
        a, b = cut(ROWS, shards, rank)
        n = write_shard(os.path.join(out, name), rank, count, (b - a, cols), real_every)
        results.append([WriteResult(index=item.index, size_in_bytes=n,
                                    storage_data=_StorageInfo(name, i * n, n))
                        for i, item in enumerate(plan.items)])
    FileSystemWriter(out, sync_files=False).finish(metadata, results)


def make_names(out):
    os.makedirs(out + "/many")
    os.makedirs(out + "/small")
    for key in many_keys(100000):
        os.close(os.open(f"{out}/many/{key}.bin", os.O_CREAT | os.O_WRONLY, 0o644))
    for i in range(10000):
        with open(f"{out}/small/{i:06d}", "wb") as f:
            f.write(b"\5" * 4096)


def make_wide(out):
    """One tensor of 512 MiB with rows of 32 KiB, in eight row shards of safetensors."""
    os.makedirs(out)
    step = WIDE[0] // RANKS
    for i in range(RANKS):
        n = step * WIDE[1]
        header = {"__metadata__": {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO":
                                   json.dumps({"w": {"saved_offsets": [i * step, 0]}})},
                  "w": {"dtype": "BF16", "shape": [step, WIDE[1]], "data_offsets": [0, 2 * n]}}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 4096 - 8)
        with open(f"{out}/shard-{i + 1:05}-model-00001-of-00001.safetensors", "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            f.write(bits("w", i * n, n).tobytes())


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    import families
    top, wanted = sys.argv[1], sys.argv[2:] or ["model", "model2", "giant", *SETS, "names", "wide", *families.SETS]
    os.makedirs(top, exist_ok=True)
    for name in wanted:
        out, began = os.path.join(top, name), time.time()
        if os.path.isdir(out):
            continue
        shutil.rmtree(out + ".part", ignore_errors=True)
        if name in ("model", "model2"):
            make_model(out + ".part", RANKS if name == "model" else 2)
        elif name == "giant":
            make_giant(out + ".part")
        elif name == "names":
            make_names(out + ".part")
        elif name == "wide":
            make_wide(out + ".part")
        elif name in families.SETS:
            families.make(name, out + ".part")
        else:
            make_keys(out + ".part", *SETS[name])
        os.rename(out + ".part", out)
        print(json.dumps({"made": name, "seconds": round(time.time() - began, 1)}), flush=True)
    os.sync()


if __name__ == "__main__":
    main()
