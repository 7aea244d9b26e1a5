#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How transformers itself cuts the parameters of its models: golden/tp_plans.txt.

usage: tp_plans.py [MODEL...]

transformers 5.23.0 and torch 2.15.0 run here. Every model that has a plan is built on the meta
device, with few layers and untied embeddings, and distributed over two ranks of the fake process
group. Nothing is computed from a formula: the lines say which placements the parameters came out
with. A model that cannot be built from its default configuration, or needs packages besides, is
left out and named on stderr.

A block begins with `model NAME...`, the models whose lines are equal. Then
    tp STYLE NAME...               the model's plan (ep: its plan for expert parallelism)
    cut tp NDIM PLACEMENT KEY...   parameters of so many dimensions, as that plan cut them
A number in a key is `0`: all layers and experts are cut alike. `cut ep` has the parameters that are
not whole, `cut tp` all but vectors of modules that the plan does not name. Models made of others
(an image encoder beside a language model) are not listed.
"""
import collections
import pathlib
import re
import sys
import warnings

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.distributed import DistributedConfig
from transformers.distributed.expert_parallel import apply_expert_parallelism
from transformers.distributed.tensor_parallel import apply_tensor_parallelism
from transformers.models.auto import modeling_auto as auto

OUT = pathlib.Path(__file__).resolve().parent.parent / "golden" / "tp_plans.txt"
RANKS, LAYERS = 2, 4
DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers", "depth", "n_layers")
LISTS = ("layer_types", "mlp_layer_types", "layers_block_type")


def small(config, depth=0):
    """The same model with few layers, and with embeddings that are not tied."""
    for name, value in list(vars(config).items()):
        new = value
        if name in DEPTHS and isinstance(value, int):
            new = min(value, LAYERS)
        elif name in LISTS and isinstance(value, list):
            new = value[:LAYERS]
        elif name == "tie_word_embeddings":
            new = False
        elif isinstance(value, transformers.PreTrainedConfig) and depth < 4:
            small(value, depth + 1)
        if new is not value:
            setattr(config, name, new)
    config.tie_word_embeddings = False
    return config


def placement(param):
    if not hasattr(param, "placements"):
        return "replicate"
    text = str(param.placements[0])
    for pattern, words in ((r"R$", "replicate"), (r"S\((\d)\)$", r"shard(\1)"), (r"_S\((\d), (\d)\)$", r"strided(\1,\2)")):
        if re.match(pattern, text):
            return re.sub(pattern, words, text)
    raise ValueError(text)


def cuts(cls, config, kind, mesh):
    """generic key -> (dimensions, placement)"""
    with torch.device("meta"):
        model = cls(config)
    sizes = {"tp_size": RANKS} if kind == "tp" else {"tp_size": 1, "fsdp_size": RANKS, "ep_size": RANKS}
    tp, ep, _ = model._resolve_parallel_plans(DistributedConfig(**sizes))
    if kind == "tp":
        apply_tensor_parallelism(model, mesh, tp)
    else:
        apply_expert_parallelism(model, mesh, mesh, ep)
    out = {}
    for key, param in model.named_parameters():
        generic, fact = re.sub(r"\.\d+(?=\.|$)", ".0", key), (param.ndim, placement(param))
        assert out.setdefault(generic, fact) == fact, f"{key} is cut in two ways"
    return out


def block(cls, mesh):
    config = small(cls.config_class())
    if config.sub_configs:
        return ()
    with torch.device("meta"):
        model = cls(config)
    lines, facts = [], {}
    for kind, plan in (("tp", model.tp_plan), ("ep", model.ep_plan)):
        if not plan:
            continue
        by_style = collections.defaultdict(list)
        for name, style in plan.items():
            by_style[style].append(name)
        try:
            facts[kind] = cuts(cls, config, kind, mesh)
        except ValueError as e:
            print(f"{cls.__name__}, {kind}: {e}", file=sys.stderr)
            continue
        lines += [" ".join([kind, style, *sorted(names)]) for style, names in sorted(by_style.items())]
    if "ep" in facts and "tp" not in facts:
        facts["tp"] = {key: (ndim, "replicate") for key, (ndim, _) in facts["ep"].items()}
    for kind in facts:
        by_cut = collections.defaultdict(list)
        for key, fact in facts[kind].items():
            covered = key.rpartition(".")[0].replace(".0", ".*") in model.tp_plan
            if fact[1] != "replicate" or kind == "tp" and (fact[0] > 1 or covered):
                by_cut[fact].append(key)
        lines += [" ".join(["cut", kind, str(ndim), place, *sorted(keys)])
                  for (ndim, place), keys in sorted(by_cut.items())]
    return tuple(lines)


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    classes, blocks = {}, collections.defaultdict(list)
    for names in (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_MAPPING_NAMES):
        for model, name in names.items():
            classes.setdefault(model, name if isinstance(name, str) else name[0])
    for model, name in sorted(classes.items()):
        if sys.argv[1:] and model not in sys.argv[1:]:
            continue
        try:
            lines = block(getattr(transformers, name), mesh)
        except Exception as e:
            print(f"{model}: {type(e).__name__}: {str(e).strip().splitlines()[0][:100]}", file=sys.stderr)
            continue
        if lines:
            blocks[lines].append(model)
    versions = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"
    text = [f"# Made by gen/tp_plans.py: {versions}."]
    for lines, models in sorted(blocks.items(), key=lambda b: b[1]):
        text += [" ".join(["model", *models]), *lines]
    OUT.write_text("\n".join(text) + "\n")
    print(f"{OUT}: {sum(map(len, blocks.values()))} models, {len(blocks)} blocks, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
