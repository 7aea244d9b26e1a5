# SPDX-License-Identifier: Apache-2.0
"""numpy, hf-mlx-jax: arrays as numpy, MLX and JAX programs write them, one version a directory.

Packages: numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0 mlx[cpu]==0.32.4 jax[cpu]==0.10.2 flax==0.12.8
Run: python array_files.py
"""
import json
import os
import pathlib
import platform
from importlib.metadata import version

import ml_dtypes
import mlx.core as mx
import numpy as np
from flax.traverse_util import flatten_dict
from safetensors.flax import save_file

import fw_common as fw

GOLDEN = pathlib.Path(os.environ.get("GOLDEN", pathlib.Path(__file__).resolve().parent.parent / "golden"))
PLAIN = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128")
SALT = "arrays"


def numbers(key, dtype, shape):
    """(array as a program holds it, its manifest entry)"""
    a = fw.value(SALT, key, dtype, shape)
    return (a.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else a), fw.entry(key, [key], dtype, a)


def numpy_model():
    model = {d: numbers(d, d, (3, 7)) for d in PLAIN + ("bfloat16",)}
    model.update({k: numbers(k, d, s) for k, d, s in (
        ("linear/~/w", "float32", (5, 4, 3)), ("zero.dim", "float64", ()), ("empty", "float32", (0, 4)),
        ("vector", "int32", (11,)), ("zeros", "float32", (1,)))})
    a, e = numbers("columns", "float32", (6, 9))
    model["columns"] = np.asfortranarray(a), e
    for d, code in (("float32", ">f4"), ("int64", ">i8"), ("complex64", ">c8")):
        a, e = numbers("big-" + d, d, (4, 5))
        model["big-" + d] = np.asfortranarray(a.astype(code)) if d == "int64" else a.astype(code), e
    a = np.zeros((40, 50), "f4")
    a[7] = 3
    model["sparse"] = a, fw.entry("sparse", ["sparse"], "float32", a)
    return model


def llama(dtype="bfloat16"):
    shapes = {"model.embed_tokens.weight": (13, 8), "model.norm.weight": (8,)}
    for i in range(2):
        shapes |= {f"model.layers.{i}.self_attn.{n}_proj.weight": (8, 8) for n in "qkvo"}
        shapes |= {f"model.layers.{i}.mlp.up_proj.weight": (21, 8), f"model.layers.{i}.mlp.down_proj.weight": (8, 21)}
    return {k: numbers(k, dtype, s) for k, s in shapes.items()}


def entries(model):
    return [e for _, e in sorted(model.values(), key=lambda x: x[1]["key"])]


def told(name, tensors):
    return {"name": name, "complete": True, "tensors": tensors, "objects": [], "aliases": [], "shards": []}


def finish(root, about, form, frameworks, versions):
    frameworks = {f: version(f) for f in frameworks} | {"python": platform.python_version()}
    fw.write_manifest(root / "manifest.json", {"format": form, "frameworks": frameworks, "about": about, "versions": versions})


def numpy_files():
    root = pathlib.Path(fw.fresh(GOLDEN / "numpy"))
    at = {n: pathlib.Path(fw.fresh(root / "ckpt" / n)) for n in ("1-npy", "2-savez", "3-compressed", "4-mlx")}
    model, versions = numpy_model(), []
    files = {k: v for k, v in model.items() if "/" not in k}
    for k, (a, _) in files.items():
        np.save(at["1-npy"] / f"{k}.npy", a)
    versions.append(told("1-npy", entries(files)))
    np.savez(at["2-savez"] / "step_100.npz", **{k: a for k, (a, _) in model.items()})
    versions.append(told("2-savez@step_100.npz", entries(model)))
    np.savez_compressed(at["3-compressed"] / "params.npz", **{k: a for k, (a, _) in model.items()})
    versions.append(told("3-compressed", entries(model)))
    model = llama()
    arrays = {k: mx.array(a.astype("f4")).astype(mx.bfloat16) for k, (a, _) in model.items()}
    keys = sorted(arrays)
    for i in range(2):
        mx.savez(at["4-mlx"] / f"weights.{i:02}.npz", **{k: arrays[k] for k in keys[i::2]})
    (at["4-mlx"] / "config.json").write_text('{"model_type": "llama"}\n')
    # What the readers themselves get back.
    for d, name in (("2-savez", "step_100.npz"), ("3-compressed", "params.npz")):
        with np.load(at[d] / name) as z:
            assert all(z[e["key"]].shape == tuple(e["shape"]) for v in versions if v["name"] == d for e in v["tensors"])
    for i in range(2):
        back = mx.load(str(at["4-mlx"] / f"weights.{i:02}.npz"))
        assert all(np.array_equal(np.array(v.view(mx.uint16)), np.array(model[k][0].view(np.uint16))) for k, v in back.items())
    versions.append(told("4-mlx", entries(model)))
    finish(root, "numpy.save, savez and savez_compressed of every dtype, big-endian, Fortran order, bfloat16 as V2; mlx.core.savez in two parts",
           "numpy", ("numpy", "ml_dtypes", "mlx"), versions)


def safetensors_files():
    root = pathlib.Path(fw.fresh(GOLDEN / "hf-mlx-jax"))
    at = {n: pathlib.Path(fw.fresh(root / "ckpt" / n)) for n in ("1-mlx", "2-flax", "3-flax-dots")}
    model, versions = llama(), []
    arrays = {k: mx.array(a.astype("f4")).astype(mx.bfloat16) for k, (a, _) in model.items()}
    w, s, b = mx.quantize(mx.array(fw.value(SALT, "quantized", "int8", (4, 64)).astype("f4")), group_size=32, bits=4)
    for part, dtype, a in (("weight", "<u4", w), ("scales", "float32", s), ("biases", "float32", b)):
        key, a = f"lm_head.{part}", np.array(a)
        entry = {**fw.entry(key, [key], "float32", a.view("<f4")), "dtype": "U32" if dtype == "<u4" else "F32"}
        arrays[key], model[key] = mx.array(a), (a, entry)
    keys, weight_map = sorted(arrays), {}
    for i in range(2):  # as mlx_lm.utils.save_model does
        file = f"model-{i + 1:05}-of-00002.safetensors"
        mx.save_safetensors(str(at["1-mlx"] / file), {k: arrays[k] for k in keys[i::2]}, metadata={"format": "mlx"})
        weight_map |= {k: file for k in keys[i::2]}
    (at["1-mlx"] / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": sum(a.nbytes for a in arrays.values())}, "weight_map": weight_map}, indent=4))
    (at["1-mlx"] / "config.json").write_text('{"model_type": "llama"}\n')
    versions.append(told("1-mlx", entries(model)))
    tree = {"params": {"Dense_0": {"kernel": (4, 5), "bias": (5,)}, "norm": {"scale": (4,)}}, "step": ()}
    for name, sep, more in (("2-flax", "/", None), ("3-flax-dots", ".", {"format": "flax"})):
        flat = {k: numbers(k, "int32" if k == "step" else "bfloat16", s) for k, s in flatten_dict(tree, sep=sep).items()}
        save_file({k: a for k, (a, _) in flat.items()}, at[name] / "model.safetensors", metadata=more)
        versions.append(told(name, entries(flat)))
    finish(root, "safetensors by MLX (in two parts with an index, a 4-bit quantized layer) and by flax (keys with slashes and with dots)",
           "hf-safetensors", ("mlx", "jax", "flax", "safetensors"), versions)


numpy_files()
safetensors_files()
