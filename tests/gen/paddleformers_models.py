# SPDX-License-Identifier: Apache-2.0
"""PaddleFormers' own small models, and hf/ against what its save_pretrained() makes of them: every tensor byte for byte.

usage: paddleformers_models.py DCPFS [MODEL ...]     with a python that has paddleformers (1.2.0), paddlepaddle (3.3.1) and safetensors

Each is saved by paddle.save and by paddle.distributed.save_state_dict, on one rank and on two that share each layer (gloo), with the
config.json of save_pretrained() beside it. Qwen and the like need paddlefleet, which no index has: for those stands renamed.py. Of Phi-3 on
two ranks Paddle's own export takes gate and up for one share ("No shard information found"), so it is left out there.
"""
import importlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import paddle
from safetensors.numpy import load_file

import paddle_ranks

SIZES = dict(num_hidden_layers=2, hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, vocab_size=40,
             max_position_embeddings=64, tie_word_embeddings=False)
MODELS = {
    "llama": ("llama", "Llama", SIZES),
    "llama-tied": ("llama", "Llama", SIZES | dict(tie_word_embeddings=True)),
    "ernie4_5": ("ernie4_5", "Ernie4_5", SIZES | dict(head_dim=4)),
    "ernie4_5_moe": ("ernie4_5_moe", "Ernie4_5_Moe", SIZES | dict(moe_num_experts=2, moe_intermediate_size=8, moe_k=1, moe_num_shared_experts=1,
                                                                   moe_layer_start_index=1)),
    "gpt_oss": ("gpt_oss", "GptOss", SIZES | dict(num_local_experts=2, num_experts_per_tok=1, head_dim=6)),
    "phi3": ("phi3", "Phi3", SIZES | dict(pad_token_id=0)),
}


def tensors_of(at):
    return {k: a for part in at.glob("*.safetensors") for k, a in load_file(part).items()}


def made(module, name, sizes, rank=0):
    at = f"paddleformers.transformers.{module}"
    model = getattr(importlib.import_module(at + ".modeling"), name + "ForCausalLM")(getattr(importlib.import_module(at + ".configuration"), name + "Config")(**sizes))
    for i, p in enumerate(model.parameters()):
        paddle.seed(i + 1000 * rank * p.is_distributed)
        p.set_value(paddle.randn(p.shape).astype(p.dtype))
    return model


def check(program, source, want, note):
    at = source.parent / (source.name + "-mnt")
    at.mkdir()
    subprocess.run([program, "mount", source, at], check=True)
    try:
        got, page = tensors_of(at / "latest" / "hf"), (at / "latest" / "hf" / "README.md").read_text()
    finally:
        subprocess.run([program, "umount", "-z", at], check=True)
    wrong = [k for k in sorted(set(got) | set(want)) if k not in got or k not in want or got[k].shape != want[k].shape or got[k].tobytes() != want[k].tobytes()]
    print(note, f"NOT EQUAL: {wrong[:8]} of {len(want)}" if wrong else "equal", [l for l in page.splitlines() if "| rules |" in l or "no rule fits" in l], flush=True)
    return not wrong


def rank_main(top, *names):
    from paddle.distributed import fleet
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 2, "pp_degree": 1, "sharding_degree": 1}
    fleet.init(is_collective=True, strategy=strategy)
    paddle.Tensor.cuda = lambda self, *a, **k: self  # its export sends by way of a device
    for name in names:
        module, kind, sizes = MODELS[name]
        model = made(module, kind, sizes | dict(tensor_parallel_degree=2, tensor_model_parallel_size=2), paddle.distributed.get_rank())
        paddle.distributed.save_state_dict(model.sharded_state_dict(), str(top / name / "two" / "step-1"))
        model.save_pretrained(str(top / name / "two-own"))


def main(program, *names):
    top, bad = pathlib.Path(tempfile.mkdtemp()), 0
    os.environ["DCPFS_CACHE"] = str(top / "cache")
    both = [name for name in names or MODELS if name in ("llama", "ernie4_5")]
    if both:
        paddle_ranks.run(2, [os.path.abspath(__file__), "--rank", str(top), *both], f"{top}/log")
    for name in both:
        shutil.copy(top / name / "two-own" / "config.json", top / name / "two" / "step-1")
        bad += not check(program, top / name / "two", tensors_of(top / name / "two-own"), f"{name} of two ranks")
    for name in names or MODELS:
        model = made(*MODELS[name])
        model.save_pretrained(str(top / name / "own"))
        want = tensors_of(top / name / "own")
        (top / name / "save" / "step-1").mkdir(parents=True)
        paddle.save(model.state_dict(), str(top / name / "save" / "step-1" / "model_state.pdparams"))
        paddle.distributed.save_state_dict(model.state_dict(), str(top / name / "dist" / "step-1"))
        for form in ("save", "dist"):
            shutil.copy(top / name / "own" / "config.json", top / name / form / "step-1")
            bad += not check(program, top / name / form, want, f"{name} {form}")
    shutil.rmtree(top)
    sys.exit(bad != 0)


if sys.argv[1] == "--rank":
    rank_main(pathlib.Path(sys.argv[2]), *sys.argv[3:])
else:
    main(os.path.abspath(sys.argv[1]), *sys.argv[2:])
