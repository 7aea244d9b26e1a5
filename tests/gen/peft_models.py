#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters of PEFT that trainers save inside the whole model's state, not as PEFT saves them; hf/ against PeftModel.save_pretrained of the same state.

usage: peft_models.py DCPFS [WAY[/KIND] ...]       with a python that has peft, accelerate, deepspeed, torch, transformers (seen well with 0.21.2, 1.15.0, 0.19.8, 2.15.0, 5.24)

Two processes each, on the CPU by gloo, train a step. Above the checkpoint lies the adapter_config.json that PEFT writes. Every tensor has to be that of
save_pretrained, byte for byte, and PeftModel.from_pretrained of hf/ has to give the same logits. FSDP 1 is not among the ways: with it this Accelerate
and PEFT save a checkpoint without any weight.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import torch_ranks

SIZES = dict(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False)
TARGET = dict(r=4, lora_alpha=8, task_type="CAUSAL_LM", target_modules=["q_proj", "down_proj"])
KINDS = {  # by kind: the adapters of a model
    "lora": {"default": TARGET},
    "named": {"style": TARGET},
    "two": {"default": TARGET, "other": TARGET | {"r": 2}},
    "all": {"default": TARGET | {"bias": "all"}},
    "only": {"default": TARGET | {"bias": "lora_only"}},
    "modules": {"default": TARGET | {"modules_to_save": ["lm_head", "k_proj"]}},
    "dora": {"default": TARGET | {"use_dora": True}},
    "embed": {"default": TARGET | {"target_modules": ["q_proj", "embed_tokens"]}},
    "tokens": {"default": TARGET | {"trainable_token_indices": [3, 5]}},
}
WAYS = {  # by way: the kinds that are saved so
    "file": tuple(KINDS), "dcp": tuple(KINDS), "dcp-trained": tuple(k for k in KINDS if k != "two"), "accelerate2": ("lora", "modules"), "trainer2": ("lora", "all", "dora"),
    "zero2": ("lora", "modules", "all"), "zero2-trained": ("lora", "modules", "all"), "zero3": ("lora", "modules"), "zero3-trained": ("lora", "modules"),
}
TOKENS = torch.arange(20).reshape(2, 10) * 3 % 90


def base_model(dtype=torch.float32):
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(transformers.Qwen2Config(**SIZES), dtype=dtype)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(".bias"):
                p.normal_()
    return model


def model_of(kind):
    """With nothing in it that is zero because it is new."""
    (first, config), *others = KINDS[kind].items()
    model = get_peft_model(base_model(), LoraConfig(**config), adapter_name=first)
    for name, config in others:
        model.add_adapter(name, LoraConfig(**config))
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if "lora_B" in name or "embedding_A" in name or "trainable_tokens" in name:
                p.normal_(0, 0.1)
    return model


def note(state, top):
    """What the model holds at the save. All ranks take part."""
    whole = {k.replace("_fsdp_wrapped_module.", "").removeprefix("module."): (v.full_tensor() if hasattr(v, "full_tensor") else v).detach().clone() for k, v in state.items()}
    if int(os.environ.get("RANK", 0)) == 0:
        torch.save(whole, top / "state.pt")


def step(model, optimizer):
    model(TOKENS, labels=TOKENS).loss.backward()
    optimizer.step()


def by_file(way, kind, top):
    model = model_of(kind)
    step(model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2))
    torch.save(model.state_dict(), top / "ckpt" / "model.pt")
    note(model.state_dict(), top)


def by_dcp(way, kind, top):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
    from torch.distributed.fsdp import fully_shard
    model = model_of(kind)
    for layer in model.base_model.model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    step(model, optimizer)
    state, states = get_state_dict(model, optimizer, options=StateDictOptions(ignore_frozen_params=way.endswith("trained")))
    dcp.save({"model": state, "optimizer": states}, checkpoint_id=top / "ckpt" / "step-1")
    note(model.state_dict(), top)


def as_on_a_gpu():
    from accelerate import PartialState
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType
    AcceleratorState._reset_state()
    PartialState(cpu=True)
    PartialState._shared_state |= {"distributed_type": DistributedType.MULTI_GPU, "device": torch.device("cpu")}


def by_accelerate(way, kind, top):
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    as_on_a_gpu()
    accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Qwen2DecoderLayer"], state_dict_type="SHARDED_STATE_DICT"))
    model = model_of(kind)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2))
    accelerator.backward(model(TOKENS, labels=TOKENS).loss)
    optimizer.step()
    accelerator.save_state(top / "ckpt" / "checkpoint_1")
    note(model.state_dict(), top)


def by_trainer(way, kind, top):
    args = transformers.TrainingArguments(
        output_dir=top / "ckpt", use_cpu=True, fsdp=True, max_steps=1, save_steps=1, report_to=[], per_device_train_batch_size=1, learning_rate=1e-2,
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": "Qwen2DecoderLayer", "state_dict_type": "SHARDED_STATE_DICT"})
    as_on_a_gpu()
    trainer = transformers.Trainer(model=model_of(kind), args=args, train_dataset=[{"input_ids": t, "labels": t} for t in TOKENS])
    trainer.train()
    note(trainer.accelerator.get_state_dict(trainer.model_wrapped), top)


def by_zero(way, kind, top):
    import deepspeed
    deepspeed.init_distributed("gloo")
    model = model_of(kind)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=[p for p in model.parameters() if p.requires_grad], config={
        "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": int(way[4])}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}}})
    rank = torch.distributed.get_rank()
    engine.backward(engine(TOKENS[rank:rank + 1], labels=TOKENS[rank:rank + 1]).loss)
    engine.step()
    engine.save_checkpoint(top / "ckpt", tag="global_step1", exclude_frozen_parameters=way.endswith("trained"))
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        note(model.state_dict(), top)


BY = {"file": by_file, "dcp": by_dcp, "accelerate2": by_accelerate, "trainer2": by_trainer, "zero2": by_zero, "zero3": by_zero}


def logits_of(at):
    with torch.no_grad():
        return PeftModel.from_pretrained(base_model(), at)(TOKENS).logits


def compare(program, way, kind, at):
    """What is wrong, and how many tensors there are. An adapter that is not called "default" is below its name where PEFT saves it; hf/ has one, at its top."""
    model = model_of(kind)
    model.load_state_dict(torch.load(at / "state.pt"))
    model.save_pretrained(at / "own")
    wrong = total = 0
    for name in KINDS[kind]:
        own, mnt = at / "own" / ("" if name == "default" else name), at / f"mnt-{name}"
        shutil.copy(own / "adapter_config.json", at / "ckpt")
        mnt.mkdir()
        subprocess.run([program, "mount", "--hf-shard-size", "4K", at / "ckpt", mnt] + (["--hf-from", name] if len(KINDS[kind]) > 1 and name != "default" else []), check=True)
        try:
            hf = mnt / "latest" / "hf"
            want, got = load_file(own / "adapter_model.safetensors"), load_file(hf / "adapter_model.safetensors")
            bad = [k for k in sorted(set(want) | set(got)) if k not in got or k not in want or want[k].dtype != got[k].dtype or not torch.equal(want[k], got[k])]
            if [p.name for p in hf.glob("*.safetensors")] != ["adapter_model.safetensors"] or (hf / "adapter_config.json").read_bytes() != (own / "adapter_config.json").read_bytes():
                bad.append("files")
            if not torch.equal(logits_of(own), logits_of(hf)):
                bad.append("logits")
            if bad:
                print(f"{way}/{kind}: {name} of {len(want)} tensors: {bad[:6]}\n{(hf / 'README.md').read_text()}")
            wrong, total = wrong + len(bad), total + len(got)
        finally:
            subprocess.run([program, "umount", "-z", mnt], check=True)
    return wrong, total


def main():
    if sys.argv[1] == "--rank":
        for kind in sys.argv[4:]:
            (pathlib.Path(sys.argv[3]) / kind / "ckpt").mkdir(parents=True, exist_ok=True)
            BY[sys.argv[2].split("-")[0]](sys.argv[2], kind, pathlib.Path(sys.argv[3]) / kind)
        return
    top, failed = pathlib.Path(tempfile.mkdtemp()), 0
    warnings.simplefilter("ignore")
    os.environ |= {"DCPFS_CACHE": str(top / "cache"), "HF_HUB_OFFLINE": "1"}
    for way, kinds in WAYS.items():
        kinds = [k for k in kinds if not sys.argv[2:] or way in sys.argv[2:] or f"{way}/{k}" in sys.argv[2:]]
        if not kinds:
            continue
        torch_ranks.run(1 if way == "file" else 2, [os.path.abspath(__file__), "--rank", way, str(top / way), *kinds], top / f"log-{way}", {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "true"})
        for kind in kinds:
            wrong, n = compare(os.path.abspath(sys.argv[1]), way, kind, top / way / kind)
            print(f"{way}/{kind}", f"NOT EQUAL: {wrong}" if wrong else f"equal, {n} tensors", flush=True)
            failed += bool(wrong)
    shutil.rmtree(top)
    sys.exit(failed != 0)


main()
