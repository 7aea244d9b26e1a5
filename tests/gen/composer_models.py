#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llm-foundry's MPT and a transformers Llama that Composer trains; hf/ against what llm-foundry and Composer themselves convert them to.

usage: composer_models.py DCPFS [CASE ...]        with a python that has llm-foundry (0.22.0), mosaicml (0.32.1), torch (2.7.0), transformers (4.51.3)

Two processes each, on the CPU by gloo: DDP with one .pt file a save, FSDP with a torch DCP directory a save (torch.cuda.current_device is
torch.device("cpu"), as in composer_run.py). What has to come out, every tensor and its dtype, and logits of from_pretrained: of DDP what
llm-foundry's HuggingFaceCheckpointer wrote while it trained; of both what write_huggingface_pretrained_from_composer_checkpoint of Composer makes
(of FSDP's after torch's dcp_to_torch_save); LLM_FOUNDRY=DIR, a clone: what its scripts/inference/convert_composer_to_hf.py makes, in
bfloat16, of --hf-dtype bf16, too. MPT as in MPT-7B, which transformers has as well, is loaded by transformers' class.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, models

import torch_ranks

MPT = dict(d_model=64, n_heads=4, n_layers=2, max_seq_len=32, vocab_size=96, init_device="cpu", loss_fn="torch_crossentropy")
LLAMA = dict(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
KINDS = {
    "mpt": MPT | dict(no_bias=True, learned_pos_emb=False, attn_config={"attn_impl": "torch", "alibi": True}),
    "mpt-grouped": MPT | dict(expansion_ratio=2, attn_config={"attn_impl": "torch", "attn_type": "grouped_query_attention", "kv_n_heads": 2}),
    "llama": None,
}
CASES = [f"{kind}-{how}" for kind in KINDS for how in ("full", "sharded")]
TOKENS = torch.arange(20).reshape(2, 10) * 3 % 90


def model_of(kind):
    from composer.models import HuggingFaceModel
    from llmfoundry.models.mpt import ComposerMPTCausalLM
    torch.manual_seed(3)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(96)}, unk_token="w0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w1", pad_token="w1")
    if KINDS[kind]:
        return ComposerMPTCausalLM(tokenizer=tokenizer, **KINDS[kind])
    return HuggingFaceModel(transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)), tokenizer=tokenizer, use_logits=True)


def rank_main(case, top):
    torch.cuda.current_device = lambda: torch.device("cpu")
    from composer import Trainer
    from composer.devices import DeviceCPU
    from composer.utils import dist
    from llmfoundry.callbacks import HuggingFaceCheckpointer
    dist.initialize_dist(DeviceCPU(), 120)
    kind, how = case.rsplit("-", 1)
    model = model_of(kind)
    data = [{"input_ids": t, "labels": t.clone(), "attention_mask": torch.ones_like(t).bool()} for t in TOKENS]
    more = dict(callbacks=[HuggingFaceCheckpointer(save_folder=str(top / "own"), save_interval="1ba")])
    if how == "sharded":  # whose weights on the CPU cannot be gathered: torch 2.7 dies of it
        more = dict(parallelism_config={"fsdp": {"state_dict_type": "sharded", "sharding_strategy": "FULL_SHARD", "mixed_precision": "PURE"}})
    Trainer(model=model, train_dataloader=torch.utils.data.DataLoader(data, batch_size=1, sampler=dist.get_sampler(data)), optimizers=torch.optim.AdamW(model.parameters(), 1e-2),
            max_duration="1ba", device="cpu", save_folder=str(top / "ckpt"), save_interval="1ba", progress_bar=False, log_to_console=False, **more).fit()
    dist.barrier()


def loaded(at, dtype, eager):
    """By the class of transformers where it has what config.json says, else by llm-foundry's; eager: Composer's own config.json has that attention taken."""
    from llmfoundry.models.mpt import MPTForCausalLM
    config = (at / "config.json").read_text()
    kind = transformers.LlamaForCausalLM if '"llama"' in config else MPTForCausalLM if "grouped" in config else transformers.MptForCausalLM
    state = {}
    for part in sorted(at.glob("*.safetensors")):
        state |= load_file(part)
    if not state:
        state = torch.load(at / "pytorch_model.bin", weights_only=True)
    with torch.no_grad():
        return {k: v.clone() for k, v in state.items()}, kind.from_pretrained(at, torch_dtype=dtype, **({"attn_implementation": "eager"} if eager else {}))(TOKENS).logits


def shown(program, source, at, dtype, eager):
    at.mkdir()
    subprocess.run([program, "mount", *(["--hf-dtype", "bf16"] if dtype == torch.bfloat16 else []), source, at], check=True)
    try:
        page = (at / "latest" / "hf" / "README.md").read_text()
        return *loaded(at / "latest" / "hf", dtype, eager), page
    finally:
        subprocess.run([program, "umount", "-z", at], check=True)


def converted(case, top):
    """Directories that the frameworks make of it, and their dtype."""
    from composer.models import write_huggingface_pretrained_from_composer_checkpoint
    from llmfoundry.models.mpt import MPTConfig
    transformers.AutoConfig.register("mpt", MPTConfig, exist_ok=True)  # as llm-foundry's converter does: transformers' own knows no groups
    one = top / "ckpt" / "ep0-ba1-rank0.pt"
    if case.endswith("sharded"):
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
        one = top / "one.pt"
        dcp_to_torch_save(top / "ckpt" / "ep0-ba1", one)
    else:
        yield top / "own" / "huggingface" / "ba1", torch.float32
    (top / "composer").mkdir()
    write_huggingface_pretrained_from_composer_checkpoint(one, top / "composer")
    yield top / "composer", torch.float32
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        if "LLM_FOUNDRY" in os.environ:
            script = pathlib.Path(os.environ["LLM_FOUNDRY"]) / "scripts" / "inference" / "convert_composer_to_hf.py"
            subprocess.run([sys.executable, script, "--composer_path", one, "--hf_output_path", top / precision, "--output_precision", precision], check=True, capture_output=True)
            yield top / precision, dtype


def main():
    if sys.argv[1] == "--rank":
        return rank_main(sys.argv[2], pathlib.Path(sys.argv[3]))
    top, wrong = pathlib.Path(tempfile.mkdtemp()), 0
    os.environ["DCPFS_CACHE"] = str(top / "cache")
    for case in sys.argv[2:] or CASES:
        at = top / case
        at.mkdir()
        torch_ranks.run(2, [os.path.abspath(__file__), "--rank", case, str(at)], at / "log")
        for own, dtype in converted(case, at):
            eager = own.name == "composer" and case.startswith("llama")
            want, logits = loaded(own, dtype, eager)
            got, theirs, page = shown(os.path.abspath(sys.argv[1]), at / "ckpt", at / f"mnt-{own.name}", dtype, eager)
            bad = [k for k in sorted(set(want) | set(got)) if k not in got or k not in want or want[k].dtype != got[k].dtype or not torch.equal(want[k], got[k])]
            same = torch.equal(logits, theirs)
            ok = not bad and same and "| rules | `composer`" in page
            print(case, own.name, dtype, f"equal, {len(got)} tensors" if ok else f"NOT EQUAL: {bad[:5]}, logits {same}, {page}", flush=True)
            wrong += not ok
    shutil.rmtree(top)
    sys.exit(wrong != 0)


main()
