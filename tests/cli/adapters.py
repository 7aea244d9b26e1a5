#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters of PEFT's methods, as trainers save them inside the whole model's state: what PEFT's save_pretrained would write, or a refusal by name.

tests/gen/peft_methods.py compares with PEFT itself.
"""
import json

from cli import BAD, NO, OK, SCRATCH, check, fails, finish, equal, header, run, sample, write

Q = "base_model.model.model.layers.0.self_attn.q_proj."
TOP = "base_model."
BASE = ["base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight", "base_model.model.lm_head.weight", "base_model.model.model.embed_tokens.weight"]
PROMPT = ["base_model.model.layers.0.self_attn.q_proj.weight", "base_model.lm_head.weight"]

# By name of a method: what is beside the base model, under the name that PEFT saves it by (None: not saved); more of adapter_config.json.
METHODS = {
    "IA3": ({Q + "ia3_l.default": Q + "ia3_l"}, {}),
    "LOHA": ({Q + "hada_w1_a.default": Q + "hada_w1_a", Q + "hada_w2_b.default": Q + "hada_w2_b"}, {}),
    "LOKR": ({Q + "lokr_w1.default": Q + "lokr_w1", Q + "lokr_w2_a.default": Q + "lokr_w2_a"}, {}),
    "OFT": ({Q + "oft_R.default.weight": Q + "oft_R.weight", Q + "base_layer.bias": Q + "base_layer.bias"}, {"bias": "oft_only"}),
    "BOFT": ({Q + "boft_R.default": Q + "boft_R", Q + "boft_s.default": Q + "boft_s", Q + "base_layer.bias": None}, {"bias": "none"}),
    "VERA": ({Q + "vera_lambda_b.default": Q + "vera_lambda_b", Q + "vera_A.default": None, TOP + "vera_A.default": TOP + "vera_A"}, {}),
    "FOURIERFT": ({Q + "fourierft_spectrum.default": Q + "fourierft_spectrum"}, {}),
    "LN_TUNING": ({"base_model.model.model.norm.ln_tuning_layers.default.weight": "base_model.model.model.norm.ln_tuning_layers.weight"}, {}),
    "ADALORA": ({Q + "lora_A.default": Q + "lora_A", Q + "lora_E.default": Q + "lora_E", Q + "ranknum.default": None}, {"rank_pattern": None}),
    "VBLORA": ({Q + "vblora_logits_A.default": Q + "vblora_logits_A", TOP + "vblora_vector_bank.default": TOP + "vblora_vector_bank", Q + "vblora_vector_bank.default": None},
               {"save_only_topk_weights": False}),
    "TINYLORA": ({TOP + "tinylora_v.default.3": TOP + "tinylora_v.3", Q + "tinylora_v.default.3": None, Q + "tinylora_A.default": Q + "tinylora_A",
                  Q + "tinylora_P.default": None}, {"save_projection": False}),
    "PEANUT": ({Q + "peanut_A.default.weight": Q + "peanut_A.weight", Q + "peanut_encoders.default.0.weight": Q + "peanut_encoders.0.weight"}, {}),
    "GLORA": ({Q + "glora_A.default.Xd": Q + "glora_A.Xd"}, {}),
    "TRAINABLE_TOKENS": ({"base_model.model.model.embed_tokens.trainable_tokens_delta.default": "base_model.model.model.embed_tokens.trainable_tokens_delta"}, {}),
    "ADAPTION_PROMPT": ({"base_model.model.model.layers.0.self_attn.adaption_gate": "base_model.model.model.layers.0.self_attn.adaption_gate",
                         "base_model.model.model.layers.0.self_attn.adaption_prompt": "base_model.model.model.layers.0.self_attn.adaption_prompt"}, {}),
    "IA3 with a layer": ({Q + "ia3_l.default": Q + "ia3_l", "base_model.model.score.modules_to_save.default.weight": "base_model.model.score.weight",
                          "base_model.model.score.original_module.weight": None}, {}),
    "IA3 by another name": ({Q + "ia3_l.style": Q + "ia3_l"}, {}),
}
PROMPTS = {
    "PROMPT_TUNING": ({"prompt_encoder.default.embedding.weight": "prompt_embeddings"}, {}),
    "MULTITASK_PROMPT_TUNING": ({"prompt_encoder.default.embedding.weight": "prompt_embeddings", "prompt_encoder.default.prefix_task_cols": "prefix_task_cols"}, {}),
}
REFUSED = {
    "P_TUNING": ["prompt_encoder.default.embedding.weight", "prompt_encoder.default.mlp_head.0.weight", *PROMPT],
    "PREFIX_TUNING": ["prompt_encoder.default.embedding.weight", "prompt_encoder.default.transform.0.weight", *PROMPT],
    "CPT": ["prompt_encoder.default.embedding.weight", "prompt_encoder.default.delta_embedding.weight", *PROMPT],
    "SHIRA": [Q + "shira_weight.default", *BASE],
    "XLORA": [Q + "lora_A.default.weight", "base_model.internal_xlora_classifier.inner.0.weight", *BASE],
    "ONE_OF_TOMORROW": [Q + "tomorrow_A.default", *BASE],
}


def value(i):
    return "F32", [2], bytes([i] * 8)


def directory(name, keys, config):
    top = SCRATCH / name.replace(" ", "-")
    write(top / "model.safetensors", {k: value(i) for i, k in enumerate(keys)})
    if config is not None:
        (top / "adapter_config.json").write_text(json.dumps({"peft_type": name.split()[0]} | config))
    return top


def is_saved_as(top, want, source, what, config=True):
    out = top.parent / (top.name + "-out")
    got = run("export", "--as", "safetensors", "--hf", top, out)
    if not equal(got.returncode, OK, f"{what}: {got.stderr.decode()}"):
        return
    raw = (out / "adapter_model.safetensors").read_bytes()
    found = header(raw)
    found.pop("__metadata__")
    start = len(raw) - 8 * len(found)
    equal({k: raw[start + v["data_offsets"][0]] for k, v in found.items()}, {to: list(source).index(k) for k, to in want.items() if to}, what)
    check((b"adapter_config.json" in got.stdout) != config, f"{what}: what is missing: {got.stdout.decode()}")
    check(b" config.json" not in got.stdout, f"{what}: an adapter needs no config.json: {got.stdout.decode()}")


def adapters_get_pefts_names():
    for i, (name, (keys, config), base) in enumerate([(n, m, BASE) for n, m in METHODS.items()] + [(n, m, PROMPT) for n, m in PROMPTS.items()]):
        for front in sample(("", "model.", "state_dict.model.", "fp32.", "fp32.model."), i):
            source = [front + k for k in (*keys, *base)]
            top = directory(f"{name} {front}", source, config)
            is_saved_as(top, {front + k: to for k, to in keys.items()}, source, f"{name} below {front!r}")
    source = [*METHODS["IA3"][0], *BASE]
    is_saved_as(directory("IA3 alone", source, None), METHODS["IA3"][0], source, "without adapter_config.json", config=False)
    two = {Q + "ia3_l.default": Q + "ia3_l", Q + "ia3_l.other": None}
    is_saved_as(directory("IA3 of two", [*two, *BASE], {}), two, [*two, *BASE], "of two adapters the one called default")


def files_of_peft_stay():
    """Its own files stay as they are."""
    for name, (keys, config) in (METHODS | PROMPTS).items():
        saved = {to: to for to in keys.values() if to}
        top = SCRATCH / f"peft-{name.replace(' ', '-')}"
        write(top / "adapter_model.safetensors", {k: value(i) for i, k in enumerate(saved)})
        (top / "adapter_config.json").write_text(json.dumps({"peft_type": name.split()[0]} | config))
        is_saved_as(top, saved, saved, f"{name}, as PEFT saved it")


def unknown_methods_are_refused():
    for name, keys in REFUSED.items():
        got = fails(NO, "PEFT", "export", "--as", "safetensors", "--hf", directory(f"{name} refused", keys, {}), SCRATCH / "none")
        check(b"save_pretrained" in got.stderr, f"{name}: what to do is not said: {got.stderr.decode()}")
    for name, code, config in (("ADALORA", NO, {"rank_pattern": {"q_proj": [True]}}), ("VBLORA", BAD, {"save_only_topk_weights": True})):
        fails(code, "PEFT", "export", "--as", "safetensors", "--hf", directory(f"{name} computed", [*METHODS[name][0], *BASE], config), SCRATCH / "none")


LOW = "lora_unet_down_blocks_0_attentions_0_proj_in."
ALONE = {
    "diffusers": ["transformer.blocks.0.attn.to_q.lora_A.weight", "text_encoder.layers.0.q_proj.lora_B.weight"],
    "diffusers of 2023": ["unet.mid_block.attn1.processor.to_q_lora.up.weight", "text_encoder.layers.0.q_proj.lora_linear_layer.down.weight"],
    "kohya": [LOW + "lora_down.weight", LOW + "lora_up.weight", LOW + "alpha"],
    "LyCORIS": [LOW + "hada_w1_a", LOW + "hada_w1_b", LOW + "alpha", LOW + "dora_scale"],
    "ComfyUI": ["diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight", "diffusion_model.double_blocks.0.img_attn.qkv.alpha"],
}


def low_rank_weights_need_no_config():
    """Low-rank weights that need no configuration: no format says who wrote them, all keys come out, and nothing is asked for."""
    for name, keys in ALONE.items():
        top, out = SCRATCH / f"alone-{name}", SCRATCH / f"alone-{name}-out"
        write(top / "style.safetensors", {k: ("F32", [2, 2], bytes(16)) for k in keys}, {"ss_network_dim": "4"})
        got = run("export", "--as", "safetensors", "--hf", top, out)
        if not equal(got.returncode, OK, f"{name}: {got.stderr.decode()}"):
            continue
        check(b"config" not in got.stdout + got.stderr, f"{name} asks for {got.stdout.decode()}")
        equal([f.name for f in out.glob("[!.]*")], ["pytorch_lora_weights.safetensors"], name)
        found = header((out / "pytorch_lora_weights.safetensors").read_bytes())
        equal(found.pop("__metadata__"), {"format": "pt", "ss_network_dim": "4"}, name)
        equal(sorted(found), sorted(keys), name)
        check(b"config" not in run("ls", "--hf", top).stdout, f"{name}: ls --hf asks for a config.json")
    top = SCRATCH / "mlx"
    write(top / "adapters.safetensors", {f"model.layers.0.q_proj.lora_{x}": ("F32", [2, 2], bytes(16)) for x in "ab"})
    (top / "adapter_config.json").write_text('{"fine_tune_type": "lora"}')
    equal(run("export", "--as", "safetensors", "--hf", top, SCRATCH / "mlx-out").returncode, OK, "MLX")
    equal(sorted(f.name for f in (SCRATCH / "mlx-out").glob("[!.]*")), ["adapter_config.json", "adapters.safetensors"], "MLX finds its own names")
    top = SCRATCH / "no-config"
    write(top / "adapter_model.safetensors", {Q + f"lora_{x}.weight": ("F32", [2, 2], bytes(16)) for x in "AB"})
    check(b"hf/ has no adapter_config.json, which PEFT needs" in run("ls", "--hf", top).stdout, "ls --hf names what PEFT misses")
    top = SCRATCH / "among-others"
    write(top / "model.safetensors", {k: ("F32", [2, 2], bytes(16)) for k in (*ALONE["diffusers"], "transformer.blocks.0.attn.to_q.weight")}, {"format": "pt"})
    check(b"hf/ has no config.json" in run("ls", "--hf", top).stdout, "low-rank weights among others are of a model")


adapters_get_pefts_names()
low_rank_weights_need_no_config()
files_of_peft_stay()
unknown_methods_are_refused()
finish()
