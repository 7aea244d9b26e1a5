# SPDX-License-Identifier: Apache-2.0
"""golden/hf-shapes.txt: config.json and the tensors of small models, as transformers saves them.

Packages: torch==2.15.0 transformers==5.24.0 safetensors.
Run: python hf_shapes.py
"""
import json
import os
import pathlib
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

OUT = pathlib.Path(__file__).parent.parent / "golden" / "hf-shapes.txt"
COMMON = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=40,
              head_dim=6, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2)
DEEPSEEK = dict(COMMON, first_k_dense_replace=1, n_routed_experts=2, n_shared_experts=2, moe_intermediate_size=10, q_lora_rank=8,
                kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=5, n_group=2, topk_group=1, num_experts_per_tok=1)
DEEPSEEK.pop("head_dim")
MOE = dict(COMMON, num_experts=2, moe_intermediate_size=10, num_experts_per_tok=1)
NEOX = {k: v for k, v in COMMON.items() if k not in ("num_key_value_heads", "head_dim")}
MODELS = [(t, COMMON) for t in ("llama", "mistral", "smollm3", "granite", "gemma", "gemma2", "gemma3_text", "qwen2", "qwen3", "phi3", "olmo2")] + [
    ("llama", dict(COMMON, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    ("gpt_neox", NEOX), ("gpt_neox", dict(NEOX, attention_bias=False)),
    ("gpt_oss", dict(COMMON, num_local_experts=2, num_experts_per_tok=1)), ("gpt_oss", dict(COMMON, num_local_experts=2, num_hidden_layers=1, attention_bias=False)),
    ("mixtral", dict(COMMON, num_local_experts=2, num_experts_per_tok=1)),
    ("qwen2_moe", dict(MOE, shared_expert_intermediate_size=14, num_hidden_layers=3, decoder_sparse_step=2)), ("qwen3_moe", MOE),
    ("deepseek_v2", dict(DEEPSEEK, q_lora_rank=None)), ("deepseek_v3", DEEPSEEK),
    ("gpt2", dict(n_embd=16, n_head=4, n_layer=2, n_inner=24, n_positions=32, vocab_size=40)),
    ("gpt2", dict(n_embd=16, n_head=4, n_layer=1, n_positions=32, vocab_size=40)),
    ("mpt", dict(d_model=16, n_heads=4, n_layers=2, max_seq_len=32, vocab_size=40)),
]
# Of these without the head, which is another for each task.
ENCODERS = [(t, dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, vocab_size=40, max_position_embeddings=32))
            for t in ("bert", "roberta")] + [("distilbert", dict(dim=16, hidden_dim=24, n_layers=2, n_heads=4, vocab_size=40, max_position_embeddings=32))]


def main():
    with open(OUT, "w", encoding="ascii") as out:
        for kind, numbers in MODELS + ENCODERS:
            auto = AutoModelForTokenClassification if (kind, numbers) in ENCODERS else AutoModelForCausalLM
            with tempfile.TemporaryDirectory() as d:
                auto.from_config(AutoConfig.for_model(kind, **numbers)).save_pretrained(d)
                config = json.loads((pathlib.Path(d) / "config.json").read_text())
                config = {k: v for k, v in config.items() if isinstance(v, (int, str))}
                out.write(json.dumps(config) + "\n")
                with safe_open(pathlib.Path(d) / "model.safetensors", "pt") as f:
                    for key in sorted(k for k in f.keys() if not k.startswith("classifier.")):
                        out.write(" ".join([key, *map(str, f.get_slice(key).get_shape())]) + "\n")


main()
