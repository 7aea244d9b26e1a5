# SPDX-License-Identifier: Apache-2.0
"""hf/: checkpoints of other frameworks under the keys of Hugging Face, by the presets that are found for them."""
import json
import os
import pickle
import sys

import arrays
import lib
from lib import case, check, equal, mount, read
from torch_files import Tensor, torch_save

try:
    import numpy
    import safetensors.numpy
    from models import checkpoint, model_files, tensors_of
    sys.path.append(str(lib.GOLDEN.parent / "gen"))
    import renamed
except ImportError as why:
    lib.replace_python(why)


def small_models():
    """(config, {key: shape}) of small models as transformers saved them, and of Llama 4 as it has them."""
    out = []
    for line in (lib.GOLDEN / "hf-shapes.txt").read_text().splitlines():
        if line.startswith("{"):
            out.append((json.loads(line), {}))
        else:
            key, *shape = line.split()
            out[-1][1][key] = tuple(map(int, shape))
    at = "language_model.model.layers.{}."
    attention = {"input_layernorm.weight": (16,), "post_attention_layernorm.weight": (16,), "self_attn.q_proj.weight": (24, 16),
                 "self_attn.k_proj.weight": (12, 16), "self_attn.v_proj.weight": (12, 16), "self_attn.o_proj.weight": (16, 24)}
    dense = {f"feed_forward.{x}_proj.weight": (16, 28) if x == "down" else (28, 16) for x in ("gate", "up", "down")}
    moe = {"feed_forward.router.weight": (2, 16), "feed_forward.experts.gate_up_proj": (2, 16, 48), "feed_forward.experts.down_proj": (2, 24, 16)} | {
        f"feed_forward.shared_expert.{x}_proj.weight": (16, 24) if x == "down" else (24, 16) for x in ("gate", "up", "down")}
    layers = {at.format(i) + k: v for i, more in ((0, dense), (1, moe)) for k, v in (attention | more).items()}
    ends = {"language_model.model.embed_tokens.weight": (40, 16), "language_model.lm_head.weight": (40, 16), "language_model.model.norm.weight": (16,)}
    return out + [({"model_type": "llama4_text", "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "head_dim": 6,
                    "hidden_size": 16, "vocab_size": 40}, layers | ends)]


def presets_give_back_models():
    """Models under the names of their trainers come back byte for byte, by the preset that is found."""
    source, want, rng = lib.fresh("source"), {}, numpy.random.default_rng(lib.SEED)
    for config, shapes in small_models():
        forms = renamed.FORMS.get(config["model_type"], [])
        if config["model_type"] in ("llama", "gpt_oss", "deepseek_v3"):  # of transformers' names, known by who wrote them
            forms = forms + [("paddle", form, renamed.paddle("model", former=True)) for form in ("pdparams", "np", "bare")[:3 if config["model_type"] == "llama" else 1]]
        if config["model_type"] == "llama":  # not turned, whoever wrote it: the shapes say so
            forms = forms + [("hf", "np", lambda hf, config: hf)]
        for preset, form, convert in forms:
            if config.get("mlp_bias") or (form == "stacked" and config.get("first_k_dense_replace")):
                continue  # no trainer here has them
            hf = {k: rng.random(shape, "f4") for k, shape in shapes.items()}
            if config.get("num_nextn_predict_layers"):
                hf = renamed.with_mtp(hf, config)
            name = f"{len(want)}-{config['model_type']}-{form}"
            stored = {k: numpy.ascontiguousarray(a) for k, a in convert(hf, config).items()}
            if form == "pdparams":
                (source / name).mkdir(parents=True)
                (source / name / "model_state.pdparams").write_bytes(pickle.dumps(stored, protocol=4))
            elif form in ("np", "bare"):  # as PaddleNLP's save_pretrained() and Paddle's merge_sharded_state_dict() write it
                (source / name).mkdir(parents=True)
                safetensors.numpy.save_file(stored, source / name / "model.safetensors", {"format": "np"} if form == "np" else None)
            else:
                checkpoint(source / name, {k: ("F32" if a.dtype == "f4" else "U8", list(a.shape), 0, a.tobytes()) for k, a in stored.items()})
            (source / name / "config.json").write_text(json.dumps(config))
            want[name + ("@model_state" if form == "pdparams" else "")] = preset, hf
    check(len(want) > 50, f"{len(want)} models")
    with mount(source) as m:
        equal(set(m.settled().versions()), set(want), "versions")
        for name, (preset, hf) in lib.sample(want.items()):
            case(name)
            at = m.at / name / "hf"
            page, got = read(at / "README.md").decode(), tensors_of(at)
            check(f"| rules | `{preset}`" in page, f"the preset: {page}")
            check("| left out because no rule fits | 0 |" in page, f"all keys are known: {page}")
            if config_is_checked(page):
                check("; 0 missing, 0 of another shape, 0 that the model does not have." in page, f"as config.json says: {page}")
            equal(set(got), set(hf), "keys")
            for key, a in hf.items():
                equal((got[key][1], got[key][2]), (list(a.shape), a.tobytes()), key)


def write_ranks(at, config, ranks, name="model_state.tp{:02}.pdparams"):
    at.mkdir(parents=True)
    for r, tensors in enumerate(ranks):
        (at / name.format(r)).write_bytes(pickle.dumps({k: numpy.ascontiguousarray(a) for k, a in tensors.items()}, protocol=4))
    (at / "config.json").write_text(json.dumps(config))


def ranks_of_paddle_are_merged():
    """Files of PaddleNLP's tensor-parallel ranks, not merged; what is not known of them fails alone."""
    source, want, rng = lib.fresh("source"), {}, numpy.random.default_rng(lib.SEED)
    for config, shapes in small_models():
        kind = config["model_type"]
        if kind not in ("llama", "qwen2", "qwen3", "mixtral", "qwen2_moe", "deepseek_v2", "deepseek_v3") or config.get("mlp_bias"):
            continue
        hf = {k: rng.random(shape, "f4") for k, shape in shapes.items()}
        for n, fuse in ((2, False), (2, True), (config["num_attention_heads"], False))[:3 if kind in ("llama", "qwen2") else 1]:
            own = renamed.paddle(kind, fuse=fuse)(hf, config)
            name = f"{kind}-{len(want)}-{n}{'-fused' * fuse}"
            write_ranks(source / name, config, renamed.paddle_ranks(own, config, n))
            want[f"{name}@model_state"] = hf
    check(len(want) > 10, f"{len(want)} models")
    config, hf = next((c, {k: rng.random(s, "f4") for k, s in shapes.items()}) for c, shapes in small_models() if c["model_type"] == "qwen2")
    ranks = renamed.paddle_ranks(renamed.paddle("qwen2")(hf, config), config, 2)
    layer = lambda k: k.rsplit(".", 2)[0].endswith("layers.1") or not ".layers." in k
    stages = [{k: a for k, a in t.items() if layer(k) == last} for t in ranks for last in (False, True)]
    write_ranks(source / "pipeline", config, [])
    put = lambda name, value: (source / "pipeline" / name).write_bytes(pickle.dumps(value, protocol=4))
    for rank, part in zip(("tp00_pp00", "tp00_pp01", "tp01_pp00", "tp01_pp01"), stages):
        put(f"model_state.{rank}.pdparams", {k: numpy.ascontiguousarray(a) for k, a in part.items()})
        put(f"optimizer.{rank}.pdopt", {"linear_0.w_0_moment1_0": rng.random((4, 3), "f4"), "LR_Scheduler": {"last_epoch": 1}})
    put("scheduler.pdparams", {"last_epoch": 1, "last_lr": 0.5})
    put("rng_state_4.pth", [{"python": (3, (1, 2), None)}] * 4)
    put("training_args.bin", {"seed": 42})
    (source / "pipeline" / "trainer_state.json").write_text("{}")
    (source / "pipeline" / "saved_signal_0").write_bytes(b"")
    want["pipeline"] = hf
    zeros, odd = "qwen2.layers.0.self_attn.q_proj.bias", "qwen2.layers.0.strange.weight"
    for r, tensors in enumerate(ranks):
        tensors |= {zeros: numpy.zeros_like(tensors[zeros]), odd: numpy.full((3, 3), r, "f4")}
    write_ranks(source / "bad", config, ranks)
    write_ranks(source / "lost", config, renamed.paddle_ranks(renamed.paddle("qwen2")(hf, config), config, 4)[:3])
    with mount(source) as m:
        equal(set(m.settled().versions()), set(want) | {"bad@model_state", "lost@model_state"}, "versions")
        for name, hf in lib.sample(want.items()):
            case(name)
            at = m.at / name / "hf"
            page, got = read(at / "README.md").decode(), tensors_of(at)
            check("| rules | `paddle-tp`" in page and "| left out because no rule fits | 0 |" in page, f"README.md: {page}")
            check("; 0 missing, 0 of another shape, 0 that the model does not have." in page, f"as config.json says: {page}")
            equal(set(got), set(hf), "keys")
            for key, a in hf.items():
                check(got[key][1:] == (list(a.shape), a.tobytes()), f"{key}: {got[key][1]}")
        for name in ("bad", "lost"):
            tensors_of(m.at / f"{name}@model_state" / "hf")
        case("what the Trainer saves beside it")
        stored = {k for k in (t["key"] for t in json.loads(read(m.at / "pipeline" / "index.json"))["tensors"]) if "moment" in k}
        equal(stored, {f"optimizer.tp0{t}_pp0{p}.linear_0.w_0_moment1_0" for t in (0, 1) for p in (0, 1)}, "the optimizer's")
        objects = {o["key"]: o.get("error") for o in json.loads(read(m.at / "pipeline" / "index.json"))["objects"]}
        check({"training_args.seed", "scheduler.last_lr", "rng_state_4.3.python", "trainer_state"} <= set(objects) and not any(objects.values()), f"objects: {objects}")
        case("what is not known")
        told = {e["key"]: e["error"] for e in m.control("errors.json") if e["version"] == "bad@model_state/hf"}
        equal(set(told), {"model.layers.0.self_attn.q_proj.bias", f"tp00.{odd}", f"tp01.{odd}"}, "errors.json")
        check("do not fit a shape of" in told["model.layers.0.self_attn.q_proj.bias"], f"one half for both: {told}")
        check("how PaddleNLP's tensor-parallel ranks share it is not known: give --hf-rules FILE" in told[f"tp00.{odd}"], f"of no rule: {told}")
        case("without the last rank")
        told = {e["key"]: e["error"] for e in m.control("errors.json") if e["version"] == "lost@model_state/hf"}
        check("model.embed_tokens.weight" in told and "do not fit a shape of" in told["model.embed_tokens.weight"], f"{told}")


def adapters_are_as_peft_saves_them():
    """An adapter of PEFT, alone or as a trainer saved it with its model, is what PEFT would save of it; its model by --hf-rules peft-base."""
    source, rng = lib.fresh("source"), numpy.random.default_rng(lib.SEED)
    new = lambda *shape: rng.random(shape, "f4")
    at, head, q = "base_model.model.model.layers.0.self_attn.", "base_model.model.lm_head.", new(8, 8)
    embed = {"base_model.model.model.embed_tokens.base_layer.weight": new(9, 8)}
    adapter = {at + "q_proj.lora_A.weight": new(2, 8), at + "q_proj.lora_B.weight": new(8, 2), at + "q_proj.lora_magnitude_vector": new(8),
               "base_model.model.model.embed_tokens.lora_embedding_A": new(2, 9), head + "weight": new(9, 8), **embed}
    base = {"model.layers.0.self_attn.q_proj.weight": q, "model.layers.0.self_attn.o_proj.weight": new(8, 8), "lm_head.weight": new(9, 8)}
    base |= {"model.embed_tokens.weight": a for a in embed.values()}
    whole = {at + "q_proj.lora_A.default.weight": adapter[at + "q_proj.lora_A.weight"], at + "q_proj.lora_B.default.weight": adapter[at + "q_proj.lora_B.weight"],
             at + "q_proj.lora_magnitude_vector.default.weight": adapter[at + "q_proj.lora_magnitude_vector"], head + "modules_to_save.default.weight": adapter[head + "weight"],
             "base_model.model.model.embed_tokens.lora_embedding_A.default": adapter["base_model.model.model.embed_tokens.lora_embedding_A"],
             **embed, at + "q_proj.base_layer.weight": q,
             at + "o_proj.weight": base["model.layers.0.self_attn.o_proj.weight"], head + "original_module.weight": base["lm_head.weight"]}
    write = lambda name, tensors: checkpoint(source / name, {k: ("F32", list(a.shape), 0, a.tobytes()) for k, a in tensors.items()})
    write("1-whole", {"model." + k: a for k, a in whole.items()} | {"optimizer.x": new(3)})
    write("2-alone", adapter)
    write("3-composer", {"state.model.model." + k: a for k, a in whole.items()})
    (source / "4-peft").mkdir()
    safetensors.numpy.save_file(adapter, source / "4-peft" / "adapter_model.safetensors")
    (source / "4-peft" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (source / "5-prompt").mkdir()
    safetensors.numpy.save_file({"prompt_embeddings": adapter[head + "weight"]}, source / "5-prompt" / "adapter_model.safetensors", {"format": "pt"})
    (source / "5-prompt" / "adapter_config.json").write_text('{"peft_type": "PROMPT_TUNING"}')
    other = {at + "q_proj.lora_A.weight": new(2, 8), at + "k_proj.dense.weight": new(2, 8)}
    write("6-two", whole | {at + "q_proj.lora_A.other.weight": other[at + "q_proj.lora_A.weight"], at + "k_proj.modules_to_save.other.dense.weight": other[at + "k_proj.dense.weight"]})
    write("6-zero3", {"fp32." + k: a for k, a in whole.items()} | {"module." + k: a for k, a in whole.items() if "lora_" not in k and "modules_to_save" not in k} | {"exp_avg." + k: a for k, a in whole.items()})
    bias = {at + "q_proj.base_layer.bias": new(8), at + "o_proj.bias": new(8)}
    kept = {"9-all": bias, "9-lora_only": {at + "q_proj.base_layer.bias": bias[at + "q_proj.base_layer.bias"]}}
    for version in (*kept, "9-none"):
        write(version, whole | bias)
        (source / version / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "bias": version[2:]}))
    same = lambda got, want: equal({k: t[1:] for k, t in got.items()}, {k: (list(a.shape), a.tobytes()) for k, a in want.items()}, "tensors")
    with mount(source, "--hf-shard-size", "64") as m:
        for version in m.settled().versions():
            case(version)
            hf = m.at / version / "hf"
            page = read(hf / "README.md").decode()
            equal(model_files(hf), ["adapter_model.safetensors"] if version != "8-neither" else [], "PEFT reads one file")
            check("PeftModel.from_pretrained" in page and "`config.json`" not in page, f"README.md: {page}")
            check(("missing: `adapter_config.json`" in page) == (version[0] not in "459"), f"what is missing: {page}")
            if version == "8-neither":
                check("none of which is called default: --hf-from NAME takes one" in page, f"README.md: {page}")
                continue
            same(tensors_of(hf), {"prompt_embeddings": adapter[head + "weight"]} if version == "5-prompt" else adapter | kept.get(version, {}))
    with mount(source, "--hf-from", "other") as m:
        case("an adapter by its name")
        same(tensors_of(m.at / "6-two" / "hf"), other | embed)
    write("7-model", base)
    (source / "7-model" / "config.json").write_text('{"model_type": "llama"}')
    (source / "7-model" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with mount(source, "--hf-rules", "peft-base") as m:
        case("the base model")
        for version in ("1-whole", "3-composer", "6-two"):
            same(tensors_of(m.at / version / "hf"), base)
            equal(model_files(m.at / version / "hf"), ["model.safetensors"], "its file")
    with mount(source) as m:
        equal(model_files(m.at / "7-model" / "hf"), ["model.safetensors"], "a model, which an adapter may lie beside")


def unknown_paddle_keys_are_refused():
    """Paddle does not say which weights are [inputs, outputs]: under keys that no preset knows, none is shown as torch has it."""
    source, w = lib.fresh("source"), numpy.arange(16, dtype="f4").reshape(4, 4)
    (source / "a").mkdir(parents=True)
    (source / "a" / "model_state.pdparams").write_bytes(pickle.dumps({"encoder.fc.weight": w, "encoder.fc.bias": w[0]}, protocol=4))
    checkpoint(source / "b", {"encoder.fc.weight": ("F32", [4, 4], 0, w.tobytes())})
    why = "Paddle keeps linear weights as [inputs, outputs] and does not say which are: give --hf-rules FILE"
    with mount(source) as m:
        a, b = sorted(m.settled().versions())
        equal(model_files(m.at / a / "hf"), [], "no model file")
        page = read(m.at / a / "hf" / "README.md").decode()
        check("| rules | `paddle-unknown`" in page and f"`encoder.fc.weight`: {why}" in page, f"README.md: {page}")
        equal(tensors_of(m.at / b / "hf")["encoder.fc.weight"][2], w.tobytes(), "what torch wrote")
    done = lib.run(lib.PROGRAM, "ls", "--hf", source, a)
    check(done.returncode == 1 and why in done.stderr, f"ls --hf: {done.returncode} {done.stderr}")
    with mount(source, "--hf-rules", "hf") as m:
        equal(tensors_of(m.at / a / "hf")["encoder.fc.weight"][2], w.tobytes(), "asked for as stored")


def shapes_tell_the_writer():
    """Merged safetensors do not say whether Paddle wrote them: shapes do, without a config.json; where they do not nothing is shown."""
    source, rng = lib.fresh("source"), numpy.random.default_rng(lib.SEED)
    shapes = {"self_attn.q_proj.weight": (8, 8), "self_attn.o_proj.weight": (8, 8), "mlp.up_proj.weight": (12, 8), "mlp.down_proj.weight": (8, 12), "input_layernorm.weight": (8,)}
    own = {f"model.layers.{i}.{k}": rng.random(shape, "f4") for i in range(2) for k, shape in shapes.items()} | {"model.embed_tokens.weight": rng.random((9, 8), "f4")}
    square = {k: a for k, a in own.items() if ".mlp." not in k}
    turned = lambda tensors, name: {k.replace("model.", name, 1): numpy.ascontiguousarray(a.T) if "proj" in k else a for k, a in tensors.items()}
    bert = {"enc.layers.0.linear1.weight": rng.random((4, 6), "f4"), "enc.layers.0.linear1.bias": rng.random(6, "f4")}
    torch = {k: numpy.ascontiguousarray(a.T) for k, a in bert.items()}
    t5 = {f"encoder.block.0.layer.0.SelfAttention.{x}.weight": rng.random((6, 6), "f4") for x in "qkvo"} | {"shared.weight": rng.random((9, 6), "f4")}
    models = {"1-paddle": (turned(own, "model."), own, "paddle"), "2-torch": (own, own, "hf"), "3-ernie": (turned(own, "ernie."), own, "paddle"),
              "4-square": (square, {}, "unknown"), "5-bert": (bert, {}, "paddle-unknown"), "6-torch-bert": (torch, torch, "hf"), "7-t5": (t5, {}, "unknown")}
    for name, (stored, _, _) in models.items():
        for metadata in (None, {"format": "np"}):
            at = source / (name + ("-np" if metadata else ""))
            at.mkdir(parents=True)
            safetensors.numpy.save_file(stored, at / "model.safetensors", metadata)
    with mount(source) as m:
        for version in sorted(m.settled().versions()):
            case(version)
            _, want, preset = models[version.removesuffix("-np")]
            got, page = tensors_of(m.at / version / "hf"), read(m.at / version / "hf" / "README.md").decode()
            check(f"| rules | `{preset}`" in page, f"the preset: {page}")
            equal({k: (t[1], t[2]) for k, t in got.items()}, {k: (list(a.shape), a.tobytes()) for k, a in want.items()}, "tensors")
            check(preset != "unknown" or "it is not recorded whether torch wrote this or Paddle" in page and "--hf-rules hf" in page, f"what to do: {page}")


def megatron_gives_back_models():
    """What Megatron-Core itself saved of a model with the weights of a Hugging Face model: those, byte for byte."""
    presets = {"llama": "megatron", "deepseek_v3": "megatron-deepseek"}
    for source in sorted((lib.GOLDEN / "megatron-models").iterdir()):
        want = arrays.parse_safetensors(read(source / "model.safetensors"))[0]
        with mount(source / "ckpt") as m:
            case(source.name)
            at = m.at / "latest" / "hf"
            got, page = tensors_of(at), read(at / "README.md").decode()
            check(f"| rules | `{presets[source.name]}`" in page and "; 0 missing, 0 of another shape, 0 that the model does not have." in page, f"README.md: {page}")
            equal(set(got), set(want), "keys")
            for key, t in want.items():
                check(got[key][:2] == t[:2] and bytes(got[key][2]) == bytes(t[2]), f"{key}: {got[key][:2]}")


OLD_CUTS = {"query_key_value": 0, "word_embeddings.": 0, "output_layer": 0, "dense_h_to_4h": 0, "dense.weight": 1, "dense_4h_to_h.weight": 1}  # of each tensor-parallel rank


def of_rank(key, a, rank, heads, version):
    """What one of two tensor-parallel ranks of Megatron-LM has of a parameter; its heads, in the order of rows of that checkpoint_version."""
    if len(a) == 43:
        a = numpy.concatenate([a, a[:1]])  # an even vocabulary
    cut = [dim for name, dim in OLD_CUTS.items() if name in key]
    if cut:
        a = numpy.split(a, 2, cut[0])[rank]
    return renamed.by_version(a, heads // 2, version) if "query_key_value" in key else a


def rows_of_megatron_versions_come_back():
    """Rows of query_key_value, as each checkpoint_version has them: two ranks by their names of then come back as GPT-2; what no version had is said."""
    config, shapes = next((c, s) for c, s in small_models() if c["model_type"] == "gpt2")
    source, heads, rng = lib.fresh("source"), config["n_head"], numpy.random.default_rng(lib.SEED)
    hf = {k: rng.random(shape, "f4") for k, shape in shapes.items()}
    old = renamed.gpt2("transformer", renamed.GPT_OLD)(hf, config)
    for version in (None, 0, 1.0, 2.0, 3.0, 0.5):
        for rank in range(2):
            parts = {k: of_rank(k, a, rank, heads, version or 0) for k, a in old.items()}
            model = {part: {k.split(".", 1)[1]: Tensor(a.tobytes(), a.shape) for k, a in parts.items() if k.startswith(part + ".")} for part in ("embedding", "transformer")}
            model["embedding"] = {"word_embeddings": {"weight": model["embedding"]["word_embeddings.weight"]}, "position_embeddings": {"weight": model["embedding"]["position_embeddings.weight"]}}
            torch_save(source / f"v{version}" / f"mp_rank_{rank:02}" / "model_optim_rng.pt",
                              {"iteration": 7, "model": {"language_model": model}} | ({} if version is None else {"checkpoint_version": version}))
        (source / f"v{version}" / "config.json").write_text(json.dumps(config))
    with mount(source) as m:
        equal(len(m.settled().versions()), 6, "versions")
        for name in m.versions():
            case(name)
            at = m.at / name / "hf"
            got, page = tensors_of(at), read(at / "README.md").decode()
            lost = {k for k in hf if "c_attn" in k} if name == "v0.5" else set()
            check("| rules | `megatron-gpt2`" in page, f"the preset: {page}")
            check(not lost or 'its rows are in the order "unknown"' in page, f"what is wrong: {page}")
            equal(set(got), set(hf) - lost, "keys")
            for key in got:
                equal((got[key][1], got[key][2]), (list(hf[key].shape), hf[key].tobytes()), key)


def low_rank_weights_need_no_config():
    """Low-rank weights without a model need no config.json; those of PEFT need their own, which is said."""
    for top, file, asks in (("transformer.blocks.0.to_q", "pytorch_lora_weights.safetensors", None), ("base_model.model.q_proj", "adapter_model.safetensors", "adapter_config.json")):
        source = lib.fresh("low-rank")
        checkpoint(source / "step-1", {f"{top}.lora_{x}.weight": ("F32", (2, 2), 0, bytes(16)) for x in "AB"})
        with mount(source) as m:
            said = read(m.at / "latest" / "hf" / "README.md").decode()
            equal((sorted(os.listdir(m.at / "latest" / "hf")), "config.json" in m.log()), (sorted(["README.md", file]), bool(asks)), f"{top}: {m.log()}")
            check((f"hf/ has no {asks}, which PEFT needs" in m.log()) == bool(asks) and ("config.json" in said) == bool(asks), f"{top}: {said}")
            check(("PeftModel" if asks else "load_lora_weights") in said, said)


def config_is_checked(page):
    return "## Against config.json" in page


lib.main(presets_give_back_models, ranks_of_paddle_are_merged, adapters_are_as_peft_saves_them, low_rank_weights_need_no_config,
         unknown_paddle_keys_are_refused, shapes_tell_the_writer, megatron_gives_back_models, rows_of_megatron_versions_come_back)
