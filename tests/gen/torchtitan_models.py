#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchtitan's own small models, and hf/ against what its state-dict adapters make of them: every tensor byte for byte.

usage: torchtitan_models.py DCPFS [MODEL ...]        with a python that has torchtitan (0.3.0) and torch (2.15.0)

Their state dicts are saved by torch.distributed.checkpoint, as torchtitan does; config.json has the numbers that the rules ask for.
Llama 3 and Qwen 3 train queries, keys and values as one matrix, which is also saved as such, as releases did that had no hook to cut it.
Flux is loaded by diffusers where that is there (seen well with 0.42.1). Without a config.json one is inferred from the job config. Qwen 3.5 imports kernels (fla) that need a GPU; its weights do not.
"""
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import types
from unittest import mock

os.environ["TORCHDYNAMO_DISABLE"] = "1"
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.attention.flex_attention
from safetensors import safe_open

MODELS = {"llama3": ("debugmodel",), "qwen3": ("debugmodel", "debugmodel_moe"), "deepseek_v3": ("debugmodel",), "gpt_oss": ("debugmodel",),
          "kimi_k2_7": ("debugmodel",), "muse_glimmer": ("debugmodel", "debugmodel_mm"), "qwen3_5": ("debugmodel", "debugmodel_moe"), "flux": ("flux-debug",)}
TYPES = {"llama3": "llama", "kimi_k2_7": "kimi_k25"}  # others are called the same there
if not importlib.util.find_spec("fla"):
    for name in ("fla", "fla.modules", "fla.modules.conv", "fla.modules.conv.triton", "fla.modules.conv.triton.ops", "fla.ops", "fla.ops.gated_delta_rule",
                 "fla.ops.gated_delta_rule.chunk", "fla.ops.gated_delta_rule.fused_recurrent"):
        sys.modules[name] = mock.MagicMock(__path__=[], __spec__=types.SimpleNamespace(name=name))


def made(module, flavor):
    """The configuration of a flavor: what attention and communication it is to use does not change its weights."""
    make = {k: v for name, v in vars(module).items() if name.endswith("_configs") and isinstance(v, dict) for k, v in v.items()}[flavor]
    wanted = {"attn_backend": "flex", "moe_comm_backend": "standard"}
    return make(**{k: v for k, v in wanted.items() if k in inspect.signature(make).parameters}) if callable(make) else make


def config_json(kind, config, state):
    if kind == "flux":
        return {"_class_name": "FluxTransformer2DModel", "num_layers": config.depth, "num_single_layers": config.depth_single_blocks, "in_channels": config.in_channels,
                "attention_head_dim": config.hidden_size // config.num_heads, "num_attention_heads": config.num_heads, "joint_attention_dim": config.context_in_dim,
                "pooled_projection_dim": config.vec_in_dim, "axes_dims_rope": config.axes_dim}
    first = next(a for a in map(attention, config.layers) if a)
    heads = first.n_heads
    out = {"model_type": TYPES.get(kind, kind) + ("_moe" if kind.startswith("qwen3") and any("moe." in k for k in state) else ""), "num_attention_heads": heads,
           "hidden_size": config.dim, "num_hidden_layers": len(config.layers), "vocab_size": config.vocab_size,
           "num_key_value_heads": getattr(first, "n_kv_heads", None) or heads, "tie_word_embeddings": bool(getattr(config, "enable_weight_tying", False))}
    if getattr(first, "head_dim", None):
        out["head_dim"] = first.head_dim
    vision = getattr(config, "vision_encoder", None)
    if vision:
        out = {"text_config": out, "model_type": out["model_type"], "tie_word_embeddings": out["tie_word_embeddings"],
               "vision_config": {"num_heads": getattr(vision, "num_heads", None) or vision.layers[0].attn.num_heads, "patch_size": vision.patch_size}}
    return out


def attention(layer):
    return getattr(layer, "attention", None) or getattr(layer, "full_attn", None)


def as_transformers_has(kind, want, state):
    """What torchtitan's adapter leaves out, or has in an order that transformers 5 has not."""
    if kind == "gpt_oss":
        for key in [k for k in state if ".inner_experts." in k]:
            name = {"mlp1_weight_EGD": "gate_up_proj", "mlp1_bias_EG": "gate_up_proj_bias", "mlp2_weight_EDF": "down_proj", "mlp2_bias_ED": "down_proj_bias"}[key.rsplit(".", 1)[1]]
            a = state[key]
            want[f"model.layers.{key.split('.')[1]}.mlp.experts.{name}"] = a if a.ndim == 2 else a.transpose(1, 2).contiguous()
    if kind == "qwen3_5":
        want |= {k: a.transpose(1, 2).contiguous() for k, a in want.items() if ".mlp.experts." in k}
    return want


def uncut(state):
    """Queries, keys and values of a layer in one matrix, by groups, as FusedQKVLinear holds them."""
    out = dict(state)
    for key in [k for k in state if k.endswith("qkv_linear.wq.weight")]:
        at = key[:-len("wq.weight")]
        q, k, v = (out.pop(f"{at}w{x}.weight") for x in "qkv")
        groups = len(k) // HEAD[0]
        parts = [x.reshape(groups, -1, HEAD[0], x.shape[1]) for x in (q, k, v)]
        out[f"{at}wqkv.weight"] = torch.cat(parts, 1).reshape(-1, q.shape[1])
    return out


HEAD = [0]


def check(program, top, name, state, config, want):
    source, at = top / name, top / f"{name}-mnt"
    dcp.save(state, checkpoint_id=str(source / "step-10"))
    (source / "step-10" / "config.json").write_text(json.dumps(config))
    at.mkdir()
    subprocess.run([program, "mount", source, at], check=True)
    try:
        got = {}
        for part in (at / "latest" / "hf").glob("*.safetensors"):
            with safe_open(part, "pt") as f:
                got |= {k: f.get_tensor(k) for k in f.keys()}
        page = (at / "latest" / "hf" / "README.md").read_text()
        if "_class_name" in config and importlib.util.find_spec("diffusers"):
            from diffusers import FluxTransformer2DModel
            theirs, told = FluxTransformer2DModel.from_pretrained(at / "latest" / "hf", output_loading_info=True)
            got = {k: v.clone() for k, v in theirs.state_dict().items()}
            print(name, "by diffusers", {k: v for k, v in told.items() if v} or "loads whole")
            del theirs
    finally:
        subprocess.run([program, "umount", "-z", at], check=True)
    wrong = [k for k in sorted(set(got) ^ set(want)) if not (k == "lm_head.weight" and config.get("tie_word_embeddings"))]
    wrong += [k for k in sorted(set(got) & set(want)) if not torch.equal(got[k], want[k])]
    print(name, "equal" if not wrong else f"NOT EQUAL: {wrong[:6]}", len(got), [l for l in page.splitlines() if "| rules |" in l or "no rule fits" in l], flush=True)
    return not wrong


def from_job(program, top, name, kind, config, model):
    """Without a config.json, from the job config above the checkpoint: transformers loads it whole, and dense models give torchtitan's logits."""
    from transformers import AutoModelForCausalLM
    import torchtitan.models.common.attention as titan
    source, at = top / f"{name}-job", top / f"{name}-job-mnt"
    dcp.save({k: v.clone() for k, v in model.state_dict().items()}, checkpoint_id=str(source / "checkpoint" / "step-10"))
    (source / "job.json").write_text(json.dumps({"model_spec": {"name": kind, "model": config.to_dict()}, "training": {"dtype": "float32"}}, indent=2))
    at.mkdir()
    subprocess.run([program, "mount", source, at], check=True)
    try:
        theirs, told = AutoModelForCausalLM.from_pretrained(at / "latest" / "hf", dtype=torch.float32, output_loading_info=True)
        off, tokens = None, torch.arange(20).reshape(2, 10) * 7 % 300
        if not any("moe" in k for k in model.state_dict()):
            positions = torch.arange(10).expand(2, 10)
            titan.FlexAttention._compiled_flex_attn = torch.nn.attention.flex_attention.flex_attention  # not compiled
            with torch.no_grad():
                off = (model(tokens, positions=positions, attention_masks=model.get_attention_masks(positions)) - theirs.eval()(tokens).logits).abs().max().item()
        del theirs
    finally:
        subprocess.run([program, "umount", "-z", at], check=True)
    ok = (off or 0) < 1e-4 and not any(told[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    print(f"{name} by its job config", "loads whole" if ok and off is None else f"logits differ by {off:.1e}" if ok else f"NOT EQUAL: {off} {told}", flush=True)
    return ok


def main(program, *kinds):
    top, bad = pathlib.Path(tempfile.mkdtemp()), 0
    os.environ["DCPFS_CACHE"] = str(top / "cache")
    for kind, flavors in MODELS.items():
        if kinds and kind not in kinds:
            continue
        module = importlib.import_module(f"torchtitan.models.{kind}")
        where = f"torchtitan.models.{kind}{'.model' if kind == 'flux' else ''}.state_dict_adapter"
        adapter = next(v for k, v in vars(importlib.import_module(where)).items() if k.lower().endswith("statedictadapter") and v.__module__ == where)
        for flavor in flavors:
            config = made(module, flavor)
            torch.manual_seed(3)
            model = config.build()
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(torch.randn(p.shape))
            state = model.state_dict()
            if kind != "flux":
                first = next(a for a in map(attention, config.layers) if a)
                HEAD[0] = getattr(first, "head_dim", None) or config.dim // first.n_heads
            want = {k: v.contiguous() for k, v in adapter(config, None).to_hf({k: v for k, v in state.items() if "tokens_per_expert" not in k}).items()}
            want = as_transformers_has(kind, want, state)
            said = config_json(kind, config, state)
            bad += not check(program, top, f"{kind}-{flavor}", state, said, want)
            if any("qkv_linear.wq" in k for k in state):
                bad += not check(program, top, f"{kind}-{flavor}-wqkv", uncut(state), said, want)
            if kind in ("llama3", "qwen3", "gpt_oss"):
                for p in model.parameters():
                    p.data.mul_(0.05)
                for k, p in model.named_parameters():
                    p.data.add_("norm" in k)
                bad += not from_job(program, top, f"{kind}-{flavor}", kind, config, model)
    shutil.rmtree(top)
    sys.exit(bad != 0)


main(os.path.abspath(sys.argv[1]), *sys.argv[2:])
