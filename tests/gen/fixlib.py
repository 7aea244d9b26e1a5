# SPDX-License-Identifier: Apache-2.0
"""Helpers shared by the generators of the golden checkpoints: random values, digests, manifests.

Works with torch 2.1 .. 2.15 and numpy.  Nothing here parses a checkpoint: every
manifest is made from what the framework itself loads.
"""
import base64
import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch

NAMES = {}
for _t, _n in [
    ("float64", "F64"), ("float32", "F32"), ("float16", "F16"), ("bfloat16", "BF16"),
    ("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2"),
    ("float8_e4m3fnuz", "F8_E4M3FNUZ"), ("float8_e5m2fnuz", "F8_E5M2FNUZ"),
    ("float8_e8m0fnu", "F8_E8M0"), ("float4_e2m1fn_x2", "F4"),
    ("int64", "I64"), ("int32", "I32"), ("int16", "I16"), ("int8", "I8"),
    ("uint8", "U8"), ("uint16", "U16"), ("uint32", "U32"), ("uint64", "U64"),
    ("bool", "BOOL"), ("complex64", "C64"), ("complex128", "C128"), ("complex32", "C32"),
]:
    if hasattr(torch, _t):
        NAMES[getattr(torch, _t)] = _n


def here():
    """Directory that holds the golden checkpoints."""
    return Path(os.environ.get("GOLDEN", Path(__file__).resolve().parent.parent / "golden"))


def fresh(name):
    """Neutral directory where the framework writes; paths end up in pickles."""
    d = Path(tempfile.gettempdir()) / "run" / name
    shutil.rmtree(d, ignore_errors=True)
    d.mkdir(parents=True)
    return d


def publish(name, src):
    """Copies what was written to <golden>/<name>/ckpt."""
    out = here() / name
    out.mkdir(parents=True, exist_ok=True)
    dst = out / "ckpt"
    shutil.rmtree(dst, ignore_errors=True)
    shutil.copytree(src, dst, symlinks=True)
    return out


# ---------------------------------------------------------------- values

def gen(seed):
    g = torch.Generator()
    g.manual_seed(seed)
    return g


def seed_of(*what):
    return int.from_bytes(hashlib.sha256("\0".join(map(str, what)).encode()).digest()[:6], "little")


def rnd(key, shape, dtype=torch.float32, specials=True, salt=""):
    """Random tensor that depends only on (key, salt); every bit pattern class occurs."""
    g = gen(seed_of(key, salt))
    shape = tuple(shape)
    n = 1
    for s in shape:
        n *= s
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=g, dtype=torch.uint8).bool()
    size = torch.empty((), dtype=dtype).element_size()
    if dtype.is_floating_point and dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        t = (torch.randn(shape, generator=g, dtype=torch.float32) * 0.7).to(dtype)
        if specials and n >= 8:
            f = t.reshape(-1).clone()
            tiny = torch.finfo(dtype).smallest_normal if hasattr(torch.finfo(dtype), "smallest_normal") else torch.finfo(dtype).tiny
            sp = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0, 0.0], dtype=torch.float64).to(dtype)
            f[1:6] = sp
            f[6] = torch.tensor(tiny, dtype=torch.float64).to(dtype) / 4
            f[7] = torch.finfo(dtype).max
            t = f.reshape(shape)
        return t
    if dtype.is_complex:
        half = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, torch.float16)
        re = rnd(key + "/re", shape, half, specials, salt)
        im = rnd(key + "/im", shape, half, specials, salt)
        return torch.view_as_complex(torch.stack([re, im], -1))
    # every other dtype: raw random bytes
    raw = torch.randint(0, 256, (n * size,), generator=g, dtype=torch.uint8)
    if dtype == torch.uint8:
        return raw.reshape(shape)
    if n == 0:
        return torch.empty(shape, dtype=dtype)
    return raw.view(dtype).reshape(shape)


# ---------------------------------------------------------------- digests

def raw_bytes(t):
    """C-order little-endian bytes of a dense tensor."""
    t = t.detach()
    if hasattr(t, "is_conj") and t.is_conj():
        t = t.resolve_conj()
    if hasattr(t, "resolve_neg"):
        t = t.resolve_neg()
    t = t.cpu()
    if t.numel() == 0:
        return b""
    if t.is_complex():
        t = torch.view_as_real(t)
    t = t.contiguous()
    t = t.reshape(-1)
    if t.dtype == torch.bool:
        t = t.to(torch.uint8)
    if t.dtype != torch.uint8:
        t = t.view(torch.uint8)
    assert sys.byteorder == "little"
    return t.numpy().tobytes()


def sha(t):
    return hashlib.sha256(raw_bytes(t)).hexdigest()


def tensor_entry(key, path, t):
    b = raw_bytes(t)
    return {"key": key, "path": [str(p) for p in path], "dtype": NAMES[t.dtype], "shape": list(t.shape),
            "nbytes": len(b), "sha256": hashlib.sha256(b).hexdigest()}


class _No(Exception):
    pass


def _json(v):
    if v is None or isinstance(v, (bool, int, str)) and type(v) in (bool, int, str, type(None)):
        return v
    if type(v) is float:
        if not math.isfinite(v):
            raise _No
        return v
    if type(v) in (list, tuple) or isinstance(v, torch.Size):
        return [_json(x) for x in v]
    if isinstance(v, dict):
        out = {}
        for k, x in v.items():
            if type(k) not in (str, int, bool, float, type(None)):
                raise _No
            out[str(k)] = _json(x)
        return out
    raise _No


def object_entry(key, path, v):
    t = type(v)
    name = t.__name__ if t.__module__ in ("builtins",) else t.__module__ + "." + t.__name__
    e = {"key": key, "path": [str(p) for p in path], "type": name}
    try:
        e["json"] = _json(v)
    except _No:
        e["json"] = None
        if isinstance(v, (bytes, bytearray)):
            e["base64"] = base64.b64encode(bytes(v)).decode()
        elif isinstance(v, float):
            e["repr"] = repr(v)
    return e


def dump(path, manifest):
    """Writes the manifest with one list entry per line."""
    def one(o):
        return json.dumps(o, ensure_ascii=False, separators=(", ", ": "), allow_nan=False)
    head = {k: v for k, v in manifest.items() if k != "versions"}
    s = one(head)[:-1] + ",\n\"versions\": ["
    for i, v in enumerate(manifest["versions"]):
        s += ("," if i else "") + "\n{"
        first = True
        for k, x in v.items():
            s += ("" if first else ",\n ") + json.dumps(k) + ": "
            first = False
            if isinstance(x, list) and x:
                s += "[\n  " + ",\n  ".join(one(e) for e in x) + "]"
            else:
                s += one(x)
        s += "}"
    s += "\n]}\n"
    json.loads(s)
    Path(path).write_text(s, encoding="utf-8")


# ---------------------------------------------------------------- DCP

def dcp_load_all(path):
    """The nested state dict as torch.distributed.checkpoint loads it, whole, on one process."""
    from torch.distributed.checkpoint import FileSystemReader
    try:
        from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    except ImportError:
        return _dcp_load_old(path)
    sd = {}
    _load_state_dict(sd, storage_reader=FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return sd


def _dcp_load_old(path):
    """torch 2.1/2.2: no empty-state-dict planner; build the targets from the metadata and call load_state_dict."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    md = dcp.FileSystemReader(path).read_metadata()
    flat = {k: (torch.empty(v.size, dtype=v.properties.dtype) if isinstance(v, TensorStorageMetadata) else "<bytes>")
            for k, v in md.state_dict_metadata.items()}
    nested = unflatten_state_dict(flat, md.planner_data) if md.planner_data else flat
    dcp.load_state_dict(nested, dcp.FileSystemReader(path), no_dist=True)
    return nested


def get_path(root, path):
    for p in path:
        root = root[p]
    return root


def dcp_version(path, name, shards=(), keep=None, shard_keys=None):
    """One manifest version from a DCP directory. shards: list of (layout name, n, placements) 1-D or callables."""
    from torch.distributed.checkpoint import FileSystemReader
    md = FileSystemReader(path).read_metadata()
    nested = dcp_load_all(path)
    v = {"name": name, "complete": True, "tensors": [], "objects": [], "aliases": [], "shards": []}
    full = {}
    for key in sorted(md.state_dict_metadata):
        p = md.planner_data[key] if md.planner_data and key in md.planner_data else (key,)
        val = get_path(nested, p)
        if isinstance(val, torch.Tensor):
            v["tensors"].append(tensor_entry(key, p, val))
            full[key] = val
        else:
            v["objects"].append(object_entry(key, p, val))
    for layout in shards:
        v["shards"] += layout_shards(layout, {k: t for k, t in full.items() if shard_keys is None or shard_keys(k)})
    return v


def layout_shards(layout, full):
    """What every rank of a layout holds, by distribute_tensor over a fake process group.

    layout = {"name", "mesh": (n, ...), "names": (...), "place": function(key, tensor) -> placements or None}
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    try:
        from torch.distributed.tensor import distribute_tensor
    except ImportError:
        from torch.distributed._tensor import distribute_tensor
    from torch.distributed.device_mesh import init_device_mesh
    out = []
    n = math.prod(layout["mesh"])
    for r in range(n):
        dist.init_process_group("fake", rank=r, world_size=n, store=FakeStore())
        mesh = init_device_mesh("cpu", tuple(layout["mesh"]), mesh_dim_names=layout.get("names"))
        for key, t in full.items():
            pl = layout["place"](key, t)
            if pl is None:
                continue
            if t.dim() == 0:
                loc = t
            else:
                import inspect
                kw = {"src_data_rank": None} if "src_data_rank" in inspect.signature(distribute_tensor).parameters else {}
                loc = distribute_tensor(t.contiguous(), mesh, pl, **kw).to_local()
            out.append({"layout": layout["name"], "rank": r, "key": key, "shape": list(loc.shape), "sha256": sha(loc)})
        dist.destroy_process_group()
    return out


def fsdp(n, only=None):
    from torch.distributed.tensor import Shard
    return {"name": f"fsdp{n}", "mesh": (n,), "place": lambda k, t: [Shard(0)] if only is None or only(k) else None}


def dim(k, n):
    from torch.distributed.tensor import Shard
    return {"name": f"dim{k}x{n}", "mesh": (n,), "place": lambda key, t: [Shard(k)] if t.dim() > k else None}


# ---------------------------------------------------------------- processes

def _entry(rank, fn, world, port, args):
    import torch.distributed as dist
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        fn(rank, world, *args)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def spawn(fn, world, *args, port=29611):
    import torch.multiprocessing as mp
    mp.spawn(_entry, args=(fn, world, port, args), nprocs=world, join=True)


def finish(name, about, fmt, versions, src=None, frameworks=None, extra=None):
    out = here() / name
    fw = {"torch": torch.__version__.split("+")[0], "python": "%d.%d" % sys.version_info[:2]}
    fw.update(frameworks or {})
    m = {"name": name, "format": fmt, "frameworks": fw, "about": about}
    m.update(extra or {})
    m["versions"] = versions
    dump(out / "manifest.json", m)
    size = sum(f.stat().st_size for f in (out / "ckpt").rglob("*") if f.is_file())
    print(f"{name}: {size} bytes in ckpt, {(out / 'manifest.json').stat().st_size} in manifest")
