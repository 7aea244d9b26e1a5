#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""verl's own FSDPCheckpointManager on the CPU, and from_pretrained of hf/ against the model that it saved.

usage: verl_run.py DCPFS        with a python that has verl (0.9.1), torch, transformers, accelerate, omegaconf (seen well with 2.15.0 and 5.23)

Two processes with FSDP and with FSDP2, four with both kinds of data parallelism (HSDP), each after a step of AdamW so that there are moments.
verl's __init__ wants ray, which nothing here runs: an empty module stands for it.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import torch
import transformers
from safetensors import safe_open
from transformers import AutoModelForCausalLM

import torch_ranks

SIZES = dict(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
CASES = {"fsdp-llama": (1, (2,)), "fsdp2-qwen2": (2, (2,)), "hsdp-qwen2": (1, (2, 2)), "hsdp2-llama": (2, (2, 2)), "fsdp2-one-llama": (2, (1,))}
TOKENS = torch.arange(20).reshape(2, 10) * 3 % 90


def model_of(case):
    torch.manual_seed(3)
    tied = case.endswith("qwen2")
    config = transformers.Qwen2Config(**SIZES, tie_word_embeddings=True) if tied else transformers.LlamaConfig(**SIZES)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def rank_main(case, top):
    for name in ("ray", "ray.experimental", "ray.experimental.state", "ray.util", "ray.actor", "verl.workers.engine"):
        sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))
    from omegaconf import OmegaConf
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
    torch.distributed.init_process_group("gloo")
    kind, shape = CASES[case]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("ddp", "fsdp")[-len(shape):])
    model = model_of(case)
    if kind == 1:
        strategy = ShardingStrategy.FULL_SHARD if len(shape) == 1 else ShardingStrategy.HYBRID_SHARD
        layer = type(model.model.layers[0])
        from functools import partial
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
        model = FullyShardedDataParallel(model, device_mesh=mesh, sharding_strategy=strategy, use_orig_params=False, device_id=torch.device("cpu"),
                                         auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={layer}))
    else:
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model(TOKENS, labels=TOKENS).loss.backward()
    optimizer.step()
    contents = OmegaConf.create({"save": ["model", "optimizer", "extra"], "load": ["model", "optimizer", "extra"]})
    at = top / case / "global_step_5"
    FSDPCheckpointManager(model, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer), None, contents).save_checkpoint(str(at / "actor"), global_step=5)
    full = model.state_dict() if kind == 2 else None
    if kind == 1:
        from torch.distributed.fsdp import FullStateDictConfig, StateDictType
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
            full = model.state_dict()
    full = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in full.items()}
    if torch.distributed.get_rank() == 0:
        torch.save({"epoch": 1}, at / "data.pt")
        (top / case / "latest_checkpointed_iteration.txt").write_text("5")
        torch.save(full, top / f"{case}.full")


def check(program, source, full):
    at = source.parent / (source.name + "-mnt")
    at.mkdir()
    subprocess.run([program, "mount", source, at], check=True)
    try:
        hf, got = at / "latest" / "hf", {}
        for part in sorted(hf.glob("*.safetensors")):
            with safe_open(part, "pt") as f:
                got |= {k: f.get_tensor(k) for k in f.keys()}
        wrong = [k for k in sorted(set(got) | set(full)) if (k not in got and k != "lm_head.weight") or k not in full or (k in got and not torch.equal(got[k], full[k]))]
        own = model_of(source.name)
        own.load_state_dict(full)
        with torch.no_grad():
            same = torch.equal(own.eval()(TOKENS).logits, AutoModelForCausalLM.from_pretrained(hf, dtype=torch.bfloat16).eval()(TOKENS).logits)
        rules = [l for l in (hf / "README.md").read_text().splitlines() if "| rules |" in l]
    finally:
        subprocess.run([program, "umount", "-z", at], check=True)
    print(source.name, "equal" if same and not wrong else f"NOT EQUAL {wrong[:6]}", len(got), rules, flush=True)
    return same and not wrong


def main(program, *cases):
    top, wrong = pathlib.Path(tempfile.mkdtemp()), 0
    os.environ["DCPFS_CACHE"] = str(top / "cache")
    for case in cases or CASES:
        n = CASES[case][1]
        torch_ranks.run(n[0] * n[-1] if len(n) > 1 else n[0], [os.path.abspath(__file__), "--rank", case, str(top)], f"{top}/log")
        wrong += not check(program, top / case, torch.load(top / f"{case}.full"))
    if "KEEP" in os.environ:
        print(top)
    else:
        shutil.rmtree(top)
    sys.exit(wrong != 0)


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank_main(sys.argv[2], pathlib.Path(sys.argv[3]))
    else:
        main(os.path.abspath(sys.argv[1]), *sys.argv[2:])
