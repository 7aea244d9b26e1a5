#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of Megatron-Core itself, with a Hugging Face model's weights, saved as Megatron does on several layouts and read back from hf/.

usage: megatron_models.py DCPFS [MODEL ...]   (GOLDEN=../golden/megatron-models megatron_models.py DCPFS makes that again) with a python that has megatron-core, torch and transformers (seen well with 0.16.1, 2.15.0 and 5.23)

Each rank builds its part of a GPTModel on the CPU (gloo, the local layers: Transformer Engine needs a GPU) and fills it with what renamed.py says,
cut by what Megatron says of each parameter (partition_dim). On one rank the logits are those of transformers within 1e-5: so renamed.py is right.
Then dist_checkpointing.save (torch_dist), and torch.save of mp_rank_XX/model_optim_rng.pt as megatron/training/checkpointing.py does,
also by the names that Transformer Engine's layers have.
hf/ of each must have the tensors of the Hugging Face model byte for byte, and from_pretrained its logits.
"""
import argparse
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open
from transformers import AutoModelForCausalLM

import renamed
import torch_ranks

renamed.PAD = 4  # so that two ranks can have the vocabulary
GOLDEN = os.environ.get("GOLDEN")  # a directory: small models go there
SIZES = dict(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=4, num_attention_heads=4, max_position_embeddings=64)
if GOLDEN:
    SIZES |= dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2)
GROUPED = dict(**SIZES, num_key_value_heads=2)
MLA = dict(**SIZES, num_key_value_heads=4, first_k_dense_replace=1, n_routed_experts=4, n_shared_experts=2, moe_intermediate_size=SIZES["hidden_size"] * 3 // 4,
           kv_lora_rank=20, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, n_group=2, topk_group=1, num_experts_per_tok=2)
KEPT = {"llama": "legacy"}  # in tests/golden
MODELS = {
    "llama": transformers.LlamaConfig(**GROUPED, tie_word_embeddings=False),
    "llama-tied": transformers.LlamaConfig(**GROUPED, tie_word_embeddings=True),
    "qwen2": transformers.Qwen2Config(**GROUPED),
    "qwen3": transformers.Qwen3Config(**GROUPED, head_dim=16),
    "mixtral": transformers.MixtralConfig(**GROUPED, num_local_experts=4),
    "qwen3_moe": transformers.Qwen3MoeConfig(**GROUPED, head_dim=16, num_experts=4, moe_intermediate_size=48, num_experts_per_tok=2, norm_topk_prob=True),
    "qwen2_moe": transformers.Qwen2MoeConfig(**GROUPED, num_experts=4, moe_intermediate_size=48, shared_expert_intermediate_size=80, num_experts_per_tok=2),
    "deepseek_v2": transformers.DeepseekV2Config(**MLA | dict(n_group=1), q_lora_rank=None),  # Megatron scores groups as V3 does
    "deepseek_v3": transformers.DeepseekV3Config(**MLA, q_lora_rank=24, norm_topk_prob=True),
    "gpt2": transformers.GPT2Config(vocab_size=96, n_embd=64, n_layer=4, n_head=4, n_positions=64),
}
MOE = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3")
LAYOUTS = {False: [(1, 1, 1, 1), (2, 2, 1, 2)], True: [(1, 1, 1, 1), (1, 2, 2, 1), (2, 1, 2, 1), (2, 1, 2, 2)]}
# tensor, pipeline, expert and expert tensor parallel, of models with experts
transformers.utils.logging.disable_progress_bar()
TOKENS = torch.arange(20).reshape(2, 10) * 3 % (SIZES["vocab_size"] - 3)


def save_own(kind, at):
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(MODELS[kind])
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:  # norms and biases are not all one or zero
                p += torch.randn_like(p) * 0.1
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b += torch.randn_like(b)
    model.save_pretrained(at)


def tensors_of(at):
    out = {}
    for part in sorted(at.glob("*.safetensors")):
        with safe_open(part, "pt") as f:
            out |= {k: f.get_tensor(k) for k in f.keys()}
    return out


# ---- in each rank ----

def initialize(tp, pp, ep, etp):
    from megatron.core import parallel_state
    torch.distributed.init_process_group("gloo")
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *a: None
    torch.Tensor.cuda = lambda self, *a, **k: self
    torch.cuda.get_rng_state = lambda *a: torch.arange(8, dtype=torch.uint8)
    parallel_state.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
    # dropout is off, but attention asks for the generator of its ranks
    from contextlib import nullcontext
    from megatron.core import tensor_parallel
    import megatron.core.transformer.dot_product_attention
    import megatron.core.transformer.moe.moe_utils as moe_utils
    moe_utils.te_general_gemm = None  # a name that is missing without Transformer Engine
    import megatron.core.transformer.multi_latent_attention as mla
    for name in ("TELinear", "TEColumnParallelLinear"):
        setattr(mla, name, type(name, (), {}))  # without Transformer Engine they are no types
    from megatron.core.models.backends import LocalSpecProvider
    LocalSpecProvider.core_attention = lambda self: attention()
    tensor_parallel.get_cuda_rng_tracker = lambda *a, **k: argparse.Namespace(fork=lambda *a: nullcontext())


def attention():
    """The local layers' attention, for values of another width than queries, too: Megatron has that in Transformer Engine's alone."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    class Attention(DotProductAttention):
        def __init__(self, *args, k_channels=None, v_channels=None, **named):
            super().__init__(*args, **named)
            if v_channels:
                self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition
    return Attention


def build(args):
    """A GPTModel as pretrain_gpt.py of Megatron-LM makes it of its arguments."""
    import dataclasses
    from functools import partial
    from megatron.core import parallel_state as ps
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    kind = MLATransformerConfig if args.multi_latent_attention else TransformerConfig
    said = {f.name: getattr(args, f.name) for f in dataclasses.fields(kind) if hasattr(args, f.name)}
    said |= dict(layernorm_epsilon=args.norm_epsilon, num_moe_experts=args.num_experts, gated_linear_unit=args.swiglu, params_dtype=torch.float32,
                 use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0, bias_activation_fusion=False, bias_dropout_fusion=False,
                 masked_softmax_fusion=False, persist_layer_norm=False, gradient_accumulation_fusion=False, apply_rope_fusion=False,
                 tensor_model_parallel_size=ps.get_tensor_model_parallel_world_size(), pipeline_model_parallel_size=ps.get_pipeline_model_parallel_world_size(),
                 expert_model_parallel_size=ps.get_expert_model_parallel_world_size(), expert_tensor_parallel_size=ps.get_expert_tensor_parallel_world_size(),
                 pipeline_dtype=torch.float32, activation_func=torch.nn.functional.silu if args.swiglu else partial(torch.nn.functional.gelu, approximate="tanh"),
                 moe_token_dispatcher_type="allgather", moe_router_load_balancing_type="none",
                 sequence_parallel=bool(args.num_experts) and ps.get_tensor_model_parallel_world_size() > 1)
    if not args.group_query_attention:
        said["num_query_groups"] = None
    config = kind(**said)
    config.sequence_parallel = False  # Megatron wants it where models with experts are tensor parallel; Torch's norms have it not, and weights are cut the same
    if isinstance(args.__dict__.get("moe_layer_freq"), list):
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=args.normalization)
    else:
        spec = get_gpt_layer_local_spec(args.num_experts, False, args.qk_layernorm, args.multi_latent_attention, normalization=args.normalization)
    return GPTModel(config, spec, args.padded_vocab_size, args.max_position_embeddings, pre_process=ps.is_pipeline_first_stage(), post_process=ps.is_pipeline_last_stage(),
                    share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights, position_embedding_type=args.position_embedding_type,
                    rotary_base=args.rotary_base).eval()


def part_of(name, p, whole, layout):
    """What a rank has of a parameter: along partition_dim, of gated layers half of each half."""
    tp, rank = layout
    dim = getattr(p, "partition_dim", -1)
    if p.shape == whole.shape or dim < 0:
        return whole
    halves = whole.chunk(2, 0) if "linear_fc1" in name and layout.gated else [whole]
    return torch.cat([h.chunk(tp, dim)[rank] for h in halves], 0)


class Layout(tuple):
    gated = True


def fill(model, hf, config, args):
    """Megatron's parameters of this rank; what each is called in the whole model."""
    from megatron.core import parallel_state as ps
    forms = {"gpt2": renamed.gpt2("decoder", {k: v.replace("self_attention.linear_qkv.layer_norm", "input_layernorm").replace("mlp.linear_fc1.layer_norm", "pre_mlp_layernorm").replace("layernorm_{}", "layernorm.{}") for k, v in renamed.GPT_CORE.items()})}
    convert = forms.get(config.model_type, renamed.megatron("local"))
    whole = {k: torch.from_numpy(np.ascontiguousarray(a)) for k, a in convert({k: v.numpy() for k, v in hf.items()}, config.to_dict()).items()}
    first = model.decoder.layers[0].layer_number - 1
    experts = (args.num_experts or 0) // ps.get_expert_model_parallel_world_size() * ps.get_expert_model_parallel_rank()
    unseen = []
    for name, p in list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if n in model.state_dict()]:
        key = renumbered(renumbered(name, "decoder.layers.", first), "local_experts.", experts)
        if key not in whole:
            unseen.append((name, tuple(p.shape)))
            continue
        is_expert = "local_experts" in key
        layout = Layout((ps.get_expert_tensor_parallel_world_size(), ps.get_expert_tensor_parallel_rank()) if is_expert
                        else (ps.get_tensor_model_parallel_world_size(), ps.get_tensor_model_parallel_rank()))
        layout.gated = args.swiglu
        with torch.no_grad():
            p.copy_(part_of(name, p, whole[key], layout))
    known = {"output_layer.weight": "embedding.word_embeddings.weight"}
    for name, shape in unseen:
        if name in known and config.tie_word_embeddings:
            with torch.no_grad():
                w = dict(model.named_parameters())[name]
                w.copy_(part_of(name, w, whole[known[name]], Layout((ps.get_tensor_model_parallel_world_size(), ps.get_tensor_model_parallel_rank()))))
        elif not name.endswith("local_tokens_per_expert"):
            raise SystemExit(f"renamed.py has no {name} {shape}")


def renumbered(name, at, more):
    if at not in name:
        return name
    head, tail = name.split(at, 1)
    number, rest = tail.split(".", 1)
    return f"{head}{at}{int(number) + more}.{rest}"


def rank_main(tp, pp, ep, etp, top, *kinds):
    initialize(tp, pp, ep, etp)
    for kind in kinds:
        save(kind, top / kind / "own", top / kind / layout_name(tp, pp, ep, etp), tp, pp, ep, etp)


def layout_name(tp, pp, ep, etp):
    return f"tp{tp}-pp{pp}-ep{ep}-etp{etp}"


def engine_names(state, args):
    """The same by the names of Transformer Engine's layers, which have norms inside and keep state of their own (bytes, or none)."""
    out = {}
    for key, t in state.items():
        key = re.sub(r"local_experts\.(\d+)\.(linear_fc\d)\.(weight|bias)$", r"\2.\3\1", key)
        if not args.multi_latent_attention:
            key = key.replace(".input_layernorm.", ".self_attention.linear_qkv.layer_norm_")
        if f"{key.split('.pre_mlp_layernorm.')[0]}.mlp.router.weight" not in state:
            key = key.replace(".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_")
        if args.multi_latent_attention:
            key = re.sub(r"\.(q|kv)_layernorm\.", r".linear_\1_up_proj.layer_norm_", key)
        out[key] = t
        if re.search(r"linear_|core_attention|layernorm", key) and t is not None:
            name = re.sub(r"\.(layer_norm_)?(weight|bias)\d*$", "._extra_state", key)
            out[name] = None if "layernorm" in name else torch.arange(3 + torch.distributed.get_rank(), dtype=torch.uint8)
    return out


def save(kind, own, at, tp, pp, ep, etp):
    from megatron.core import dist_checkpointing, parallel_state as ps
    config = MODELS[kind]
    hf = tensors_of(own)
    args = renamed.megatron_args(config, torch.float32)
    args.__dict__.update(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp,
                         ckpt_format="torch_dist")
    model = build(args)
    fill(model, hf, config, args)
    rank = torch.distributed.get_rank()
    state = {"args": args, "checkpoint_version": 3.0, "iteration": 10}
    dist = at / "dist" / "iter_0000010"
    if rank == 0:
        dist.mkdir(parents=True)
        (at / "dist" / "latest_checkpointed_iteration.txt").write_text("10")
    torch.distributed.barrier()
    metadata = {"dp_cp_group": ps.get_data_parallel_group(with_context_parallel=True)}
    dist_checkpointing.save(state | {"model": model.sharded_state_dict(metadata=metadata)}, str(dist))
    part = f"mp_rank_{ps.get_tensor_model_parallel_rank():02d}"
    if pp > 1:
        part += f"_{ps.get_pipeline_model_parallel_rank():03d}"
    if ep > 1:
        part += f"_{ps.get_expert_model_parallel_rank():03d}"
    if ps.get_expert_data_parallel_rank() == 0:
        args.ckpt_format = "torch"
        tensors = model.state_dict_for_save_checkpoint()
        for form, held in {"legacy": tensors, "te": engine_names(tensors, args)}.items():
            legacy = at / form / "iter_0000010" / part
            legacy.mkdir(parents=True, exist_ok=True)
            torch.save(state | {"model": held}, legacy / "model_optim_rng.pt")
            (at / form / "latest_checkpointed_iteration.txt").write_text("10")
    torch.distributed.barrier()
    if torch.distributed.get_world_size() == 1:
        positions = torch.arange(TOKENS.shape[1]).expand_as(TOKENS)
        mask = torch.triu(torch.ones(1, 1, TOKENS.shape[1], TOKENS.shape[1]), 1).bool()
        with torch.no_grad():
            got = model(TOKENS, positions, mask)[..., :config.vocab_size]
            want = AutoModelForCausalLM.from_pretrained(own, dtype=torch.float32).eval()(TOKENS).logits
        off = (got - want).abs().max().item()
        print(f"{kind}: logits differ by {off:.2e} of {want.abs().max().item():.2f}")
        if off > 1e-5 * max(1, want.abs().max().item()):
            raise SystemExit("Megatron's logits are not those of transformers")
    torch.distributed.barrier()


# ---- what dcpfs makes of it ----

def check(program, source, own, note):
    at = source.parent / (source.name + "-mnt")
    at.mkdir()
    subprocess.run([program, "mount", source, at], check=True)
    try:
        got, want = tensors_of(at / "latest" / "hf"), tensors_of(own)
        if "lm_head.weight" in got and "lm_head.weight" not in want:
            want["lm_head.weight"] = want[next(k for k in want if "embed_tokens" in k or "wte" in k)]  # tied, and stored twice: by the first and the last stage
        wrong = [k for k in sorted(set(got) | set(want)) if k not in got or k not in want or got[k].shape != want[k].shape or
                 got[k].numpy().tobytes() != want[k].numpy().tobytes()]
        page = (at / "latest" / "hf" / "README.md").read_text()
        models = [AutoModelForCausalLM.from_pretrained(p, dtype=torch.float32).eval() for p in (own, at / "latest" / "hf")] if not wrong else []
        with torch.no_grad():
            logits = [m(TOKENS).logits for m in models]
        ok = not wrong and torch.equal(*logits)
        del models
    finally:
        subprocess.run([program, "umount", "-z", at], check=True)
    print(note, "equal" if ok else f"NOT EQUAL: {wrong[:8]} of {len(want)}", [l for l in page.splitlines() if "| rules |" in l], flush=True)
    if not ok:
        print(page)
    return ok


def main(program, *kinds):
    top, wrong = pathlib.Path(tempfile.mkdtemp()), 0
    os.environ["DCPFS_CACHE"] = str(top / "cache")
    kinds = kinds or (KEPT if GOLDEN else MODELS)
    for kind in kinds:
        save_own(kind, top / kind / "own")
    for moe in (False, True):
        those = [k for k in kinds if moe == (k in MOE)]
        for layout in LAYOUTS[moe][bool(GOLDEN):] if those else []:
            torch_ranks.run(math.prod(layout[:3]), [os.path.abspath(__file__), "--rank", *map(str, layout), str(top), *those], f"{top}/log")
            print("".join(l for l in open(f"{top}/log.0") if "logits differ" in l), end="")
            for at in [top / kind / layout_name(*layout) / form for kind in those for form in ("dist", "legacy", "te")]:
                own = at.parent.parent / "own"
                (at / "config.json").write_text((own / "config.json").read_text())
                wrong += not check(program, at, own, at.relative_to(top))
                if GOLDEN and KEPT[own.parent.name] == at.name:
                    shutil.copytree(at, os.path.join(GOLDEN, own.parent.name, "ckpt"))
                    shutil.copy(own / "model.safetensors", os.path.join(GOLDEN, own.parent.name))
    if not wrong and "KEEP" not in os.environ:
        shutil.rmtree(top)
    else:
        print(top)
    sys.exit(wrong != 0)


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank_main(*map(int, sys.argv[2:6]), pathlib.Path(sys.argv[6]), *sys.argv[7:])
    else:
        main(os.path.abspath(sys.argv[1]), *sys.argv[2:])
