#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""from_pretrained of hf/ against transformers' own weights: every parameter and the logits are equal.

usage: hf_view.py DCPFS [MODEL ...]        with a python that has torch and transformers (seen well with 2.15.0 and 5.23)

Small models of several architectures are saved by torch.distributed.checkpoint, by torch.save as DistributedDataParallel and
torch.compile wrap them, and by save_pretrained in parts; under the names of every trainer in renamed.py (Megatron, torchtitan, Paddle); Llama also under
the names that torchtune's and torchtitan's own converters give it, where those packages are there (seen well with torchtune 0.6.1 and torchtitan 0.3.0).
Each is mounted, and loaded from its hf/ directory. LLAMA_CPP=DIR: of Llama llama.cpp's convert_hf_to_gguf.py in DIR also makes a file of
hf/, which is that of the model that transformers saved, byte for byte (seen well with the copy in llama-cpp-python 0.3.36, by sentencepiece 0.2.3).
"""
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import renamed

PROGRAM, TOP = os.path.abspath(sys.argv[1]), pathlib.Path(tempfile.mkdtemp())
SIZES = dict(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=64)
GROUPED = dict(**SIZES, num_key_value_heads=2)
MLA = dict(**SIZES, num_key_value_heads=4, first_k_dense_replace=1, n_routed_experts=4, n_shared_experts=2, moe_intermediate_size=48, kv_lora_rank=20,
           qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, n_group=2, topk_group=1, num_experts_per_tok=2)
LINEAR = dict(head_dim=16, num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
ONLY, LLAMA_CPP = sys.argv[2:], os.environ.get("LLAMA_CPP")
CONFIGS = {
    "llama": transformers.LlamaConfig(**GROUPED | dict(vocab_size=320)),
    "qwen2": transformers.Qwen2Config(**GROUPED, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**GROUPED, head_dim=16),
    "mixtral": transformers.MixtralConfig(**GROUPED, num_local_experts=4),
    "gpt_neox": transformers.GPTNeoXConfig(**SIZES),
    "qwen2_moe": transformers.Qwen2MoeConfig(**GROUPED, num_experts=4, moe_intermediate_size=48, shared_expert_intermediate_size=80, num_experts_per_tok=2),
    "qwen3_moe": transformers.Qwen3MoeConfig(**GROUPED, num_experts=4, moe_intermediate_size=48, num_experts_per_tok=2),
    "deepseek_v2": transformers.DeepseekV2Config(**MLA, q_lora_rank=None),
    "deepseek_v3": transformers.DeepseekV3Config(**MLA, q_lora_rank=24),
    "gpt2": transformers.GPT2Config(vocab_size=96, n_embd=64, n_layer=3, n_head=4, n_positions=64),
    "gpt_oss": transformers.GptOssConfig(**GROUPED, head_dim=16, num_local_experts=4, num_experts_per_tok=2, pad_token_id=None),
    "qwen3_5_text": transformers.Qwen3_5TextConfig(**GROUPED | LINEAR),
    "qwen3_5_moe_text": transformers.Qwen3_5MoeTextConfig(**GROUPED | LINEAR, num_experts=4, moe_intermediate_size=48, shared_expert_intermediate_size=80, num_experts_per_tok=2),
    "gemma2": transformers.Gemma2Config(**GROUPED, head_dim=16),
    "gemma3_text": transformers.Gemma3TextConfig(**GROUPED, head_dim=16),
    "phi3": transformers.Phi3Config(**GROUPED, pad_token_id=0),
    "glm4": transformers.Glm4Config(**GROUPED, head_dim=16, pad_token_id=0),
    "llama4_text": transformers.Llama4TextConfig(**GROUPED, head_dim=16, intermediate_size_mlp=80, num_local_experts=4, interleave_moe_layer_step=2),
}


def by_dcp(model, at):
    moments = {k: torch.zeros_like(v) for k, v in model.state_dict().items()}
    dcp.save({"model": model.state_dict(), "optim": {"lr": 1e-3, "exp_avg": moments}}, checkpoint_id=str(at / "step-10"))
    model.config.save_pretrained(at / "step-10")


def wrapped(model, at):
    at.mkdir()
    torch.save({"model": {f"module._orig_mod.{k}": v for k, v in model.state_dict().items()}, "step": 3}, at / "model.pt")
    model.config.save_pretrained(at)


def in_parts(model, at):
    model.save_pretrained(at, max_shard_size="100KB")


def as_torchtune(model, at):
    from torchtune.models.convert_weights import hf_to_tune
    c = model.config
    dcp.save(hf_to_tune(model.state_dict(), c.num_attention_heads, c.num_key_value_heads, c.hidden_size), checkpoint_id=str(at / "step-10"))
    c.save_pretrained(at / "step-10")


def as_torchtitan(model, at):
    from types import SimpleNamespace
    from torchtitan.models.common.rope import ComplexRoPE
    from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
    c = model.config
    rope = ComplexRoPE.Config(dim=c.head_dim, max_seq_len=c.max_position_embeddings)
    attention = SimpleNamespace(n_heads=c.num_attention_heads, n_kv_heads=c.num_key_value_heads, head_dim=c.head_dim, rope=rope)
    args = SimpleNamespace(n_heads=c.num_attention_heads, n_kv_heads=c.num_key_value_heads, dim=c.hidden_size, enable_weight_tying=False,
                           layers=[SimpleNamespace(attention=attention)], layer=SimpleNamespace(attention=attention))
    dcp.save(Llama3StateDictAdapter(args, None).from_hf(model.state_dict()), checkpoint_id=str(at / "step-10"))
    c.save_pretrained(at / "step-10")


def by_another_name(preset, form, convert):
    """The tensors that save_pretrained writes, as a trainer calls them."""
    def save(model, at):
        own = {}
        for part in sorted((at.parent / "own").glob("*.safetensors")):
            own |= load_file(part)
        prefix = "language_model." if model.config.model_type == "llama4_text" else ""
        bits = convert({prefix + k: v.view(torch.int16).numpy() for k, v in own.items()}, model.config.to_dict())
        stored = {k: torch.from_numpy(numpy.ascontiguousarray(a)).view(torch.bfloat16 if a.dtype == "int16" else torch.uint8) for k, a in bits.items()}
        dcp.save(stored, checkpoint_id=str(at / "step-10"))
        model.config.save_pretrained(at / "step-10")
    save.__name__ = f"{preset}-{form}"
    return save


def without_config(preset, form, convert):
    """The same without a config.json, which is inferred from what Megatron keeps of its arguments."""
    save_it = by_another_name(preset, form, convert)

    def save(model, at):
        save_it(model, at)
        (at / "step-10" / "config.json").unlink()
        torch.save({"args": renamed.megatron_args(model.config, torch.bfloat16), "iteration": 10}, at / "step-10" / "common.pt")
        (at / "step-10" / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    save.__name__ = f"{preset}-{form}-args"
    return save


def ways(kind):
    """How to save a model: the converters are of Llama."""
    names = {"torchtune": as_torchtune, "torchtitan": as_torchtitan} if kind == "llama" else {}
    others = [by_another_name(*form) for form in renamed.FORMS.get(kind, []) if not (form[1] == "stacked" and kind.startswith("deepseek"))]
    return [by_dcp, wrapped, in_parts] + [f for n, f in names.items() if importlib.util.find_spec(n)] + others + [without_config(*form) for form in renamed.FORMS.get(kind, [])
                                                                                                  if form[0].startswith("megatron") and form[1] in ("numbers", "core")]


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()


def same(want, got):
    tokens = torch.arange(20).reshape(2, 10)
    with torch.no_grad():
        logits = torch.equal(want(tokens).logits, got(tokens).logits)
    theirs = got.state_dict()
    return logits and all(k in theirs and torch.equal(v, theirs[k]) for k, v in want.state_dict().items())


def tokenizer(at):
    """One of bytes, which llama.cpp's converter wants."""
    from tokenizers import Tokenizer, decoders, models
    at.mkdir()
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\u2581"]
    bpe = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>"))
    bpe.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    bpe.add_special_tokens(words[:3])
    bpe.save(str(at / "tokenizer.json"))
    (at / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}))


def gguf(model):
    out = TOP / "out.gguf"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([f"{LLAMA_CPP}/gguf-py", os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, f"{LLAMA_CPP}/convert_hf_to_gguf.py", model, "--outfile", out, "--model-name", "small"], check=True, env=env, capture_output=True)
    return out.read_bytes()


def main():
    wrong = 0
    os.environ["DCPFS_CACHE"] = str(TOP / "cache")
    assets = TOP / "assets"
    if LLAMA_CPP:
        tokenizer(assets)
    for kind, config in CONFIGS.items():
        if ONLY and kind not in ONLY:
            continue
        torch.manual_seed(3)
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(TOP / kind / "own")
        model, converted = load(TOP / kind / "own"), None
        if LLAMA_CPP and kind == "llama":
            converted = gguf(shutil.copytree(assets, TOP / kind / "own", dirs_exist_ok=True))
        for save in ways(kind):
            source, at = TOP / kind / save.__name__, TOP / kind / f"mnt-{save.__name__}"
            save(model, source)
            at.mkdir()
            subprocess.run([PROGRAM, "mount", *(["--hf-assets", assets] if converted else []), source, at], check=True)
            try:
                ok = same(model, load(at / "latest" / "hf"))
                if ok and converted:
                    ok = gguf(at / "latest" / "hf") == converted
            finally:
                subprocess.run([PROGRAM, "umount", "-z", at], check=True)  # the weights may still be mapped
            print(kind, save.__name__, "equal" if ok else "NOT EQUAL")
            wrong += not ok
    shutil.rmtree(TOP)
    sys.exit(wrong != 0)


main()
