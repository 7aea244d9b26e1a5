# SPDX-License-Identifier: Apache-2.0
"""Paddle distributed checkpoints written by several CPU ranks (gloo), the truth read back by Paddle itself.

  packages   paddlepaddle==3.3.1 (also run with 3.2.1, 3.1.1, 3.0.0, 2.6.2), safetensors, numpy; Python 3.11 (2.6.2: 3.10, numpy<2, setuptools)
  run        python paddle_dist.py            makes every fixture in SPECS whose "paddle" equals the installed version
             python paddle_dist.py NAME...    only these
  writes     ../golden/NAME/ckpt, ../golden/NAME/manifest.json; a single unique id goes to a directory of its name

The ranks are real processes (paddle_ranks.py sets what paddle.distributed.launch sets). Sharding on the CPU is done by dist.shard_tensor where the CPU
kernel exists (f32, f64, ints, bool) and by handing each rank its local piece otherwise (bf16, f16, complex, fp8: "Slice is not implemented").
The truth: a fresh process per unique_id calls paddle.distributed.load_state_dict into poisoned full tensors; compared with the values that were put in.
"""
import json
import os
import shutil
import sys
import tempfile
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from fw_common import ST, entry, f32_to_bf16, fresh, sha, value, write_manifest  # noqa: E402

OUT = os.path.join(os.path.dirname(HERE), "golden")
RUN = os.path.join(tempfile.gettempdir(), "paddle-golden")
LONG = "encoder." + "very_long_block_name." * 14 + "weight"

M4, M22, M2x2 = [0, 1, 2, 3], [[0, 1], [2, 3]], [[0, 1], [2, 3]]


def T(path, dtype, shape, mesh=None, pl=None, local=False):
    return {"path": path if isinstance(path, list) else [path], "dtype": dtype, "shape": list(shape), "mesh": mesh, "pl": pl, "local": local}


ALL = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128",
       "float8_e4m3fn", "float8_e5m2"]
SYN_A = [T(["model", f"dtypes.{d}"], d, (7, 5), M4, "S0") for d in ALL] + [
    T(["model", "uneven.9over4"], "float32", (9, 2), M4, "S0"),            # 3,3,3,0: the last rank holds an empty piece
    T(["model", "uneven.3over4"], "int64", (3, 2), M4, "S0"),              # 1,1,1,0
    T(["model", "uneven.13over4"], "bfloat16", (3, 13), M4, "S1"),         # 4,4,4,1 along the last dimension
    T(["model", "conv5d.weight"], "float32", (5, 3, 2, 3, 2), M4, "S1", True),
    T(["model", "mid.dim"], "float16", (3, 11, 2), M4, "S1"),
    T(["model", "replicated"], "float32", (17,), M4, "R"),
    T(["model", "one"], "float32", (1,), M4, "R"),
    T(["model", "scalar"], "float32", (), M4, "R"),
    T(["model", "scalar.bf16"], "bfloat16", (), None, None),
    T(["model", "empty"], "float32", (0, 3), M4, "S0"),
    T(["model", "plain tensor, not distributed"], "int32", (4, 3), None, None),
    T(["model", "with/slash/and space"], "float32", (6, 4), M4, "S0"),
    T(["model", "Größe.権重.🙂"], "float64", (5, 4), M4, "S1"),
    T(["model", LONG], "float32", (4, 2), M4, "S0"),
]
SYN_B = [
    T(["model", "layers.0.qkv.weight"], "bfloat16", (13, 7), M2x2, "S0,S1"),
    T(["model", "layers.0.proj.weight"], "float32", (13, 7), M2x2, "S1,S0"),
    T(["model", "layers.0.ln"], "float32", (11,), M2x2, "R,S0"),
    T(["model", "layers.0.bias"], "float16", (11,), M2x2, "R,R"),
    T(["model", "emb"], "float32", (23, 3), M2x2, "S0,R"),
    T(["model", "norm"], "float64", (1,), M2x2, "R,R"),
    T(["opt", "master_weights", "linear_0.w_0"], "float32", (13, 7), M2x2, "S0,S1"),
    T(["opt", "linear_0.w_0_moment1_0"], "float32", (13, 7), M2x2, "S0,S1"),
    T(["opt", "linear_0.w_0_moment2_0"], "float32", (13, 7), M2x2, "S0,S1"),
    T(["opt", "linear_0.w_0_beta1_pow_acc_0"], "float32", (1,), M2x2, "R,R"),
    T(["opt", "linear_0.w_0_beta2_pow_acc_0"], "float32", (), M2x2, "R,R"),
    T(["opt", "linear_1.w_0_fp32_master_0"], "float32", (23, 3), M2x2, "S0,R"),
    T(["deep", "a", "b.c", "d"], "int64", (5, 2), M2x2, "S0,S1"),
]
SYN_C = [  # two pipeline stages with their own meshes, and a tensor on a mesh with a hole in it
    T(["stage0", "w"], "float32", (7, 3), [0, 1], "S0"),
    T(["stage0", "b"], "float32", (3,), [0, 1], "R"),
    T(["stage1", "w"], "bfloat16", (3, 9), [2, 3], "S1"),
    T(["stage1", "b"], "float16", (9,), [3], "R"),
    T(["sub"], "int32", (10, 2), [0, 2, 3], "S0"),
]
OLD = [t for t in SYN_A if t["dtype"] in ("float32", "float64", "int64", "int32", "bool", "bfloat16", "float16") and 0 not in t["shape"]
       and t["path"][-1] not in ("uneven.9over4", "uneven.3over4", "scalar")]

def old26(t):
    """2.6: no 16-bit CPU kernel to cut with, and a cut dimension must divide evenly"""
    t = dict(t, local=False, shape=list(t["shape"]))
    if t["pl"] and "16" in t["dtype"]:
        t["pl"] = "R"
    if t["pl"] and t["pl"][0] == "S":
        d = int(t["pl"][1:])
        t["shape"][d] += t["shape"][d] % 2
    return t


OLD26 = [old26(t) for t in OLD]

SPECS = [
    {"name": "paddle-dist", "paddle": "3.3.1", "ws": 4, "about":
        "One directory with unique_id 0, 1, 2. 0: a trained MLP and its AdamW state on a 2x2 (dp, mp) mesh plus every dtype, uneven, empty, 0-d, odd keys; "
        "1: 2x2 mesh with Shard on both dims, bf16 + master weights, nested keys that contain dots; 2: tensors on different meshes (some ranks hold nothing), async save.",
     "versions": [{"uid": 0, "net": True, "tensors": SYN_A}, {"uid": 1, "tensors": SYN_B}, {"uid": 2, "tensors": SYN_C, "async": True}],
     "layouts": [{"uid": 0, "ws": 3, "pl": "S1"}, {"uid": 1, "ws": 2, "pl": "S0"}]},
    {"name": "paddle-dist-st", "paddle": "3.3.1", "ws": 3, "about":
        "save_state_dict(safetensors=True): pieces in {rank}_{uid}.safetensors, metadata still a pickle {uid}.metadata.",
     "versions": [{"uid": 4, "safetensors": True, "tensors": [T(["m", f"d.{d}"], d, (5, 4), [0, 1, 2], "S0") for d in
                   ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]] + [
                   T(["m", "cols"], "float32", (3, 10), [0, 1, 2], "S1"), T(["m", "rep"], "bfloat16", (7,), [0, 1, 2], "R"),
                   T(["m", "scalar"], "float32", (), [0, 1, 2], "R")]}]},
    {"name": "paddle-dist-flat", "paddle": "3.3.1", "ws": 3, "about":
        "ShardedWeight state dict with is_flattened / flattened_range (sharding stage 1 v2 optimizer state: each rank a run of the row-major flattening of a "
        "block, cut in mid-row; the block itself may be a tensor-parallel half). unique_id 0 plain, 1 with save_replicas=True (replica_id 0, 1, 2).",
     "versions": [{"uid": 0, "flat": True}, {"uid": 1, "flat": True, "replicas": True}]},
    {"name": "paddle-dist-32", "paddle": "3.2.1", "ws": 3, "about":
        "Paddle 3.2.1: metadata with global_shape but no flattened fields; flattened ShardedWeights are turned into (overlapping) boxes while saving.",
     "versions": [{"uid": 0, "tensors": OLD}, {"uid": 7, "flat": True}]},
    {"name": "paddle-dist-32st", "paddle": "3.2.1", "ws": 2, "about": "Paddle 3.2.1 save_state_dict(safetensors=True): safetensors bytes under the name {rank}_{uid}.distcp.",
     "versions": [{"uid": 0, "safetensors": True, "tensors": [T(["m", f"d.{d}"], d, (5, 4), [0, 1], "S0") for d in
                   ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]] + [T(["m", "cols"], "float32", (3, 9), [0, 1], "S1"),
                   T(["m", "rep"], "bfloat16", (7,), [0, 1], "R")]}]},
    {"name": "paddle-dist-30", "paddle": "3.0.0", "ws": 4, "about": "Paddle 3.0.0: old module path, dtype in the metadata, flat_mapping filled.",
     "versions": [{"uid": 0, "net": True, "tensors": OLD}, {"uid": 1, "tensors": [t for t in SYN_B if t["path"][-1] != "linear_0.w_0_beta2_pow_acc_0"]}]},
    {"name": "paddle-dist-26", "paddle": "2.6.2", "ws": 2, "about":
        "Paddle 2.6.2: the oldest metadata (no dtype, no flat_mapping, global_offset sometimes a list), no unique_id argument: the id counts up by itself; replicated tensors "
        "are stored by every rank.",
     "versions": [{"uid": 0, "tensors": OLD26, "mesh_map": [0, 1]}, {"uid": 1, "mesh_map": [0, 1], "tensors": [
         T(["model", "w"], "float32", (6, 4), [0, 1], "S0"), T(["model", "cols"], "float32", (7, 6), [0, 1], "S1"),
         T(["opt", "w_moment1_0"], "float32", (6, 4), [0, 1], "S0"), T(["rep"], "float64", (5,), [0, 1], "R")]}]},
]


# ---------------------------------------------------------------------------------------------------- inside a rank
def env():
    import paddle
    import paddle.distributed as dist
    paddle.set_device("cpu")
    paddle.Tensor.cuda = lambda self, *a, **k: self     # the loaders' exchange step insists on a GPU; on the CPU the tensor is already in place
    if paddle.__version__.startswith("3.2"):            # the same step, CPU branch, forgets to unwrap a ShardedWeight
        orig = paddle.assign
        paddle.assign = lambda x, output=None: orig(x, getattr(output, "local_tensor", output))
    return paddle, dist


def to_paddle(paddle, arr, dtype):
    """exact bits from our storage array"""
    a = np.ascontiguousarray(arr).reshape(np.asarray(arr).shape)
    if dtype == "bfloat16":
        t = paddle.to_tensor(a.view("<i2") if a.dtype == np.dtype("<u2") else a)
        try:
            return t.view("bfloat16") if a.ndim else t.reshape([1]).view("bfloat16").reshape([])
        except Exception:
            f = (np.asarray(a).astype(np.uint32) << 16).view(np.float32).reshape(a.shape)
            return paddle.cast(paddle.to_tensor(f), "bfloat16")
    if dtype.startswith("float8"):
        return paddle.to_tensor(a).view(dtype)
    if a.size == 0:
        return paddle.empty(list(a.shape), dtype=dtype)
    return paddle.to_tensor(a)


def from_paddle(paddle, t, dtype):
    st = ST[dtype][1]
    if dtype.startswith("float8"):
        return t.view("uint8").numpy()
    a = t.numpy()
    if dtype == "bfloat16" and a.dtype != np.dtype("<u2"):
        a = a.view("<u2")
    assert a.dtype == np.dtype(st), (a.dtype, st)
    return a


def placements(dist, pl):
    return [dist.Replicate() if p == "R" else dist.Shard(int(p[1:])) for p in pl.split(",")]


def piece(full, mesh, pl, rank):
    """what `rank` holds by Paddle's own rule (ceil chunks; the last gets the rest)"""
    m = np.array(mesh)
    pos = np.argwhere(m == rank)
    if len(pos) == 0:
        return None
    out = full
    for ax, p in enumerate(pl.split(",")):
        if p == "R":
            continue
        d = int(p[1:])
        c = -(-out.shape[d] // m.shape[ax])
        lo = min(out.shape[d], c * int(pos[0][ax]))
        out = np.take(out, range(lo, min(out.shape[d], lo + c)), axis=d)
    return out


def dist_tensor(paddle, dist, full, t, mesh, rank):
    if mesh is None:
        return to_paddle(paddle, full, t["dtype"])
    pm = dist.ProcessMesh(mesh)
    pls = placements(dist, t["pl"])
    slow = not paddle.__version__.startswith("2.") and t["dtype"] in ("bfloat16", "float16", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2") or t["local"]
    if not slow and ("S" in t["pl"] or paddle.__version__.startswith("2.")):
        return dist.shard_tensor(to_paddle(paddle, full, t["dtype"]), pm, pls)
    loc = piece(full, mesh, t["pl"], rank)
    if loc is None:
        if not slow or t["pl"] == "R":
            return dist.shard_tensor(to_paddle(paddle, full, t["dtype"]), pm, pls)
        return None     # this rank is not in the mesh: it has no such tensor
    return paddle.Tensor(to_paddle(paddle, loc, t["dtype"]), dims=list(full.shape), process_mesh=pm, placements=pls,
                         place=paddle.CPUPlace())


def nest(d, path, v):
    for p in path[:-1]:
        d = d.setdefault(p, {})
    d[path[-1]] = v


def train(paddle, dist, ws):
    import paddle.nn as nn
    mesh = dist.ProcessMesh(np.arange(ws).reshape(2, -1), dim_names=["dp", "mp"])
    R, S = dist.Replicate(), dist.Shard
    paddle.seed(7)

    class Net(nn.Layer):
        def __init__(s):
            super().__init__()
            s.up, s.down, s.norm = nn.Linear(13, 22), nn.Linear(22, 5), nn.LayerNorm(13)
            for lay, name, p in ((s.up, "weight", S(1)), (s.up, "bias", S(0)), (s.down, "weight", S(0)), (s.down, "bias", R),
                                 (s.norm, "weight", R), (s.norm, "bias", R)):
                setattr(lay, name, dist.shard_tensor(getattr(lay, name), mesh, [R, p]))

        def forward(s, x):
            return s.down(nn.functional.relu(s.up(s.norm(x))))
    net = Net()
    opt = dist.shard_optimizer(paddle.optimizer.AdamW(0.01, parameters=net.parameters()))
    for i in range(3):
        x = dist.shard_tensor(paddle.randn([6, 13]), mesh, [R, R])
        (net(x) ** 2).mean().backward()
        opt.step()
        opt.clear_grad()
    sd = {k: v for k, v in opt.state_dict().items() if isinstance(v, paddle.Tensor)}
    return net.state_dict(), sd


FLAT_PLAN = [("linear_0.w_0.moment1_0", "float32", (7, 5), [((0, 0), (7, 5), [0, 13, 24, 35])]),
             ("linear_0.w_0.moment2_0", "float32", (7, 5), [((0, 0), (7, 5), [0, 13, 24, 35])]),
             ("linear_1.w_0.w_0", "float32", (6, 4, 3), [((0, 0, 0), (6, 4, 3), [0, 31, 60, 72])]),
             ("even.rows", "float32", (6, 4), [((0, 0), (6, 4), [0, 8, 16, 24])]),
             ("bf16.flat", "bfloat16", (5, 4), [((0, 0), (5, 4), [0, 6, 12, 20])]),
             ("two.of.three", "float32", (5, 3), [((0, 0), (5, 3), [0, 4, 15, 15])]),
             ("one.d", "float32", (17,), [((0,), (17,), [0, 6, 12, 17])])]


def flat_weights(paddle, salt, ws, rank):
    """(key, dtype, global shape, block offset, block shape, cuts) of a sharding-v2-like optimizer state"""
    from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
    sd, truth = {}, []
    for key, dt, shape, blocks in FLAT_PLAN:
        full = value(salt, key, dt, shape)
        truth.append((key, [key], dt, full))
        (off, bshape, cuts), = blocks
        lo, hi = cuts[rank], cuts[rank + 1]
        if lo < hi:
            sd[key] = ShardedWeight(key, to_paddle(paddle, full.reshape(-1)[lo:hi], dt), bshape, shape, off, True, slice(lo, hi))
    # tensor-parallel halves, the second cut flat between ranks 1 and 2
    key, dt, shape = "tp.half", "float32", (8, 5)
    full = value(salt, key, dt, shape)
    truth.append((key, [key], dt, full))
    if rank == 0:
        sd[key] = ShardedWeight(key, to_paddle(paddle, full[:3].reshape(-1), dt), (3, 5), shape, (0, 0), True, slice(0, 15))
    else:
        cut = [(0, 11), (11, 25)][rank - 1]
        sd[key] = ShardedWeight(key, to_paddle(paddle, full[3:].reshape(-1)[cut[0]:cut[1]], dt), (5, 5), shape, (3, 0), True, slice(*cut))
    # ordinary boxes and replicas beside them
    key, shape = "box", (6, 5)
    full = value(salt, key, "float32", shape)
    truth.append((key, [key], "float32", full))
    sd[key] = ShardedWeight(key, to_paddle(paddle, full[2 * rank:2 * rank + 2], "float32"), (2, 5), shape, (2 * rank, 0))
    for key, dt, shape in (("rep.f32", "float32", (3, 3)), ("rep.bf16", "bfloat16", (9,)), ("beta1_pow_acc_0", "float32", (1,))):
        full = value(salt, key, dt, shape)
        truth.append((key, [key], dt, full))
        sd[key] = ShardedWeight(key, to_paddle(paddle, full, dt), shape, shape, (0,) * len(shape))
    return sd, truth


def rank_save(spec, v, ckpt):
    paddle, dist = env()
    if spec["ws"] > 1:
        dist.init_parallel_env()
    rank = dist.get_rank()
    salt = f"{spec['name']}/{v['uid']}"
    sd = {}
    if v.get("flat"):
        sd, _ = flat_weights(paddle, salt, spec["ws"], rank)
    if v.get("net"):
        model, opt = train(paddle, dist, spec["ws"])
        sd["net"], sd["opt"] = dict(model), opt
    for t in v.get("tensors", []):
        full = value(salt, ".".join(t["path"]), t["dtype"], t["shape"])
        mesh = t["mesh"]
        if mesh is not None and max(np.array(mesh).ravel()) >= spec["ws"] or ("mesh_map" in v and mesh is not None):
            mesh = v.get("mesh_map", list(range(spec["ws"])))
        x = dist_tensor(paddle, dist, full, t, mesh, rank)
        if x is not None:
            nest(sd, [".".join(t["path"])] if paddle.__version__.startswith("2.") else t["path"], x)     # 2.6 takes flat dicts only
    kw = {}
    if not paddle.__version__.startswith("2."):
        kw["unique_id"] = v["uid"]
    if v.get("async"):
        kw["async_save"] = True
        paddle.device.synchronize = lambda *a: None     # it refuses the CPU; nothing to wait for there
    if v.get("safetensors"):
        kw["safetensors"] = True
    if v.get("replicas"):
        kw["save_replicas"] = True
    dist.save_state_dict(sd, ckpt, **kw)
    if v.get("async"):
        try:
            from paddle.distributed.flex_checkpoint.dcp import save_state_dict as m
        except ImportError:
            from paddle.distributed.checkpoint import save_state_dict as m
        m.clear_async_save_task_queue()
    dist.barrier()


def key_info(paddle, dist, spec, v, ckpt):
    """{flat key: (path, dtype, shape)} out of Paddle's own metadata, and what was put in where we know it"""
    md = paddle.load(os.path.join(ckpt, f"{v['uid']}.metadata"))
    salt = f"{spec['name']}/{v['uid']}"
    put = {}
    for t in v.get("tensors", []):
        put[".".join(t["path"])] = (t["path"], t["dtype"], value(salt, ".".join(t["path"]), t["dtype"], t["shape"]))
    if v.get("flat"):
        for r in range(spec["ws"]):
            for key, path, dt, full in flat_weights(paddle, salt, spec["ws"], r)[1]:
                put[key] = (path, dt, full)
    info = {}
    for k, metas in md.state_dict_metadata.items():
        path = list((getattr(md, "flat_mapping", None) or {}).get(k, (k,)))
        g = getattr(metas[0], "global_shape", None)
        if g is None:
            nd = len(metas[0].local_shape)
            g = [max(m.global_offset[d] + m.local_shape[d] for m in metas) for d in range(nd)]
        dt = getattr(metas[0], "dtype", None) or (put[k][1] if k in put else "float32")
        info[k] = (path, dt, list(g))
    return md, info, put


def poison(paddle, dt, shape):
    n = int(np.prod(shape, dtype=np.int64))
    a = np.frombuffer(bytes([0x5A]) * (n * np.dtype(ST[dt][1]).itemsize), ST[dt][1] if dt != "bool" else "u1").reshape(shape)
    return to_paddle(paddle, (a & 1).astype(bool) if dt == "bool" else a.copy(), dt)


def by_hand(paddle, ckpt, md, key, dt, shape):
    """only where Paddle has no CPU kernel for slicing the dtype: whole pieces as paddle.load gives them, placed by the metadata's boxes"""
    full = np.zeros(shape, ST[dt][1])
    for idx, fn in md.storage_metadata.items():
        if idx.tensor_key != key:
            continue
        data = paddle.load(os.path.join(ckpt, fn))[key]
        a = from_paddle(paddle, data, dt) if hasattr(data, "numpy") else np.asarray(data)
        full[tuple(slice(o, o + n) for o, n in zip(idx.global_offset, a.shape))] = a
    return full


def one_truth(spec, v, ckpt, out):
    paddle, dist = env()
    md, info, put = key_info(paddle, dist, spec, v, ckpt)
    tens, notes = [], {}
    st = v.get("safetensors", False)
    for k, (path, dt, shape) in info.items():
        how = None
        try:
            kw = {}
            if not paddle.__version__.startswith("2."):
                kw["unique_id"] = v["uid"]
            if st:
                kw["safetensors"] = True
            t = poison(paddle, dt, shape)
            sd = {k: t}
            if v.get("flat") and paddle.__version__ >= "3.3":
                from paddle.distributed.flex_checkpoint.dcp.sharded_weight import make_replicated_sharded_weight as mk
                sd = {k: mk(k, t)}
            dist.load_state_dict(sd, ckpt, **kw)
            x = sd[k]
            x = x.local_tensor if hasattr(x, "local_tensor") else x
            a = from_paddle(paddle, x, dt)
            if k in put and a.tobytes() != put[k][2].tobytes():
                how = "load_state_dict gives other bytes than were saved"
                raise RuntimeError(how)
        except Exception as e:
            how = "%s: %s" % (type(e).__name__, " ".join(str(e).split())[-160:])
            a = by_hand(paddle, ckpt, md, k, dt, shape) if not v.get("flat") else put[k][2]
            if k in put and a.tobytes() != put[k][2].tobytes():
                raise SystemExit(f"{k}: neither load_state_dict ({how}) nor the pieces agree with what was saved")
            how = "Paddle's CPU loader cannot read it (" + how + "); pieces from paddle.load placed by the metadata, equal to what was saved"
        e = entry(k, path, dt, a)
        if how:
            e["truth"] = how
        tens.append(e)
    files = sorted(set(md.storage_metadata.values()))
    m = {"name": str(v["uid"]), "unique_id": v["uid"], "complete": True, "files": [f"{v['uid']}.metadata"] + files, "tensors": tens}
    json.dump(m, open(out, "w"))


def rank_layout(spec, lay, ckpt, out):
    paddle, dist = env()
    dist.init_parallel_env()
    rank, ws = dist.get_rank(), lay["ws"]
    v = next(x for x in spec["versions"] if x["uid"] == lay["uid"])
    md, info, put = key_info(paddle, dist, spec, v, ckpt)
    mesh = dist.ProcessMesh(list(range(ws)))
    sd, keep = {}, {}
    for k, (path, dt, shape) in info.items():
        d = int(lay["pl"][1:])
        ok = dt in ("float32", "float64", "int64", "int32") and len(shape) > d and 0 not in shape
        if not ok or -(-shape[d] // ws) * (ws - 1) > shape[d]:
            continue
        sd[k] = dist.shard_tensor(poison(paddle, dt, shape), mesh, [dist.Shard(d)])     # flat: 3.3.1 saves nested dicts but refuses to load into them
        keep[k] = (path, dt)
    dist.load_state_dict(sd, ckpt, unique_id=v["uid"])
    res = []
    for k, (path, dt) in keep.items():
        a = from_paddle(paddle, sd[k]._local_value(), dt)
        b = np.ascontiguousarray(a).tobytes()
        res.append({"layout": "dim%dx%d" % (int(lay["pl"][1:]), ws), "rank": rank, "key": k, "shape": list(a.shape), "sha256": sha(b)})
        if k in put:
            want = piece(put[k][2], list(range(ws)), lay["pl"], rank)
            assert want.tobytes() == b, f"layout {lay} key {k}"
    json.dump(res, open(f"{out}.{rank}", "w"))


# ---------------------------------------------------------------------------------------------------- the driver
def install(run, dest):
    shutil.copytree(os.path.join(run, "ckpt"), os.path.join(fresh(dest), "ckpt"))
    shutil.copy(os.path.join(run, "manifest.json"), dest)


def main(names):
    import paddle
    import subprocess
    import paddle_ranks
    try:
        from safetensors import __version__ as stv
    except ImportError:
        stv = None
    for spec in SPECS:
        if spec["paddle"] != paddle.__version__ or (names and spec["name"] not in names):
            continue
        run = fresh(f"{RUN}/{spec['name']}")
        ckpt = f"{run}/ckpt"
        os.makedirs(ckpt)
        me = os.path.abspath(sys.argv[0])
        i = SPECS.index(spec)
        for j, v in enumerate(spec["versions"]):
            paddle_ranks.run(spec["ws"], [me, "--save", str(i), str(j), ckpt], f"{run}/save{j}.log")
        versions = []
        for j, v in enumerate(spec["versions"]):
            r = subprocess.run([sys.executable, me, "--truth", str(i), str(j), ckpt, f"{run}/truth{j}.json"], capture_output=True, text=True,
                               env=dict(os.environ, GLOG_minloglevel="2"))
            if r.returncode:
                raise SystemExit(r.stdout[-2000:] + r.stderr[-3000:])
            versions.append(json.load(open(f"{run}/truth{j}.json")))
        for n, lay in enumerate(spec.get("layouts", [])):
            paddle_ranks.run(lay["ws"], [me, "--layout", str(i), str(n), ckpt, f"{run}/lay{n}"], f"{run}/lay{n}.log")
            ver = next(x for x in versions if x["unique_id"] == lay["uid"])
            for r in range(lay["ws"]):
                ver.setdefault("shards", []).extend(json.load(open(f"{run}/lay{n}.{r}")))
        m = {"name": spec["name"], "format": "paddle-dist", "frameworks": {"paddlepaddle": paddle.__version__, "numpy": np.__version__,
             "python": "%d.%d" % sys.version_info[:2], "safetensors": stv}, "world_size": spec["ws"], "about": spec["about"],
             "versions": versions}
        if len(versions) == 1:
            names, below = os.listdir(ckpt), os.path.join(ckpt, versions[0]["name"])
            os.mkdir(below)
            for name in names:
                os.rename(os.path.join(ckpt, name), os.path.join(below, name))
        write_manifest(f"{run}/manifest.json", m)
        install(run, os.path.join(OUT, spec["name"]))


if __name__ == "__main__":
    a = sys.argv[1:]
    if a and a[0] == "--save":
        rank_save(SPECS[int(a[1])], SPECS[int(a[1])]["versions"][int(a[2])], a[3])
    elif a and a[0] == "--truth":
        one_truth(SPECS[int(a[1])], SPECS[int(a[1])]["versions"][int(a[2])], a[3], a[4])
    elif a and a[0] == "--layout":
        rank_layout(SPECS[int(a[1])], SPECS[int(a[1])]["layouts"][int(a[2])], a[3], a[4])
    else:
        main(a)
