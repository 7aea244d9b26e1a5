# SPDX-License-Identifier: Apache-2.0
"""hf-llama, hf-moe: tiny transformers models made from a config and saved with save_pretrained; one version per directory.

Packages: torch==2.15.0 transformers==5.23.0 safetensors.  The .bin version also runs under torch 2.4.1 with transformers 4.46.
Run: python hf_models.py
"""
import json
import os
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

import fixlib

rnd = fixlib.rnd


def randomize(model, salt):
    seen = set()
    with torch.no_grad():
        for n, p in list(model.named_parameters()) + list(model.named_buffers()):
            if p.data_ptr() in seen or not p.numel():
                continue
            seen.add(p.data_ptr())
            p.copy_(rnd(n, p.shape, p.dtype, salt=salt))


def read_dir(d, name):
    """Every tensor of a directory, as the safetensors library reads it, following index.json where there is one."""
    out = {}
    idx = d / "model.safetensors.index.json"
    wm = json.loads(idx.read_text())["weight_map"] if idx.exists() else None
    files = sorted(set(wm.values())) if wm else ["model.safetensors"]
    for f in files:
        with safe_open(d / f, "pt") as s:
            for k in s.keys():
                if wm is None or wm[k] == f:
                    out[k] = s.get_tensor(k)
    return {"name": name, "complete": True, "tensors": [fixlib.tensor_entry(k, [k], t) for k, t in sorted(out.items())], "objects": [], "aliases": [], "shards": []}, out


def same_as_model(model, d, out):
    """from_pretrained gives the same values back."""
    m2 = type(model).from_pretrained(d, dtype=model.dtype)
    sd = m2.state_dict()
    hit = 0
    for k, t in out.items():
        if k in sd:
            assert fixlib.sha(sd[k].to(t.dtype)) == fixlib.sha(t), k
            hit += 1
    print(d.name, "keys", len(out), "equal to the reloaded model", hit)


def save(root, name, cls, cfg, dtype, size, check=True, **kw):
    torch.manual_seed(0)
    m = cls(cfg).to(dtype)
    randomize(m, name)
    m.save_pretrained(root / name, max_shard_size=size, **kw)
    return m


def llama(root, out_name):
    T = transformers
    models = {}
    c = T.LlamaConfig(vocab_size=131, hidden_size=24, intermediate_size=37, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False)
    models["llama"] = save(root, "llama", T.LlamaForCausalLM, c, torch.bfloat16, "9KB")
    c = T.GPT2Config(vocab_size=61, n_positions=17, n_embd=20, n_layer=2, n_head=4, n_inner=31)
    models["gpt2-tied"] = save(root, "gpt2-tied", T.GPT2LMHeadModel, c, torch.float32, "10GB")
    c = T.T5Config(vocab_size=53, d_model=12, d_kv=3, d_ff=19, num_layers=2, num_decoder_layers=1, num_heads=4, tie_word_embeddings=True)
    models["t5-tied"] = save(root, "t5-tied", T.T5ForConditionalGeneration, c, torch.float16, "3KB")
    return models


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    T = transformers
    fw = {"transformers": T.__version__}

    name = "hf-llama"
    root = fixlib.fresh(name)
    models = llama(root, name)
    # by the safetensors library itself: every dtype it knows, empty and 0-dim tensors, metadata, keys
    (root / "dtypes").mkdir()
    t = {n: rnd(n, (2, 6), d) for d, n in fixlib.NAMES.items() if n not in ("C128", "C32", "F4", "F8_E4M3FNUZ", "F8_E5M2FNUZ")}
    extra = {}
    for d, n in fixlib.NAMES.items():
        if n in ("F4", "F8_E4M3FNUZ", "F8_E5M2FNUZ"):
            try:
                save_file({n: rnd(n, (2, 6), d)}, root / "probe.safetensors")
                (root / "probe.safetensors").unlink()
                t[n] = rnd(n, (2, 6), d)
            except Exception as e:
                print("safetensors cannot save", n, str(e)[:80])
    t.update({"zero_dim": rnd("zd", (), torch.float64), "empty": torch.empty(0, 4), "a/b ü": rnd("k", (3,)), "": rnd("nokey", (1,))})
    save_file(t, root / "dtypes" / "model.safetensors", metadata={"format": "pt", "note": "é\n\"quoted\""})
    out = fixlib.publish(name, root)
    vs = []
    for d in sorted((out / "ckpt").iterdir()):
        v, o = read_dir(d, d.name)
        if d.name in models:
            same_as_model(models[d.name], d, o)
        vs.append(v)
    fixlib.finish(name, "llama: bf16, untied, several shards with index.json and generation_config. gpt2-tied: Conv1D weights, tied embeddings (stored once), one file. t5-tied: encoder-decoder, float16, shared embeddings, sharded. "
                  "dtypes: written by the safetensors library: every dtype, 0-dim, empty, empty key, string metadata. F4 shape as torch shows it (two values a byte).", "hf-safetensors", vs, frameworks=fw)

    name = "hf-moe"
    root = fixlib.fresh(name)
    models = {}
    c = T.MixtralConfig(vocab_size=67, hidden_size=16, intermediate_size=21, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=2, max_position_embeddings=16)
    models["mixtral"] = save(root, "mixtral", T.MixtralForCausalLM, c, torch.bfloat16, "8KB")
    c = T.Qwen2MoeConfig(vocab_size=59, hidden_size=16, intermediate_size=23, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=7, shared_expert_intermediate_size=11, decoder_sparse_step=2, max_position_embeddings=16, tie_word_embeddings=True)
    models["qwen2-moe"] = save(root, "qwen2-moe", T.Qwen2MoeForCausalLM, c, torch.float32, "12KB")
    out = fixlib.publish(name, root)
    vs = []
    for d in sorted((out / "ckpt").iterdir()):
        v, o = read_dir(d, d.name)
        same_as_model(models[d.name], d, o)
        vs.append(v)
    fixlib.finish(name, "Mixture-of-experts models: Mixtral (3 experts) and Qwen2-MoE (5 experts, shared expert, tied). Sharded safetensors with index.json; keys are those of the files (transformers 5 fuses experts when it loads).", "hf-safetensors", vs, frameworks=fw)


if __name__ == "__main__":
    main()
