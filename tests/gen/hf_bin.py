# SPDX-License-Identifier: Apache-2.0
"""hf-bin: transformers 4.46 save_pretrained with safe_serialization=False: sharded pytorch_model-*.bin with index, and one file.

Packages: torch==2.4.1 transformers==4.46.3 'numpy<2' safetensors.  Run: python hf_bin.py
"""
import json
import warnings

import torch
import transformers as T

import fixlib
from hf_models import randomize
import torch_save

NAME = "hf-bin"


def main():
    warnings.simplefilter("ignore")
    T.logging.set_verbosity_error()
    root = fixlib.fresh(NAME)
    torch.manual_seed(0)
    m = T.LlamaForCausalLM(T.LlamaConfig(vocab_size=73, hidden_size=20, intermediate_size=29, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16, tie_word_embeddings=False)).to(torch.bfloat16)
    randomize(m, "bin-a")
    m.save_pretrained(root / "sharded", safe_serialization=False, max_shard_size="5KB")
    m = T.GPT2LMHeadModel(T.GPT2Config(vocab_size=41, n_positions=11, n_embd=12, n_layer=1, n_head=3))
    randomize(m, "bin-b")
    m.save_pretrained(root / "gpt2-tied", safe_serialization=False)
    # adapter-like: safetensors beside .bin training state of the Trainer
    opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
    for n, p in m.named_parameters():
        p.grad = fixlib.rnd(n, p.shape, p.dtype, specials=False, salt="grad")
    opt.step()
    torch.save(opt.state_dict(), root / "gpt2-tied" / "optimizer.pt")
    out = fixlib.publish(NAME, root)
    vs = []
    for d in sorted((out / "ckpt").iterdir()):
        idx = d / "pytorch_model.bin.index.json"
        files = sorted(set(json.loads(idx.read_text())["weight_map"].values())) if idx.exists() else ["pytorch_model.bin"]
        sd = {}
        for f in files:
            sd.update(torch.load(d / f, weights_only=True))
        v = torch_save.version(sd, d.name)
        for e in v["tensors"]:
            e["path"] = [e["key"]]
        vs.append(v)
        if (d / "optimizer.pt").exists():
            vs.append(torch_save.version(torch.load(d / "optimizer.pt", weights_only=True), d.name + "/optimizer.pt"))
    fixlib.finish(NAME, "transformers 4.46 under torch 2.4: sharded/ pytorch_model-0000i-of-0000N.bin with pytorch_model.bin.index.json (bf16), gpt2-tied/ one pytorch_model.bin with tied embeddings kept as aliases and an optimizer.pt beside it.",
                  "hf-bin", vs, frameworks={"transformers": T.__version__})


if __name__ == "__main__":
    main()
