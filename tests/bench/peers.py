#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dcpfs is compared with: torch, safetensors, numpy. One JSON line a repetition.

usage: peers.py [--reps N] VERB ARG...          with a python that has torch, safetensors, numpy

  metadata SOURCE           FileSystemReader.read_metadata()
  one SOURCE KEY ROWS...    dcp.load of one bf16 tensor of that shape (time the whole process from outside)
  two-step SOURCE FILE.pt OUT.safetensors      dcp_to_torch_save, then torch.load(mmap) and save_file
  load-file DIR...          safetensors.torch.load_file of every file of each directory, in turns, warm:
                            clone() into fresh memory, then copy_() into memory that is there
  read-items                create_read_items_for_chunk_list: what rank 300 of 768 reads of 1,000 tensors
                            that 1,024 ranks wrote, cut by rows
  columns SOURCE PARTS PART   a part of the columns of `wide`, by numpy.memmap
  local-plan                create_default_local_load_plan: what rank 21 of 64 reads of 100,000 DTensors, each
                            stored in 8 chunks; metadata and tensors are made before, not timed
  reshard SOURCE DIM RANKS  dcp.load into DTensors cut along DIM by so many gloo ranks, memory there before;
                            wall of the slowest, CPU of all, bytes that all have read, memory of the largest
                            beyond what it had before, digests of what each has (loader.py)
  check DIR                 every tensor of safetensors/ copied from `model` has the values gen.py gave it

A line "ready" comes before anything is measured: whoever watches this process's memory starts there.
torch runs with one thread: with more, its spinning barriers lose on few, busy cores.
"""
import gc
import glob
import json
import os
import resource
import sys
import time
import warnings

warnings.filterwarnings("ignore")


def cpu():
    r = resource.getrusage(resource.RUSAGE_SELF)
    return r.ru_utime + r.ru_stime


def timed(rep, what, fn, **facts):
    """Run fn; print what it took. What it gives is dropped outside the clock."""
    wall, used = time.perf_counter(), cpu()
    kept = fn()
    wall, used = time.perf_counter() - wall, cpu() - used
    print(json.dumps({"rep": rep, "what": what, "wall": round(wall, 7), "cpu": round(used, 6), **facts}),
          flush=True)
    del kept


def ready():
    print("ready", flush=True)


def metadata(reps, source):
    from torch.distributed.checkpoint import FileSystemReader
    ready()
    for rep in range(reps):
        timed(rep, "metadata", lambda: FileSystemReader(source).read_metadata())


def one(reps, source, key, *shape):
    import torch
    import torch.distributed.checkpoint as dcp
    ready()
    state = {key: torch.empty([int(n) for n in shape], dtype=torch.bfloat16)}
    dcp.load(state, checkpoint_id=source, no_dist=True)
    print(json.dumps({"sum": float(state[key].double().sum())}))


def flat(tree, at=""):
    for k, v in tree.items():
        if isinstance(v, dict):
            yield from flat(v, at + k + ".")
        else:
            yield at + k, v


def two_step(reps, source, pt, out):
    import torch
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    torch.set_num_threads(1)
    ready()

    def convert():
        dcp_to_torch_save(source, pt)
        state = torch.load(pt, mmap=True, weights_only=True)
        save_file({k: v.contiguous() for k, v in flat(state) if torch.is_tensor(v)}, out)
    for rep in range(reps):
        timed(rep, "two-step", convert)
    print(json.dumps({"disk": os.path.getsize(pt) + os.path.getsize(out)}))


def load_file(reps, *dirs):
    import ctypes
    import torch
    from safetensors.torch import load_file as load
    torch.set_num_threads(1)
    m_mmap_threshold = -3               # freed tensors go back to the system, so that fresh memory is fresh
    ctypes.CDLL(None).mallopt(m_mmap_threshold, 1 << 16)
    files = {d: sorted(glob.glob(os.path.join(glob.escape(d), "*.safetensors"))) for d in dirs}

    def fresh(paths):
        return {k: v.clone() for p in paths for k, v in load(p).items()}

    def reused(paths, into):
        for p in paths:
            for k, v in load(p).items():
                into[k].copy_(v)
    into = fresh(files[dirs[0]])
    total = sum(v.numel() * v.element_size() for v in into.values())
    ready()
    for rep in range(-1, reps):         # round -1 fills the page caches
        for side, d in enumerate(dirs):
            what = "first" if rep < 0 else "fresh"
            timed(rep, what, lambda: fresh(files[d]), side=side, bytes=total)
        for side, d in enumerate(dirs):
            if rep >= 0:
                timed(rep, "reused", lambda: reused(files[d], into), side=side, bytes=total)


def read_items(reps):
    import torch
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
    rows, cols, n = 3072, 8, 1000

    def chunk(rank, ranks):
        lo, hi = rows * rank // ranks, rows * (rank + 1) // ranks
        return ChunkStorageMetadata(torch.Size((lo, 0)), torch.Size((hi - lo, cols)))
    md = TensorStorageMetadata(TensorProperties(dtype=torch.bfloat16), torch.Size((rows, cols)),
                               [chunk(r, 1024) for r in range(1024)])
    local = [chunk(300, 768)]
    ready()
    for rep in range(reps):
        timed(rep, "read-items",
              lambda: [create_read_items_for_chunk_list(f"layers.{i}.weight", md, local) for i in range(n)])


def columns(reps, where, parts, part):
    """Columns number `part` of `parts` out of the row shards of `wide`, by numpy.memmap."""
    import gen
    import numpy as np
    step, width = gen.WIDE[0] // gen.RANKS, gen.WIDE[1] // int(parts)
    maps = []
    for path in sorted(glob.glob(os.path.join(glob.escape(where), "*.safetensors"))):
        with open(path, "rb") as f:
            at = 8 + int.from_bytes(f.read(8), "little")
        maps.append(np.memmap(path, np.uint16, "r", at, (step, gen.WIDE[1])))
    out = np.empty((gen.WIDE[0], width), np.uint16)
    out[:] = 1
    ready()
    for rep in range(reps):
        timed(rep, "columns",
              lambda: np.concatenate([m[:, int(part) * width:(int(part) + 1) * width] for m in maps], out=out),
              bytes=out.nbytes)


def local_plan(reps):
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.default_planner import create_default_local_load_plan
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    keys, rows, cols, ranks, pieces = 100000, 64, 8, 64, 8
    dist.init_process_group("fake", rank=ranks // 3, world_size=ranks, store=FakeStore())
    mesh = init_device_mesh("cpu", (ranks,))
    shape, each = torch.Size((rows, cols)), rows // pieces
    md = Metadata({f"layers.{i}.w": TensorStorageMetadata(
        TensorProperties(dtype=torch.bfloat16), shape,
        [ChunkStorageMetadata(torch.Size((each * k, 0)), torch.Size((each, cols))) for k in range(pieces)])
        for i in range(keys)})
    state = {key: DTensor.from_local(torch.empty(rows // ranks, cols, dtype=torch.bfloat16), mesh, [Shard(0)],
                                     run_check=False, shape=shape, stride=(cols, 1)) for key in md.state_dict_metadata}
    gc.freeze()
    ready()
    for rep in range(reps):
        timed(rep, "local-plan", lambda: create_default_local_load_plan(state, md, True), keys=keys, ranks=ranks)
    dist.destroy_process_group()


def said(what, name):
    with open(f"/proc/self/{what}", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(name + ":"))


def reshard_rank(rank, ranks, dim, source, reps, store, out):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    import loader
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    state = {}
    for key, md in dcp.FileSystemReader(source).read_metadata().state_dict_metadata.items():
        if not hasattr(md, "size"):
            continue                    # an object
        cut, local = min(dim, len(md.size) - 1), list(md.size)
        local[cut] //= ranks
        state[key] = DTensor.from_local(torch.ones(local, dtype=md.properties.dtype), mesh, [Shard(cut)], run_check=False)
    gc.freeze()
    for rep in range(reps):
        dist.barrier()
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")            # VmHWM starts again
        before, held = said("io", "rchar"), said("status", "VmRSS")
        wall, used = time.perf_counter(), cpu()
        dcp.load(state, checkpoint_id=source)
        wall, used = time.perf_counter() - wall, cpu() - used
        parts = {key: (t.shape, t.to_local().view(torch.uint8).numpy()) for key, t in state.items()}
        out.put((rank, wall, used, sum(data.nbytes for _, data in parts.values()), said("io", "rchar") - before,
                 (said("status", "VmHWM") - held) << 10, loader.digest(parts, dim) if rep == reps - 1 else ""))
    dist.barrier()
    dist.destroy_process_group()


def reshard(reps, source, dim, ranks):
    import tempfile
    import torch.multiprocessing as mp
    ranks, queue = int(ranks), mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as tmp:
        jobs = mp.start_processes(reshard_rank, (ranks, int(dim), source, reps, os.path.join(tmp, "store"), queue),
                                  nprocs=ranks, join=False)
        while not jobs.join(timeout=1):     # raises what a rank raised
            pass
        got = [queue.get() for _ in range(ranks * reps)]
    ready()
    by_rank = [[g for g in got if g[0] == r] for r in range(ranks)]
    for rep in range(reps):
        now = [by_rank[r][rep] for r in range(ranks)]
        print(json.dumps({"rep": rep, "what": "reshard", "wall": max(n[1] for n in now), "cpu": sum(n[2] for n in now),
                          "bytes": sum(n[3] for n in now), "read": sum(n[4] for n in now), "memory": max(n[5] for n in now),
                          "digests": [n[6] for n in now]}), flush=True)


def check(reps, where):
    import gen
    import numpy as np
    import torch
    from safetensors.torch import load_file as load
    ready()
    seen = 0
    for path in sorted(glob.glob(os.path.join(glob.escape(where), "*.safetensors"))):
        for key, t in load(path).items():
            name = key.removeprefix("model.")
            want = gen.bits(name, 0, t.numel())
            if tuple(t.shape) != gen.model_shapes()[name] or \
                    not np.array_equal(t.reshape(-1).view(torch.int16).numpy().view(np.uint16), want):
                raise SystemExit(f"{path}: {key} has wrong values")
            seen += 1
    if seen != len(gen.model_shapes()):
        raise SystemExit(f"{where}: {seen} tensors, not {len(gen.model_shapes())}")
    print(json.dumps({"checked": seen}))


VERBS = {"metadata": metadata, "one": one, "two-step": two_step, "load-file": load_file, "read-items": read_items,
         "columns": columns, "local-plan": local_plan, "reshard": reshard, "check": check}


def main():
    words, reps = sys.argv[1:], 1
    if words[:1] == ["--reps"]:
        reps, words = int(words[1]), words[2:]
    if not words or words[0] not in VERBS:
        raise SystemExit(__doc__)
    VERBS[words[0]](reps, *words[1:])


if __name__ == "__main__":
    main()
