# SPDX-License-Identifier: Apache-2.0
"""torch-save: torch.save files, one version per file: zip and legacy containers, byte orders, alignment, views, shared storage, sparse, quantized, classes.

Packages: torch==2.15.0 numpy.  Run: python torch_save.py
"""
import io
import sys
import warnings
from collections import OrderedDict, defaultdict

import numpy as np
import torch

import fixlib
from trainer_types import Phase, RunInfo

NAME = "torch-save"
rnd = fixlib.rnd


def has_tensor(v):
    if isinstance(v, torch.Tensor):
        return True
    if isinstance(v, dict):
        return True
    if isinstance(v, (list, tuple)):
        return any(has_tensor(x) for x in v)
    return False


def walk(v, path, tensors, objects):
    """Leaves of a loaded object: mappings always opened, lists and tuples opened when a tensor or a mapping is somewhere inside."""
    if isinstance(v, torch.Tensor):
        if v.layout == torch.strided and not v.is_quantized and v.device.type != "meta" and not v.is_nested:
            tensors.append((path, v))
        else:
            objects.append((path, v))
    elif isinstance(v, dict):
        for k, x in v.items():
            walk(x, path + [str(k)], tensors, objects)
    elif isinstance(v, (list, tuple)) and has_tensor(v):
        for i, x in enumerate(v):
            walk(x, path + [str(i)], tensors, objects)
    else:
        objects.append((path, v))


def version(obj, name):
    ts, os_ = [], []
    walk(obj, [], ts, os_)
    for of in (ts, os_):  # one value is called as its file
        of[:] = [(p or [name.removesuffix(".pt")], x) for p, x in of]
    v = {"name": name, "complete": True, "tensors": [], "objects": [], "aliases": [], "shards": []}
    same = defaultdict(list)
    for p, t in ts:
        key = ".".join(p)
        v["tensors"].append(fixlib.tensor_entry(key, p, t))
        if t.numel():
            same[(t.untyped_storage()._cdata, t.storage_offset(), tuple(t.shape), t.stride(), t.dtype)].append(key)
    for p, o in os_:
        e = fixlib.object_entry(".".join(p), p, o)
        if isinstance(o, torch.Tensor):
            e["type"] = "torch.Tensor (%s)" % ("quantized" if o.is_quantized else "nested" if o.is_nested else str(o.device) if o.device.type == "meta" else o.layout)
        v["objects"].append(e)
    v["aliases"] = [k for k in same.values() if len(k) > 1]
    return v


def model_dict(salt):
    w = rnd("w", (9, 4), torch.bfloat16, salt=salt)
    base = rnd("base", (11, 13), salt=salt)
    sd = OrderedDict()
    sd["embed.weight"] = w
    sd["lm_head.weight"] = w
    sd["fc.weight"] = torch.nn.Parameter(rnd("fc", (7, 5), salt=salt))
    sd["fc.bias"] = torch.nn.Parameter(rnd("fcb", (7,), torch.float16, salt=salt), requires_grad=False)
    sd["transposed"] = rnd("tr", (5, 3), torch.float64, salt=salt).t()
    sd["block"] = base[2:9, 1:12:3]
    sd["column"] = base[:, 4]
    sd["base"] = base
    sd["expanded"] = rnd("ex", (1, 6), salt=salt).expand(4, 6)
    sd["conv"] = rnd("cv", (2, 3, 4, 5), salt=salt).to(memory_format=torch.channels_last)
    sd["conv5"] = rnd("c5", (2, 1, 3, 2, 2), torch.int16, salt=salt)
    sd["zero_dim"] = rnd("zd", (), torch.float64, salt=salt)
    sd["empty"] = torch.empty(0, 3)
    sd["mask"] = rnd("m", (3, 5), torch.bool, salt=salt)
    sd["a/b c\u00e9"] = rnd("k", (2,), torch.complex64, salt=salt)
    return sd


def full(salt):
    d = {"model": model_dict(salt), "step": 17, "lr": [1e-3, 5e-4], "hyper": {"betas": (0.9, 0.999), "name": "rün", "none": None, "flag": True, "big": 2**80, "blob": b"\x00\x01\xff"},
         "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": rnd("ea", (7, 5), salt=salt)}, 1: {"step": torch.tensor(3.0), "exp_avg": rnd("eb", (7,), salt=salt)}}, "param_groups": [{"lr": 1e-3, "params": [0, 1]}]},
         "lists": [rnd("l0", (2,), salt=salt), (rnd("l1", (3,), torch.uint8, salt=salt), "x"), [1, 2]]}
    return d


def swapped(v):
    """The same object with every storage byte-swapped (complex: each half), as it lies in a big-endian host's memory."""
    seen = {}

    def one(t):
        s = t.untyped_storage()
        k = s._cdata
        if k not in seen:
            c = s.clone()
            d = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(t.dtype, t.dtype)
            if d.itemsize > 1 and len(c):
                c.byteswap(d)
            seen[k] = (c, s)
        r = torch.empty(0, dtype=t.dtype)
        r.set_(seen[k][0], t.storage_offset(), t.shape, t.stride())
        return r

    def go(x):
        if isinstance(x, torch.Tensor):
            return one(x.detach())
        if isinstance(x, dict):
            return type(x)((k, go(y)) for k, y in x.items())
        if isinstance(x, (list, tuple)):
            return type(x)(go(y) for y in x)
        return x
    return go(v)


def main():
    root = fixlib.fresh(NAME)
    files = {}

    def put(name, obj, order=None, **kw):
        real, sys.byteorder = sys.byteorder, order or sys.byteorder
        try:
            torch.save(obj, root / name, **kw)
        finally:
            sys.byteorder = real
        files[name] = obj

    put("zip.pt", full("zip"))
    put("legacy.pt", full("legacy"), _use_new_zipfile_serialization=False)
    put("bare_tensor.pt", rnd("bare", (3, 4)))
    put("list.pt", [rnd("l", (2, 2)), {"a": rnd("a", (1,))}, "s"])
    put("proto4.pt", full("p4"), pickle_protocol=4)
    put("proto5.bin", model_dict("p5"), pickle_protocol=5)
    v3 = {n: rnd(n, (3, 8), t) for t, n in fixlib.NAMES.items()}
    v3["F8_T"] = rnd("f8t", (4, 6), torch.float8_e5m2).t()
    put("dtypes.pt", v3)
    put("many.pt", {f"t{i}": rnd(f"t{i}", (i % 5, 3)) for i in range(130)})      # record names data/100 ..: numeric against string order
    old = {n: rnd(n, (3, 8), t) for t, n in fixlib.NAMES.items() if n in ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "C64", "C128")}
    old["view"] = old["F32"][1:, ::3]
    put("legacy_dtypes.pth", old, _use_new_zipfile_serialization=False)
    put("types.pt", {"w": rnd("w", (2, 3)), "np_array": np.arange(6, dtype=np.int16).reshape(2, 3), "np_scalar": np.float64(2.5), "np_int": np.int32(-4), "class": RunInfo(), "enum": Phase.STABLE, "sparse": torch.eye(3).to_sparse(),
                     "csr": torch.eye(3).to_sparse_csr(), "quant": torch.quantize_per_tensor(torch.arange(6.0).reshape(2, 3), 0.1, 3, torch.qint8), "quantc": torch.quantize_per_channel(torch.arange(6.0).reshape(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.quint8),
                     "meta": torch.empty(2, 3, device="meta"), "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "device": torch.device("cpu"), "dtype": torch.float16, "size": torch.Size([2, 3]),
                     "default": defaultdict(int, a=1), "set": {1, 2}, "gen": torch.get_rng_state(), "hooked": torch.nn.Parameter(rnd("h", (2, 2))), "module": None})
    put("conj_neg.pt", {"conj": rnd("cj", (3,), torch.complex64).conj(), "neg": rnd("ng", (3,), torch.complex64).conj().imag})
    # what a big-endian host writes: the storages swapped and the byteorder record "big"
    # (no uint16/32/64 here: torch.load 2.15 forgets to swap untyped storages, a bug of its own)
    be = full("be")
    be["complex"] = rnd("bec", (3,), torch.complex128)
    put("big_endian.pt", swapped(be), order="big")
    b = io.BytesIO()
    torch.save(full("stream"), b)           # archive prefix is "archive/", not the file name
    (root / "stream.pt").write_bytes(b.getvalue())
    files["stream.pt"] = None
    from torch.utils.serialization import config
    config.save.storage_alignment = 4096
    put("align4096.pt", model_dict("al"))
    config.save.storage_alignment = 64
    torch.serialization.set_crc32_options(False)
    put("nocrc.pt", model_dict("nc"))
    torch.serialization.set_crc32_options(True)
    with torch.serialization.skip_data():
        torch.save(model_dict("skip"), root / "skip_data.pt")        # holes where the data should be: loads as zeros
    with torch.no_grad():
        m = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        for n, p in m.named_parameters():
            p.copy_(rnd(n, p.shape))
        put("state_dict_metadata.pt", m.state_dict())                # OrderedDict with a _metadata attribute: BUILD on a dict
        put("whole_module.pt", m)                                    # pickled nn.Module: opaque object, tensors within
        torch.jit.trace(m.eval(), torch.ones(1, 3)).save(str(root / "script.pt"))
    out = fixlib.publish(NAME, root)
    versions = []
    for f in sorted((out / "ckpt").iterdir()):
        if f.name == "script.pt":
            versions.append({"name": f.name, "complete": True, "expect": "refuse: TorchScript archive", "tensors": [], "objects": [], "aliases": [], "shards": []})
            continue
        got = torch.load(f, weights_only=False)
        v = version(got, f.name)
        if f.name == "big_endian.pt":       # the loader swaps back to what was meant
            assert [e["sha256"] for e in v["tensors"]] == [e["sha256"] for e in version(be, f.name)["tensors"]]
        if f.name == "whole_module.pt":
            v = {"name": f.name, "complete": True, "expect": "opaque object, never executed", "tensors": [], "objects": v["objects"], "aliases": [], "shards": []}
        versions.append(v)
    fixlib.finish(NAME, "torch.save files; each version is one file of ckpt/. Zip and legacy containers, protocols 2/4/5, tied tensors and views of one storage, all dtypes, 130 storages, numpy and user classes, sparse, quantized, meta, nested, "
                  "conjugate views, alignment 4096, CRC off, skip_data. Leaves: mappings always opened, lists and tuples when a tensor or mapping is inside. aliases: same storage, offset, shape and stride.", "torch-save", versions)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
