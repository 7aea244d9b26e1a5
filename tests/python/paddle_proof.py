#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs.paddle beside paddle.distributed: saved by Paddle on one mesh, loaded on another by both, equal tensor by tensor,
optimizer state included; ids, names, errors. Real processes, gloo on the CPU.

Needs paddlepaddle; tests/run.sh --frameworks runs it. Data comes from a seed.

usage: paddle_proof.py
"""
import os
import sys
import tempfile

import needs

needs.modules("DCPFS_TEST_PADDLE", "paddle")
import paddle
import base
from base import dcpfs, np
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as theirs
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight

import dcpfs.paddle  # noqa: E402

sys.path.insert(0, str(base.ROOT / "tests/gen"))
import paddle_ranks  # noqa: E402

paddle.set_device("cpu")
paddle.Tensor.cuda = lambda self, *a, **k: self  # Paddle's loader moves what it sends to a GPU
DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128"]
R, S = dist.Replicate(), dist.Shard


def bits(tensor):
    local = tensor._local_value() if tensor.is_dist() else tensor
    return bytes(np.ascontiguousarray(local.numpy()).reshape(-1).view("u1"))


def same(ours, other):
    for key, a in other.items():
        a, b = (getattr(v, "local_tensor", v) for v in (a, ours[key]))
        if a._is_initialized():
            assert a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b), f"{key}: {b} is not {a}"
    return len(other)


def by_paddle(state, path, **how):
    theirs.PATH_TO_CHECKPOINT_FILES.clear()
    dist.load_state_dict(state, path, **how)


def by_dcpfs(state, path, **how):
    assert dcpfs.paddle.load_state_dict(state, path, coordinator_rank=dist.get_world_size() - 1, cache="", **how) is None


def outcome(load, make, path, **how):
    """The state after loading, or the class of the error."""
    state = make()
    try:
        load(state, path, **how)
        return state
    except Exception as e:
        return e


# ---- one process ----

def whole(seed, empty=False):
    rng = np.random.default_rng(seed)
    state = {}
    for i, dtype in enumerate(DTYPES):
        shape = [(5, 7), (3,), (2, 3, 4), ()][i % 4]
        t = paddle.to_tensor(rng.integers(0, 100, shape).astype("f4")).astype(dtype)
        state[f"model.{dtype}"] = paddle.zeros_like(t) if empty else t
    return state


def zeros(*keys):
    return lambda: {k: paddle.zeros([3, 4]) for k in keys}


def one_process_loads_its_save(path):
    state = whole(1)
    dist.save_state_dict(state, path)
    got = whole(1, empty=True)
    by_dcpfs(got, path)
    same(got, state)
    got = whole(1, empty=True)
    by_dcpfs(got, path, unique_id=0)  # the only save in its directory
    same(got, state)
    w = paddle.arange(12, dtype="float32").reshape([3, 4])
    dist.save_state_dict({"w": w, "opt.master_weights.x": w + 1, "opt.y_fp32_master_0": w + 2}, path, unique_id=7)
    for make, how in [(zeros("w"), {"unique_id": 7}), (lambda: {}, {"unique_id": 7}), (lambda: {"model.int8": paddle.zeros([5], "int8")}, {"unique_id": 0}),
                      (zeros("w", "q"), {"unique_id": 7}), (zeros("q"), {"unique_id": 7}), (lambda: {"w": 3}, {"unique_id": 7}),
                      (lambda: {"w": paddle.zeros([12])}, {"unique_id": 7})]:
        a, b = outcome(by_paddle, make, path, **how), outcome(by_dcpfs, make, path, **how)
        if isinstance(a, dict) and "model.int8" not in a:  # of which Paddle fills what overlaps, in silence
            assert isinstance(b, dict), b
            same(b, a)
        else:
            assert isinstance(b, Exception) and (not isinstance(a, Exception) or isinstance(b, type(a)) or
                                                 isinstance(b, dcpfs.DcpfsError)), (a, b)
    for folder in (tempfile.mkdtemp(dir=os.path.dirname(path)), "/nonexistent"):
        a, b = outcome(by_paddle, zeros("w"), folder), outcome(by_dcpfs, zeros("w"), folder)
        assert isinstance(a, (AssertionError, FileNotFoundError)) and isinstance(b, AssertionError) and isinstance(b, dcpfs.DcpfsError), (a, b)
    missing = outcome(by_dcpfs, zeros("w", "opt.master_weights.z"), path)
    assert isinstance(missing, KeyError) and 'Nearest: "opt.master_weights.x"' in str(missing), missing
    newest = zeros("w")()
    by_dcpfs(newest, path)  # 7: Paddle 3.3 takes None only where there is one save
    same(newest, {"w": w})
    wide = {"w": paddle.zeros([4, 3], "float64").t(), "opt": {"master_weights": {"x": paddle.zeros([3, 4], "bfloat16")}}}
    by_dcpfs(wide, path)
    same({"w": wide["w"].contiguous(), "x": wide["opt"]["master_weights"]["x"]},
         {"w": w.astype("float64"), "x": (w + 1).astype("bfloat16")})
    for name, text in (("0_7.distcp", "No such file"), ("7.metadata", "not complete")):
        os.rename(f"{path}/{name}", f"{path}/away")
        broken = outcome(by_dcpfs, zeros("w"), path)
        assert isinstance(broken, AssertionError) and text in str(broken), broken
        os.rename(f"{path}/away", f"{path}/{name}")


def the_largest_unique_id_is_newest(path):
    """One save of several in a directory; the largest number is the newest."""
    for n in (0, 7, 17, 9):
        dist.save_state_dict({"w": paddle.full([3, 4], float(n))}, path, unique_id=n)
    for n, want in (0, 0), (7, 7), (9, 9), (17, 17), (None, 17):
        a, b = (outcome(by, zeros("w"), path, unique_id=n) for by in (by_paddle, by_dcpfs))
        same(b, {"w": paddle.full([3, 4], float(want))})
        if n != 7 and n is not None:  # for 7 Paddle 3.3 reads what ends in 7
            same(b, a)
    for n in (-1, 1, 5, 71):
        a, b = (outcome(by, zeros("w"), path, unique_id=n) for by in (by_paddle, by_dcpfs))
        assert isinstance(a, AssertionError) and isinstance(b, AssertionError), (n, a, b)


def other_master_names_are_found(path):
    """The other name of a master weight, only where the one asked for is not there."""
    full = {"w": 9, "opt.master_weights.x": 1, "opt.y_fp32_master_0": 2, "opt.master_weights.z": 3, "opt.z_fp32_master_0": 4,
            "a.b.master_weights.v": 5, "a.b.u_fp32_master_0": 6, "t.master_weights": 7}
    dist.save_state_dict({k: paddle.full([3, 4], float(v)) for k, v in full.items()}, path)
    for want in ({"opt.x_fp32_master_0": 1, "opt.master_weights.y": 2}, {"opt.master_weights.z": 3, "opt.z_fp32_master_0": 4},
                 {"a.b.master_weights.u": 6}, {"a.master_weights.b.u": 6}, {"t_fp32_master_0": 7},
                 {"a.b.v_fp32_master_0": None}, {"opt.master_weights.none": None}, {"y_fp32_master_0": None}):
        for compatible in (True, False):
            there = {k: v if compatible or k in full else None for k, v in want.items()}
            for extra in (["w"], []):
                a, b = (outcome(by, zeros(*extra, *want), path, mw_name_compatibility=compatible) for by in (by_paddle, by_dcpfs))
                if None in there.values():
                    assert isinstance(b, KeyError) and isinstance(b, dcpfs.DcpfsError), (want, compatible, b)
                    assert isinstance(a, KeyError), (want, compatible, a)
                    continue
                assert list(b) == [*extra, *want]
                same(b, {k: paddle.full([3, 4], float(v)) for k, v in ({"w": 9, **there} if extra else there).items()})
                if extra or set(want) <= set(full):  # Paddle 3.3 renames only beside a key that it finds by its own name
                    same(b, a)
                else:
                    assert isinstance(a, KeyError), (want, a)


def offloaded_values_arrive(path):
    """What is read waits in the host's memory for its tensor: the same values in the same places."""
    state = whole(3)
    dist.save_state_dict(state, path)
    for value in (True, False):
        a, b = whole(3, empty=True), whole(3, empty=True)
        places = {k: (v.data_ptr(), v.place) for k, v in b.items()}
        by_paddle(a, path, offload=value)
        by_dcpfs(b, path, offload=value)
        same(b, a)
        same(b, state)
        assert places == {k: (v.data_ptr(), v.place) for k, v in b.items()}


# ---- ranks ----

class Net(paddle.nn.Layer):
    """Sizes that no number of ranks divides."""

    def __init__(self, mesh, rows, columns):
        super().__init__()
        self.up, self.down, self.norm = paddle.nn.Linear(13, 22), paddle.nn.Linear(22, 5), paddle.nn.LayerNorm(13)
        flat = [R] * len(mesh.shape)
        for layer, name, placements in ((self.up, "weight", columns), (self.down, "weight", rows), (self.up, "bias", flat),
                                        (self.down, "bias", flat), (self.norm, "weight", flat), (self.norm, "bias", flat)):
            setattr(layer, name, dist.shard_tensor(getattr(layer, name), mesh, placements))

    def forward(self, x):
        return self.down(paddle.nn.functional.relu(self.up(self.norm(x))))


WAYS = {"rows": ([S(0)], [S(0)]), "columns": ([S(0)], [S(1)]), "copies": ([R], [R])}
SQUARE = {"rows": ([R, S(0)], [R, S(0)]), "columns": ([R, S(0)], [R, S(1)])}
EXTRAS = {"rows": [(S(0), S(1)), (S(1), R), (R, S(1))], "columns": [(S(1), S(0)), (R, S(0)), (S(0), R)], "copies": [(R, R)] * 3}


def meshes(world, way):
    if world == 4:
        return dist.ProcessMesh([[0, 1], [2, 3]], dim_names=["dp", "mp"]), *SQUARE[way]
    return dist.ProcessMesh(list(range(world))), *WAYS[way]


def trained(world, way, seed, steps):
    mesh, rows, columns = meshes(world, way)
    paddle.seed(seed)
    net = Net(mesh, rows, columns)
    optimizer = dist.shard_optimizer(paddle.optimizer.AdamW(0.01, parameters=net.parameters()))
    for _ in range(steps):
        (net(dist.shard_tensor(paddle.randn([6, 13]), mesh, [R] * len(mesh.shape))) ** 2).mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    state = {f"net.{k}": v for k, v in net.state_dict().items()}
    names = {v.name: k for k, v in net.state_dict().items()}
    for k, v in optimizer.state_dict().items():  # by names of parameters, which a second model has others of
        if isinstance(v, paddle.Tensor):
            owner = max((n for n in names if k.startswith(n)), key=len)
            state[f"opt.{names[owner]}{k[len(owner):]}"] = v
    for i, (placements, shape) in enumerate(zip(EXTRAS[way], [(13, 7), (5, 2), (3, 9, 5)])):
        state[f"extra.{i}"] = dist.shard_tensor(paddle.randn(shape), mesh, placements[:len(mesh.shape)])
    state["mine"] = dist.shard_tensor(paddle.randn([5, 2]), dist.ProcessMesh([world - 1]), [S(0)])
    # Paddle 3.3 fills nothing, in silence, where one process has distributed tensors
    return state if world > 1 else {k: v._local_value() for k, v in state.items()}


def save(world, way, path):
    dist.save_state_dict(trained(world, way, 1, 3), path)


def load(world, way, path):
    other = trained(world, way, 2, 1)
    assert len(other) > 20
    by_paddle(other, path)
    for how in ({"offload": True}, {"exchange": "never"}, {"exchange": "node"}):
        ours = trained(world, way, 2, 1)
        by_dcpfs(ours, path, **how)
        n = same(ours, other)
    want = dict(ours)
    if dist.get_rank() == 0:
        want["net.norm.weigth"] = paddle.zeros([13])
    before = {k: bits(v) for k, v in ours.items() if v._is_initialized()}
    failure = outcome(by_dcpfs, lambda: want, path)
    assert isinstance(failure, dcpfs.DcpfsError) and isinstance(failure, KeyError) and 'Nearest: "net.norm.weight"' in failure.text, failure
    assert before == {k: bits(v) for k, v in ours.items() if v._is_initialized()}
    return n


def ids(world, way, path):
    """Ranks that ask for different saves: none loads anything."""
    for n in (4, 5):
        dist.save_state_dict({"w": paddle.full([3, 4], float(n))}, path, unique_id=n)
    state = zeros("w")()
    failure = outcome(by_dcpfs, lambda: state, path, unique_id=4 + dist.get_rank())
    assert isinstance(failure, AssertionError) and "rank 1 opens version 5.metadata" in str(failure), failure
    assert not state["w"].any()
    for n in (4, 5):
        by_dcpfs(state, path, unique_id=n)
        same(state, {"w": paddle.full([3, 4], float(n))})
    return 1


def flat(world, way, path):
    """Runs of flattened tensors, as sharding stage 1 keeps optimizer state, and boxes."""
    def state(cuts, fill):
        rank, out = dist.get_rank(), {}
        for name, shape in (("moment", (7, 5)), ("deep", (3, 4, 2))):
            n = int(np.prod(shape))
            ends = [0, *(n * c // 10 for c in cuts), n]
            lo, hi = ends[rank], ends[rank + 1]
            data = paddle.arange(n, dtype="float32")[lo:hi] if fill else paddle.zeros([hi - lo])
            out[name] = ShardedWeight(name, data.contiguous(), shape, shape, (0,) * len(shape), True, slice(lo, hi))
        lo, hi = [0, 3, 8][rank:rank + 2] if fill else [0, 6, 8][rank:rank + 2]
        data = paddle.arange(24, dtype="float32").reshape([8, 3])[lo:hi].contiguous()
        out["box"] = ShardedWeight("box", data if fill else paddle.zeros_like(data), (hi - lo, 3), (8, 3), (lo, 0))
        return out

    dist.save_state_dict(state([3], True), path)
    dist.barrier()
    ours, truth = state([8], False), state([8], True)
    by_dcpfs(ours, path)
    n = same({k: v for k, v in ours.items() if k != "box"}, {k: v for k, v in truth.items() if k != "box"})
    lo = ours["box"].global_offset[0]
    assert ours["box"].local_tensor.numpy().tolist() == np.arange(24.).reshape(8, 3)[lo:lo + ours["box"].local_shape[0]].tolist()
    return n + 1


def twice(world, way, path):
    """A dimension that two dimensions of the mesh cut, which Paddle 3.3 itself cannot load."""
    mesh = dist.ProcessMesh([[0, 1], [2, 3]])
    full = {str(n): paddle.arange(n * 2, dtype="float32").reshape([n, 2]) for n in (5, 8, 13)}
    dist.save_state_dict({k: dist.shard_tensor(v, mesh, [S(0), R]) for k, v in full.items()}, path)
    dist.barrier()
    ours = {k: dist.shard_tensor(paddle.zeros_like(v), mesh, [S(0), S(0)]) for k, v in full.items()}
    by_dcpfs(ours, path)
    return same(ours, {k: dist.shard_tensor(v, mesh, [S(0), S(0)]) for k, v in full.items()})


CASES = [("save", "rows", 2), ("load", "columns", 2), ("load", "copies", 3), ("load", "rows", 4), ("load", "copies", 1),
         ("ids", "", 2), ("flat", "", 2), ("twice", "", 4), ("save", "rows", 4), ("load", "columns", 4), ("load", "rows", 2)]


def main():
    if len(sys.argv) > 1:
        work, way, world, path = sys.argv[1:]
        if int(world) > 1:
            dist.init_parallel_env()
        n = globals()[work](int(world), way, path)
        if n:
            print(f"  {way or work} x {world}: {n} tensors equal", flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="dcpfs-paddle-") as scratch:
        for test in one_process_loads_its_save, the_largest_unique_id_is_newest, other_master_names_are_found, offloaded_values_arrive:
            test(f"{scratch}/{test.__name__}")
            print(f"one process, {test.__name__}: equal", flush=True)
        path = ""
        for i, (work, way, world) in enumerate(CASES):
            print(work, way, world, flush=True)
            path = path if work == "load" else f"{scratch}/{i}"
            paddle_ranks.run(world, ["-B", __file__, work, way, str(world), path], f"{scratch}/log")
            print("".join(line for line in open(f"{scratch}/log.0") if "equal" in line), end="", flush=True)
    print("all equal")


if __name__ == "__main__":
    main()
