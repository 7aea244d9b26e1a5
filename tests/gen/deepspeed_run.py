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
    "deepspeed-moe-tp": dict(ws=8, stage=2, tags=[2], bf16=True, model="moe_tp", parts=True, about="Four experts over four ranks, two tensor-parallel ranks that do not cut them: a group is cut over all ranks of the stage."),
    "deepspeed-autoep": dict(ws=4, stage=1, tags=[2], bf16=True, model="autoep", parts=True, about="AutoEP: one tensor for the experts of a rank, a file for each expert."),
    "deepspeed-autoep-z3": dict(ws=4, stage=3, tags=[2], bf16=True, model="autoep", parts=True, zero={"stage3_param_persistence_threshold": 0}, about="AutoEP in stage 3: experts only in optimizer files."),
    "deepspeed-autoep-tp": dict(ws=4, stage=2, tags=[2], bf16=True, model="autoep", parts=True, tp=2, about="AutoEP folded over two tensor-parallel ranks: universal_checkpoint_info calls experts replicated, they are not."),
    "deepspeed-3d": dict(ws=8, stage=1, tags=[2], bf16=True, model="3d", parts=True, about="Two pipeline stages of two tensor-parallel ranks of two ranks each: a padded vocabulary tied over stages, rows, columns, means."),
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
            s.moe = MoE(6, nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 6)), num_experts=4, ep_size=spec.get("ep", 2), capacity_factor=4.0, min_capacity=0)
            s.out = nn.Linear(6, 3)

        def forward(s, x):
            return s.out(s.moe(s.emb(x))[0])
    torch.manual_seed(3 + torch.distributed.get_rank())
    m = Net()
    groups = split({"params": list(m.parameters()), "name": "dense"})
    return m, groups, {"groups": groups} if "ep" in spec else {}


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


def autoep_model(spec):
    import types
    nn, experts, hidden, inner = torch.nn, 4, 6, 5

    class Experts(nn.Module):
        def __init__(s):
            super().__init__()
            s.gate_up_proj, s.down_proj = nn.Parameter(torch.randn(experts, 2 * inner, hidden) * .3), nn.Parameter(torch.randn(experts, hidden, inner) * .3)
            s.act_fn = nn.SiLU()

    class Moe(nn.Module):
        def __init__(s):
            super().__init__()
            s.gate, s.experts = nn.Linear(hidden, experts, bias=False), Experts()

        def forward(s, x):
            raise NotImplementedError                            # AutoEP puts its own layer here

    class Layer(nn.Module):
        def __init__(s):
            super().__init__()
            s.norm, s.mlp = nn.LayerNorm(hidden), Moe()

        def forward(s, x):
            y = s.mlp(s.norm(x))
            return x + (y[0] if isinstance(y, tuple) else y)

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.config = types.SimpleNamespace(model_type="mixtral", num_local_experts=experts, num_experts_per_tok=2, hidden_act="silu")
            s.model = nn.Module()
            s.model.emb, s.model.layers, s.out = nn.Embedding(11, hidden), nn.ModuleList([Layer(), Layer()]), nn.Linear(hidden, 3)

        def forward(s, x):
            h = s.model.emb(x)
            for layer in s.model.layers:
                h = layer(h)
            return s.out(h)
    m = Net()
    more = {"expert_parallel": {"enabled": True, "autoep_size": 2, "preset_model": "mixtral", "use_grouped_mm": False}}
    if spec.get("tp"):
        more["tensor_parallel"] = {"autotp_size": spec["tp"], "partition_config": {"use_default_specs": False, "layer_specs": [{"patterns": [".*nothing$"], "partition_type": "row"}]}}
    return m, list(m.parameters()), more


class Mpu:
    """Two tensor-parallel ranks beside each other."""

    def __init__(s, tp):
        dist, n = torch.distributed, torch.distributed.get_world_size()
        rank = dist.get_rank()
        for i in range(0, n, tp):
            g = dist.new_group(range(i, i + tp))
            s.model = g if i <= rank < i + tp else getattr(s, "model", None)
        for i in range(tp):
            g = dist.new_group(range(i, n, tp))
            s.data = g if rank % tp == i else getattr(s, "data", None)
        s.sizes = {"model": tp, "data": n // tp}

    def __getattr__(s, name):
        what = "data" if "data" in name else "model"
        if not name.startswith("get_"):
            raise AttributeError(name)
        if "pipe" in name:
            return lambda: 1 if "world" in name else 0
        return lambda: getattr(s, what) if name.endswith("group") else s.sizes[what] if name.endswith("world_size") else torch.distributed.get_rank(getattr(s, what))


def moe_tp_model(spec):
    nn = torch.nn
    m, _, more = moe_model({**spec, "ep": 4})
    torch.manual_seed(3)
    for n, p in m.named_parameters():                            # what is no expert is equal on all ranks
        if "deepspeed_experts" not in n:
            nn.init.normal_(p, std=.3)
    m.universal_checkpoint_info = {"universal_checkpoint_version": 0.2, "tp_replicated_parameter_patterns": [".*"]}
    spec["mpu"] = Mpu(2)
    from deepspeed import comm
    gather = comm.all_gather_into_tensor                         # gloo wants both flat
    comm.all_gather_into_tensor = lambda out, x, *a, **kw: gather(out, x.reshape(-1), *a, **kw)
    return m, more.pop("groups"), more


def three_d_model(spec):
    """Megatron's layers in short; every parameter knows the dimension its ranks cut it along."""
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
    nn, dist, here = torch.nn, torch.distributed, {}
    vocab, padded, hidden, inner = 11, 12, 6, 8

    def sum_all(x):
        x = x.clone()
        dist.all_reduce(x, group=here["group"])
        return x

    class Enter(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x)
        backward = staticmethod(lambda ctx, g: sum_all(g))

    class Leave(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: sum_all(x))
        backward = staticmethod(lambda ctx, g: g)

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            parts = [torch.empty_like(x) for _ in range(2)]
            dist.all_gather(parts, x.contiguous(), group=here["group"])
            return torch.cat(parts, -1)
        backward = staticmethod(lambda ctx, g: g.chunk(2, -1)[here["rank"]].contiguous())

    def cut(shape, dim):
        """This rank's part of a parameter that all ranks make alike."""
        p = torch.randn(shape) * .3
        p = nn.Parameter(p if dim is None else p.chunk(2, dim)[here["rank"]].clone())
        p.cut = dim
        return p

    class Emb(nn.Module):
        def __init__(s):
            super().__init__()
            s.word = nn.Module()
            s.word.weight = cut((padded, hidden), 0)

        def forward(s, x):
            i = x - here["rank"] * padded // 2
            mine = (i >= 0) & (i < padded // 2)
            return Leave.apply(nn.functional.embedding(i.clamp(0, padded // 2 - 1), s.word.weight) * mine.unsqueeze(-1))

    class Mlp(nn.Module):
        def __init__(s):
            super().__init__()
            s.ln = nn.LayerNorm(hidden)
            s.up, s.down = nn.Module(), nn.Module()
            s.up.weight, s.up.bias = cut((inner, hidden), 0), cut((inner,), 0)
            s.down.weight, s.down.bias = cut((hidden, inner), 1), cut((hidden,), None)

        def forward(s, x):
            h = nn.functional.gelu(nn.functional.linear(Enter.apply(s.ln(x)), s.up.weight, s.up.bias))
            return x + Leave.apply(nn.functional.linear(h, s.down.weight)) + s.down.bias

    def head(m, x):
        return Gather.apply(nn.functional.linear(Enter.apply(x), m.word.weight))[..., :vocab]
    topology = PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=2)
    here["rank"] = topology.get_coord(dist.get_rank()).model
    tied = dict(tied_weight_attr="word.weight")
    m = PipelineModule([TiedLayerSpec("emb", Emb, **tied), LayerSpec(Mlp), LayerSpec(Mlp), LayerSpec(Mlp), TiedLayerSpec("emb", Emb, forward_fn=head, **tied)], topology=topology,
                       partition_method="uniform", seed_layers=True, loss_fn=lambda o, t: nn.functional.cross_entropy(o.float().reshape(-1, vocab), t.reshape(-1)))
    here["group"] = m._grid.get_slice_parallel_group()
    m.universal_checkpoint_info = {"universal_checkpoint_version": 0.2, "original_vocab_size": vocab, "vocabulary_parameter_patterns": [r"tied_modules\.emb\.word\.weight"],
                                   "pipeline_replicated_parameter_patterns": [r"tied_modules\.emb\.word\.weight"], "parameter_to_average_patterns": [r"\d+\.ln\..*", r"\d+\.down\.bias"],
                                   "parameter_with_row_parallelism_patterns": [r"\d+\.down\.weight"]}
    spec["vocab"], spec["tp_rank"] = vocab, here["rank"]
    return m, list(m.parameters()), {"gradient_accumulation_steps": 1}


MODELS = {"plain": plain_model, "pipe": pipe_model, "moe": moe_model, "tp": tp_model, "autoep": autoep_model, "moe_tp": moe_tp_model, "3d": three_d_model}


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
    ep = groups._get_max_expert_size()
    return f"{a}{sep}{groups._get_expert_parallel_rank(f'ep_size_{ep}') * (4 // ep) + int(i)}.{rest}"


def link(eng):
    if hasattr(eng.optimizer, "_hp_optimizer_states_linked"):    # it links all groups after stepping only the first: link again
        eng.optimizer._hp_optimizer_states_linked = False
        eng.optimizer._lazy_init_hp_params_optimizer_state()


def live_parts(eng, spec):
    """What this rank's engine holds: (role, name, tensor, dimension along which it is cut, this rank's number there)."""
    from deepspeed.utils import groups, safe_get_full_fp32_param, safe_get_full_optimizer_state
    link(eng)
    out = []
    for n, p in eng.module.named_parameters():
        cut = (getattr(p, "cut", None), spec.get("tp_rank"))
        if spec["model"] == "autoep" and ".experts." in n:
            cut = (0, groups._get_expert_parallel_rank("ep_size_2"))
        got = {"fp32": safe_get_full_fp32_param(p), **{r: safe_get_full_optimizer_state(p, r) for r in ROLES[1:]}}
        if spec["stage"] < 3:
            got["module"] = p.data
        for role, t in got.items():
            tied = role == "module" and n.startswith("tied_modules.emb.")        # a file of the first layer has it
            out.append((role, f"0.{n.split('.', 2)[2]}" if tied else global_name(n), t.detach().clone(), *cut))
    return out


def join_parts(spec, side, step):
    """The whole of them: copies must be equal."""
    held = {}
    for rank in range(spec["ws"]):
        for role, name, t, dim, number in torch.load(f"{side}/live{step}-{rank}.pt"):
            of = held.setdefault((role, name), (dim, {}))[1]
            k = number if dim is not None else 0
            assert k not in of or torch.equal(of[k], t), (role, name, rank)
            of[k] = t
    out = {}
    for (role, name), (dim, of) in held.items():
        t = of[0] if dim is None else torch.cat([of[k] for k in sorted(of)], dim)
        out[f"{role}.{name}"] = entry(role, name, t[:11] if "word.weight" in name and spec["model"] == "3d" else t)
    return out


def live(eng, spec):
    """What this rank's engine holds, whole."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    link(eng)
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
    spec = dict(SPECS[name])
    torch.manual_seed(3)
    deepspeed.init_distributed("gloo")
    m, groups, more = MODELS[spec.get("model", "plain")](spec)
    cfg = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}, "zero_optimization": {"stage": spec["stage"], **spec.get("zero", {})},
           "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 7}}, **more}
    if spec.get("bf16"):
        cfg["bf16"] = {"enabled": True}
    if spec.get("acc"):
        cfg["data_types"] = {"grad_accum_dtype": "fp32"}
    eng = deepspeed.initialize(model=m, model_parameters=groups, config=cfg, mpu=spec.get("mpu"))[0]
    one = spec.get("tp", 2 if spec.get("model") == "moe_tp" else 1)   # tensor-parallel ranks get the same data
    g = torch.Generator().manual_seed(100 + (rank // 2 % 2 if spec.get("model") == "3d" else rank // one))

    def batches():
        while True:
            x = torch.randint(0, 11, (2, 5), generator=g)
            yield x, x
    data = batches()
    for step in range(1, max(spec["tags"]) + 1):
        if spec.get("model") in ("pipe", "3d"):
            eng.train_batch(data)
        elif spec.get("model") != "tp":
            eng.backward((eng(next(data)[0]).float() ** 2).mean())
            eng.step()
        if step in spec["tags"]:
            eng.save_checkpoint(ckpt, tag=f"global_step{step}", client_state={"note": "hello é", "lr_seen": [0.1, 0.2], "when": step})
            if spec.get("parts"):
                torch.save(live_parts(eng, spec), f"{side}/live{step}-{rank}.pt")
                continue
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
    alive = join_parts(spec, side, step) if spec.get("parts") else {}
    for rank in range(0 if alive else spec["ws"]):
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
