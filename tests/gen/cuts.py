#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What torch and Paddle themselves give to each rank: golden/cuts.txt.

usage: PADDLE=/path/to/python-with-paddlepaddle cuts.py [SEED]

torch 2.15.0 runs here, with the fake process group as each rank in turn, and cuts numbered
tensors by distribute_tensor(); paddlepaddle 3.3.1 runs in a process a rank, and cuts them by
shard_tensor(). Nothing is computed from a formula: the lines say which numbers came out.

fsdp2 lines are of torch, too: fully_shard() over mesh dimension a of what distribute_tensor() cut
over b, both as rules of core/LAYOUT.md.

A line is: framework, mesh, rule, shape, then what each rank has. `;` stands between ranks, `/`
between dimensions; `*` is all of a dimension, `-` nothing, `4+2,9+1` elements 4 5 9, `=3` three
of an array that has no elements because another dimension is empty. `!`: the framework refuses.
"""
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

OUT = pathlib.Path(__file__).resolve().parent.parent / "golden" / "cuts.txt"
MESHES = [(2,), (3,), (4,), (5,), (8,), (2, 2), (2, 3), (3, 2), (4, 2), (2, 4), (3, 3), (2, 2, 2), (3, 1, 2)]
NTORCH, NPADDLE = 1500, 500


def runs(index, size):
    """[4, 5, 9] as 4+2,9+1."""
    if index == list(range(size)):
        return "*"
    out = []
    for i in index:
        if out and out[-1][0] + out[-1][1] == i:
            out[-1][1] += 1
        else:
            out.append([i, 1])
    return ",".join(f"{lo}+{n}" for lo, n in out) or "-"


def axes(local, shape):
    """The indices of each dimension whose product is the nested list or array @local."""
    import numpy
    local = numpy.asarray(local)
    if local.size == 0:  # no numbers: only how long it says it is
        return "/".join("*" if n == size else f"={n}" if n else "-" for n, size in zip(local.shape, shape))
    where = numpy.unravel_index(local.reshape(-1).astype(numpy.int64), shape)
    out = [numpy.moveaxis(w.reshape(local.shape), d, 0).reshape(local.shape[d], -1)[:, 0].tolist()
           for d, w in enumerate(where)]
    full = numpy.arange(int(numpy.prod(shape))).reshape(shape)
    assert (full[numpy.ix_(*out)] == local).all(), "not a product of indices"
    return "/".join(runs(i, size) for i, size in zip(out, shape))


def shape_for(rng):
    return [rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 24, 25, 31])
            for _ in range(rng.choice([1, 1, 2, 2, 3]))]


def torch_cases(rng):
    """FSDP over TP in torch's order, uneven, first; then anything."""
    for mesh in [(2, 2), (2, 3), (3, 2), (4, 2), (2, 4), (3, 3)]:
        for n in range(1, 32):
            yield mesh, [("SS", 0, mesh[1]), ("S", 0)], [n, 2]
    for _ in range(NTORCH):
        mesh, shape = rng.choice(MESHES), shape_for(rng)
        places = []
        for _ in mesh:
            kind, dim = rng.choice(["R", "S", "S", "SS"]), rng.randrange(len(shape))
            places.append((kind, dim, rng.randint(1, 5)) if kind == "SS" else (kind, dim))
        yield mesh, places, shape


def paddle_cases(rng):
    for _ in range(NPADDLE):
        mesh, shape = rng.choice([m for m in MESHES if len(m) < 3]), shape_for(rng)
        yield mesh, [rng.choice([None, *range(len(shape))]) for _ in mesh], shape


def fsdp_cases():
    """Tensor parallelism over the second mesh dimension, FSDP over the first: parts without elements among them."""
    for mesh in [(2, 2), (3, 2), (2, 4)]:
        for shape in [(5, 1), (4, 1), (1, 5), (3, 5), (5, 5), (1, 1), (5, 1, 4), (5, 4, 1), (3, 3, 3)]:
            for dim in range(len(shape)):
                yield mesh, dim, list(shape)


def torch_text(places):
    words = {"R": "Replicate()", "S": "Shard({1})", "SS": "_StridedShard({1},sf={2})"}
    return "[" + ",".join(words[p[0]].format(*p) for p in places) + "]"


def paddle_text(mesh, places, shape):
    used = [d for d in places if d is not None]
    if len(used) == len(set(used)):
        return "dims_mapping=[" + ",".join(str(places.index(d)) if d in places else "-1"
                                           for d in range(len(shape))) + "]"
    return ",".join(f"shard({d},last)@{'abc'[m]}" for m, d in enumerate(places) if d is not None)


def run_torch(cases):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor
    from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    from torch.testing._internal.distributed.fake_pg import FakeStore

    make = {"R": lambda _: Replicate(), "S": lambda d: Shard(d),
            "SS": lambda d, f: _StridedShard(d, split_factor=f)}
    got = [[] for _ in cases]
    for mesh in MESHES:
        world = torch.Size(mesh).numel()
        for rank in range(world):
            dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
            device_mesh = init_device_mesh("cpu", mesh)
            for i, (at, places, shape) in enumerate(cases):
                if at != mesh:
                    continue
                full = torch.arange(torch.Size(shape).numel()).reshape(shape)
                placements = [make[p[0]](*p[1:]) for p in places]
                local = distribute_tensor(full, device_mesh, placements, src_data_rank=None).to_local()
                said, _ = compute_local_shape_and_global_offset(full.shape, device_mesh, placements)
                assert tuple(local.shape) == tuple(said), (mesh, places, shape, rank)
                got[i].append(axes(local.numpy(), shape))
            dist.destroy_process_group()
    return torch.__version__.split("+")[0], got


def run_fsdp(cases):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    got = [[] for _ in cases]
    for mesh in sorted({c[0] for c in cases}):
        world = torch.Size(mesh).numel()
        for rank in range(world):
            dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
            device_mesh = init_device_mesh("cpu", mesh, mesh_dim_names=("a", "b"))
            for i, (at, dim, shape) in enumerate(cases):
                if at != mesh:
                    continue
                full = torch.arange(torch.Size(shape).numel()).reshape(shape).double()
                module = torch.nn.Module()
                module.weight = torch.nn.Parameter(
                    distribute_tensor(full, device_mesh["b"], [Shard(dim)], src_data_rank=None))
                fully_shard(module, mesh=device_mesh["a"])
                got[i].append(axes(module.weight.to_local().detach().numpy(), shape))
            dist.destroy_process_group()
    return got


def paddle_rank(path):
    import numpy
    import paddle
    import paddle.distributed as dist
    got = []
    for mesh, places, shape in json.loads(pathlib.Path(path).read_text()):
        process_mesh = dist.ProcessMesh(numpy.arange(int(numpy.prod(mesh))).reshape(mesh),
                                        dim_names=list("abc"[:len(mesh)]))
        full = paddle.arange(int(numpy.prod(shape))).reshape(shape)
        try:
            local = dist.shard_tensor(full, process_mesh, [dist.Replicate() if d is None else dist.Shard(d)
                                                           for d in places])._local_value()
            got.append(axes(local.numpy(), shape))
        except Exception as e:
            assert "start <= end" in str(e), e
            got.append("!")
    print("\n" + json.dumps([paddle.__version__, got]))


def run_paddle(cases):
    got, version = [[] for _ in cases], None
    for world in sorted({len(list(itertools.product(*map(range, m)))) for m in MESHES}):
        mine = [i for i, c in enumerate(cases) if len(list(itertools.product(*map(range, c[0])))) == world]
        with tempfile.NamedTemporaryFile("w") as f:
            json.dump([cases[i] for i in mine], f)
            f.flush()
            for rank in range(world):
                out = subprocess.run([os.environ["PADDLE"], __file__, "--paddle", f.name], check=True,
                                     capture_output=True, text=True,
                                     env={**os.environ, "PADDLE_TRAINER_ID": str(rank),
                                          "PADDLE_TRAINERS_NUM": str(world)}).stdout
                version, answers = json.loads(out.strip().split("\n")[-1])
                for i, a in zip(mine, answers):
                    got[i].append(a)
    return version, got


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    rng = random.Random(seed)
    torch_list, paddle_list, fsdp_list = list(torch_cases(rng)), list(paddle_cases(rng)), list(fsdp_cases())
    torch_version, torch_got = run_torch(torch_list)
    paddle_version, paddle_got = run_paddle(paddle_list)
    lines = [f"# Made by gen/cuts.py, seed {seed}: torch {torch_version}, paddlepaddle {paddle_version}."]
    for (mesh, places, shape), got in zip(torch_list, torch_got):
        lines.append(" ".join(["torch", "x".join(map(str, mesh)), torch_text(places),
                               "x".join(map(str, shape)), ";".join(got)]))
    for (mesh, places, shape), got in zip(paddle_list, paddle_got):
        lines.append(" ".join(["paddle", "x".join(map(str, mesh)), paddle_text(mesh, places, shape),
                               "x".join(map(str, shape)), "!" if "!" in got else ";".join(got)]))
    for (mesh, dim, shape), got in zip(fsdp_list, run_fsdp(fsdp_list)):
        lines.append(" ".join(["fsdp2", "x".join(map(str, mesh)), f"shard({dim})@b,shard(0)@a",
                               "x".join(map(str, shape)), ";".join(got)]))
    kept = [lines[0]] + sorted(set(lines[1:]))
    OUT.write_text("\n".join(kept) + "\n")
    print(f"{OUT}: {len(kept) - 1} cases, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--paddle"]:
        paddle_rank(sys.argv[2])
    else:
        main()
