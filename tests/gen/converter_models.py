#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What two ranks of torchtitan (Llama 4), torchtune, Meta's own Llama, Megatron-LM and GPT-NeoX save, and hf/ against what their own converters make of it.

usage: converter_models.py DCPFS [CASE ...]        cases whose packages this python lacks are left out
       GOLDEN=DIR converter_models.py DCPFS neox-tp: also what ../golden/neox/tp has

Two processes each, on the CPU by gloo. Every tensor has to be the converter's, byte for byte, and from_pretrained of hf/ has to give the logits
that transformers gives with the converter's tensors, and nearly those of the model itself. Seen well with
    titan-*   torchtitan 0.2.2, torch 2.15.0, transformers 5.23.0; tyro, torchdata, datasets, einops, tensorboard
    tune-*    torchtune 0.6.1 and torchao 0.15.0 beside them; omegaconf, sentencepiece, tiktoken, blobfile, kagglehub, pillow
    meta-*    llama-models 0.3.0, fairscale 0.4.13, torch 2.15.0; fire, tiktoken, blobfile, pillow; transformers 4.46.3, whose wheel still has
              convert_llama_weights_to_hf. Llama 2: PYTHONPATH=DIR with meta-llama's repository llama of 2024
    mlm-gpt2  PYTHONPATH=DIR with Megatron-LM at v1.0 or 37ae66467f (no checkpoint_version), 64e45f2972 (1.0) or 9b0083ea03 (2.0), torch 2.15.0, and
              transformers 4.46.3, whose wheel has the converter of it for one rank: what it makes of each rank is put together here
    mlm-gpt   the same with PYTHONPATH=DIR:DIR/tools, Megatron-LM at v2.0 (3.0)
    mega-*    PYTHONPATH=DIR/tools/checkpoint:DIR with Megatron-LM at core_v0.12.0, CUDA_DEVICE_MAX_CONNECTIONS=1, torch 2.15.0, transformers 4.46.3,
              accelerate 1.1.1. It goes the other way: Megatron's converter makes a checkpoint (with --use-legacy-models, or of Mixtral) of a Hugging Face
              model for two tensor-parallel ranks, also for two stages (mega-stages: interleaved) and expert-parallel ranks, and the model's tensors have
              to come back, with the config.json that dcpfs infers. The logits of llama are those of Megatron's own layers
    neox-*    PYTHONPATH=DIR with EleutherAI's gpt-neox at commit ea7aefd8f8, DS_ACCELERATOR=cpu, deepspeed 0.19.8, torch 2.15.0, transformers 4.46.3;
              tokenizers, sentencepiece, tiktoken, einops. Its logits are those of the converter's model. "grid": four ranks, two by two
"""
import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

os.environ["TORCHDYNAMO_DISABLE"] = "1"
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import torch_ranks

CASES = {"titan-fsdp": ("torchtitan.models.llama4", "torchtitan-llama4"), "titan-ep": ("torchtitan.models.llama4", "torchtitan-llama4"), "titan-tp": ("torchtitan.models.llama4", "torchtitan-llama4"),
         "tune-async": ("torchtune", "torchtune"), "tune-last": ("torchtune", "torchtune"), "meta-llama3": ("llama_models.llama3.model", "meta"), "meta-llama2": ("llama.model", "meta"),
         "mlm-gpt2": ("pretrain_gpt2", "megatron-gpt2"), "mlm-gpt": ("merge_mp_partitions", "megatron-gpt2"), "neox-tp": ("deepy", "gpt-neox"), "neox-layers": ("deepy", "gpt-neox"),
         "neox-stages": ("deepy", "gpt-neox"), "neox-tied": ("deepy", "gpt-neox"), "neox-grid": ("deepy", "gpt-neox"), "neox-bf16": ("deepy", "gpt-neox"),
         "neox-llama-one": ("deepy", "gpt-neox-llama"), "neox-llama-heads": ("deepy", "gpt-neox-llama"), "neox-llama-layers": ("deepy", "gpt-neox-llama"), "neox-llama-grid": ("deepy", "gpt-neox-llama"),
         "mega-llama": ("loader_llama_mistral", "megatron"), "mega-stages": ("loader_llama_mistral", "megatron"), "mega-tied": ("loader_llama_mistral", "megatron"),
         "mega-mixtral": ("loader_mixtral_hf", "megatron-mixtral"), "mega-experts": ("loader_mixtral_hf", "megatron-mixtral")}
TOKENS = torch.arange(16).reshape(2, 8) * 5 % 90


def note(top, state, config, logits):
    """By rank 0: what has to come out, and what the model itself says of TOKENS."""
    if int(os.environ["RANK"]) == 0:
        save_file({k: v.detach().clone().contiguous() for k, v in state.items()}, top / "want.safetensors")
        torch.save(logits.detach().float(), top / "logits.pt")
        config.save_pretrained(top / "config")


def by_titan(case, top):
    """Llama 4 of torchtitan's own parts: parallelized, trained for a step and saved as its trainer does."""
    import torchtitan.distributed.parallel_dims
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.config import JobConfig
    from torchtitan.models.llama4 import TransformerModelArgs, get_train_spec
    from torchtitan.models.moe import MoEArgs
    torchtitan.distributed.parallel_dims.device_type = "cpu"
    torchtitan.models.moe.kernels.fill_indices_wrapper = torchtitan.models.moe.kernels.fill_indices_cpu
    histc = torch.histc
    torch.histc = lambda x, **how: histc(x.float(), **how).to(x.dtype)  # of integers on a GPU only
    torch.distributed.init_process_group("gloo")
    job, spec, kind = JobConfig(), get_train_spec(), case.split("-")[1]
    job.training.mixed_precision_param, job.training.seq_len, job.training.steps = "float32", 8, 1
    job.parallelism.disable_loss_parallel = True
    job.activation_checkpoint.mode, job.optimizer.implementation, job.optimizer.lr, job.lr_scheduler.warmup_steps = "none", "for-loop", 1e-2, 1
    job.checkpoint.enable, job.checkpoint.interval, job.job.dump_folder = True, 1, str(top)
    dims = torchtitan.distributed.parallel_dims.ParallelDims(dp_replicate=1, dp_shard=1 if kind == "tp" else 2, cp=1, tp=2 if kind == "tp" else 1, pp=1, ep=2 if kind == "ep" else 1, etp=1, world_size=2)
    args = TransformerModelArgs(dim=64, n_layers=4, n_heads=4, n_kv_heads=2, vocab_size=96, multiple_of=16, rope_theta=500000, interleave_moe_layer_step=1 if kind == "ep" else 2,
                                moe_args=MoEArgs(num_experts=4))
    args.update_from_config(job)
    torch.manual_seed(3)
    model = spec.parallelize_fn(spec.model_cls(args), dims, job)
    with torch.no_grad():
        model.init_weights()
    for part in model.modules():
        if hasattr(part, "set_force_sum_reduction_for_comms"):
            part.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM
    optimizers = spec.build_optimizers_fn([model], job.optimizer, dims)
    schedulers = spec.build_lr_schedulers_fn(optimizers, job.lr_scheduler, job.training.steps)
    adapter = spec.state_dict_adapter(args, None)
    saver = CheckpointManager(dataloader=None, model_parts=[model], optimizers=optimizers, lr_schedulers=schedulers, states={}, checkpoint_config=job.checkpoint, sd_adapter=adapter, base_folder=str(top / "ckpt"))
    model(TOKENS).float().log_softmax(-1)[..., 1].mean().backward()
    optimizers.step()
    schedulers.step()
    saver.save(1)
    with torch.no_grad():
        for name, bias in model.named_buffers():
            if name.endswith("expert_bias"):
                bias.zero_()  # which only training has
        logits = model(TOKENS)
    full = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in model.state_dict().items()}
    want, c = adapter.to_hf(full), args
    for k, v in full.items():  # those of dense layers, which the adapter leaves out
        if ".feed_forward.w" in k:
            name = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}[k.split(".")[3]]
            want[f"language_model.model.layers.{k.split('.')[1]}.feed_forward.{name}.weight"] = v
        if ".ffn_norm." in k:
            want[f"language_model.model.layers.{k.split('.')[1]}.post_attention_layernorm.weight"] = v
    dense = full.get("layers.0.feed_forward.w1.weight")
    note(top, want, transformers.Llama4TextConfig(
        vocab_size=c.vocab_size, hidden_size=c.dim, num_hidden_layers=c.n_layers, num_attention_heads=c.n_heads, num_key_value_heads=c.n_kv_heads, head_dim=c.dim // c.n_heads,
        intermediate_size=full["layers.1.moe.experts.w1"].shape[1], intermediate_size_mlp=64 if dense is None else len(dense), num_local_experts=4, interleave_moe_layer_step=c.interleave_moe_layer_step,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta}, no_rope_layers=[1] * c.n_layers, use_qk_norm=False, attn_temperature_tuning=False, max_position_embeddings=64, rms_norm_eps=c.norm_eps,
        pad_token_id=None), logits)


def by_tune(case, top):
    """torchtune's Llama 3, sharded and trained for a step, by its checkpoint client: while it trains (DCP), and at the end (one file)."""
    from omegaconf import OmegaConf
    from torchtune import training
    from torchtune.models.convert_weights import tune_to_hf
    from torchtune.models.llama3_1 import llama3_1
    from torchtune.training.checkpointing._checkpoint_client import CheckpointClient, TrainingProgress
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(3)
    model = llama3_1(vocab_size=96, num_layers=3, num_heads=4, num_kv_heads=2, embed_dim=64, max_seq_len=64, intermediate_dim=112)
    training.shard_model(model, [lambda name, part: training.get_shard_conditions(name, part)], cpu_offload=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model(TOKENS).float().log_softmax(-1)[..., 1].mean().backward()
    optimizer.step()
    config = transformers.LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                      rms_norm_eps=1e-5, rope_theta=500000.0, rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                                                           "original_max_position_embeddings": 8192}, tie_word_embeddings=False)
    if torch.distributed.get_rank() == 0:
        config.save_pretrained(top / "base")
        save_file({"model.norm.weight": torch.ones(1)}, top / "base" / "model.safetensors")
    torch.distributed.barrier()
    client = CheckpointClient(OmegaConf.create({"device": "cpu", "enable_async_checkpointing": True, "checkpointer": {
        "_component_": "torchtune.training.FullModelTorchTuneCheckpointer" if case == "tune-last" else "torchtune.training.FullModelHFCheckpointer", "checkpoint_dir": str(top / "base"),
        "checkpoint_files": ["model.safetensors"], "model_type": "LLAMA3", "output_dir": str(top / "ckpt")}}))
    client.save_checkpoint(model, optimizer, TrainingProgress(seed=1, epochs_run=1, total_epochs=1 if case == "tune-last" else 2, max_steps_per_epoch=1), epoch=0)
    if case == "tune-async":
        client._get_dcp_checkpointer()._checkpoint_future.result()
    with torch.no_grad():
        logits = model(TOKENS)
    note(top, tune_to_hf({k: v.full_tensor() for k, v in model.state_dict().items()}, num_heads=4, num_kv_heads=2, dim=64), config, logits)


def by_meta(case, top):
    """Meta's Llama by fairscale: each rank's part of the model is a file, as Meta's releases have it."""
    from fairscale.nn.model_parallel.initialize import initialize_model_parallel
    if case == "meta-llama2":
        torch.Tensor.cuda = lambda self: self
        from llama.model import ModelArgs, Transformer
    else:
        from llama_models.llama3.args import ModelArgs
        from llama_models.llama3.model import Transformer
    from transformers.models.llama.convert_llama_weights_to_hf import write_model
    torch.distributed.init_process_group("gloo")
    initialize_model_parallel(2)
    rank = torch.distributed.get_rank()
    args = dict(dim=64, n_layers=3, n_heads=4, n_kv_heads=2, vocab_size=96, multiple_of=16, ffn_dim_multiplier=1.3, norm_eps=1e-5) | ({} if case == "meta-llama2" else dict(rope_theta=500000.0))
    torch.manual_seed(3 + rank)
    model = Transformer(ModelArgs(**args, max_seq_len=32, max_batch_size=2))
    with torch.no_grad():
        for k, p in model.named_parameters():
            p.copy_(torch.randn(p.shape) * 0.1 + ("norm" in k))
            if "norm" in k:
                torch.distributed.broadcast(p, 0)
    model.bfloat16()
    torch.save(model.state_dict(), top / "ckpt" / f"consolidated.{rank:02}.pth")
    torch.distributed.barrier()
    logits = model.float()(TOKENS, 0)
    if rank == 0:
        (top / "ckpt" / "params.json").write_text(json.dumps(args))
        write_model(str(top / "hf"), str(top / "ckpt"), llama_version="2" if case == "meta-llama2" else "3", vocab_size=96, num_shards=2)
        (top / "ckpt" / "params.json").unlink()
        note(top, load_file(top / "hf" / "model.safetensors"), transformers.LlamaConfig.from_pretrained(top / "hf"), logits)


def pretend(name, **names):
    """A module that is not there."""
    sys.modules.setdefault(name, types.ModuleType(name)).__dict__.update(names)


def by_mlm(case, top):
    """Megatron-LM of 2020, which needs a GPU and apex for nothing that a checkpoint has."""
    for name in ("apex", "apex.optimizers", "apex.normalization", "apex.normalization.fused_layer_norm", "apex.multi_tensor_apply", "amp_C"):
        pretend(name, FusedAdam=torch.optim.AdamW, FusedLayerNorm=torch.nn.LayerNorm, multi_tensor_applier=None)
    pretend("torch._six", inf=float("inf"))
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    sys.argv[1:] = ["--num-layers", "3", "--hidden-size", "64", "--num-attention-heads", "4", "--max-position-embeddings", "32", "--seq-length", "16",
                    "--train-iters", "1", "--lr", "0.01", "--vocab-file", "none", "--merge-file", "none", "--save-interval", "1", "--save", str(top / "ckpt"), "--make-vocab-size-divisible-by", "8",
                    "--hidden-dropout", "0", "--attention-dropout", "0", "--no-save-rng", "--no-save-optim", "--distributed-backend", "gloo"]
    import megatron.arguments
    import megatron.global_vars
    import megatron.mpu.mappings as mappings
    from megatron import mpu
    known = pathlib.Path(megatron.arguments.__file__).read_text()
    older = "--micro-batch-size" not in known
    sys.argv += ["--batch-size", "2", "--model-parallel-size", "2"] if older else ["--micro-batch-size", "2", "--tensor-model-parallel-size", "2"]
    sys.argv += [x for x in ("--use-cpu-initialization", "--old-checkpoint-format", "--no-scaled-masked-softmax-fusion", "--no-bias-gelu-fusion") if x in known]
    mappings.group = None  # all ranks: names that these releases forgot to define
    if not older:
        mpu.layers.get_model_parallel_rank = mpu.get_tensor_model_parallel_rank
    megatron.global_vars._build_tokenizer = lambda args: setattr(args, "padded_vocab_size", 96)
    megatron.global_vars.set_global_variables()
    mpu.initialize_model_parallel(2)
    mpu.get_cuda_rng_tracker = lambda: types.SimpleNamespace(fork=contextlib.nullcontext)
    from megatron.checkpointing import save_checkpoint
    import megatron.model
    model = (megatron.model.GPT2Model if older else megatron.model.GPTModel)(parallel_output=False).eval()
    rng = torch.Generator().manual_seed(5 + rank)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, generator=rng) * 0.1 + ("layernorm.weight" in name))
            if not getattr(p, "model_parallel", False):
                torch.distributed.broadcast(p, 0)
        save_checkpoint(1, model, None, None)
        n = TOKENS.shape[1]
        logits = model(TOKENS, torch.arange(n).expand_as(TOKENS), torch.triu(torch.ones(1, 1, n, n), 1).bool())
    if rank == 0:
        from transformers.models.megatron_gpt2.convert_megatron_gpt2_checkpoint import convert_megatron_checkpoint
        config = transformers.GPT2Config(vocab_size=96, n_embd=64, n_layer=3, n_head=4, n_positions=32, activation_function="gelu", architectures=["GPT2LMHeadModel"])
        parts = []
        for at in sorted((top / "ckpt").glob("*/mp_rank_*/*.pt")):
            stored, own = torch.load(at, weights_only=False), transformers.GPT2Config(vocab_size=48, n_embd=32, n_layer=3, n_head=2, n_positions=32)
            # it computes the size of a head from the width of the model, which is twice that of what one rank has
            parts.append(convert_megatron_checkpoint(types.SimpleNamespace(), {k: v for k, v in stored.items() if k != "args"}, own))
        note(top, {k: whole(k, [p[k] for p in parts]) for k in parts[0] if not k.endswith((".attn.bias", ".attn.masked_bias", "lm_head.weight"))}, config, logits)


def whole(key, parts):
    """What two tensor-parallel ranks of GPT-2 have of a tensor that the converter made: weights are [inputs, outputs] there."""
    if "attn.c_attn" in key:
        return torch.cat([torch.cat(x, -1) for x in zip(*(p.chunk(3, -1) for p in parts))], -1)
    dims = {"wte.weight": 0, "lm_head.weight": 0, "c_fc.weight": 1, "c_fc.bias": 0, "c_proj.weight": 0}
    return next((torch.cat(parts, d) for name, d in dims.items() if key.endswith(name)), parts[0])


def by_neox(case, top):
    """GPT-NeoX of EleutherAI: two tensor-parallel ranks, in a file each or a file for each layer, or two pipeline stages."""
    torch.distributed.init_process_group("gloo")  # before NeoXArgs, which would look for a launcher
    rank = torch.distributed.get_rank()
    for name in ("boto3", "hf_transfer", "best_download", "wandb", "ftfy", "lm_dataformat", "tensorboard", "mup"):
        if not importlib.util.find_spec(name):
            pretend(name)
    for name in ("apex", "apex.optimizers"):
        pretend(name, FusedAdam=lambda params, lr, betas, eps, weight_decay=0, **how: torch.optim.AdamW(params, lr, betas, eps, weight_decay))
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.device_count = torch.distributed.get_world_size
    torch.cuda.is_available = lambda: True
    torch.cuda.set_device = lambda *given: None
    torch.cuda.synchronize = lambda *given: None  # each its own: torch._dynamo keeps a table of such functions
    torch.Tensor.cuda = lambda self, *given, **how: self
    torch.nn.Module.cuda = lambda self, *given, **how: self
    kind, llama, tied = case.split("-")[-1], "llama" in case, case == "neox-tied"
    stages, golden = kind == "stages", os.environ.get("GOLDEN")
    given = dict(pipe_parallel_size={"tp": 0, "one": 0, "heads": 0, "stages": 2, "grid": 2}.get(kind, 1), model_parallel_size=1 if kind in ("stages", "one", "heads") else 2, num_layers=2 if golden else 4, hidden_size=16 if golden else 64, num_attention_heads=4, seq_length=16,
                 max_position_embeddings=32, norm="layernorm", pos_emb="rotary", rotary_pct=0.5, no_weight_tying=not tied, gpt_j_residual=True, output_layer_parallelism="column",
                 optimizer={"type": "Adam", "params": {"lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8}}, zero_optimization={"stage": 1}, train_micro_batch_size_per_gpu=2, train_iters=1,
                 lr_decay_iters=1, warmup=0.0, distributed_backend="gloo", hidden_dropout=0.0, attention_dropout=0.0, fp16={"enabled": False}, precision="fp32", tokenizer_type="CharLevelTokenizer",
                 vocab_file="none", make_vocab_size_divisible_by=8, use_cpu_initialization=True, save=str(top / "ckpt"), checkpoint_activations=False, global_num_gpus=torch.distributed.get_world_size(), no_save_rng=True,
                 checkpoint_factor=1)
    if llama:
        given |= dict(norm="rmsnorm", rms_norm_epsilon=1e-6, activation="swiglu", num_kv_heads=2, intermediate_size=384, use_bias_in_mlp=False, use_bias_in_norms=False, use_bias_in_attn_linear=False,
                      rotary_pct=1.0, gpt_j_residual=False)
    if kind == "heads":
        given["num_kv_heads"] = None
    if kind == "bf16":
        given |= dict(precision="bfloat16", bf16={"enabled": True})
    import deepspeed
    import megatron.data.data_utils
    from megatron.checkpointing import save_checkpoint
    from megatron.initialize import initialize_megatron
    from megatron.neox_arguments import NeoXArgs
    from megatron.training import setup_model_and_optimizer
    megatron.data.data_utils.compile_helper = lambda: None
    deepspeed.init_distributed("gloo")
    args = NeoXArgs.from_dict(given)
    args.configure_distributed_args()
    args.build_tokenizer()
    initialize_megatron(args)
    model, optimizer, schedule, _ = setup_model_and_optimizer(args)
    rng = torch.Generator().manual_seed(5 + rank)
    summed = (".attention.dense.bias", ".mlp.linear2.bias", ".mlp.dense_4h_to_h.bias")  # of tensor-parallel ranks: what each has of them is a term
    args.config_files = {"run.yml": json.dumps(given)}
    with torch.no_grad():
        for name, p in model.module.named_parameters():
            alike = torch.Generator().manual_seed(sum(name.encode()))
            own = getattr(p, "model_parallel", False) or (not stages and name.endswith(summed))
            p.copy_(torch.randn(p.shape, generator=rng if own else alike) * 0.1 + ("norm.weight" in name))
    save_checkpoint(args, 1, model, optimizer, schedule)
    if rank == 0:
        sys.path.insert(0, str(pathlib.Path(megatron.__file__).parent.parent / "tools" / "ckpts"))
        import convert_neox_to_hf
        torch.cuda.is_available = lambda: False
        if llama:
            given["intermediate_size"] = 128  # what the MLP made of it; the converter takes it as it is
        hf = convert_neox_to_hf.convert(str(top / "ckpt" / "global_step1"), given, None, sequential=kind in ("tp", "one", "heads"), architecture="llama" if llama else "neox",
                                        precision="bf16" if kind == "bf16" else "fp32")
        want = {k: v for k, v in hf.state_dict().items() if not k.endswith((".attention.bias", ".attention.masked_bias", ".inv_freq"))}
        if tied:
            want.pop("embed_out.weight")
        hf.config.architectures = [type(hf).__name__]
        logits = hf.eval().float()(TOKENS).logits
        if kind == "heads":  # which the converter takes for grouped queries; the model itself has them head by head
            for i in range(4):
                own = dict(model.module.named_parameters())[f"sequential.{i + 2}.attention.query_key_value.weight"].detach()
                for k, w in zip("qkv", own.view(4, 3, 16, 64).unbind(1)):
                    want[f"model.layers.{i}.self_attn.{k}_proj.weight"] = w.reshape(64, 64)
            n = TOKENS.shape[1]
            logits = model.module.eval()((TOKENS, torch.arange(n).expand_as(TOKENS), torch.triu(torch.ones(1, 1, n, n), 1).bool()))
        note(top, want, hf.config, logits)
        if golden:
            shutil.copytree(top / "ckpt", pathlib.Path(golden) / "ckpt", ignore=shutil.ignore_patterns("*optim_states.pt", "*.py"))
            for name in ("want.safetensors", "config/config.json"):
                shutil.copy(top / name, golden)


def mixtral_as_if_whole():
    """What Megatron needs to convert Mixtral without Transformer Engine, and what its release core_v0.12.0 lacked (mended in 801d7e6e36)."""
    import loader_mixtral_hf
    import megatron.core.utils
    import saver_base
    from megatron.core.models.gpt import gpt_layer_specs, moe_module_specs
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from packaging.version import Version
    from schema_base import ModelSchema
    from schema_core import CoreMoETESchema

    class Norm(torch.nn.RMSNorm):
        def __init__(self, config, hidden_size, eps):
            super().__init__(hidden_size, eps)

    class Normed(ColumnParallelLinear):
        def __init__(self, size, *given, **how):
            super().__init__(size, *given, **how)
            self.layer_norm_weight = torch.nn.Parameter(torch.ones(size))

    megatron.core.utils._te_version = Version("1.9")
    saver_base.version = lambda name: "1.9"
    for module in (gpt_layer_specs, moe_module_specs):
        module.__dict__.update(TENorm=Norm, TEColumnParallelLinear=ColumnParallelLinear, TERowParallelLinear=RowParallelLinear, TEDotProductAttention=DotProductAttention,
                               TELayerNormColumnParallelLinear=Normed)
    loader_mixtral_hf.types = types.SimpleNamespace(SimpleNamespace=lambda: types.SimpleNamespace(qkv_bias=False))
    CoreMoETESchema.set_layer = lambda self, model, i, given: ModelSchema.set_layer(
        self, model, i, given | {f"{k}.{e}": w for k in ("mlp_fc1_weight", "mlp_fc2_weight") for e, w in enumerate(given[k])})


def converted(top, loader, saver, pp, vp, **more):
    """What Megatron-LM's own converter makes of the Hugging Face model in top/hf, for two tensor-parallel ranks."""
    import convert
    import megatron.training.checkpointing as checkpointing
    from megatron.core import mpu
    from megatron.training.global_vars import get_args
    transformers.AutoTokenizer.from_pretrained = lambda *given, **how: types.SimpleNamespace(_tokenizer=types.SimpleNamespace(get_vocab_size=lambda **how: 96))
    save, held = checkpointing.save_checkpoint, {}

    def interleaved(iteration, model, *given, **how):
        """Its savers have no virtual stages: every second stage becomes a part of the same rank."""
        held[mpu.get_tensor_model_parallel_rank(), mpu.get_pipeline_model_parallel_rank()] = model[0]
        if len(held) < 2 * pp * vp:
            return
        get_args().__dict__.update(pipeline_model_parallel_size=pp, transformer_pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vp)
        mpu.set_pipeline_model_parallel_world_size(pp)
        mpu.set_virtual_pipeline_model_parallel_world_size(vp)
        for t in range(2):
            for p in range(pp):
                mpu.set_tensor_model_parallel_rank(t)
                mpu.set_pipeline_model_parallel_rank(p)
                save(iteration, [held[t, p + c * pp] for c in range(vp)], *given, **how)
    if vp > 1:
        checkpointing.save_checkpoint = interleaved
    given = {"model-type": "GPT", "loader": loader, "saver": saver, "load-dir": top / "hf", "save-dir": top / "ckpt", "tokenizer-model": "none", "target-tensor-parallel-size": 2,
             "target-pipeline-parallel-size": pp * vp} | more
    sys.argv[1:] = [str(x) for k, v in given.items() for x in (f"--{k.replace('_', '-')}", v)]
    convert.main()


def legacy_logits(top):
    """Of Megatron's own layers, each rank with its files: one stage after the other."""
    import megatron.legacy.model.transformer as transformer
    from megatron.core import mpu, tensor_parallel
    from megatron.training.global_vars import set_args
    from pretrain_gpt import model_provider
    mpu.initialize_model_parallel(2)
    transformer.get_num_microbatches = lambda: 1
    tensor_parallel.get_cuda_rng_tracker = lambda: types.SimpleNamespace(fork=contextlib.nullcontext)
    files = [torch.load(at, weights_only=False) for at in sorted((top / "ckpt").glob(f"*/mp_rank_{torch.distributed.get_rank():02}*/*.pt"))]
    set_args(files[0]["args"])
    mpu.set_pipeline_model_parallel_world_size(len(files))
    out, n = None, TOKENS.shape[1]
    stages = [(p, c, f[k]) for c, k in enumerate(k for k in files[0] if k.startswith("model")) for p, f in enumerate(files)]
    for p, c, state in stages:
        mpu.set_pipeline_model_parallel_rank(p)
        mpu.set_virtual_pipeline_model_parallel_rank(c)
        model = model_provider(state is stages[0][2], state is stages[-1][2]).eval()
        model.load_state_dict(state)
        model.language_model.seq_length = n  # positions for no more than there are
        model.set_input_tensor(out)
        out = model(TOKENS, torch.arange(n).expand_as(TOKENS), torch.triu(torch.ones(1, 1, n, n), 1).bool())
    return tensor_parallel.gather_from_tensor_model_parallel_region(out)


def by_mega(case, top):
    """A Hugging Face model as Megatron-LM's own converter makes a checkpoint of it: its tensors have to come back."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.get_rng_state = torch.get_rng_state
    torch.Tensor.cuda = lambda self, *given, **how: self
    import megatron.training.arguments as arguments
    from megatron.legacy import fused_kernels
    parse = arguments.parse_args
    arguments.parse_args = lambda *given, **how: argparse.Namespace(**vars(parse(*given, **how)) | dict(apply_rope_fusion=False, gradient_accumulation_fusion=False))
    fused_kernels.load = lambda args: None
    experts = "loader_mixtral_hf" == CASES[case][0]
    sizes = dict(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, rms_norm_eps=1e-5,
                 rope_theta=10000.0, tie_word_embeddings=case == "mega-tied")
    config = transformers.MixtralConfig(**sizes, num_local_experts=4) if experts else transformers.LlamaConfig(**sizes)
    torch.manual_seed(3)
    hf = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for p in hf.parameters():
            p += torch.randn(p.shape) * 0.1
    if experts:
        hf.bfloat16()
    if int(os.environ["RANK"]) == 0:
        hf.save_pretrained(top / "hf")
        if experts:
            mixtral_as_if_whole()
            how = dict(loader="mixtral_hf", saver="core", pp=2 if case == "mega-experts" else 1, vp=1, target_expert_parallel_size=2)
        else:
            how = dict(loader="llama_mistral", saver="legacy", pp=1 if case == "mega-llama" else 2, vp=2 if case == "mega-stages" else 1, model_size="llama3", checkpoint_type="hf",
                       make_vocab_size_divisible_by=8)
        child = multiprocessing.get_context("fork").Process(target=converted, args=(top,), kwargs=how)
        child.start()
        child.join()
    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()
    with torch.no_grad():
        logits = hf.float()(TOKENS).logits if experts else legacy_logits(top)
    note(top, load_file(top / "hf" / "model.safetensors"), config, logits)


def shown(program, source, config, top):
    at = top / "mnt"
    at.mkdir()
    subprocess.run([program, "mount", *(["--hf-assets", config] if config else []), source, at], check=True)
    try:
        hf = at / "latest" / "hf"
        state = {k: v.clone() for part in sorted(hf.glob("*.safetensors")) for k, v in load_file(part).items()}
        model = AutoModelForCausalLM.from_pretrained(hf, torch_dtype=next(iter(state.values())).dtype)
        with torch.no_grad():
            return state, model(TOKENS).logits, model.float()(TOKENS).logits, (hf / "README.md").read_text()
    finally:
        subprocess.run([program, "umount", "-z", at], check=True)


def wanted(want, config, top):
    """The logits of transformers with the converter's tensors."""
    save_file(want, config / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(config, torch_dtype=next(iter(want.values())).dtype)
    (config / "model.safetensors").unlink()
    with torch.no_grad():
        return model(TOKENS).logits


def main():
    if sys.argv[1] == "--rank":
        globals()["by_" + sys.argv[2].split("-")[0]](sys.argv[2], pathlib.Path(sys.argv[3]))
        torch.distributed.barrier()
        return torch.distributed.destroy_process_group()
    top, wrong = pathlib.Path(tempfile.mkdtemp()), 0
    os.environ["DCPFS_CACHE"] = str(top / "cache")
    for case, (module, preset) in CASES.items():
        if sys.argv[2:] and case not in sys.argv[2:]:
            continue
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if not found:
            print(case, "left out: no", module)
            continue
        at = top / case
        (at / "ckpt").mkdir(parents=True)
        torch_ranks.run({"grid": 4, "one": 1, "heads": 1}.get(case.split("-")[-1], 2), [os.path.abspath(__file__), "--rank", case, str(at)], at / "log")
        want, own = load_file(at / "want.safetensors"), torch.load(at / "logits.pt")
        config = at / "config"
        theirs = wanted(want, config, at)
        got, logits, exact, page = shown(os.path.abspath(sys.argv[1]), at / "ckpt", None if case.startswith("mega") else config, at)
        bad = [k for k in sorted(set(want) | set(got)) if k not in got or k not in want or want[k].dtype != got[k].dtype or not torch.equal(want[k], got[k])]
        off = (exact - own).abs().max().item()
        ok = not bad and torch.equal(logits, theirs) and off < (1e-3 if case.endswith("bf16") else 1e-4) and f"| rules | `{preset}`" in page
        print(case, f"{len(want)} tensors and the logits are equal, those of the model itself within {off:.1e}" if ok else
              f"NOT EQUAL: {bad[:5]}, logits {torch.equal(logits, theirs)}, {off}, {page}", flush=True)
        wrong += not ok
    shutil.rmtree(top)
    sys.exit(wrong != 0)


main()
