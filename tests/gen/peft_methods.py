#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters of every method of PEFT inside the whole model's state, by DCP and by torch.save; export --hf against PeftModel.save_pretrained of the same state.

usage: peft_methods.py DCPFS [METHOD ...]      with a python that has peft, safetensors, torch, transformers (seen well with 0.21.2, 0.8.0, 2.15.0, 5.24)

Every tensor has to be that of save_pretrained, byte for byte, and PeftModel.from_pretrained has to take it; what save_pretrained wrote has to stay as it
is. A method whose adapter is computed when it is saved has to be refused: REFUSED names them all, so a new one of PEFT is a failure until it is known.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp
import transformers
from peft import PeftModel, get_peft_model
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from safetensors.torch import load_file

warnings.filterwarnings("ignore")
SIZES = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64)
TARGETS = {"target_modules": ["q_proj", "v_proj"]}
VIRTUAL = {"num_virtual_tokens": 3}
CONFIGS = {  # of methods that need more than TARGETS
    "IA3": {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}, "LN_TUNING": {"target_modules": ["input_layernorm", "norm"]},
    "PROMPT_TUNING": VIRTUAL, "PREFIX_TUNING": VIRTUAL, "CARTRIDGE": VIRTUAL, "P_TUNING": VIRTUAL | {"encoder_hidden_size": 16}, "MULTITASK_PROMPT_TUNING": VIRTUAL | {"num_tasks": 2},
    "CPT": {"cpt_token_ids": [1, 2, 3], "cpt_mask": [1, 1, 1], "cpt_tokens_type_mask": [1, 2, 3]}, "ADAPTION_PROMPT": {"adapter_len": 4, "adapter_layers": 2},
    "TRAINABLE_TOKENS": {"token_indices": [1, 2], "target_modules": ["embed_tokens"]}, "ADALORA": TARGETS | {"total_step": 10},
    "FOURIERFT": TARGETS | {"n_frequency": 8}, "WAVEFT": TARGETS | {"n_frequency": 8}, "VBLORA": TARGETS | {"num_vectors": 8, "vector_length": 4, "r": 2},
    "BOFT": TARGETS | {"boft_block_size": 4}, "OFT": TARGETS | {"oft_block_size": 4, "r": 0}, "C3A": TARGETS | {"block_size": 4}, "ROAD": TARGETS | {"group_size": 8},
    **{m: TARGETS | {"r": 2} for m in ("HRA", "LOHA", "LOKR", "MISS", "RANDLORA", "SHIRA")},
    "POLY": TARGETS | {"n_tasks": 2, "n_skills": 2, "n_splits": 1},
}
MORE = [  # methods once more, otherwise
    ("VERA", {"save_projection": False}), ("PVERA", {"save_projection": False}), ("RANDLORA", {"save_projection": False}), ("TINYLORA", {"save_projection": False}),
    ("UNILORA", {"save_indices": True}), ("VBLORA", {"save_only_topk_weights": True}), ("PREFIX_TUNING", {"prefix_projection": True, "encoder_hidden_size": 16}),
    ("OFT", {"bias": "oft_only"}), ("BOFT", {"bias": "all"}), ("LOHA", {"modules_to_save": ["lm_head"]}), ("IA3", {"modules_to_save": ["lm_head"]}),
    ("LOKR", {"decompose_both": True, "r": 1}), ("PEANUT", {"depth": 2}),
]
REFUSED = {"CARTRIDGE", "CPT", "FROD", "P_TUNING", "SHADOW", "SHIRA", "VBLORA save_only_topk_weights", "PREFIX_TUNING prefix_projection encoder_hidden_size"}
NOT_MADE = {"ADAMSS", "XLORA"}  # need scikit-learn; adapters of their own


def base_model():
    torch.manual_seed(3)
    return transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES))


def model_of(method, more):
    config = {t.value: c for t, c in PEFT_TYPE_TO_CONFIG_MAPPING.items()}[method](**(CONFIGS.get(method, TARGETS) | more), task_type="CAUSAL_LM")
    model = get_peft_model(base_model(), config)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad and p.is_floating_point():
                p.add_(torch.randn_like(p) * 0.1)
    return model


def save(model, top):
    """Three ways; the adapter_config.json of a model that is being trained lies beside each."""
    model.save_pretrained(top / "peft")
    config = json.loads((top / "peft" / "adapter_config.json").read_text()) | {"inference_mode": False}
    dcp.save({"model": model.state_dict()}, checkpoint_id=top / "dcp", no_dist=True)
    (top / "pt").mkdir()
    torch.save({"state_dict": model.state_dict()}, top / "pt" / "model.pt")
    for way in ("dcp", "pt"):
        (top / way / "adapter_config.json").write_text(json.dumps(config))


def fault(dcpfs, top, way, refused):
    out = top / f"out-{way}"
    got = subprocess.run([dcpfs, "export", "--as", "safetensors", "--hf", top / way, out], capture_output=True, text=True)
    if refused and way != "peft":
        return None if got.returncode and "PEFT" in got.stderr else f"not refused: {got.stdout}{got.stderr}"
    if got.returncode or "config.json" in got.stdout:
        return got.stdout + got.stderr
    want, have = load_file(top / "peft" / "adapter_model.safetensors"), load_file(out / "adapter_model.safetensors")
    if set(want) != set(have):
        return f"keys: {sorted(set(want) ^ set(have))[:4]}"
    wrong = [k for k, t in want.items() if t.dtype != have[k].dtype or not torch.equal(t, have[k])]
    if not wrong and not refused:
        PeftModel.from_pretrained(base_model(), out)
    return f"values: {wrong[:4]}" if wrong else None


def main():
    dcpfs, wanted = sys.argv[1], sys.argv[2:]
    root, bad = pathlib.Path(tempfile.mkdtemp(prefix="peft-methods-")), 0
    for method, more in [(t.value, {}) for t in PEFT_TYPE_TO_CONFIG_MAPPING] + MORE:
        name = " ".join([method, *more])
        if method in NOT_MADE or (wanted and method not in wanted):
            continue
        top = root / name.replace(" ", "-")
        top.mkdir()
        save(model_of(method, more), top)
        for way in ("dcp", "pt", "peft"):
            why = fault(dcpfs, top, way, name in REFUSED)
            bad += why is not None
            print(f"{name} {way}: {why or ('refused' if name in REFUSED and way != 'peft' else 'ok')}", flush=True)
    shutil.rmtree(root)
    print(f"{bad} wrong")
    return bad > 0


sys.exit(main())
