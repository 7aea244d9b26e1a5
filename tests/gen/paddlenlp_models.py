#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that PaddleNLP takes and saves; hf/ has transformers' own weights again, byte for byte, and the same logits.

usage: TORCH=PYTHON paddlenlp_models.py DCPFS [MODEL ...]     with a python that has paddlenlp (3.0.0b4), paddlepaddle (3.3.1), safetensors, aistudio_sdk
                                                              (0.2.6), pyarrow (17); PYTHON has torch and transformers (seen well with 2.15.0 and 5.23)

transformers makes a small model, from_pretrained(convert_from_torch=True) of PaddleNLP reads it. Saved as .pdparams and as safetensors by its
save_pretrained() on one rank; then two tensor-parallel ranks (gloo) save what they share: by its Trainer with unified_checkpoint, and by
paddle.distributed.save_state_dict; and, after a step of AdamW (rate 0) on gradients
made here, what its Trainer saves while it trains, each rank its own files (merge_tensor_parallel off), also on four ranks, TP 2 x PP 2, and as a unified
checkpoint; then the state of each rank's optimizer has to be there, too, under Paddle's names in files of ranks. Gloo has not the operations with which such ranks compute, so the Trainer saves what it was given.
PaddleNLP's head does not say that it is cut (its sharded_state_dict() has one half for the whole), so that is said here.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SIZES = dict(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
MODELS = {
    "llama": ("Llama", SIZES),
    "qwen2": ("Qwen2", SIZES),
    "mixtral": ("Mixtral", SIZES | dict(num_local_experts=4)),
    "qwen2_moe": ("Qwen2Moe", SIZES | dict(num_experts=4, moe_intermediate_size=48, shared_expert_intermediate_size=80, num_experts_per_tok=2)),
}


def make(top, *names):
    """By transformers; biases are not zero, as they are in a new model."""
    import torch
    import transformers
    for name in names:
        torch.manual_seed(3)
        kind, sizes = MODELS[name]
        model = getattr(transformers, kind + "ForCausalLM")(getattr(transformers, kind + "Config")(**sizes))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.normal_(1)
        model.save_pretrained(top / name / "own")


def compare(own, hf):
    """By transformers: prints what differs."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    want, got = ({k: v for part in sorted(pathlib.Path(at).glob("*.safetensors")) for k, v in load_file(part).items()} for at in (own, hf))
    bad = [k for k in sorted(set(want) | set(got)) if k not in got or k not in want or want[k].dtype != got[k].dtype or not torch.equal(want[k], got[k])]
    tokens = torch.arange(20).reshape(2, 10) * 3 % 90
    with torch.no_grad():
        if not torch.equal(*(AutoModelForCausalLM.from_pretrained(at)(tokens).logits for at in (own, hf))):
            bad.append("logits")
    print(json.dumps([len(got), bad]))


def model_of(name, at, **how):
    import paddlenlp.transformers
    return getattr(paddlenlp.transformers, MODELS[name][0] + "ForCausalLM").from_pretrained(str(at), dtype="float32", **how)


def by_one(top, *names):
    for name in names:
        model = model_of(name, top / name / "own", convert_from_torch=True)
        model.save_pretrained(str(top / name / "pdparams" / "checkpoint-1"))
        model.save_pretrained(str(top / name / "safetensors" / "checkpoint-1"), safe_serialization=True)
        (top / name / "own" / "model_state.pdparams").unlink(missing_ok=True)  # what it makes of the other on its way


def by_two(top, *names):
    os.environ["PADDLE_RANK_IN_NODE"] = os.environ["PADDLE_TRAINER_ID"]
    import paddle
    from paddle.distributed.flex_checkpoint.dcp.sharded_weight import make_tp_sharded_weight_for_checkpoint
    from paddlenlp.trainer import Trainer, TrainingArguments
    args = TrainingArguments(output_dir=str(top / "out"), device="cpu", tensor_parallel_degree=2, unified_checkpoint=True, report_to=[], disable_tqdm=True)
    for name in names:
        model = model_of(name, top / name / "pdparams" / "checkpoint-1", tensor_parallel_degree=2, tensor_parallel_rank=args.tensor_parallel_rank)
        Trainer(model=model, args=args).save_model(str(top / name / "trainer" / "checkpoint-1"))
        state = model.sharded_state_dict()
        state["lm_head.weight"] = make_tp_sharded_weight_for_checkpoint("lm_head.weight", model.lm_head.weight, 1)
        paddle.distributed.save_state_dict(state, str(top / name / "dist" / "checkpoint-1"))


class Quiet:
    """In place of a group of some of the ranks, which gloo does not have in Paddle, and a save does not need."""

    def __getattr__(self, name):
        return lambda *a, **k: type("Task", (), {"wait": lambda self: True})()


def by_trainer(top, form, *names):
    """A checkpoint as the Trainer saves it while it trains, with an optimizer."""
    os.environ["PADDLE_RANK_IN_NODE"] = os.environ["PADDLE_TRAINER_ID"]
    import numpy
    import paddle
    import paddle.distributed as dist
    from paddle.distributed.communication.group import Group
    grid = form == "grid"
    if grid:
        from paddle.distributed import collective
        dist.ParallelEnv._device_id = 0
        numbers = iter(range(100, 10000))

        def new_group(ranks=None, *a, **k):
            group = Group(ranks.index(dist.get_rank()) if dist.get_rank() in ranks else -1, next(numbers), ranks, pg=Quiet(), name=f"quiet{len(collective._group_map)}")
            collective._group_map_by_name[group.name] = collective._group_map[group.id] = group
            return group

        dist.new_group = new_group
    import paddlenlp.transformers
    from paddlenlp.trainer import Trainer, TrainingArguments
    for name in names:
        args = TrainingArguments(output_dir=str(top / name / form), device="cpu", tensor_parallel_degree=2, pipeline_parallel_degree=2 if grid else 1, unified_checkpoint=form == "unified", report_to=[],
                                 disable_tqdm=True)
        model = getattr(paddlenlp.transformers, MODELS[name][0] + "ForCausalLM" + "Pipe" * grid).from_pretrained(
            str(top / name / "pdparams" / "checkpoint-1"), dtype="float32", tensor_parallel_degree=2, tensor_parallel_rank=args.tensor_parallel_rank)
        optimizer = paddle.optimizer.AdamW(0.0, parameters=model.parameters())
        for p in model.parameters():
            (p * (p + 0.1)).sum().backward()
        optimizer.step()
        schedule = paddle.optimizer.lr.NoamDecay(64, 10)
        trainer = Trainer(model=model, args=args, optimizers=(optimizer, schedule))
        trainer.optimizer, trainer.lr_scheduler, trainer.is_in_train = optimizer, schedule, True
        trainer._save_checkpoint(model)
        state = {k: v.numpy() for k, v in optimizer.state_dict().items() if k not in ("LR_Scheduler", "master_weights")}
        if form != "unified":
            numpy.savez(top / name / f"{form}-{args.optimizer_name_suffix}.npz", **state)


def optimizer_of(top, form, version):
    """What of the optimizers that ranks had is not there, or differs."""
    import numpy
    bad = []
    for rank in top.glob(f"{form}-*.npz"):
        for key, want in numpy.load(rank).items():
            found = [p for p in (version / "npy" / f"optimizer.{r}{key}.npy" for r in (rank.stem.removeprefix(form + "-") + ".", "")) if p.exists()]
            if not found or not numpy.array_equal(numpy.load(found[0]), want):
                bad.append(f"{rank.stem}: {key}")
    return bad


def shown(program, top, name, form):
    source, at = top / name / form, top / name / f"mnt-{form}"
    at.mkdir()
    subprocess.run([program, "mount", source, at], check=True)
    try:
        out = subprocess.run([os.environ["TORCH"], __file__, "--compare", top / name / "own", at / "latest" / "hf"], check=True, capture_output=True, text=True).stdout
        n, bad = json.loads(out.splitlines()[-1])
        return n, bad + optimizer_of(top / name, form, at / "latest"), (at / "latest" / "hf" / "README.md").read_text()
    finally:
        subprocess.run([program, "umount", "-z", at], check=True)


def main(program, *names):
    import paddle_ranks
    top, wrong = pathlib.Path(tempfile.mkdtemp()), 0
    names = names or tuple(MODELS)
    os.environ |= {"DCPFS_CACHE": str(top / "cache"), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([os.environ["TORCH"], __file__, "--make", top, *names], check=True)
    subprocess.run([sys.executable, __file__, "--one", top, *names], check=True, capture_output=True)
    paddle_ranks.run(2, [os.path.abspath(__file__), "--two", str(top), *names], f"{top}/log")
    for form, n in (("ranks", 2), ("unified", 2), ("grid", 4)):
        ones = [k for k in names if form != "grid" or k in ("llama", "qwen2")]  # the others have no pipeline
        if ones:
            paddle_ranks.run(n, [os.path.abspath(__file__), "--trainer", str(top), form, *ones], f"{top}/log")
    for name in names:
        for form in ("pdparams", "safetensors", "trainer", "dist", "ranks", "unified", "grid"):
            if not (top / name / form).exists():
                continue
            if form == "dist":
                shutil.copy(top / name / "trainer" / "checkpoint-1" / "config.json", top / name / form / "checkpoint-1")
            n, bad, page = shown(os.path.abspath(program), top, name, form)
            ok = not bad and ("| rules | `paddle-tp`" if form in ("ranks", "grid") else "| rules | `paddle`") in page
            print(name, form, f"equal, {n} tensors" if ok else f"NOT EQUAL: {bad[:5]}, {page}", flush=True)
            wrong += not ok
    shutil.rmtree(top)
    sys.exit(wrong != 0)


WAYS = {"--make": make, "--one": by_one, "--two": by_two, "--trainer": by_trainer}
if sys.argv[1] == "--compare":
    compare(*sys.argv[2:])
elif sys.argv[1] in WAYS:
    WAYS[sys.argv[1]](pathlib.Path(sys.argv[2]), *sys.argv[3:])
else:
    main(*sys.argv[1:])
