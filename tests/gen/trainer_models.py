#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lightning and DeepSpeed themselves train a transformers model for a step; from_pretrained of hf/ against its state at the save.

usage: trainer_models.py DCPFS [CASE ...]        with a python that has lightning, deepspeed, torch, transformers (seen well with 2.6.6, 0.19.8, 2.15.0, 5.23)

Two processes each, on the CPU by gloo: Lightning with DDP (it refuses FSDP without a GPU), DeepSpeed with ZeRO 1 and 3 in bfloat16 with float32
master weights. What has to come out is what the module holds at the save, and what zero_to_fp32 makes of ZeRO 3.
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
CASES = {"ddp": ("lightning", "lightning"), "zero1": ("deepspeed", "deepspeed"), "zero3": ("deepspeed", "deepspeed-fp32")}
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
        return {"lightning": by_lightning, "deepspeed": by_deepspeed}[sys.argv[2]](sys.argv[3], pathlib.Path(sys.argv[4]))
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
        torch_ranks.run(2, [os.path.abspath(__file__), "--rank", package, case, str(at)], at / "log", {"DS_ACCELERATOR": "cpu"})
        want = load_file(at / "want.safetensors")
        got, logits, page = shown(os.path.abspath(sys.argv[1]), at / "ckpt", at)
        model = model_of(next(iter(want.values())).dtype)
        model.load_state_dict(want)
        with torch.no_grad():
            same = torch.equal(logits, model(TOKENS).logits)
        bad = [k for k in sorted(set(want) | set(got)) if k not in got or k not in want or want[k].dtype != got[k].dtype or not torch.equal(want[k], got[k])]
        ok = not bad and same and f"| rules | `{preset}`" in page
        print(case, "equal" if ok else f"NOT EQUAL: {bad[:5]}, logits {same}, {page}", flush=True)
        wrong += not ok
    shutil.rmtree(top)
    sys.exit(wrong != 0)


main()
