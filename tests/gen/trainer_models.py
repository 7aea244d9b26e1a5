#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lightning, DeepSpeed, Accelerate and transformers' Trainer themselves train a transformers model for a step; from_pretrained of hf/ against its state at the save.

usage: trainer_models.py DCPFS [CASE ...]        with a python that has lightning, deepspeed, accelerate, torch, transformers (seen well with 2.6.6, 0.19.8, 1.15.0, 2.15.0, 5.23)

Two processes each, on the CPU by gloo: Lightning with DDP (it refuses FSDP without a GPU), DeepSpeed with ZeRO 1 and 3 in bfloat16 with float32
master weights. What has to come out is what the module holds at the save, and what zero_to_fp32 makes of ZeRO 3. Accelerate and the Trainer
with FSDP 1 and 2, SHARDED_STATE_DICT: what their own save_model() writes of the same state; they take FSDP of processes on the CPU only if these
pass for ones with a GPU, which is all that is pretended. Of accelerate's FSDP 1 the Trainer's stands, which saves by the same function.
"""
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import torch_ranks

SIZES = dict(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
CASES = {"ddp": ("lightning", "lightning"), "zero1": ("deepspeed", "deepspeed"), "zero3": ("deepspeed", "deepspeed-fp32"),
         "accelerate2": ("accelerate", "hf"), "trainer1": ("accelerate", "hf"), "trainer2": ("accelerate", "hf")}
TOKENS = torch.arange(20).reshape(2, 10) * 3 % 90


def model_of(dtype=torch.float32):
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES, tie_word_embeddings=False), dtype=dtype)


def note(model, state, top):
    if int(os.environ["RANK"]) == 0:
        save_file({k: v.detach().clone().contiguous() for k, v in state.items()}, top / "want.safetensors")
        model.config.save_pretrained(top / "ckpt")


def by_lightning(case, top):
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model_of()

        def training_step(self, batch, _):
            return self.model(batch, labels=batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-2)

    module = Module()
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"), max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                default_root_dir=top)
    trainer.fit(module, torch.utils.data.DataLoader(list(TOKENS), batch_size=1))
    trainer.save_checkpoint(top / "ckpt" / "step=1.ckpt")
    note(module.model, module.model.state_dict(), top)


def by_deepspeed(case, top):
    import deepspeed
    deepspeed.init_distributed("gloo")
    model = model_of()
    stage = int(case[-1])
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}}})
    rank = torch.distributed.get_rank()
    engine.backward(engine(TOKENS[rank:rank + 1], labels=TOKENS[rank:rank + 1]).loss)
    engine.step()
    engine.save_checkpoint(top / "ckpt", tag="global_step1")
    if stage == 3:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        return note(model, get_fp32_state_dict_from_zero_checkpoint(str(top / "ckpt")), top)
    note(model, engine.module.state_dict(), top)


def as_on_a_gpu():
    from accelerate import PartialState
    from accelerate.utils import DistributedType
    PartialState(cpu=True)
    PartialState._shared_state |= {"distributed_type": DistributedType.MULTI_GPU, "device": torch.device("cpu")}


def by_accelerate(case, top):
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    as_on_a_gpu()
    accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["LlamaDecoderLayer"], state_dict_type="SHARDED_STATE_DICT"))
    model = model_of()
    config = model.config
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2))
    accelerator.backward(model(TOKENS, labels=TOKENS).loss)
    optimizer.step()
    accelerator.save_state(top / "ckpt" / "checkpoint_1")
    accelerator.save_model(model, top / "own")
    if accelerator.is_main_process:
        config.save_pretrained(top / "ckpt" / "checkpoint_1")


def by_trainer(case, top):
    args = transformers.TrainingArguments(
        output_dir=top / "ckpt", use_cpu=True, fsdp=True, max_steps=1, save_steps=1, report_to=[], per_device_train_batch_size=1, learning_rate=1e-2,
        fsdp_config={"version": int(case[-1]), "transformer_layer_cls_to_wrap": "LlamaDecoderLayer", "state_dict_type": "SHARDED_STATE_DICT", "sync_module_states": False})
    as_on_a_gpu()
    trainer = transformers.Trainer(model=model_of(), args=args, train_dataset=[{"input_ids": t, "labels": t} for t in TOKENS])
    trainer.train()
    trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model(top / "own")
    if trainer.args.should_save:
        shutil.copy(top / "own" / "config.json", top / "ckpt" / "checkpoint-1")


def shown(program, source, top):
    at = top / "mnt"
    at.mkdir()
    subprocess.run([program, "mount", source, at], check=True)
    try:
        hf = at / "latest" / "hf"
        state = {k: v.clone() for part in sorted(hf.glob("*.safetensors")) for k, v in load_file(part).items()}
        model = AutoModelForCausalLM.from_pretrained(hf, dtype=next(iter(state.values())).dtype)
        with torch.no_grad():
            return state, model(TOKENS).logits, (hf / "README.md").read_text()
    finally:
        subprocess.run([program, "umount", "-z", at], check=True)


def main():
    if sys.argv[1] == "--rank":
        by = {"lightning": by_lightning, "deepspeed": by_deepspeed, "accelerate": by_trainer if sys.argv[3].startswith("trainer") else by_accelerate}[sys.argv[2]]
        return by(sys.argv[3], pathlib.Path(sys.argv[4]))
    top, wrong = pathlib.Path(tempfile.mkdtemp()), 0
    os.environ["DCPFS_CACHE"] = str(top / "cache")
    for case, (package, preset) in CASES.items():
        if sys.argv[2:] and case not in sys.argv[2:]:
            continue
        if not importlib.util.find_spec(package):
            print(case, "left out: no", package)
            continue
        at = top / case
        at.mkdir()
        torch_ranks.run(2, [os.path.abspath(__file__), "--rank", package, case, str(at)], at / "log", {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "true"})
        want = load_file(next(p for p in (at / "want.safetensors", at / "own" / "model.safetensors") if p.exists()))
        got, logits, page = shown(os.path.abspath(sys.argv[1]), at / "ckpt", at)
        model = model_of(next(iter(want.values())).dtype)
        model.load_state_dict(want)
        with torch.no_grad():
            same = torch.equal(logits, model(TOKENS).logits)
        bad = [k for k in sorted(set(want) | set(got)) if k not in got or k not in want or want[k].dtype != got[k].dtype or not torch.equal(want[k], got[k])]
        ok = not bad and same and f"| rules | `{preset}`" in page
        print(case, f"equal, {len(got)} tensors" if ok else f"NOT EQUAL: {bad[:5]}, logits {same}, {page}", flush=True)
        wrong += not ok
    shutil.rmtree(top)
    sys.exit(wrong != 0)


main()
