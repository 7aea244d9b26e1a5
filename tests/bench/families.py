# SPDX-License-Identifier: Apache-2.0
"""Sets of the families beside torch DCP, as their frameworks leave them; none of these is run.

Files of torch.save need torch; Paddle's are pickles of numpy arrays; safetensors are written by hand.
DeepSpeed's and Paddle's own classes are stand-ins of the same name, as a pickle holds only the names.
Values follow from key and position (gen.bits, bits32), the key being what the mount calls the tensor.
"""
import dataclasses
import enum
import json
import os
import pickle
import sys
import types
import zlib
from collections import OrderedDict

import gen

RANKS = 8
MANY = 10000
MANY_SHAPE = (64, 8)
STATES = ("fp32", "exp_avg", "exp_avg_sq")


def bits32(key, first, count):
    """As gen.bits, of 32 bits: finite as float32."""
    import numpy as np
    i = np.arange(first, first + count, dtype=np.uint32)
    i *= np.uint32(2654435761)
    i += np.uint32(zlib.crc32(key.encode()))
    i ^= i >> np.uint32(15)
    return i & np.uint32(0xBFFFFFFF)


def elements(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def many():
    return {k: MANY_SHAPE for k in gen.many_keys(MANY)}


def decoder(rows, layers):
    """A transformer of HIDDEN = 2048; the bias does not divide by 8."""
    h = gen.HIDDEN
    shapes = {"embed_tokens.weight": (rows, h)}
    for i in range(layers):
        for name in ("q", "k", "v", "o"):
            shapes[f"layers.{i}.attn.{name}_proj.weight"] = (h, h)
        shapes[f"layers.{i}.norm.weight"] = (h,)
        shapes[f"layers.{i}.odd.bias"] = (h + 3,)
    return shapes


def stand_in(cls, module, name=None):
    """@cls pickles as module.name, whether or not that is installed."""
    cls.__module__, cls.__qualname__ = module, name or cls.__name__
    parts = module.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    setattr(sys.modules[module], cls.__qualname__, cls)
    return cls


# ---- DeepSpeed ZeRO-3 ----

# 512 MiB of weights, and twice that of moments.
ZERO3 = decoder(32768, 4)


class ZeroStageEnum(int, enum.Enum):
    weights = 3


def partition(torch, shapes, state, rank):
    """What rank holds of the only group: its eighth of every parameter, filled up with zeros."""
    import numpy as np
    each = [-(-elements(shape) // RANKS) for shape in shapes.values()]
    flat, at = np.zeros(sum(each), np.uint32), 0
    for (name, shape), n in zip(shapes.items(), each):
        count = max(0, min(n, elements(shape) - rank * n))
        flat[at:at + count] = bits32(f"{state}.{name}", rank * n, count)
        at += n
    return torch.from_numpy(flat.view(np.float32))


def make_zero3(out, shapes):
    import torch
    stand_in(ZeroStageEnum, "deepspeed.runtime.zero.config")
    config = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    for rank in range(RANKS):
        model = {"module": OrderedDict((k, torch.empty(0, dtype=torch.bfloat16)) for k in shapes),
                 "buffer_names": [], "optimizer": None,
                 "param_shapes": [OrderedDict((k, torch.Size(s)) for k, s in shapes.items())],
                 "frozen_param_shapes": None, "shared_params": {}, "frozen_param_fragments": None,
                 "lr_scheduler": None, "global_steps": 10, "dp_world_size": RANKS, "mp_world_size": 1,
                 "ds_config": config, "ds_version": "0.19.8"}
        torch.save(model, f"{out}/global_step10/zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        state = {s: partition(torch, shapes, s, rank) for s in STATES}
        fp32 = state.pop("fp32")
        group = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "params": [0]}
        optim = {"zero_stage": ZeroStageEnum.weights, "partition_count": RANKS, "overflow": False,
                 "optimizer_state_dict": {"state": {0: {"step": torch.tensor(10.0), **state}},
                                          "param_groups": [group]},
                 "fp32_flat_groups": [fp32]}
        torch.save({"optimizer_state_dict": optim, "ds_config": config, "ds_version": "0.19.8"},
                   f"{out}/global_step10/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    with open(out + "/latest", "w") as f:
        f.write("global_step10")


# ---- Paddle ----

PADDLE = decoder(65536, 7)              # 1 GiB
PADDLE_NAMES = "StructuredToParameterName@@"


@dataclasses.dataclass(frozen=True)
class LocalTensorMetadata:
    global_offset: tuple
    local_shape: tuple
    dtype: str
    global_shape: tuple = None
    is_flattened: bool = False
    flattened_range: tuple = None


@dataclasses.dataclass(frozen=True)
class LocalTensorIndex:
    tensor_key: str
    global_offset: tuple
    is_flattened: bool = False
    flattened_range: tuple = None
    replica_id: int = None
    local_shape: tuple = None


@dataclasses.dataclass
class Metadata:
    state_dict_metadata: dict = None
    storage_metadata: dict = None
    flat_mapping: dict = None


def paddle_cut(name, shape):
    """The axis that a Linear of Paddle, (in, out), is cut along; None: every rank has all of it."""
    if len(shape) < 2:
        return None
    return 1 if any(f".{p}_proj." in name for p in "qkv") else 0


def dump(value, path):
    with open(path, "wb") as f:
        pickle.dump(value, f, protocol=4)


def make_paddle(out, shapes):
    import numpy as np
    for cls in (LocalTensorMetadata, LocalTensorIndex, Metadata):
        stand_in(cls, "paddle.distributed.flex_checkpoint.dcp.metadata")
    files, boxes, places = [{} for _ in range(RANKS)], {}, {}
    for key, shape in shapes.items():
        whole = bits32(key, 0, elements(shape)).view(np.float32).reshape(shape)
        axis = paddle_cut(key, shape)
        for rank in range(RANKS if axis is not None else 1):
            lo, hi = gen.cut(shape[axis], RANKS, rank) if axis is not None else (0, shape[0])
            at = tuple(lo if d == axis else 0 for d in range(len(shape)))
            local = tuple(hi - lo if d == axis else n for d, n in enumerate(shape))
            part = whole if axis is None else whole[(slice(None),) * axis + (slice(lo, hi),)]
            files[rank][key] = np.ascontiguousarray(part)
            boxes.setdefault(key, []).append(LocalTensorMetadata(at, local, "float32", shape))
            places[LocalTensorIndex(key, at, local_shape=local)] = f"{rank}_0.distcp"
    for rank, tensors in enumerate(files):
        dump({**tensors, PADDLE_NAMES: {k: k for k in tensors}}, f"{out}/{rank}_0.distcp")
    dump(Metadata(boxes, places, {k: (k,) for k in shapes}), out + "/0.metadata")


def make_paddle_plain(out, shapes):
    import numpy as np
    state = {k: bits32(k, 0, elements(s)).view(np.float32).reshape(s) for k, s in shapes.items()}
    dump({**state, PADDLE_NAMES: {k: k for k in shapes}}, out + "/model.pdparams")


# ---- files of torch.save, safetensors ----

def tensors(shapes, prefix="", dtype="float32"):
    import numpy as np
    import torch
    return {k: torch.from_numpy(bits32(prefix + k, 0, elements(s)).view(np.float32).reshape(s))
            .to(getattr(torch, dtype)) for k, s in shapes.items()}


def make_torch_save(out, shapes):
    import torch
    torch.save(tensors(shapes), out + "/pytorch_model.bin")


def make_composer(out, shapes):
    import torch
    moments = [tensors(shapes, state + ".") for state in STATES[1:]]
    state = {k: {"step": torch.tensor(100.0), "exp_avg": a, "exp_avg_sq": b}
             for (k, a), b in zip(moments[0].items(), moments[1].values())}
    group = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "params": list(shapes)}
    torch.save({"state": {"model": OrderedDict(tensors(shapes)),
                          "optimizers": {"AdamW": {"state": state, "param_groups": [group]}},
                          "algorithms": [], "callbacks": {}, "schedulers": {}, "run_name": "bench",
                          "timestamp": {"Timestamp": {"epoch": 1, "batch": 100}}}, "rng": []},
               out + "/ep1-ba100-rank0.pt")


def megatron_local():
    """What a tensor-parallel rank has of each of 10,000 parameters: rows of some, columns of others."""
    h = 8 * RANKS
    layer = {"self_attention.linear_qkv.weight": (3 * h // RANKS, h),
             "self_attention.linear_proj.weight": (h, h // RANKS),
             "mlp.linear_fc1.weight": (h // RANKS, h), "mlp.linear_fc2.weight": (h, h // RANKS)}
    return {f"decoder.layers.{i}.{k}": s for i in range(MANY // len(layer)) for k, s in layer.items()}


def make_megatron(out, shapes):
    import argparse
    import torch
    args = argparse.Namespace(tensor_model_parallel_size=RANKS, pipeline_model_parallel_size=1, hidden_size=8 * RANKS,
                              num_layers=len(shapes) // 4, ffn_hidden_size=8 * RANKS)
    for rank in range(RANKS):
        where = f"{out}/iter_0000100/mp_rank_{rank:02}"
        os.makedirs(where)
        torch.save({"args": args, "checkpoint_version": 3.0, "iteration": 100,
                    "model": OrderedDict(tensors(shapes, f"{rank}.", "bfloat16"))}, where + "/model_optim_rng.pt")
    with open(out + "/latest_checkpointed_iteration.txt", "w") as f:
        f.write("100")


def make_hf(out, shapes):
    step, where, total = -(-len(shapes) // RANKS), {}, 0
    for i in range(RANKS):
        part = dict(list(shapes.items())[i * step:(i + 1) * step])
        name, header, at = f"model-{i + 1:05}-of-{RANKS:05}.safetensors", {"__metadata__": {"format": "pt"}}, 0
        for key, shape in part.items():
            n = 4 * elements(shape)
            header[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + n]}
            where[key], at = name, at + n
        total += at
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(f"{out}/{name}", "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            for key, shape in part.items():
                f.write(bits32(key, 0, elements(shape)).tobytes())
    with open(out + "/model.safetensors.index.json", "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": where}, f)
    with open(out + "/config.json", "w", encoding="utf-8") as f:
        json.dump({"architectures": ["LlamaForCausalLM"]}, f)


SETS = {"zero3": (make_zero3, lambda: ZERO3), "paddle": (make_paddle, lambda: PADDLE),
        "many-zero3": (make_zero3, many), "many-paddle": (make_paddle, many),
        "many-pdparams": (make_paddle_plain, many), "many-torch": (make_torch_save, many),
        "many-megatron": (make_megatron, megatron_local),
        "many-composer": (make_composer, many), "many-hf": (make_hf, many)}


def make(name, out):
    os.makedirs(out + "/global_step10" if "zero3" in name else out)
    function, shapes = SETS[name]
    function(out, shapes())


# ---- one tensor of each set of 10,000 keys, as a mount should show it ----

COUNT = {"many-zero3": 4 * MANY, "many-composer": 4 * MANY}     # two moments and a step beside each weight
PREFIX = {"many-zero3": "fp32.", "many-composer": "state.model."}


def example(name):
    """(key, bytes) of a tensor in the middle."""
    import torch
    key = gen.many_keys(MANY)[MANY // 2]
    if name in gen.SETS:
        _, shards, cols, _ = gen.SETS[name]
        n = gen.ROWS // shards * cols
        values = torch.cat([torch.arange(n).add_(r).to(torch.bfloat16) for r in range(shards)])
        return key, values.view(torch.int16).numpy().tobytes()
    if name == "many-megatron":
        key = list(megatron_local())[MANY // 2]
        shape = {key: megatron_local()[key]}
        values = torch.cat([tensors(shape, f"{r}.", "bfloat16")[key] for r in range(RANKS)])
        return key, values.view(torch.int16).numpy().tobytes()
    prefix = PREFIX.get(name, "")
    salted = prefix + key if name == "many-zero3" else key
    return prefix + key, bits32(salted, 0, elements(MANY_SHAPE)).tobytes()
