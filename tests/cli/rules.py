#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs rules, and tensors that rules made of checkpoints that frameworks wrote: of items of torch.save, of compressed
ones, and of plain bytes, compared element by element with what the tensor is by its own name."""
import json
import math
import random
import struct

from cli import BAD, ENV, GOLDEN, NO, OK, SCRATCH, USAGE, check, data, equal, fails, finish, run, sample


def presets_are_listed_and_shown():
    got = data("rules", "list", "--json")
    names = [p["name"] for p in got]
    check({"identity", "hf", "torchtitan-llama3", "megatron", "meta"} <= set(names), f"presets: {names}")
    for p in got:
        text = run("rules", "show", p["name"])
        equal(text.returncode, OK, f"rules show {p['name']}")
        check(text.stdout.decode().startswith("# " + p["about"]), f"{p['name']}: its first line is what it is for")
    equal(run("rules", "list", "--tsv").stdout.decode().splitlines()[0], "name\tabout", "rules list --tsv")
    check(all(n in run("rules", "list").stdout.decode() for n in names), "rules list names all")
    fails(NO, 'nearest is "meta"', "rules", "show", "met")
    for words in ([], ["list", "hf"], ["show"], ["check", "hf"], ["chek"]):
        fails(USAGE, "", "rules", *words)


def rules(name, text):
    path = SCRATCH / name
    path.write_text(text)
    return path


class Tensor:
    """Elements by position, as bytes, of a key."""

    def __init__(self, source, key, *options):
        shown = data("show", "--json", *options, source, key)
        self.shape = shown["shape"]
        raw = run("cat", "--as", "raw", *options, source, key)
        equal(raw.returncode, OK, f"cat {key}: {raw.stderr.decode()}")
        n = 1
        for d in self.shape:
            n *= d
        size = len(raw.stdout) // max(n, 1)
        self.flat = [raw.stdout[i * size:(i + 1) * size] for i in range(n)]

    def at(self, *index):
        i = 0
        for d, k in zip(self.shape, index):
            i = i * d + k
        return self.flat[i]


def matrices(folder, least=2):
    """Keys of a version whose tensors are matrices that can be read, not too large."""
    manifest = json.loads((GOLDEN / folder / "manifest.json").read_text())
    name = next(v["name"] for v in manifest["versions"] if v["complete"])
    where = GOLDEN / folder / "ckpt"
    where = where / name if (where / name).is_dir() else where
    got = data("ls", "--json", where)
    rows = got["tensors"] if isinstance(got, dict) else data("ls", "--json", where, name)["tensors"]
    return where, [(r["key"], r["shape"]) for r in rows if len(r["shape"]) == 2 and min(r["shape"]) >= least
                   and not r.get("error") and r["nbytes"] < 20000]


def operations_agree_with_plain_bytes(folder):
    where, keys = matrices(folder)
    check(keys, f"{folder} has matrices")
    for number, (key, (n, m)) in enumerate(keys[:4]):
        word = "".join("\\" + c if c in "*{,\\ " else c for c in key)
        plain = Tensor(where, key)
        halves = f"{word} -> h0, h1 : T split(0, [1, {m - 1}])\n"
        for how, text, names in (("T", f"{word} -> t : T\n", ["t"]), ("halves", halves, ["h0", "h1"]),
                                 ("rows", f"{word} -> r.{{e}} : unstack(1, {{e}})\n", ["r.0", f"r.{m - 1}"])):
            mine = rules(f"{folder}-{number}-{how}.rules", text)
            for name in names:
                got = Tensor(where, name, "--hf", "--hf-rules", mine)
                first = 0 if name in ("t", "h0", "r.0") else 1 if name == "h1" else m - 1
                if how == "rows":
                    equal(got.flat, [plain.at(i, first) for i in range(n)], f"{folder}: {key}: {name}")
                else:
                    want = [plain.at(j, first + i) for i in range(got.shape[0]) for j in range(n)]
                    equal(got.flat, want, f"{folder}: {key}: {name} {got.shape}")


def rules_are_checked():
    where, keys = matrices("dcp-fsdp2")
    key, (n, _) = keys[0]
    mine = rules("mine.rules", f"{key} -> a, b : split(0, {n + 1})\n{keys[1][0]} -> c\nnever -> n\n")
    fails(BAD, "2 keys for what comes out", "rules", "check", mine, where)
    mine.write_text(f"{key} -> a : rope({n + 1})\n{keys[1][0]} -> c\nnever -> n\n")
    got = run("rules", "check", mine, where)
    text = got.stdout.decode()
    equal(got.returncode, NO, "keys are left out")
    check("broken: a: line 1: rope: " in text and "no key fits the rule in line 3" in text and "1 key come" in text, text)
    got = json.loads(run("rules", "check", "--json", mine, where).stdout)
    equal((got["mapped"], got["failed"], got["unused"]), (1, 1, [3]), "rules check --json")
    check(all(k["what"] in ("left out", "broken") and k["error"] for k in got["keys"]), "keys and why")
    got = run("rules", "check", "identity", where)
    equal(got.returncode, OK, "every key comes out as it is")
    check(b"step-10 by identity: 77 keys come out" in got.stdout and b"no config.json of a model: not checked" in got.stdout, got.stdout.decode())
    equal(data("rules", "check", "--json", "auto", where)["rules"], "hf", "auto")
    fails(BAD, "mine.rules:1:2: ", "rules", "check", rules("mine.rules", "a"), where)


def empty_models_are_refused():
    """Rules that fit no key, and parts that none begins with, are no empty model."""
    where, _ = matrices("dcp-fsdp2")
    mine = rules("typo.rules", "modl.layers.{i}.input_layernorm.weight -> n.{i}\n")
    for verb in (["ls"], ["plan", "--layout", "dim0x2"], ["tree"]):
        fails(NO, "no key comes out (rules: torchtune): 56 dropped, 21 left out: model.layers.0.self_attn.q_proj.weight: no rule fits it, nearest is "
              "layers.{i}.attn.q_proj.weight in line", *verb, "--hf-rules", "torchtune", where)
    fails(NO, "need the preset hf (auto)", "export", "--as", "safetensors", "--partial", "--hf-rules", "torchtune", where, SCRATCH / "none")
    fails(NO, "typo.rules): 0 dropped, 77 left out: model.layers.0.input_layernorm.weight: no rule fits it, nearest is modl.", "ls", "--hf-rules", mine, where)
    fails(NO, "0 left out", "ls", "--hf-rules", rules("drop.rules", "drop *\n"), where)
    equal(run("rules", "check", "torchtune", where).returncode, NO, "check reports them")
    fails(NO, 'no key begins with "ema."; they begin with "model.", "optimizer.", ', "ls", "--hf-from", "ema", where)


def models_are_compared_with_config():
    where = GOLDEN / "hf-llama" / "ckpt" / "llama"
    got = run("rules", "check", "auto", where)
    equal(got.returncode, OK, f"a model as it was saved: {got.stdout.decode()}")
    config = json.loads((where / "config.json").read_text())
    told = data("rules", "check", "--json", "auto", where)["model"]
    equal((told["missing"], told["misshaped"], told["foreign"], told["retyped"]), (0, 0, 0, 0), "as it was saved")
    mine = rules("mine.rules", "model.layers.{i}.self_attn.q_proj.weight -> model.layers.{i}.self_attn.q_prj.weight\n* -> *\n")
    other = SCRATCH / "config.json"
    other.write_text(json.dumps({**config, "vocab_size": config["vocab_size"] + 1, "dtype": "float16"}))
    got = run("rules", "check", mine, where, "--config", other)
    text = got.stdout.decode()
    equal(got.returncode, NO, "another model")
    check("missing: model.layers.0.self_attn.q_proj.weight: it is not there, nearest is model.layers.0.self_attn.q_prj.weight" in text,
          f"missing: {text}")
    check("shape: model.embed_tokens.weight: [" in text and "are not float16 as config.json says" in text, f"shape, dtype: {text}")
    check("foreign: model.layers.0.self_attn.q_prj.weight: " in text, f"foreign: {text}")
    other.write_text('{"model_type": "unknown"}')
    got = run("rules", "check", "identity", where, "--config", other)
    check(got.returncode == OK and b"shapes of unknown are not known: not checked" in got.stdout, got.stdout.decode())
    fails(ENV, "--config", "rules", "check", "identity", where, "--config", SCRATCH / "none.json")
    for text, why in (("{", "not JSON at byte"), ("[]", "it has no model_type"), ('{"job": {}}', "it has no model_type")):
        other.write_text(text)
        got = run("rules", "check", "identity", where, "--config", other)
        check(got.returncode and why in got.stderr.decode(), f"{text}: {got.returncode} {got.stderr.decode()}")
    mine = rules("mine.rules", "model.layers.0.input_layernorm.weight -> same\nmodel.norm.weight -> same\n* -> *\n")
    text = run("rules", "check", mine, where).stdout.decode()
    check("broken: same: " in text and "model.layers.0.input_layernorm.weight" in text and "model.norm.weight" in text, f"a collision names both: {text}")


def model_of(name, tensors, config):
    """A model directory: {key: (dtype, shape)}."""
    at = SCRATCH / name
    at.mkdir()
    size = {"F16": 2, "BF16": 2, "F32": 4, "I32": 4, "I64": 8, "U8": 1, "F8_E4M3": 1}
    header, end = {}, 0
    for key, (dtype, shape) in tensors.items():
        n = size[dtype] * math.prod(shape)
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + n]}
        end += n
    text = json.dumps(header).encode()
    (at / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + random.Random(name).randbytes(end))
    (at / "config.json").write_text(json.dumps(config))
    return at


def wrapped_models_are_found():
    """config.json says which keys are the model's, whatever a trainer calls it, and which of several was taken is said."""
    lines = (GOLDEN / "hf-shapes.txt").read_text().splitlines()
    config = {**json.loads(lines[0]), "architectures": ["LlamaForCausalLM"]}
    model = {k: ("F32", [int(n) for n in shape]) for k, *shape in (line.split() for line in lines[1:22])}
    wrapped = {p + k: t for p in ("reference.", "policy.", "optimizer.state.", "exp_avg.") for k, t in model.items()}
    at = model_of("policy", {**wrapped, "policy.value_head.weight": ("F32", [1, 16])}, config)
    got = data("ls", "--json", "--hf", "--partial", at)
    equal({t["key"] for t in got["tensors"]}, {*model, "value_head.weight"}, "keys of hf/")
    equal((got["prefix"], got["others"]), ("policy.", "reference."), "which was taken")
    for key in ("lm_head.weight", "model.norm.weight"):
        equal(run("cat", "--as", "raw", "--hf", "--partial", at, key).stdout, run("cat", "--as", "raw", at, "policy." + key).stdout, key)
        equal(run("cat", "--as", "raw", "--hf", "--hf-from", "reference", at, key).stdout, run("cat", "--as", "raw", at, "reference." + key).stdout, key)
    text = run("ls", "--hf", at).stdout.decode()
    check("model: the keys below policy.; left out are others, below reference. (--hf-from PART" in text, text)
    told = json.loads(run("rules", "check", "--json", "auto", at).stdout)
    equal((told["dropped"], told["model"]["missing"], told["model"]["foreign"]), (3 * len(model), 0, 1), "left out; of the model")
    check("model: the keys below policy." in run("rules", "check", "auto", at).stdout.decode(), "rules check says it, too")
    gpt2 = next(i for i, line in enumerate(lines) if '"model_type": "gpt2"' in line)
    shapes = [line.split() for line in lines[gpt2 + 1:]]
    shapes = shapes[:next(i for i, s in enumerate(shapes) if s[0].startswith("{"))]
    at = model_of("gpt2", {k.removeprefix("transformer."): ("F32", [int(n) for n in s]) for k, *s in shapes} | {"h.0.attn.bias": ("U8", [1, 1, 4, 4])},
                  {**json.loads(lines[gpt2]), "architectures": ["GPT2LMHeadModel"]})
    told = data("rules", "check", "--json", "auto", at)["model"]
    equal((told["missing"], told["misshaped"], told["foreign"]), (0, 0, 0), "names without the head's, and a mask that older releases saved")
    at = model_of("classifier", {k: t for k, t in model.items() if k != "lm_head.weight"} | {"score.weight": ("F32", [2, 16])},
                  {**config, "architectures": ["LlamaForSequenceClassification"]})
    told = data("rules", "check", "--json", "auto", at)["model"]
    equal((told["missing"], told["foreign"]), (0, 0), "a classifier has a head of its own")
    step = SCRATCH / "job" / "step_3"
    (step / "policy").mkdir(parents=True)
    model_of("whole", model, config).rename(step / "policy" / "weights")
    (model_of("value", {"q": ("F32", [2])}, {}) / "model.safetensors").rename(step / "optimizer.safetensors")
    equal({t["key"] for t in data("ls", "--json", "--hf", step.parent, "step_3")["tensors"]}, set(model), "the config.json of the part that is the model")
    model_of("other", {"r": ("F32", [2])}, config).rename(step / "critic")
    got = run("ls", "--hf", step.parent, "step_3")
    check(b"no config.json" in got.stdout + got.stderr, f"of two parts with one the user says which: {got}")
    data("ls", "--json", "--hf", "--hf-assets", step / "policy" / "weights", step.parent, "step_3")


def foreign_tensors_are_left_out():
    """What lies beside a model, or is left of an older one, is neither taken for a part of it nor a reason to refuse it."""
    lines = (GOLDEN / "hf-shapes.txt").read_text().splitlines()
    config = {**json.loads(lines[0]), "architectures": ["LlamaForCausalLM"]}
    model = {k: ("F32", [int(n) for n in shape]) for k, *shape in (line.split() for line in lines[1:22])}

    def put(name, tensors, file):
        (model_of(name, tensors, {}) / "model.safetensors").rename(file)

    at = model_of("heads", model, config)
    put("head", {"v_head.weight": ("F32", [1, 16])}, at / "value_head.safetensors")
    put("lora", {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": ("F32", [4, 16])}, at / "adapter_model.safetensors")
    (at / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "other/model"}')
    got = data("ls", "--json", "--hf", at)
    equal({t["key"] for t in got["tensors"]}, set(model), "the model alone")
    equal(got["others"], "value_head., adapter_model.", "what was left out")
    run("export", "--as", "safetensors", "--hf", at, SCRATCH / "heads-out")
    equal({p.name for p in (SCRATCH / "heads-out").iterdir()}, {".dcpfs-written", "model.safetensors", "config.json"},
          "no adapter_config.json, with which transformers loads another base")

    at = model_of("tied", {k: t for k, t in model.items() if k != "model.embed_tokens.weight"}, {**config, "tie_word_embeddings": True})
    equal({t["key"] for t in data("ls", "--json", "--hf", at)["tensors"]}, set(model) - {"lm_head.weight"}, "stored by the other of two tied names")
    equal(run("cat", "--as", "raw", "--hf", at, "model.embed_tokens.weight").stdout, run("cat", "--as", "raw", at, "lm_head.weight").stdout, "its values")

    lit = {"transformer.wte.weight": model["model.embed_tokens.weight"], "transformer.ln_f.weight": model["model.norm.weight"], "lm_head.weight": model["lm_head.weight"]}
    names = {"input_layernorm": "norm_1", "post_attention_layernorm": "norm_2", "self_attn.o_proj": "attn.proj", "mlp.gate_proj": "mlp.fc_1", "mlp.up_proj": "mlp.fc_2",
             "mlp.down_proj": "mlp.proj"}
    for i in range(config["num_hidden_layers"]):
        lit |= {f"transformer.h.{i}.{new}.weight": model[f"model.layers.{i}.{old}.weight"] for old, new in names.items()}
        rows = [model[f"model.layers.{i}.self_attn.{x}_proj.weight"][1] for x in "qkv"]
        lit[f"transformer.h.{i}.attn.qkv.weight"] = ("F32", [sum(n for n, _ in rows), rows[0][1]])
    at = model_of("lit", lit, config)
    equal({t["key"] for t in data("ls", "--json", "--hf", at)["tensors"]}, set(model), "LitGPT")
    equal(b"".join(run("cat", "--as", "raw", "--hf", at, f"model.layers.1.self_attn.{x}_proj.weight").stdout for x in "qkv"),
          run("cat", "--as", "raw", at, "transformer.h.1.attn.qkv.weight").stdout, "queries, keys and values end to end")

    at = SCRATCH / "again"
    at.mkdir()
    (at / "config.json").write_text(json.dumps(config))
    keys = sorted(model)
    index = {k: f"model-{1 + i % 3:05}-of-00003.safetensors" for i, k in enumerate(keys)}
    for file in sorted(set(index.values())):
        put(file, {k: model[k] for k in keys if index[k] == file}, at / file)
    put("old", {**model, "old.weight": ("F32", [2])}, at / "model-00001-of-00002.safetensors")
    put("older", model, at / "model.safetensors")
    (at / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    got = data("ls", "--json", at)
    equal({t["key"] for t in got["tensors"]}, set(model), "files that the index names")
    equal(got["left_out"].split(", "), ["model-00001-of-00002.safetensors", "model.safetensors"], "files of other saves are named")
    (at / "model-00002-of-00003.safetensors").unlink()
    fails(BAD, "is missing", "ls", at, "latest")
    put("old2", {"old2.weight": ("F32", [2])}, at / "model-00002-of-00002.safetensors")
    fails(BAD, "model-00002-of-00003.safetensors is missing", "ls", at, "latest")  # the index names it: the older save is not the model
    (at / "model.safetensors.index.json").unlink()
    fails(BAD, "model-00002-of-00003.safetensors is missing", "ls", at, "latest")  # a save that still runs


def quantized_models_are_complete():
    """Weights that are several tensors, or in fewer bits: no false alarm, and still one where something is missing."""
    lines = (GOLDEN / "hf-shapes.txt").read_text().splitlines()
    config = {**json.loads(lines[0]), "dtype": "float16"}
    shapes = {}
    for line in lines[1:]:
        if line.startswith("{"):
            break
        key, *shape = line.split()
        shapes[key] = list(map(int, shape))
    linear = [k[:-len(".weight")] for k in shapes if "_proj" in k]
    rest = {k: ("F16", s) for k, s in shapes.items() if "_proj" not in k}
    forms = {
        "gptq": {"qweight": "I32", "qzeros": "I32", "scales": "F16", "g_idx": "I32"}, "awq": {"qweight": "I32", "qzeros": "I32", "scales": "F16"},
        "fp8": {"weight": "F8_E4M3", "weight_scale_inv": "F32"}, "fp8-static": {"weight": "F8_E4M3", "weight_scale": "F32", "input_scale": "F32"},
        "packed": {"weight_packed": "I32", "weight_scale": "BF16", "weight_shape": "I64", "weight_zero_point": "I32", "weight_g_idx": "I32"},
        "bitsandbytes": {"weight": "U8", "weight.absmax": "F32", "weight.quant_map": "F32", "weight.quant_state.bitsandbytes__nf4": "U8"},
        "mxfp4": {"weight_blocks": "U8", "weight_scales": "U8"},
    }
    for form, tensors in forms.items():
        parts = {f"{k}.{part}": (dtype, shapes[k + ".weight"] if part == "weight" and dtype == "F8_E4M3" else [3, 4])
                 for k in linear for part, dtype in tensors.items()}
        said = {**config, "quantization_config": {"quant_method": form}}
        got = run("rules", "check", "auto", model_of(form, rest | parts, said))
        equal(got.returncode, OK, f"{form}: {got.stdout.decode()}")
        check(", 0 missing, 0 of another shape, 0 that the model does not have" in got.stdout.decode(), f"{form}: {got.stdout.decode()}")
        if form not in ("bitsandbytes",):  # its bits are known by config.json alone
            told = json.loads(run("rules", "check", "--json", "auto", model_of(form + "-unsaid", rest | parts, config)).stdout)["model"]
            equal((told["missing"], told["foreign"]), (0, 0), f"{form}, config.json does not say so")
        lacking = {k: v for k, v in parts.items() if not k.startswith(linear[3] + ".")} | {"model.layers.0.mlp.gate_prj.qweight": ("I32", [3, 4])}
        told = json.loads(run("rules", "check", "--json", "auto", model_of(form + "-lacks", rest | lacking, said)).stdout)["model"]
        equal((told["missing"], told["foreign"]), (1, 1), f"{form}, one is missing")


def mxfp4_models_are_complete():
    """GPT-OSS as it was published: its experts in blocks of four bits and their scales, by their own names."""
    blocks = [line for line in (GOLDEN / "hf-shapes.txt").read_text().split("{") if '"model_type": "gpt_oss"' in line]
    first, *lines = ("{" + blocks[0]).splitlines()
    config = {**json.loads(first), "dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"}}
    tensors = {k: ("BF16", list(map(int, shape))) for k, *shape in map(str.split, lines)}
    experts = [k for k in tensors if k.endswith("up_proj") or k.endswith("experts.down_proj")]
    for k in experts:
        n, inputs, outputs = tensors.pop(k)[1]
        tensors |= {k + "_blocks": ("U8", [n, outputs, inputs // 8, 4]), k + "_scales": ("U8", [n, outputs, inputs // 8])}
    at = model_of("gpt-oss", tensors, config)
    got = run("rules", "check", "auto", at)
    equal(got.returncode, OK, got.stdout.decode())
    check("config.json: 37 tensors, 0 missing, 0 of another shape, 0 that the model does not have" in got.stdout.decode() and len(experts) == 4, got.stdout.decode())
    got = run("ls", "--json", "--hf", "--hf-dtype", "f32", at)
    check(b"nothing is cast to F32" in got.stderr, f"what --hf-dtype left alone is not said: {got.stderr}")
    rows = {r["key"]: (r["dtype"], r["shape"]) for r in json.loads(got.stdout)["tensors"]}
    equal(rows, {k: (t, shape) for k, (t, shape) in tensors.items()}, "as stored, --hf-dtype or not")
    for key in (experts[-1] + "_blocks", experts[-1] + "_scales"):
        raw = [run("cat", "--as", "raw", *options, at, key).stdout for options in ((), ("--hf", "--hf-dtype", "f32"))]
        check(raw[0] == raw[1] and len(raw[0]) == math.prod(tensors[key][1]), f"{key}: {len(raw[0])} bytes")
    kept = {k: v for k, v in tensors.items() if k != experts[0] + "_blocks" and k != experts[0] + "_scales"}
    told = json.loads(run("rules", "check", "--json", "auto", model_of("gpt-oss-lacks", kept, config)).stdout)["model"]
    equal((told["missing"], told["foreign"]), (1, 0), "experts are missing")


def fused_matrices_of_paddle_are_cut():
    """gate and up in one matrix that two ranks share: PaddleNLP's is cut as a whole, in PaddleFormers' each has gate and up of its share."""
    gate, up = range(6), range(100, 106)
    for name, columns in (("gate_up_fused_proj", [*gate, *up]), ("up_gate_proj", [*gate[:3], *up[:3], *gate[3:], *up[3:]])):
        key = f"llama.layers.0.mlp.{name}.weight"
        shapes = {key: [4, 12], "llama.embed_tokens.weight": [8, 4], "llama.layers.0.self_attn.o_proj.weight": [4, 4]}
        at, dist = model_of(name, {k: ("F32", shape) for k, shape in shapes.items()}, {"model_type": "llama", "hidden_size": 4}), SCRATCH / f"{name}-dist"
        body = (at / "model.safetensors").read_bytes()  # of which it is the first
        begin = 8 + int.from_bytes(body[:8], "little")
        (at / "model.safetensors").write_bytes(body[:begin] + struct.pack("<12f", *columns) * 4 + body[begin + 4 * 48:])
        equal(run("export", "--as", "paddle-dist", "--layout", "dim1x2", at, dist).returncode, OK, name)
        (dist / "config.json").write_text((at / "config.json").read_text())
        for part, want in (("gate", gate), ("up", up)):
            got = run("cat", "--as", "raw", "--hf", "--hf-rules", "paddle", dist, f"model.layers.0.mlp.{part}_proj.weight")
            equal(list(struct.unpack(f"<{len(got.stdout) // 4}f", got.stdout)), [x for x in want for _ in range(4)], f"{name}: {part} {got.stderr.decode()}")


def fp32_weights_are_taken():
    """Under ZeRO 3 what is trained is below fp32 alone, also where the module has buffers and frozen weights."""
    stages = set()
    for folder in sorted(GOLDEN.glob("deepspeed-*")):
        for version in [v["name"] for v in data("ls", "--versions", "--json", folder / "ckpt") if v["complete"]]:
            keys = {t["key"] for t in data("ls", "--json", folder / "ckpt", version)["tensors"]}
            module, fp32 = ({k.partition(".")[2] for k in keys if k.startswith(part + ".")} for part in ("module", "fp32"))
            alone = module < fp32
            stages.add(alone)
            got = data("ls", "--json", "--hf", folder / "ckpt", version)["tensors"]
            equal({t["key"] for t in got}, fp32 if alone else module, f"{folder.name} {version}: keys of hf/")
    equal(stages, {False, True}, "there are both kinds")


def padding_is_not_counted():
    """What a rule pads is stored nowhere: plan counts the bytes of files only."""
    at = model_of("padded", {"emb": ("F32", [5, 4]), "w": ("F32", [4, 4])}, {})
    got = data("plan", "--json", "--hf", "--hf-rules", rules("pad.rules", "emb -> emb : pad(8)\nw -> w : T\n"), "--layout", "dim0x2", "--rank", "1", at)
    equal((got["needs"], got["keeps"] + got["receives"], got["left_out"]), (48, 48, []), "rank 1: one stored row of emb, half of w")


presets_are_listed_and_shown()
rules_are_checked()
empty_models_are_refused()
models_are_compared_with_config()
wrapped_models_are_found()
foreign_tensors_are_left_out()
quantized_models_are_complete()
mxfp4_models_are_complete()
fused_matrices_of_paddle_are_cut()
padding_is_not_counted()
fp32_weights_are_taken()
for checkpoint in sample(("dcp-fsdp2", "dcp-tp-fsdp", "dcp-old-2.4.1", "dcp-hf", "dcp-async-dedup",
                   "deepspeed-z1", "megatron-dist", "torch-ranks", "numpy", "hf-llama")):
    operations_agree_with_plain_bytes(checkpoint)
finish()
