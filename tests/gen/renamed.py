# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face model under the names and in the shapes that trainers give it, numpy arrays by key: what presets of core/rules have to undo.

Written from the mappings that the first lines of each preset name, head by head and expert by expert; no code of the rules is used.
FORMS lists, for each model_type, the preset that has to be found and a function of (tensors, config) for each form.
"""
import argparse

import numpy as np

PAD = 3  # rows that Megatron adds to the vocabulary


def padded(a):
    return np.concatenate([a, np.ones((PAD,) + a.shape[1:], a.dtype)])


def numbers(c):
    heads = c.get("num_attention_heads") or c["n_head"]
    return heads, c.get("num_key_value_heads", heads), c.get("num_hidden_layers") or c["n_layer"]


def head(a, n, heads):
    size = len(a) // heads
    return a[n * size:(n + 1) * size]


def by_version(a, heads, version):
    """Rows of fused(), of as many groups as heads, as Megatron-LM had them before checkpoint_version 2: (heads, 3, size) became (3, heads, size) or (heads, size, 3)."""
    rows = a.reshape(heads, 3, -1, *a.shape[1:])
    return {0: rows.swapaxes(0, 1), 1: rows.swapaxes(1, 2)}.get(version, rows).reshape(a.shape)


def fused(q, k, v, heads, groups):
    """Rows of queries, keys and values: in each group its query heads, its key head, its value head."""
    rows = []
    for g in range(groups):
        rows += [head(q, g * (heads // groups) + j, heads) for j in range(heads // groups)] + [head(k, g, groups), head(v, g, groups)]
    return np.concatenate(rows)


def interleaved(a, heads):
    """Rotary halves of each head as pairs: Hugging Face's order to Meta's."""
    out = np.empty_like(a)
    size = len(a) // heads
    for n in range(heads):
        for r in range(size // 2):
            out[n * size + 2 * r] = a[n * size + r]
            out[n * size + 2 * r + 1] = a[n * size + size // 2 + r]
    return out


def rename(hf, names, **slots):
    """{new: array} of {new: old} for keys that are there."""
    return {new.format(**slots): hf[old.format(**slots)] for new, old in names.items() if old.format(**slots) in hf}


# ---- Megatron ----

EXPERTS = {"mixtral": ("block_sparse_moe", "w1", "w3", "w2")}
ATTENTION = {
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.linear_q_down_proj.weight": "self_attn.q_a_proj.weight", "self_attention.linear_q_up_proj.weight": "self_attn.q_b_proj.weight",
    "self_attention.linear_kv_down_proj.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "self_attention.linear_kv_up_proj.weight": "self_attn.kv_b_proj.weight",
}


def gated(hf, at, gate="gate_proj", up="up_proj"):
    return np.concatenate([hf[f"{at}.{gate}.weight"], hf[f"{at}.{up}.weight"]])


def megatron_layer(hf, c, at, local):
    """One layer: what its parts are called below it, and (fc1, fc2) of its experts."""
    heads, groups, _ = numbers(c)
    moe, gate, up, down = EXPERTS.get(c["model_type"], ("mlp", "gate_proj", "up_proj", "down_proj"))
    mla, experts, n = f"{at}.self_attn.kv_a_proj_with_mqa.weight" in hf, [], 0
    out = rename({k[len(at) + 1:]: v for k, v in hf.items() if k.startswith(at + ".")}, ATTENTION)
    for kind in ("weight", "bias"):
        if f"{at}.self_attn.k_proj.{kind}" in hf:
            out[f"self_attention.linear_qkv.{kind}"] = fused(*(hf[f"{at}.self_attn.{x}_proj.{kind}"] for x in "qkv"), heads, groups)
    if mla:
        names = {"self_attention.q_layernorm.weight" if local else "self_attention.linear_q_up_proj.layer_norm_weight": "{at}.self_attn.q_a_layernorm.weight",
                 "self_attention.kv_layernorm.weight" if local else "self_attention.linear_kv_up_proj.layer_norm_weight": "{at}.self_attn.kv_a_layernorm.weight",
                 "self_attention.linear_q_proj.weight": "{at}.self_attn.q_proj.weight"}
        out |= rename(hf, names, at=at)
    else:
        out |= rename(hf, {"self_attention.q_layernorm.weight": "{at}.self_attn.q_norm.weight",
                           "self_attention.k_layernorm.weight": "{at}.self_attn.k_norm.weight"}, at=at)
    out["input_layernorm.weight" if local or mla else "self_attention.linear_qkv.layer_norm_weight"] = hf[f"{at}.input_layernorm.weight"]
    is_moe = f"{at}.{moe}.gate.weight" in hf
    out["pre_mlp_layernorm.weight" if local or is_moe else "mlp.linear_fc1.layer_norm_weight"] = hf[f"{at}.post_attention_layernorm.weight"]
    if not is_moe:
        return out | {"mlp.linear_fc1.weight": gated(hf, f"{at}.mlp"), "mlp.linear_fc2.weight": hf[f"{at}.mlp.down_proj.weight"]}, experts
    out |= rename(hf, {"mlp.router.weight": "{at}.{moe}.gate.weight", "mlp.router.expert_bias": "{at}.mlp.gate.e_score_correction_bias",
                       "mlp.shared_experts.gate_weight": "{at}.mlp.shared_expert_gate.weight"}, at=at, moe=moe)
    for shared in (f"{at}.mlp.shared_expert", f"{at}.mlp.shared_experts"):
        if f"{shared}.down_proj.weight" in hf:
            out |= {"mlp.shared_experts.linear_fc1.weight": gated(hf, shared), "mlp.shared_experts.linear_fc2.weight": hf[f"{shared}.down_proj.weight"]}
    while f"{at}.{moe}.experts.{n}.{down}.weight" in hf:
        experts.append((gated(hf, f"{at}.{moe}.experts.{n}", gate, up), hf[f"{at}.{moe}.experts.{n}.{down}.weight"]))
        n += 1
    return out, experts


def halved(tensors):
    out = {}
    for key, a in tensors.items():
        if key.endswith("linear_fc1.weight"):
            out |= {key + "_w": a[:len(a) // 2], key + "_v": a[len(a) // 2:]}
        else:
            out[key] = a
    return out


def by_number(at, layer, experts, form):
    """Keys of one layer below @at, experts as the form has them."""
    out = {f"{at}.{k}": a for k, a in layer.items()}
    for e, pair in enumerate(experts):
        for fc, a in zip(("linear_fc1", "linear_fc2"), pair):
            key = {"numbers": f"{fc}.weight{e}", "local": f"local_experts.{e}.{fc}.weight", "halves": f"experts.{e}.{fc}.weight"}.get(form)
            if key:
                out[f"{at}.mlp.experts.{key}"] = a
    if experts and form == "experts":
        out |= {f"{at}.mlp.experts.experts.linear_fc{i + 1}.weight": np.stack([x[i] for x in experts]) for i in (0, 1)}
    if experts and form == "grouped":
        out |= {f"{at}.mlp.experts.weight{i + 1}": np.stack([x[i].T for x in experts]) for i in (0, 1)}
    return halved(out) if form == "halves" else out


def megatron(form):
    def convert(hf, c):
        layers = [megatron_layer(hf, c, f"model.layers.{i}", form == "local") for i in range(numbers(c)[2])]
        out = {"embedding.word_embeddings.weight": padded(hf["model.embed_tokens.weight"]),
               "decoder.final_layernorm.weight": hf["model.norm.weight"], "decoder.layers.0.mlp._extra_state": np.zeros(3, np.uint8)}
        if "lm_head.weight" in hf:
            out["output_layer.weight"] = padded(hf["lm_head.weight"])
        if form != "stacked":
            for i, (layer, experts) in enumerate(layers):
                out |= by_number(f"decoder.layers.{i}", layer, experts, form)
            return out | mtp(hf, c, form)
        for key in layers[0][0]:
            out[f"decoder.layers.{key}"] = np.stack([layer[key] for layer, _ in layers])
        if layers[0][1]:
            out |= {f"decoder.layers.mlp.experts.experts.linear_fc{i + 1}.weight":
                    np.stack([np.stack([x[i] for x in experts]) for _, experts in layers]) for i in (0, 1)}
        return out
    return convert


def local_dist(hf, c):
    """torch_dist of the local layers, whose norm in front of experts has the name that it has in front of one MLP."""
    return {k.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"): a for k, a in megatron("stacked")(hf, c).items()}


def mtp(hf, c, form):
    """Layers of multi-token prediction come after the others in a Hugging Face model, and are a list of their own here."""
    out, n, below = {}, 0, "transformer_layer" if form == "experts" else "mtp_model_layer"
    while f"model.layers.{numbers(c)[2] + n}.enorm.weight" in hf:
        at, to = f"model.layers.{numbers(c)[2] + n}", f"mtp.layers.{n}"
        layer, experts = megatron_layer(hf, c, at, form == "local")
        out |= by_number(f"{to}.{below}", layer, experts, form)
        out |= {f"{to}.{a}.weight": hf[f"{at}.{b}.weight"] for a, b in (("enorm", "enorm"), ("hnorm", "hnorm"), ("eh_proj", "eh_proj"),
                                                                         ("final_layernorm", "shared_head.norm"))}
        n += 1
    return out


def with_mtp(hf, c):
    """The layer of multi-token prediction that config.json speaks of and transformers leaves out: like the last one, and what is its own."""
    last, new = f"model.layers.{numbers(c)[2] - 1}.", f"model.layers.{numbers(c)[2]}."
    hidden = c["hidden_size"]
    own = {"enorm.weight": (hidden,), "hnorm.weight": (hidden,), "eh_proj.weight": (hidden, 2 * hidden), "shared_head.norm.weight": (hidden,)}
    return hf | {new + k[len(last):]: a[::-1].copy() for k, a in hf.items() if k.startswith(last)} | {
        new + k: np.arange(np.prod(shape)).reshape(shape).astype(hf["model.norm.weight"].dtype) for k, shape in own.items()}


def megatron_lm(hf, c):
    """Names of Megatron-LM before Megatron-Core."""
    heads, groups, layers = numbers(c)
    out = {"embedding.word_embeddings.weight": padded(hf["model.embed_tokens.weight"]), "output_layer.weight": padded(hf["lm_head.weight"]),
           "encoder.final_norm.weight": hf["model.norm.weight"]}
    for i in range(layers):
        at, to = f"model.layers.{i}", f"encoder.layers.{i}"
        out |= rename(hf, {"{to}.input_norm.weight": "{at}.input_layernorm.weight", "{to}.post_attention_norm.weight": "{at}.post_attention_layernorm.weight",
                           "{to}.self_attention.dense.weight": "{at}.self_attn.o_proj.weight", "{to}.mlp.dense_4h_to_h.weight": "{at}.mlp.down_proj.weight"},
                      at=at, to=to)
        out[f"{to}.self_attention.query_key_value.weight"] = fused(*(hf[f"{at}.self_attn.{x}_proj.weight"] for x in "qkv"), heads, groups)
        out[f"{to}.mlp.dense_h_to_4h.weight"] = gated(hf, f"{at}.mlp")
    return out


def megatron_args(c, dtype):
    """What Megatron would have been told to train a model of this config."""
    moe, mla = getattr(c, "num_experts", None) or getattr(c, "num_local_experts", None) or getattr(c, "n_routed_experts", None), hasattr(c, "kv_lora_rank")
    out = dict(num_layers=c.num_hidden_layers, hidden_size=c.hidden_size, num_attention_heads=c.num_attention_heads, max_position_embeddings=c.max_position_embeddings,
               ffn_hidden_size=getattr(c, "intermediate_size", None) or 4 * c.hidden_size, padded_vocab_size=c.vocab_size + PAD, vocab_size=c.vocab_size,
               kv_channels=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads, norm_epsilon=getattr(c, "rms_norm_eps", 1e-5),
               untie_embeddings_and_output_weights=not c.tie_word_embeddings, params_dtype=dtype, position_embedding_type="rope", swiglu=True,
               normalization="RMSNorm", add_bias_linear=False, rotary_percent=1.0, rotary_base=10000, group_query_attention=not mla,
               num_query_groups=getattr(c, "num_key_value_heads", c.num_attention_heads), qk_layernorm="qwen3" in c.model_type or mla,
               add_qkv_bias="qwen2" in c.model_type, multi_latent_attention=mla, num_experts=moe)
    if c.model_type == "gpt2":
        out |= dict(position_embedding_type="learned_absolute", swiglu=False, normalization="LayerNorm", add_bias_linear=True, openai_gelu=True,
                    norm_epsilon=c.layer_norm_epsilon)
    else:
        out["rotary_base"] = c.rope_parameters["rope_theta"]
    if moe:
        out |= dict(moe_ffn_hidden_size=getattr(c, "moe_intermediate_size", None) or c.intermediate_size, moe_router_topk=c.num_experts_per_tok, moe_layer_freq=1,
                    moe_router_pre_softmax=not getattr(c, "norm_topk_prob", True), moe_shared_expert_intermediate_size=getattr(c, "shared_expert_intermediate_size", None),
                    moe_shared_expert_gate=c.model_type == "qwen2_moe")
    if mla:
        out |= dict(q_lora_rank=c.q_lora_rank, kv_lora_rank=c.kv_lora_rank, qk_head_dim=c.qk_nope_head_dim, qk_pos_emb_head_dim=c.qk_rope_head_dim,
                    v_head_dim=c.v_head_dim, rope_type="rope", moe_layer_freq=[0] * c.first_k_dense_replace + [1] * (c.num_hidden_layers - c.first_k_dense_replace),
                    moe_shared_expert_intermediate_size=c.n_shared_experts * c.moe_intermediate_size, moe_router_num_groups=c.n_group, moe_router_group_topk=c.topk_group,
                    moe_router_topk_scaling_factor=c.routed_scaling_factor, moe_router_score_function="sigmoid" if c.model_type == "deepseek_v3" else "softmax", moe_router_enable_expert_bias=c.model_type == "deepseek_v3")
    return argparse.Namespace(**out)


GPT_CORE = {"ln_1": "self_attention.linear_qkv.layer_norm_{}", "ln_2": "mlp.linear_fc1.layer_norm_{}", "attn.c_attn": "self_attention.linear_qkv.{}",
            "attn.c_proj": "self_attention.linear_proj.{}", "mlp.c_fc": "mlp.linear_fc1.{}", "mlp.c_proj": "mlp.linear_fc2.{}"}
GPT_OLD = {"ln_1": "input_layernorm.{}", "ln_2": "post_attention_layernorm.{}", "attn.c_attn": "attention.query_key_value.{}",
           "attn.c_proj": "attention.dense.{}", "mlp.c_fc": "mlp.dense_h_to_4h.{}", "mlp.c_proj": "mlp.dense_4h_to_h.{}"}


def gpt2(block, names, stacked=False):
    def convert(hf, c):
        heads, _, layers = numbers(c)
        out = {"embedding.word_embeddings.weight": padded(hf["transformer.wte.weight"]), "embedding.position_embeddings.weight": hf["transformer.wpe.weight"]}
        for kind in ("weight", "bias"):
            out[f"{block}.final_layernorm.{kind}"] = hf[f"transformer.ln_f.{kind}"]
            for old, new in names.items():
                parts = [hf[f"transformer.h.{i}.{old}.{kind}"] for i in range(layers)]
                if kind == "weight" and "ln_" not in old:
                    parts = [a.T for a in parts]  # GPT-2 of transformers has [inputs, outputs]
                if old == "attn.c_attn":
                    parts = [fused(*np.split(a, 3), heads, heads) for a in parts]
                if stacked:
                    out[f"{block}.layers.{new.format(kind)}"] = np.stack(parts)
                else:
                    out |= {f"{block}.layers.{i}.{new.format(kind)}": a for i, a in enumerate(parts)}
        return out
    return convert


# ---- torchtitan and its relatives ----

TITAN = {"layers.{i}.attention.wo.weight": "model.layers.{i}.self_attn.o_proj.weight", "layers.{i}.attention_norm.weight": "model.layers.{i}.input_layernorm.weight",
         "layers.{i}.ffn_norm.weight": "model.layers.{i}.post_attention_layernorm.weight", "layers.{i}.attention.q_norm.weight": "model.layers.{i}.self_attn.q_norm.weight",
         "layers.{i}.attention.k_norm.weight": "model.layers.{i}.self_attn.k_norm.weight"}
TITAN_FFN = {"layers.{i}.feed_forward.w1.weight": "model.layers.{i}.mlp.gate_proj.weight", "layers.{i}.feed_forward.w2.weight": "model.layers.{i}.mlp.down_proj.weight",
             "layers.{i}.feed_forward.w3.weight": "model.layers.{i}.mlp.up_proj.weight"}
TITAN_MLA = {"layers.{i}.attention.wq.weight": "model.layers.{i}.self_attn.q_proj.weight", "layers.{i}.attention.wq_a.weight": "model.layers.{i}.self_attn.q_a_proj.weight",
             "layers.{i}.attention.q_norm.weight": "model.layers.{i}.self_attn.q_a_layernorm.weight", "layers.{i}.attention.wq_b.weight": "model.layers.{i}.self_attn.q_b_proj.weight",
             "layers.{i}.attention.wkv_a.weight": "model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight",
             "layers.{i}.attention.kv_norm.weight": "model.layers.{i}.self_attn.kv_a_layernorm.weight", "layers.{i}.attention.wkv_b.weight": "model.layers.{i}.self_attn.kv_b_proj.weight",
             "layers.{i}.attention.wo.weight": "model.layers.{i}.self_attn.o_proj.weight"}
TITAN_MTP = {"layers.{i}.enorm.weight": "model.layers.{i}.enorm.weight", "layers.{i}.hnorm.weight": "model.layers.{i}.hnorm.weight",
             "layers.{i}.eh_proj.weight": "model.layers.{i}.eh_proj.weight", "layers.{i}.mtp_norm.weight": "model.layers.{i}.shared_head.norm.weight"}
TITAN_MOE = {"layers.{i}.moe.router.gate.weight": "model.layers.{i}.mlp.gate.weight", "layers.{i}.moe.expert_bias": "model.layers.{i}.mlp.gate.e_score_correction_bias",
             "layers.{i}.moe.shared_experts.w1.weight": "model.layers.{i}.mlp.shared_experts.gate_proj.weight",
             "layers.{i}.moe.shared_experts.w2.weight": "model.layers.{i}.mlp.shared_experts.down_proj.weight",
             "layers.{i}.moe.shared_experts.w3.weight": "model.layers.{i}.mlp.shared_experts.up_proj.weight"}


def titan_layer(hf, c, i, to, rope, names, new, fuse=False):
    heads, groups, _ = numbers(c)
    out = rename(hf, TITAN | TITAN_FFN | TITAN_MOE | names, i=i)
    if "layers.{i}.attention.wkv_a.weight" not in names:
        for x, n in (("q", heads), ("k", groups), ("v", groups)):
            a = hf[f"model.layers.{i}.self_attn.{x}_proj.weight"]
            out[f"layers.{i}.attention.{'qkv_linear.' if new else ''}w{x}.weight"] = interleaved(a, n) if rope and x != "v" else a
        if fuse:
            at = f"layers.{i}.attention.qkv_linear"
            out[f"{at}.wqkv.weight"] = fused(*(out.pop(f"{at}.w{x}.weight") for x in "qkv"), heads, groups)
    for w, x in (("w1", "gate"), ("w2", "down"), ("w3", "up")):
        parts, e = [], 0
        while f"model.layers.{i}.mlp.experts.{e}.{x}_proj.weight" in hf:
            parts.append(hf[f"model.layers.{i}.mlp.experts.{e}.{x}_proj.weight"])
            e += 1
        if parts:
            at = f"routed_experts.inner_experts.{w}_{'EDF' if w == 'w2' else 'EFD'}" if new else f"experts.{w}"
            out[f"layers.{i}.moe.{at}"] = np.stack(parts)
    return {to + k[len(f"layers.{i}"):]: a for k, a in out.items()}


def titan(rope=False, names=None, new=True, fuse=False):
    def convert(hf, c):
        layers = numbers(c)[2]
        out = {"tok_embeddings.weight": hf["model.embed_tokens.weight"], "norm.weight": hf["model.norm.weight"],
               "lm_head.weight" if new else "output.weight": hf["lm_head.weight"]}
        for i in range(layers):
            out |= titan_layer(hf, c, i, f"layers.{i}", rope, names or {}, new, fuse)
        if f"model.layers.{layers}.enorm.weight" in hf:
            out |= titan_layer(hf, c, layers, "mtp_layers.0", rope, names | TITAN_MTP, new)
        return out
    return convert


def llama4(hf, c):
    out, at = {}, "language_model.model.layers.{i}."
    names = {"layers.{i}.attention.wo.weight": at + "self_attn.o_proj.weight", "layers.{i}.attention_norm.weight": at + "input_layernorm.weight",
             "layers.{i}.ffn_norm.weight": at + "post_attention_layernorm.weight", "layers.{i}.moe.router.gate.weight": at + "feed_forward.router.weight"}
    names |= {f"layers.{{i}}.attention.qkv_linear.w{x}.weight": at + f"self_attn.{x}_proj.weight" for x in "qkv"}
    for w, x in (("w1", "gate"), ("w2", "down"), ("w3", "up")):
        names |= {f"layers.{{i}}.feed_forward.{w}.weight": at + f"feed_forward.{x}_proj.weight",
                  f"layers.{{i}}.moe.shared_experts.{w}.weight": at + f"feed_forward.shared_expert.{x}_proj.weight"}
    for i in range(numbers(c)[2]):
        out |= rename(hf, names, i=i)
        both = hf.get(f"language_model.model.layers.{i}.feed_forward.experts.gate_up_proj")
        if both is not None:
            half = both.shape[-1] // 2
            down = hf[f"language_model.model.layers.{i}.feed_forward.experts.down_proj"]
            out |= {f"layers.{i}.moe.experts.w1": both[:, :, :half].swapaxes(1, 2), f"layers.{i}.moe.experts.w3": both[:, :, half:].swapaxes(1, 2),
                    f"layers.{i}.moe.experts.w2": down.swapaxes(1, 2), f"layers.{i}.moe.expert_bias_E": np.zeros(len(both), np.float32)}
    return out | {"tok_embeddings.weight": hf["language_model.model.embed_tokens.weight"], "norm.weight": hf["language_model.model.norm.weight"],
                  "lm_head.weight": hf["language_model.lm_head.weight"]}


def gpt_oss(new):
    """Experts are [outputs, inputs], in transformers [inputs, outputs]."""
    def convert(hf, c):
        out = {"tok_embeddings.weight": hf["model.embed_tokens.weight"], "norm.weight": hf["model.norm.weight"],
               "lm_head.weight" if new else "output.weight": hf["lm_head.weight"]}
        names = {"attention.sinks": "self_attn.sinks", "attention_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight"}
        for kind in ("weight", "bias"):
            names |= {f"moe.router.gate.{kind}": f"mlp.router.{kind}", f"attention.wo.{kind}": f"self_attn.o_proj.{kind}"}
            names |= {f"attention.{'qkv_linear.' if new else ''}w{x}.{kind}": f"self_attn.{x}_proj.{kind}" for x in "qkv"}
        for i in range(numbers(c)[2]):
            at = f"model.layers.{i}.mlp.experts."
            out |= {f"layers.{i}.{k}": hf[f"model.layers.{i}.{v}"] for k, v in names.items() if f"model.layers.{i}.{v}" in hf}
            for own, name, axes in (("mlp1", "gate_up_proj", "EGD EG"), ("mlp2", "down_proj", "EDF ED")):
                for kind, a, dims in zip(("weight", "bias"), (hf[at + name].swapaxes(1, 2), hf[at + name + "_bias"]), axes.split()):
                    out[f"layers.{i}.moe.{'routed_experts.inner_' if new else ''}experts.{own}_{kind}{'_' + dims if new else ''}"] = a
        return out
    return convert


QWEN35 = {"attn.wo.weight": "self_attn.o_proj.weight", "attention_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
          "moe.router.gate.weight": "mlp.gate.weight", "moe.shared_experts.gate.weight": "mlp.shared_expert_gate.weight"}


def qwen3_5(hf, c):
    """Queries, keys and values of linear attention apart, experts in one tensor; the text alone."""
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    out = {"tok_embeddings.weight": hf["model.embed_tokens.weight"], "norm.weight": hf["model.norm.weight"], "lm_head.weight": hf["lm_head.weight"]}
    names = QWEN35 | {f"attn.w{x}.weight": f"self_attn.{x}_proj.weight" for x in "qkv"} | {f"attn.{x}_norm.weight": f"self_attn.{x}_norm.weight" for x in "qk"}
    for w, x in (("w1", "gate"), ("w2", "down"), ("w3", "up")):
        names |= {f"feed_forward.{w}.weight": f"mlp.{x}_proj.weight", f"moe.shared_experts.{w}.weight": f"mlp.shared_expert.{x}_proj.weight"}
    for i in range(numbers(c)[2]):
        at, to = f"model.layers.{i}.", f"layers.{i}."
        out |= {to + k: hf[at + v] for k, v in names.items() if at + v in hf}
        for key, a in hf.items():
            if key.startswith(at + "linear_attn."):
                name = key[len(at + "linear_attn."):]
                if name in ("in_proj_qkv.weight", "conv1d.weight"):
                    for x, part in zip("qkv", np.split(a, [keys, 2 * keys])):
                        out[f"{to}attn.{'conv' if 'conv' in name else 'in_proj'}_{x}.weight"] = part
                else:
                    out[f"{to}attn.{name}"] = a
        for w, x in (("w1_EFD", "gate"), ("w2_EDF", "down"), ("w3_EFD", "up")):
            parts = [hf[k] for e in range(c.get("num_experts") or 0) if (k := f"{at}mlp.experts.{e}.{x}_proj.weight") in hf]
            if parts:
                out[f"{to}moe.routed_experts.inner_experts.{w}"] = np.stack(parts)
    return out


def paddle(name, fuse=False, former=False):
    """Linear weights as [inputs, outputs], also those of DeepSeek. PaddleFormers fuses in experts too, and turns neither lm_head nor routers."""
    def convert(hf, c):
        out, (heads, groups, _) = {}, numbers(c)
        turned = ("_proj.weight", "_with_mqa.weight", ".w1.weight", ".w2.weight", ".w3.weight") + (() if former else ("lm_head.weight", ".gate.weight", "_gate.weight"))
        for key, a in hf.items():
            at, part = key.rsplit(".", 2)[0], key.rsplit(".", 2)[1:]
            if fuse and part[0] in ("q_proj", "k_proj", "v_proj"):
                a = fused(*(hf[f"{at}.{x}_proj.{part[1]}"] for x in "qkv"), heads, groups)
                key = f"{at}.qkv_proj.{part[1]}"
            elif fuse and part[0] in ("gate_proj", "up_proj") and (former or ".experts." not in key):
                a, key = gated(hf, at), f"{at}.{'up_gate_proj' if former else 'gate_up_fused_proj'}.weight"
            out[key.replace("model.", name + ".", 1) if key.startswith("model.") else key] = np.ascontiguousarray(a.T) if key.endswith(turned) else a
        if c.get("tie_word_embeddings"):
            out["lm_head.weight"] = hf["model.embed_tokens.weight"]
        return out
    return convert


def paddle_ranks(tensors, c, n):
    """What each of n tensor-parallel ranks of PaddleNLP has of paddle(): _get_tensor_parallel_mappings; of gate_up_fused_proj half of each."""
    ranks = [{} for _ in range(n)]
    for key, a in tensors.items():
        layer, kind = key.rsplit(".", 2)[-2], key.rsplit(".", 1)[-1]
        columns = layer in ("q_proj", "qkv_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "w1", "w3")
        columns |= layer in ("k_proj", "v_proj") and c["num_key_value_heads"] % n == 0
        rows = layer in ("o_proj", "down_proj", "w2") and kind == "weight"
        if layer in ("embed_tokens", "lm_head") and a.shape[layer == "lm_head" and a.shape[0] != c["vocab_size"]] % n == 0:
            rows, columns = a.shape[0] == c["vocab_size"], a.shape[0] != c["vocab_size"]
        for r in range(n):
            if layer == "gate_up_fused_proj":
                ranks[r][key] = np.concatenate([np.split(half, n, -1)[r] for half in np.split(a, 2, -1)], -1)
            else:
                ranks[r][key] = np.split(a, n, -1)[r] if columns else np.split(a, n, 0)[r] if rows else a
    return ranks


PADDLE_GPT = {"ln_1": "norm1", "ln_2": "norm2", "mlp.c_fc": "linear1", "mlp.c_proj": "linear2", "attn.c_proj": "self_attn.out_proj"}


def paddle_gpt(fuse):
    def convert(hf, c):
        heads, _, layers = numbers(c)
        out = {"gpt.embeddings.word_embeddings.weight": hf["transformer.wte.weight"], "gpt.embeddings.position_embeddings.weight": hf["transformer.wpe.weight"]}
        for kind in ("weight", "bias"):
            out[f"gpt.decoder.norm.{kind}"] = hf[f"transformer.ln_f.{kind}"]
            for i in range(layers):
                at, to = f"transformer.h.{i}", f"gpt.decoder.layers.{i}"
                out |= {f"{to}.{new}.{kind}": hf[f"{at}.{old}.{kind}"] for old, new in PADDLE_GPT.items()}
                parts = np.split(hf[f"{at}.attn.c_attn.{kind}"], 3, -1)
                if fuse:
                    out[f"{to}.self_attn.qkv_proj.{kind}"] = np.ascontiguousarray(fused(*(p.T for p in parts), heads, heads).T)
                else:
                    out |= {f"{to}.self_attn.{x}_proj.{kind}": np.ascontiguousarray(p) for x, p in zip("qkv", parts)}
        return out
    return convert


def in_memory(hf, c):
    """As transformers 5 has models with experts."""
    moe, gate, up, down = EXPERTS.get(c["model_type"], ("mlp", "gate_proj", "up_proj", "down_proj"))
    out = {k.replace(f".{moe}.", ".mlp."): v for k, v in hf.items() if f".{moe}.experts." not in k}
    for i in range(numbers(c)[2] + c.get("num_nextn_predict_layers", 0)):
        at, n = f"model.layers.{i}.{moe}.experts", 0
        while f"{at}.{n}.{down}.weight" in hf:
            n += 1
        if n:
            out[f"model.layers.{i}.mlp.experts.gate_up_proj"] = np.stack([gated(hf, f"{at}.{e}", gate, up) for e in range(n)])
            out[f"model.layers.{i}.mlp.experts.down_proj"] = np.stack([hf[f"{at}.{e}.{down}.weight"] for e in range(n)])
    return out


def wrapped(prefix):
    return lambda hf, c: {prefix + k: v for k, v in in_memory(hf, c).items()}


def of(preset, **forms):
    return [(preset, name, fn) for name, fn in forms.items()]


DENSE = of("megatron", numbers=megatron("numbers"), local=megatron("local"), stacked=megatron("stacked"), halves=megatron("halves"))
MEMORY = dict(memory=in_memory, ddp=wrapped("model.module._orig_mod."))
ALL = {k: megatron(k) for k in ("numbers", "local", "experts", "halves", "grouped")}
FORMS = {
    "llama": DENSE + of("megatron", before_core=megatron_lm) + of("torchtitan-llama3", titan=titan(rope=True), fused=titan(rope=True, fuse=True)) + of("meta", meta=titan(rope=True, new=False))
    + of("paddle", paddle=paddle("llama"), paddle_fused=paddle("llama", fuse=True)),
    "mistral": DENSE, "qwen2": DENSE + of("paddle", paddle=paddle("qwen2"), paddle_fused=paddle("qwen2", fuse=True), paddleformers=paddle("model", True, True)),
    "qwen3": DENSE + of("paddle", paddle=paddle("qwen3"), paddleformers=paddle("model", True, True)) + of("torchtitan-qwen3", titan=titan(), fused=titan(fuse=True)),
    "mixtral": of("hf-mixtral", **MEMORY) + of("megatron-mixtral", stacked=megatron("stacked"), local_dist=local_dist, **ALL) + of("paddle", paddle=paddle("mixtral")),
    "qwen2_moe": of("hf-experts", **MEMORY) + of("megatron-moe", **ALL) + of("paddle", paddle=paddle("qwen2_moe", fuse=True)),
    "qwen3_moe": of("hf-experts", **MEMORY) + of("megatron-moe", stacked=megatron("stacked"), local_dist=local_dist, **ALL) + of("paddle", paddleformers=paddle("model", True, True)) + of("torchtitan-qwen3", titan=titan(), titan_2025=titan(new=False)),
    "deepseek_v2": of("hf-experts", **MEMORY) + of("megatron-deepseek", **ALL) + of("paddle", paddle=paddle("deepseek_v2")),
    "deepseek_v3": of("hf-experts", **MEMORY) + of("megatron-deepseek", **ALL) + of("paddle", paddle=paddle("deepseek_v3")) + of("torchtitan-deepseek-v3", titan=titan(names=TITAN_MLA), titan_2025=titan(names=TITAN_MLA, new=False)),
    "gpt2": of("megatron-gpt2", core=gpt2("decoder", GPT_CORE), stacked=gpt2("decoder", GPT_CORE, True), before_core=gpt2("transformer", GPT_OLD))
    + of("paddle-gpt", paddle=paddle_gpt(False), paddle_fused=paddle_gpt(True)),
    "llama4_text": of("torchtitan-llama4", titan=llama4),
    "gpt_oss": of("torchtitan-gpt-oss", titan=gpt_oss(True), titan_2025=gpt_oss(False)),
    "qwen3_5_text": of("torchtitan-qwen3-5", titan=qwen3_5),
    "qwen3_5_moe_text": of("torchtitan-qwen3-5", titan=qwen3_5),
}
