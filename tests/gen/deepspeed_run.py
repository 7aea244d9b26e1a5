# SPDX-License-Identifier: Apache-2.0
"""deepspeed-*: ZeRO 0 to 3, pipeline stages, experts, tensor-parallel ranks, and universal checkpoints, each by real ranks (gloo, CPU).

Packages: torch==2.15.0 numpy; DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed==0.19.8.  Run: python deepspeed_run.py [name ...]

The truth of fp32 and the moments is DeepSpeed's zero_to_fp32, fed with moments for these, and where it refuses the live engine; both are
compared where both speak. Weights are the live model's. dcpfs shows more than that ("more"): buffers and frozen weights as fp32, step, and what else
is in optimizer files.
"""
import json
import os
import shutil
import subprocess
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import torch  # noqa: E402

import fixlib  # noqa: E402

ROLES = ("fp32", "exp_avg", "exp_avg_sq")
SPECS = {
    "deepspeed-z0": dict(ws=2, stage=0, tags=[10], about="Stage 0: everything in the model file, optimizer state by number."),
    "deepspeed-z1": dict(ws=3, stage=1, tags=[10, 20], bf16=True, about="Stage 1, bf16, three parameter groups, frozen and tied weights, two tags."),
    "deepspeed-z1-elastic": dict(ws=3, stage=1, tags=[4], bf16=True, zero={"elastic_checkpoint": True}, about="Stage 1, elastic_checkpoint: lean states in a list."),
    "deepspeed-z1-fp32acc": dict(ws=2, stage=1, tags=[5], bf16=True, acc=True, nofrozen=True, about="BF16_Optimizer: no zero_stage, padding kept; zero_to_fp32 refuses it."),
    "deepspeed-z2": dict(ws=4, stage=2, tags=[10, 20], about="Stage 2, fp32 weights, groups so small that the last ranks hold empty slices."),
    "deepspeed-z2-align": dict(ws=2, stage=2, tags=[4], bf16=True, zero={"parameter_alignment": True}, about="Gaps between parameters (param_alignment_paddings)."),
    "deepspeed-z2-rr": dict(ws=3, stage=2, tags=[4], bf16=True, zero={"round_robin_gradients": True}, about="Another order of parameters; param_slice_mappings are wrong."),
    "deepspeed-z3": dict(ws=3, stage=3, tags=[10, 20], bf16=True, zero={"sub_group_size": 30, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 1000},
                         about="Stage 3, several sub-groups, frozen and tied weights, parameters smaller than the world."),
    "deepspeed-pipe": dict(ws=4, stage=1, tags=[3], bf16=True, model="pipe", about="Two pipeline stages of two ranks each, an embedding tied over both: a file a layer."),
    "deepspeed-moe": dict(ws=4, stage=1, tags=[3], bf16=True, model="moe", about="Four experts over two ranks: their group is cut over fewer ranks than the others."),
    "deepspeed-tp": dict(ws=4, stage=1, tags=[1], bf16=True, model="tp", about="Two tensor-parallel ranks (AutoTP) of two ranks each, fused QKV; universal_checkpoint_info tells how they join."),
}


# ---------------------------------------------------------------- models: (module, parameter groups, more config)

def plain_model(spec):
    nn = torch.nn

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.emb = nn.Embedding(11, 6)
            s.conv = nn.Conv1d(6, 7, 3, padding=1)
            s.norm = nn.LayerNorm(7)
            s.scale = nn.Parameter(torch.tensor([1.25]))
            s.cube = nn.Parameter(torch.randn(2, 1, 3, 1, 2))
            s.frozen = nn.Linear(7, 7)
            s.mid = nn.Linear(7, 6)
            s.head = nn.Linear(6, 11, bias=False)
            s.head.weight = s.emb.weight
            s.register_buffer("table", torch.randn(5, 3))
            s.register_buffer("ids", torch.arange(7) - 3)

        def forward(s, x):
            h = s.conv(s.emb(x).transpose(1, 2)).transpose(1, 2)
            h = s.frozen(s.norm(h)) * s.scale + s.cube.mean()
            return s.head(s.mid(h)).float()
    m = Net()
    for p in m.frozen.parameters():
        p.requires_grad_(spec.get("nofrozen", False))
    named = [(n, p) for n, p in m.named_parameters() if p.requires_grad]
    return m, [{"params": [p for n, p in named if p.dim() > 1 and n != "cube"], "weight_decay": 0.01},
               {"params": [p for n, p in named if p.dim() <= 1], "weight_decay": 0.0, "lr": 0.02}, {"params": [p for n, p in named if n == "cube"]}], {}


def pipe_model(spec):
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
    nn = torch.nn

    class Emb(nn.Module):
        def __init__(s):
            super().__init__()
            s.word = nn.Embedding(11, 6)

        def forward(s, x):
            return s.word(x)

    def back(m, x):
        return x @ m.word.weight.t()
    tied = dict(tied_weight_attr="word.weight")
    m = PipelineModule([TiedLayerSpec("emb", Emb, **tied), LayerSpec(nn.Linear, 6, 7), LayerSpec(nn.LayerNorm, 7), LayerSpec(nn.Linear, 7, 6), TiedLayerSpec("emb", Emb, forward_fn=back, **tied)],
                       num_stages=2, partition_method="uniform", loss_fn=lambda o, t: nn.functional.cross_entropy(o.float().reshape(-1, 11), t.reshape(-1)))
    return m, list(m.parameters()), {"gradient_accumulation_steps": 1}


def moe_model(spec):
    from deepspeed.moe.layer import MoE
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split
    nn = torch.nn

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.emb = nn.Embedding(11, 6)
            s.moe = MoE(6, nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 6)), num_experts=4, ep_size=2, capacity_factor=4.0, min_capacity=0)
            s.out = nn.Linear(6, 3)

        def forward(s, x):
            return s.out(s.moe(s.emb(x))[0])
    torch.manual_seed(3 + torch.distributed.get_rank())
    m = Net()
    return m, split({"params": list(m.parameters()), "name": "dense"}), {}


def tp_model(spec):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(s):
            super().__init__()
            s.ln, s.qkv_proj, s.o_proj, s.up_proj, s.down_proj = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 12), nn.Linear(12, 8)

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.emb = nn.Embedding(11, 8)
            s.layers = nn.ModuleList([Block(), Block()])
            s.register_buffer("table", torch.arange(5.0))
    m = Net()
    m.whole = {n: p.detach().clone() for n, p in m.state_dict().items()}
    row, column = {"partition_type": "row"}, {"partition_type": "column"}
    return m, list(m.parameters()), {"tensor_parallel": {"autotp_size": 2, "partition_config": {"use_default_specs": False, "layer_specs": [
        {"patterns": [".*o_proj.weight$", ".*down_proj.weight$"], **row}, {"patterns": [".*qkv_proj.weight$"], "shape": [3, -1], "partition_dim": 0, **column},
        {"patterns": [".*up_proj.weight$"], **column}]}}}


MODELS = {"plain": plain_model, "pipe": pipe_model, "moe": moe_model, "tp": tp_model}


# ---------------------------------------------------------------- one rank

def entry(role, name, t):
    return fixlib.tensor_entry(f"{role}.{name}", [role, name], t)


def global_name(name):
    """Each rank counts its experts from 0."""
    from deepspeed.utils import groups
    a, sep, b = name.partition("deepspeed_experts.")
    if not sep:
        return name
    i, rest = b.split(".", 1)
    return f"{a}{sep}{groups._get_expert_parallel_rank('ep_size_2') * 2 + int(i)}.{rest}"


def live(eng, spec):
    """What this rank's engine holds, whole."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    if hasattr(eng.optimizer, "_hp_optimizer_states_linked"):    # it links all groups after stepping only the first: link again
        eng.optimizer._hp_optimizer_states_linked = False
        eng.optimizer._lazy_init_hp_params_optimizer_state()
    out = {}
    for n, p in eng.module.named_parameters():
        name = global_name(n)
        if spec["stage"] == 3:
            with deepspeed.zero.GatheredParameters([p]):
                if not p.requires_grad:                          # the others' weights are in no file
                    out[f"module.{name}"] = entry("module", name, p.data)
        elif spec.get("model") != "pipe":
            out[f"module.{name}"] = entry("module", name, p.data)
        if p.requires_grad and spec["stage"] > 0:
            got = {"fp32": safe_get_full_fp32_param(p), **{r: safe_get_full_optimizer_state(p, r) for r in ROLES[1:]}}
            out.update({f"{r}.{name}": entry(r, name, t) for r, t in got.items() if t is not None})
    if spec["stage"] != 3 and "model" not in spec:
        out["module.head.weight"] = entry("module", "head.weight", eng.module.head.weight.data)
    out.update({f"module.{n}": entry("module", n, b) for n, b in eng.module.named_buffers()})
    return out


def whole_tp(m):
    """Nothing was trained: the weights before they were cut, rounded as DeepSpeed rounds them."""
    out = {}
    for n, t in m.whole.items():
        out[f"module.{n}"] = entry("module", n, t if n == "table" else t.bfloat16())
        if n != "table":
            out[f"fp32.{n}"] = entry("fp32", n, t.bfloat16().float())
    return out


def rank_main(rank, world, name, ckpt, side):
    import deepspeed
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None    # it would compile one
    spec = SPECS[name]
    torch.manual_seed(3)
    deepspeed.init_distributed("gloo")
    m, groups, more = MODELS[spec.get("model", "plain")](spec)
    cfg = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}, "zero_optimization": {"stage": spec["stage"], **spec.get("zero", {})},
           "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 7}}, **more}
    if spec.get("bf16"):
        cfg["bf16"] = {"enabled": True}
    if spec.get("acc"):
        cfg["data_types"] = {"grad_accum_dtype": "fp32"}
    eng = deepspeed.initialize(model=m, model_parameters=groups, config=cfg)[0]
    g = torch.Generator().manual_seed(100 + rank)

    def batches():
        while True:
            x = torch.randint(0, 11, (2, 5), generator=g)
            yield x, x
    data = batches()
    for step in range(1, max(spec["tags"]) + 1):
        if spec.get("model") == "pipe":
            eng.train_batch(data)
        elif spec.get("model") != "tp":
            eng.backward((eng(next(data)[0]).float() ** 2).mean())
            eng.step()
        if step in spec["tags"]:
            eng.save_checkpoint(ckpt, tag=f"global_step{step}", client_state={"note": "hello é", "lr_seen": [0.1, 0.2], "when": step})
            with open(f"{side}/live{step}-{rank}.json", "w", encoding="utf-8") as f:
                json.dump(whole_tp(m) if spec.get("model") == "tp" else live(eng, spec), f)
    deepspeed.comm.barrier()


# ---------------------------------------------------------------- truth

def has_numbers(o):
    """A dict with keys that are no text has a form in JSON that only dcpfs has."""
    if isinstance(o, dict):
        return any(not isinstance(k, str) or has_numbers(v) for k, v in o.items())
    return isinstance(o, (list, tuple)) and any(map(has_numbers, o))


def client_entry(file, key, o):
    e = fixlib.object_entry(f"{file}.{key}", [key], o)
    return {**e, "json": None} if has_numbers(o) else e


def merged(ckpt, tag, role, tmp):
    """zero_to_fp32 as it is; for the moments the same tool over a copy whose fp32 slices are the moment's."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    if role == "fp32":
        return get_fp32_state_dict_from_zero_checkpoint(ckpt, tag=tag)
    shutil.rmtree(tmp, ignore_errors=True)
    shutil.copytree(f"{ckpt}/{tag}", f"{tmp}/{tag}")
    for f in os.listdir(f"{tmp}/{tag}"):
        if not f.endswith("optim_states.pt"):
            continue
        o = torch.load(f"{tmp}/{tag}/{f}", weights_only=False)
        od = o["optimizer_state_dict"]
        if "fp32_flat_groups" in od:
            od["fp32_flat_groups"] = [od["optimizer_state_dict"]["state"][i][role] for i in range(len(od["fp32_flat_groups"]))]
        else:
            st = od["base_optimizer_state"]
            st = [st["state"][i] for i in sorted(st["state"])] if isinstance(st, dict) else st
            od["single_partition_of_fp32_groups"] = [x[role][:len(g)].clone() for x, g in zip(st, od["single_partition_of_fp32_groups"])]
        torch.save(o, f"{tmp}/{tag}/{f}")
    return get_fp32_state_dict_from_zero_checkpoint(tmp, tag=tag)


def by_tool(spec, ckpt, tag, side, alive):
    out = {}
    for role in ROLES:
        for n, t in merged(ckpt, tag, role, f"{side}/tmp").items():
            e = entry(role, n, t)
            if role != "fp32" and e["key"] not in alive and n != "head.weight":
                continue                                        # frozen weights and buffers come along with every role
            other = alive.get(e["key"])
            if other and other["sha256"] != e["sha256"]:
                # Who is right? The one that rounds to the 16-bit weights beside it.
                assert "round_robin_gradients" in spec.get("zero", {}), e["key"]
                assert role != "fp32" or fixlib.sha(t.bfloat16()) == alive[f"module.{n}"]["sha256"], e["key"]
            out[e["key"]] = e
    return out


def version(spec, ckpt, side, step):
    tag = f"global_step{step}"
    alive = {}
    for rank in range(spec["ws"]):
        with open(f"{side}/live{step}-{rank}.json", encoding="utf-8") as f:
            for k, e in json.load(f).items():
                assert alive.setdefault(k, e) == e, k
    v = {"name": tag, "complete": True, "more": True, "tensors": [], "objects": [], "aliases": [], "shards": []}
    if spec["stage"] > 0 and "model" not in spec and not spec.get("acc"):
        alive.update(by_tool(spec, ckpt, tag, side, alive))
        v["aliases"] = [[f"{r}.emb.weight", f"{r}.head.weight"] for r in ROLES]
    first = sorted(f for f in os.listdir(f"{ckpt}/{tag}") if f.endswith("model_states.pt") and "mp_rank_00" in f and "expert" not in f)[0]
    m = torch.load(f"{ckpt}/{tag}/{first}", weights_only=False)
    for i, s in (m["optimizer"] or {"state": {}})["state"].items():
        alive.update({f"optimizer.state.{i}.{k}": fixlib.tensor_entry(f"optimizer.state.{i}.{k}", ["optimizer", "state", i, k], t) for k, t in s.items()})
    v["tensors"] = list(alive.values())
    v["objects"] = [client_entry(first, k, o) for k, o in m.items() if k not in ("module", "optimizer")]
    return v


def universal():
    """The last tags of deepspeed-z1 and -z3 through DeepSpeed's own converter. A bare tensor of stage 3 is flat; its shape stands in param_shapes."""
    import deepspeed
    name = "deepspeed-universal"
    out, versions = fixlib.fresh(name), []
    for z in ("z1", "z3"):
        src = fixlib.here() / f"deepspeed-{z}"
        into = out / "ckpt" / f"{z}-global_step20"
        subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", str(src / "ckpt/global_step20"), "--output_folder", str(into),
                        "--num_extract_workers", "1", "--num_merge_workers", "1", "--inject_missing_state"], check=True, stdout=subprocess.DEVNULL)
        model = sorted(into.glob("*_model_states.pt"))[0]
        shapes = {n: s for g in torch.load(model, weights_only=False)["param_shapes"] for n, s in g.items()}
        tensors = []
        for f in sorted(into.glob("zero/*/*.pt")):
            o = torch.load(f, weights_only=False)
            t = o["param"] if isinstance(o, dict) else o.view(shapes[f.parent.name]) if o.dim() else o
            tensors.append(entry(f.stem, f.parent.name, t))
        versions.append({"name": into.name, "complete": True, "more": True, "tensors": tensors, "objects": [], "aliases": [], "shards": []})
    fixlib.publish(name, out / "ckpt")
    fixlib.finish(name, "ds_to_universal of deepspeed-z1 and deepspeed-z3: a file a parameter and state.", "deepspeed-universal", versions, frameworks={"deepspeed": deepspeed.__version__})


def make(name, spec):
    import deepspeed
    run = fixlib.fresh(name)
    ckpt, side = run / "ckpt", run / "side"
    side.mkdir()
    fixlib.spawn(rank_main, spec["ws"], name, str(ckpt), str(side))
    versions = [version(spec, str(ckpt), str(side), step) for step in spec["tags"]]
    for f in ckpt.glob("zero_to_*.py"):                          # tools that DeepSpeed leaves there
        f.unlink()
    fixlib.publish(name, ckpt)
    fixlib.finish(name, spec["about"], "deepspeed", versions, frameworks={"deepspeed": deepspeed.__version__})


if __name__ == "__main__":
    for n, s in SPECS.items():
        if n in sys.argv[1:] or not sys.argv[1:]:
            make(n, s)
    if "deepspeed-universal" in sys.argv[1:] or not sys.argv[1:]:
        universal()
