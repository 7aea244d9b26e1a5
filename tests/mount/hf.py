# SPDX-License-Identifier: Apache-2.0
"""hf/: a version as a Hugging Face model directory, read by the real safetensors package."""
import argparse
import io
import json
import mmap
import os
import pickle
import tarfile
import zipfile

import arrays
import lib
from lib import case, check, equal, errno_of, fails, mount, read, sha

try:
    import numpy
    import safetensors.numpy
    from models import checkpoint, model_files, tensors_of
except ImportError as why:
    lib.replace_python(why)

INDEX = "model.safetensors.index.json"
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_attention_heads": 2, "hidden_size": 8,
          "num_hidden_layers": 1, "vocab_size": 4, "intermediate_size": 8}


def u8(n, seed):
    return ("U8", [n], 0, lib.rng(seed).randbytes(n))


def every_tensor_is_shown():
    """Every tensor of golden checkpoints, by the names that the rules identity leave them."""
    for folder in ("dcp-fsdp2", "dcp-plain", "deepspeed-z3", "hf-llama"):
        source, manifest = lib.golden(folder)
        with mount(source, "--hf-rules", "identity") as m:
            m.settled()
            for version in m.versions():
                at = m.at / version / "hf"
                case(f"{folder}/{version}")
                index, want = m.index(version)["tensors"], manifest[version]["tensors"]
                got = tensors_of(at)
                equal(set(got), {k for k, t in index.items() if t["files"]["safetensors"] and not t["error"]}, "keys")
                check(set(got) & set(want), "some are in the manifest")
                for key in set(got) & set(want):
                    equal(sha(got[key][2]), want[key]["sha256"], f"bytes of {key}")
                check(f"# {version}\n" in read(at / "README.md").decode(), "README.md names the version")
                check(INDEX not in os.listdir(at), "one file needs no list")
                fails("ENOENT", os.stat, at / INDEX)


def every_family_has_a_model():
    """Whatever a checkpoint is of, its hf/ can be entered and all that is in it read."""
    for folder in lib.sample(sorted(p.name for p in lib.GOLDEN.iterdir() if (p / "manifest.json").exists() and (p / "ckpt").is_dir())):
        for source, _ in lib.golden_sources(folder):
            with mount(source) as m:
                for version in m.settled().versions():
                    case(f"{folder} {version}")
                    at = m.at / version / "hf"
                    for name in os.listdir(at):
                        data = read(at / name)
                        equal(os.stat(at / name).st_size, len(data), f"size of {name}")
                        if name.endswith(".safetensors"):
                            arrays.parse_safetensors(data)


def presets_leave_out_other_state():
    """Without --hf-rules optimizer state and the like are left out, and README.md says how much."""
    source, _ = lib.golden("dcp-fsdp2")
    with mount(source) as m:
        at = m.at / "step-10" / "hf"
        keys = set(tensors_of(at))
        all_keys = set(m.index("step-10")["tensors"])
        check(keys and not any("optim" in k for k in keys), f"weights alone: {sorted(keys)[:5]}")
        check(any("optim" in k for k in all_keys), "the version has optimizer state")
        page = read(at / "README.md").decode()
        check(f"| {len(all_keys) - len(keys)} |" in page, f"how many were left out: {page}")
        check("| rules | `hf`: `dcpfs rules show hf` |" in page, f"how to see the rules: {page}")
        check("missing: `config.json`" in page and "missing: a tokenizer" in page, f"what is missing: {page}")


def files_keep_to_their_size():
    """Files of at most --hf-shard-size bytes, in natural order, and their list."""
    source = lib.fresh("source")
    sizes = {f"layers.{i}.w": 100 + i for i in range(12)} | {"big": 5000}
    for version in ("step-1", "step-2"):
        checkpoint(source / version, {k: u8(n, k) for k, n in sizes.items()})
    (source / "step-2" / "config.json").write_text('{"_class_name": "FluxTransformer2DModel"}')
    with mount(source, "--hf-shard-size", "400") as m:
        case("as diffusers calls them")
        at, stem = m.at / "step-2" / "hf", "diffusion_pytorch_model"
        names = model_files(at)
        equal(names, [f"{stem}-{i + 1:05}-of-{len(names):05}.safetensors" for i in range(len(names))], "names")
        equal(set(json.loads(read(at / f"{stem}.safetensors.index.json"))["weight_map"].values()), set(names), "files in the list")
        for name in (INDEX, f"model-00001-of-{len(names):05}.safetensors", f"{stem}.safetensors"):
            fails("ENOENT", os.stat, at / name)
        check("diffusers.AutoModel" in read(at / "README.md").decode(), "who reads it")
        out = source.parent / "diffusers"
        done = lib.run(lib.PROGRAM, "export", "--as", "safetensors", "--hf", "--partial", "--max-shard-size", "400", source, "step-2", out)
        equal([n for n in sorted(os.listdir(out)) if n.startswith(stem)], sorted([*names, f"{stem}.safetensors.index.json"]), f"an export: {done.stderr}")
        case("as transformers does")
        at = m.at / "step-1" / "hf"
        names, got = model_files(at), tensors_of(at)
        equal(names, [f"model-{i + 1:05}-of-{len(names):05}.safetensors" for i in range(len(names))], "names")
        doc = json.loads(read(at / INDEX))
        equal(doc["metadata"]["total_size"], sum(sizes.values()), "total_size")
        equal(set(doc["weight_map"]), set(sizes), "keys in the list")
        natural = sorted((k for k in sizes if k != "big"), key=lambda k: int(k.split(".")[1]))
        equal([k for k in doc["weight_map"] if k != "big"], natural, "natural order")
        for name in names:
            header = arrays.parse_safetensors(read(at / name))[0]
            equal({k for k, n in doc["weight_map"].items() if n == name}, set(header), f"keys of {name}")
            check(len(header) == 1 or sum(sizes[k] for k in header) <= 400, f"size of {name}")
        for key, n in sizes.items():
            equal(got[key][2], u8(n, key)[3], f"bytes of {key}")
        check(INDEX in os.listdir(at), "the list is listed")
        for name in ("model.safetensors", "model-1-of-5.safetensors", f"model-00000-of-{len(names):05}.safetensors",
                     f"model-{len(names) + 1:05}-of-{len(names):05}.safetensors"):
            fails("ENOENT", os.stat, at / name)


def tensors_are_aligned():
    """Odd numbers of bytes in front of wider elements would leave those where they cannot be mapped."""
    source = lib.fresh("source")
    rng = lib.rng("aligned")
    checkpoint(source / "step-1", {"a": ("U8", [3], 0, rng.randbytes(3)), "b": ("F64", [2], 0, rng.randbytes(16)),
                                   "c": ("BF16", [1], 0, rng.randbytes(2)), "d": ("F32", [2], 0, rng.randbytes(8))})
    with mount(source) as m:
        at = m.at / "step-1" / "hf" / "model.safetensors"
        data = read(at)
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        for key, t in header.items():
            if key != "__metadata__":
                equal(t["data_offsets"][0] % arrays.ITEM[t["dtype"]], 0, f"alignment of {key}")
        equal(len(tensors_of(at.parent)), 4, "all are there")


def sidecars_are_found_inside():
    """config.json and the like: of --hf-assets, of the version, of directories beside it; nothing from outside."""
    source, outside, assets = lib.fresh("source"), lib.fresh("outside"), lib.fresh("assets")
    for version in ("step-1", "step-2"):
        checkpoint(source / version, {"w": u8(10, version)})
    (outside / "secret.json").write_text("{}")
    (source / "huggingface").mkdir()
    (source / "huggingface" / "tokenizer.json").write_text('{"t": 1}')
    (source / "huggingface" / "secret.json").symlink_to(outside / "secret.json")
    (source / "config.json").write_text('{"job": "not a model"}')
    (source / "step-2" / "hf_assets").mkdir()
    (source / "step-2" / "hf_assets" / "config.json").write_text(json.dumps(CONFIG))
    (source / "step-2" / "hf_assets" / "modeling_x.py").write_text("pass\n")
    (assets / "tokenizer.json").write_text('{"t": 2}')
    ours = {"README.md", "model.safetensors"}
    with mount(source) as m:
        case("found")
        equal(set(os.listdir(m.at / "step-1" / "hf")), ours | {"tokenizer.json"}, "step-1")
        equal(set(os.listdir(m.at / "step-2" / "hf")), ours | {"tokenizer.json", "config.json", "modeling_x.py"}, "step-2")
        equal(read(m.at / "step-2" / "hf" / "config.json").decode(), json.dumps(CONFIG), "config.json")
        equal(os.stat(m.at / "step-2" / "hf" / "config.json").st_size, len(json.dumps(CONFIG)), "its size")
        fails("ENOENT", os.stat, m.at / "step-1" / "hf" / "secret.json")
        case("changed")
        (source / "huggingface" / "tokenizer.json").write_text('{"t": 33}')
        lib.wait(lambda: lib.outcome(m.at / "step-1" / "hf" / "tokenizer.json")[0] == b'{"t": 33}', "the new content")
        case("added")
        for at, name in ((source / "huggingface", "chat_template.jinja"), (source / "step-1", "generation_config.json")):
            (at / name).write_text("new")
            lib.wait(lambda: lib.outcome(m.at / "step-1" / "hf" / name)[0] == b"new", f"{name} in {at.name}", lib.APPEARS)
        (source / "step-1" / "hf_ckpt").mkdir()
        (source / "step-1" / "hf_ckpt" / "vocab.txt").write_text("v")
        lib.wait(lambda: lib.outcome(m.at / "step-1" / "hf" / "vocab.txt")[0] == b"v", "a directory that was not there", lib.APPEARS)
        fails("ENOENT", os.stat, m.at / "step-2" / "hf" / "vocab.txt")
        case("removed")
        (source / "huggingface" / "chat_template.jinja").unlink()
        lib.wait(lambda: errno_of(os.stat, m.at / "step-1" / "hf" / "chat_template.jinja") == "ENOENT", "it goes", lib.APPEARS)
    case("above the version")
    deep = lib.fresh("deep")
    checkpoint(deep / "job" / "step-1" / "actor", {"w": u8(10, "w")})
    (deep / "job" / "step-1" / "huggingface").mkdir()
    (deep / "job" / "step-1" / "huggingface" / "tokenizer.json").write_text("near")
    (deep / "job" / "tokenizer.json").write_text("far")
    (deep / "job" / "config.json").write_text(json.dumps(CONFIG))
    (deep / "config.json").write_text(json.dumps({"job": 1}))
    with mount(deep) as m:
        (name,) = m.settled().versions()
        at = m.at / name / "hf"
        equal((read(at / "tokenizer.json"), read(at / "config.json").decode()), (b"near", json.dumps(CONFIG)), f"{name}: the nearest of each name")
    case("a config.json that names a model")
    (source / "config.json").write_text(json.dumps(CONFIG))
    with mount(source, "--hf-assets", assets) as m:
        equal(set(os.listdir(m.at / "step-1" / "hf")), ours | {"tokenizer.json", "config.json", "generation_config.json", "vocab.txt"}, "step-1")
        equal(read(m.at / "step-1" / "hf" / "tokenizer.json"), b'{"t": 2}', "--hf-assets comes first")
    done = lib.run(lib.PROGRAM, "mount", "--hf-assets", source / "none", source, lib.fresh("mnt"))
    equal(done.returncode, 3, f"--hf-assets of nothing: {done.stderr}")


def missing_configs_are_inferred():
    """Without a config.json one is made of what the checkpoint keeps of its model, and called inferred."""
    source = lib.fresh("source")
    args = dict(position_embedding_type="rope", swiglu=True, normalization="RMSNorm", add_bias_linear=False, num_layers=4, hidden_size=6,
                num_attention_heads=3, group_query_attention=False, num_query_groups=1, kv_channels=2, ffn_hidden_size=5, padded_vocab_size=22, vocab_size=20,
                norm_epsilon=1e-5, rotary_base=10000, max_position_embeddings=64, untie_embeddings_and_output_weights=False)
    for name, changed in (("known", {}), ("unknown", {"position_embedding_type": "none"}), ("file", {})):
        lib.copy(lib.GOLDEN / "megatron-dist" / "ckpt" / "iter_0000100", source / name)
        with zipfile.ZipFile(source / name / "common.pt", "w") as z:  # as torch.save writes what Megatron keeps beside the tensors
            z.writestr("common/data.pkl", pickle.dumps({"args": argparse.Namespace(**args | changed), "iteration": 7}, protocol=2))
            z.writestr("common/version", "3\n")
    (source / "file" / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 9}))
    want = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 20, "num_key_value_heads": 3, "head_dim": 2, "intermediate_size": 5,
            "hidden_size": 6, "num_hidden_layers": 4, "rope_theta": 10000, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "max_position_embeddings": 64,
            "num_attention_heads": 3, "hidden_act": "silu"}
    with mount(source) as m:
        at = m.at / "known" / "hf"
        config, page = json.loads(read(at / "config.json")), read(at / "README.md").decode()
        check(config.pop("inferred_by_dcpfs"), "it is marked")
        equal(config, want, "config.json")
        check("inferred from what the checkpoint" in page and "missing: `config.json`" not in page, f"README.md says so: {page}")
        check("config.json" in os.listdir(at), "it is listed")
        done = lib.run(lib.PROGRAM, "export", "--as", "safetensors", "--hf", "--partial", source, "known", source.parent / "exported")
        equal(read(source.parent / "exported" / "config.json"), read(at / "config.json"), "config.json of an export")
        check("keys come out, " in done.stdout and "made from what the checkpoint keeps" in done.stdout, f"an export says so: {done.stdout}")
        equal(os.stat(at / "config.json").st_size, len(read(at / "config.json")), "its size")
        got = tensors_of(at)
        equal(got["model.layers.3.self_attn.q_proj.weight"][1], [6, 6], "queries, by its numbers")
        equal(got["model.embed_tokens.weight"][1], [20, 6], "the vocabulary")
        case("of no model that is known")
        check("config.json" not in os.listdir(m.at / "unknown" / "hf"), "no config.json")
        done = lib.run(lib.PROGRAM, "export", "--as", "safetensors", "--hf", "--partial", source, "unknown", source.parent / "without")
        check("config.json: not found" in done.stdout, f"an export says so: {done.stdout} {done.stderr}")
        fails("ENOENT", os.stat, m.at / "unknown" / "hf" / "config.json")
        case("a file comes first")
        equal(json.loads(read(m.at / "file" / "hf" / "config.json"))["vocab_size"], 9, "config.json")
    got = lib.run(lib.PROGRAM, "rules", "check", "auto", source, "known").stdout
    check("inferred from args" in got, f"rules check: {got}")
    case("torchtitan's job config")
    top = lib.fresh("titan")
    checkpoint(top / "checkpoint" / "step-1", {"tok_embeddings.weight": ("U8", [20, 6], 0, bytes(120))})
    job, layer = top / "config.json", {"attention": {"n_heads": 3, "qkv_linear": {"n_kv_heads": 1, "head_dim": 2}, "rope": {"theta": 10000.0, "max_seq_len": 64}},
                                       "feed_forward": {"w1": {"out_features": 5}}}
    spec = {"name": "llama3", "model": {"dim": 6, "vocab_size": 20, "norm": {"eps": 1e-5}, "enable_weight_tying": True, "layers": [layer]}}
    (top / "checkpoint" / "step-1" / "other.json").write_text("{}")
    job.write_text(json.dumps({"model_spec": spec, "training": {}}, indent=2))
    with mount(top, "--hf-rules", "meta") as m:
        (name,) = m.settled().versions()
        at = m.at / name / "hf"
        got, page = json.loads(read(at / "config.json")), read(at / "README.md").decode()
        check(got["inferred_by_dcpfs"] and (got["num_key_value_heads"], got["hidden_size"], got["rope_theta"]) == (1, 6, 10000), f"config.json: {got}")
        check("torchtitan's job config: `config.json`" in page, f"README.md says so: {page}")
        spec["model"]["vocab_size"] = 21
        job.write_text(json.dumps({"model_spec": spec, "training": {}}, indent=2))
        lib.wait(lambda: b'"vocab_size": 21' in (lib.outcome(at / "config.json")[0] or b""), "another job config", lib.APPEARS)
        job.unlink()
        lib.wait(lambda: errno_of(os.stat, at / "config.json") == "ENOENT", "it goes", lib.APPEARS)


def composers_tokenizers_become_files():
    """A tokenizer that Composer keeps in its state is files again: those that were there before."""
    for at in sorted((lib.GOLDEN / "composer-hf").iterdir()):
        names = set(os.listdir(at / "want"))
        with mount(at / "ckpt") as m:
            (version,) = m.settled().versions()
            hf, exported = m.at / version / "hf", lib.fresh("exported") / at.name
            done = lib.run(lib.PROGRAM, "export", "--as", "safetensors", "--hf", at / "ckpt", exported)
            case(at.name)
            equal(set(os.listdir(hf)), names | {"README.md", "model.safetensors"}, f"files; {done.stderr}")
            for name in names:
                want, got = read(at / "want" / name), read(hf / name)
                if name.endswith(".json"):
                    want, got_json = json.loads(want), json.loads(got)
                    if at.name == "spm":  # torch.distributed.checkpoint keeps no empty dict
                        want = {k: v for k, v in want.items() if v != {}}
                    equal(got_json, {k: v for k, v in want.items() if not k.startswith("_")}, name)
                else:
                    equal(got, want, name)
                equal(os.stat(hf / name).st_size, len(got), f"size of {name}")
                equal(read(exported / name), got, f"{name} of an export")
            page = read(hf / "README.md").decode()
            check("missing: " not in page and "`tokenizer_config.json`: no file, but as the checkpoint keeps it" in page, f"README.md: {page}")
        assets = lib.fresh("assets")
        (assets / "tokenizer_config.json").write_text("{}")
        (assets / "chat_template.jinja").write_text("x")
        with mount(at / "ckpt", "--hf-assets", assets) as m:
            hf = m.at / "latest" / "hf"
            equal(set(os.listdir(hf)), {"README.md", "model.safetensors", "config.json", "tokenizer_config.json", "chat_template.jinja"}, "a tokenizer is of one origin")
            equal(read(hf / "tokenizer_config.json"), b"{}", "that of the files")


def biases_of_ranks_are_added_up():
    """GPT-NeoX adds up the biases of its tensor-parallel ranks: so does hf/, also out of an archive."""
    golden, key = lib.GOLDEN / "neox" / "tp", "module.sequential.2.attention.dense.bias"
    want = safetensors.numpy.load_file(golden / "want.safetensors")
    packed = lib.fresh("packed")
    with tarfile.open(packed / "step-1.tar", "w") as tar:
        tar.add(golden / "ckpt" / "global_step1", "global_step1")
    for source in (golden / "ckpt", packed):
        with mount(source, "--hf-assets", golden) as m:
            (name,) = m.settled().versions()
            got = tensors_of(m.at / name / "hf")
            case(f"{source.name}/{name}")
            equal(sorted(got), sorted(want), "keys")
            for k, t in want.items():
                equal((got[k][0], list(got[k][1]), sha(got[k][2])), ("F32", list(t.shape), sha(t.tobytes())), k)
            (piece,) = m.index(name)["tensors"][key]["pieces"]
            equal((piece["filter"], len(piece["terms"])), ("sum", 1), "its piece")


def subdirectories_go_along():
    """Directories that belong to a model go along, in hf/ and in an export; hf/README.md names those that do not."""
    source = lib.fresh("source")
    at = source / "step-1"
    checkpoint(at, {"embeddings.w": u8(10, "e")})
    files = {"modules.json": json.dumps([{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}, {"path": "../.."}, {"path": 3}, None]),
             "config.json": '{"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 9}', "tokenizer.json": "{}",
             "1_Pooling/config.json": '{"pooling_mode": "mean"}', "2_Dense/config.json": "{}", "2_Dense/model.safetensors": "weights",
             "2_Dense/README.md": "of the module", "additional_chat_templates/tool_use.jinja": "{{ x }}"}
    others = ("onnx/model.json", "3_Other/config.json", ".cache/config.json", "1_Pooling/deep/config.json")
    for name in (*files, *others):
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(files.get(name, "{}"))
    with mount(source) as m:
        hf = m.at / "step-1" / "hf"
        found = {str(p.relative_to(hf)) for p in hf.rglob("*") if p.is_file()}
        equal(found - {"README.md", "model.safetensors"}, set(files), "files")
        for name, text in files.items():
            equal((hf / name).read_text(), text, name)
        equal({p.name for p in (hf / "1_Pooling" / "..").iterdir()}, set(os.listdir(hf)), "the directory above one")
        equal(os.stat(hf / "1_Pooling" / "..").st_ino, os.stat(hf).st_ino, "its inode")
        fails("ENOENT", os.stat, hf / "1_Pooling" / "deep")
        fails("ENOENT", os.stat, hf / "onnx")
        page = read(hf / "README.md").decode()
        check("- left out: the directory `onnx/`" in page and "`3_Other/`" in page and "1_Pooling/`" not in page and "step-1/`" not in page, f"left out: {page}")
        check('SentenceTransformer("<this directory>")' in page and "CausalLM" not in page and "vllm" not in page, f"who loads it: {page}")
        (at / "2_Dense" / "more.json").write_text("{}")
        lib.wait(lambda: (m.at / "step-1" / "hf" / "2_Dense" / "more.json").exists(), "a file that is added is found", lib.APPEARS)
    out = source.parent / "out"
    done = lib.run(lib.PROGRAM, "export", "--as", "safetensors", "--hf", "--partial", source, out)
    equal(done.returncode, 0, f"export: {done.stderr}")
    equal({str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()} - {"model.safetensors", ".dcpfs-written"}, {*files, "2_Dense/more.json"}, "export: files")


def readme_names_the_loader():
    """What hf/README.md says follows from what config.json is."""
    source = lib.fresh("source")
    unet = {f"{p}{k}": u8(4, p + k) for p in ("unet.", "text_encoder.") for k in ("conv_in.weight", "time_embedding.linear_1.weight", "conv_out.weight")
            if p == "unet." or "conv" not in k} | {"optimizer.state.x": u8(4, "x")}
    rows = (("unet", unet, {"_class_name": "UNet2DConditionModel"}, ['diffusers.AutoModel.from_pretrained("<this directory>")    # `UNet2DConditionModel`'.replace("`", "")],
             ["tokenizer", "CausalLM", "vllm"], {"conv_in.weight", "time_embedding.linear_1.weight", "conv_out.weight"}),
            ("classifier", {"net.bert.embeddings.LayerNorm.weight": u8(4, "l"), "net.classifier.weight": u8(4, "c")},
             {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 4, "hidden_size": 4, "num_hidden_layers": 0},
             ["transformers.BertForSequenceClassification.from_pretrained(", "missing: a tokenizer"], ["CausalLM", "vllm"], None),
            ("pictures", {"vit.layernorm.weight": u8(4, "v")}, {"model_type": "vit", "architectures": ["ViTModel"]}, ["transformers.ViTModel.from_pretrained("],
             ["missing: a tokenizer", "CausalLM"], None),
            ("words", {"model.norm.weight": u8(4, "n")}, {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 4},
             ["AutoModelForCausalLM.from_pretrained(", "vllm serve", "missing: a tokenizer"], [], None))
    for name, tensors, config, _, _, _ in rows:
        checkpoint(source / name / "step-1", tensors)
        (source / name / "step-1" / "config.json").write_text(json.dumps(config))
    (source / "words" / "step-1" / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "UNet2DConditionModel"]}')
    for name, _, _, has, lacks, keys in rows:
        case(name)
        with mount(source / name) as m:
            at = m.at / "step-1" / "hf"
            page = read(at / "README.md").decode()
            for text in has:
                check(text in page, f"{text}: {page}")
            for text in lacks:
                check(text not in page, f"no {text}: {page}")
            if keys:
                equal(set(tensors_of(at)), keys, "keys")
            equal("left out: `model_index.json`, which is of a pipeline" in page, name == "words", "a pipeline beside it")
            check("model_index.json" not in os.listdir(at), "it is not shown")


def incomplete_models_are_reported():
    """hf/ that is not the model of its config.json says so where people look, and without one how to give one."""
    source = lib.fresh("source")
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_attention_heads": 2, "hidden_size": 8, "num_hidden_layers": 1,
              "vocab_size": 4, "intermediate_size": 8, "tie_word_embeddings": False}
    at = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [4, 8], "model.norm.weight": [8], "lm_head.weight": [4, 8],
              at + "input_layernorm.weight": [8], at + "post_attention_layernorm.weight": [8],
              **{at + f"self_attn.{n}_proj.weight": [8, 8] for n in "qkvo"}, **{at + f"mlp.{n}_proj.weight": [8, 8] for n in ("gate", "up", "down")}}
    tensors = {k: ("F32", n, 0, lib.rng(k).randbytes(4 * (8 if len(n) == 1 else n[0] * n[1]))) for k, n in shapes.items()}
    lost = at + "mlp.up_proj.weight"
    cases = {"step-1": ("whole", tensors, config, None), "step-2": ("a tensor is missing", {k: t for k, t in tensors.items() if k != lost}, config, lost),
             "step-3": ("a foreign one", tensors | {"value_head.weight": tensors["model.norm.weight"]}, config, "value_head.weight"),
             "step-4": ("of another shape", tensors | {"model.norm.weight": tensors[lost]}, config, "model.norm.weight")}
    for name, (_, have, said, _) in cases.items():
        checkpoint(source / name, have)
        (source / name / "config.json").write_text(json.dumps(said))
    with mount(source) as m:
        for name, (what, _, _, wrong) in cases.items():
            case(what)
            first = read(m.at / name / "hf" / "README.md").decode().splitlines()[0]
            told = [e["error"] for e in m.control("errors.json") if e["version"] == f"{name}/hf" and e["key"] is None]
            equal(len(told), int(wrong is not None), f"errors.json: {told}")
            shown = lib.run(lib.PROGRAM, "ls", "--hf", source, name)
            out = source.parent / f"out-{name}"
            done = lib.run(lib.PROGRAM, "export", "--as", "safetensors", "--hf", source, name, out)
            equal((done.returncode, out.exists()), (int(wrong is not None), wrong is None), f"export: {done.stderr}")
            if wrong is None:
                equal((first, "warning" in shown.stdout), (f"# {name}", False), "nothing is said")
                continue
            for verb, *more in ["ls"], ["tree"], ["plan", "--layout", "fsdp2"], ["show", "model.norm.weight"], ["cat", "model.norm.weight"]:
                asked, whole = (lib.run(lib.PROGRAM, verb, *how, source, name, *more) for how in (["--hf"], ["--hf", "--partial"]))
                equal((asked.returncode, wrong in asked.stderr, whole.returncode, whole.stderr), (1, True, 0, ""), f"{verb}: {asked.stderr}")
            for text in (first, told[0], shown.stdout, done.stderr, json.loads(lib.run(lib.PROGRAM, "ls", "--json", "--hf", source, name).stdout)["problem"],
                         lib.run(lib.PROGRAM, "plan", "--hf", "--layout", "fsdp2", source, name).stderr):
                check("not the model of its config.json (llama, 12 tensors): 1 " in text and wrong in text, f"it is said: {text}")
            loads = [lib.run(lib.PROGRAM, "load", "--comm", "alone", m.at / name / "hf", *how) for how in ((), ("--partial",), ("--keys", "model.norm.weight"))]
            equal(["--partial" in done.stderr, *((p.returncode, wrong in p.stderr) for p in loads)], [True, (1, True), (0, False), (0, False)], f"load: {loads}")
            done = lib.run(lib.PROGRAM, "export", "--as", "safetensors", "--hf", "--partial", source, name, out)
            equal((done.returncode, "warning: not the model" in done.stdout), (0, True), f"--partial: {done.stderr} {done.stdout}")
    case("other names by the user's rules")
    rules = lib.fresh("rules") / "own.rules"
    rules.write_text("* -> own.*\n")
    done = lib.run(lib.PROGRAM, "export", "--as", "safetensors", "--hf-rules", rules, source, "step-1", source.parent / "own")
    equal(done.returncode, 0, f"that is no half of a model: {done.stderr}")
    case("no config.json")
    for name in cases:
        (source / name / "config.json").unlink()
    with mount(source) as m:
        equal(m.log().count("hf/ has no config.json"), 1, f"one line: {m.log()}")
        check("--hf-assets DIR" in m.log(), m.log())
        check(read(m.at / "latest" / "hf" / "README.md").startswith(b"hf/ has no config.json"), "README.md")
    shown = lib.run(lib.PROGRAM, "ls", "--hf", source, "step-1")
    equal((shown.returncode, shown.stdout.count("needs: --hf-assets DIR")), (0, 1), f"ls --hf: {shown.stdout}")
    (source / "config.json").write_text(json.dumps(config))
    with mount(source) as m:
        check("config.json" not in m.log(), f"one above the versions: {m.log()}")


def unmappable_keys_fail_alone():
    """A key that cannot be mapped fails alone, and is named."""
    source, rules = lib.fresh("source"), lib.fresh("rules") / "x.rules"
    tensors = {k: u8(20, k) for k in ("a.w", "b.w", "c", "d")}
    checkpoint(source / "step-1", tensors)
    rules.write_text("a.w -> same\nb.w -> same\nnone -> n\nc -> new.c\nnor.{i} -> n.{i}\n")
    with mount(source, "--hf-rules", rules) as m:
        at = m.at / "step-1" / "hf"
        got = tensors_of(at)
        equal({k: v[2] for k, v in got.items()}, {"new.c": tensors["c"][3]}, "what can be mapped")
        page = read(at / "README.md").decode()
        check("`same`" in page and "`d`" in page, f"README.md names them: {page}")
        check(f"| rules | `{rules}` |" in page, f"rules of a file are no preset: {page}")
        line = "o key fits the rules in lines 3 5"
        check(line in page and line in lib.run(lib.PROGRAM, "rules", "check", rules, source).stdout, f"rules that are not used: {page}")
        told = {e["key"]: e["error"] for e in m.control("errors.json") if e["version"] == "step-1/hf"}
        equal(set(told), {"same", "d"}, "errors.json")
        check(all(told.values()), f"reasons: {told}")
        equal({k: lib.sha(read(m.at / "step-1" / "raw" / f"{k}.bin")) for k in tensors}, {k: sha(t[3]) for k, t in tensors.items()}, "the version itself")
    case("rules that are none")
    rules.write_text("a.w -> b\nnonsense\n")
    done = lib.run(lib.PROGRAM, "mount", "--hf-rules", rules, source, lib.fresh("mnt"))
    equal(done.returncode, 4, f"exit code: {done.stderr}")
    check("x.rules" in done.stderr and ":2" in done.stderr, f"file and line: {done.stderr}")


def operations_agree_with_numpy():
    """What rules turn, cut and join is read from where it is stored; numpy says what should come out."""
    source, rules = lib.fresh("source"), lib.fresh("rules") / "x.rules"
    rng = numpy.random.default_rng(lib.SEED)
    stored = {"wqkv": rng.random((24, 8), "f4"), "w.0": rng.random((6, 4), "f4"), "w.1": rng.random((6, 4), "f4"),
              "emb": rng.random((7, 8), "f4"), "head": rng.random((7, 8), "f4"), "t": rng.random((5, 3), "f4")}
    stored |= {"t2": stored["t"] + 1, "t3": stored["t"] + 2}
    checkpoint(source / "step-1", {k: ("F32", list(a.shape), 0, a.tobytes()) for k, a in stored.items()})
    (source / "step-1" / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    rules.write_text("wqkv -> q, k, v : qkv(heads, heads)\nw.{e} -> experts : stack(0, {e})\nt2 -> t2 : pad(9) T cast(f16)\nt3 -> t3 : reshape(5, 3) pad(4, 1) permute(1, 0)\nemb -> emb : unpad(vocab)\n"
                     "head -> head : unpad(vocab)\nt -> t : T\ntie head = emb\n")
    heads = stored["wqkv"].reshape(2, 3, 4, 8)
    want = {"q": heads[:, 0].reshape(8, 8), "k": heads[:, 1].reshape(8, 8), "v": heads[:, 2].reshape(8, 8),
            "experts": numpy.stack([stored["w.0"], stored["w.1"]]), "emb": stored["emb"][:4], "head": stored["head"][:4],
            "t": stored["t"].T, "t2": numpy.pad(stored["t2"], ((0, 4), (0, 0))).T.astype("f2"),
            "t3": numpy.pad(stored["t3"], ((0, 0), (0, 1))).T}
    for options in ((), ("--io", "pread")):
        with mount(source, "--hf-rules", rules, *options) as m:
            at = m.at / "step-1" / "hf"
            with safetensors.safe_open(at / "model.safetensors", framework="np") as f:
                case(f"whole {options}")
                equal(set(f.keys()), set(want), "keys: what differs is not tied")
                for key, a in want.items():
                    check(numpy.array_equal(f.get_tensor(key), a), f"{key}: {f.get_tensor(key)}")
            case(f"of two ranks {options}")
            for key, a in want.items():
                parts = [read(at / "shard" / "dim0x2" / str(r) / "npy" / f"{key}.npy") for r in range(2)]
                got = numpy.concatenate([numpy.load(io.BytesIO(p)) for p in parts])
                check(numpy.array_equal(got, a), f"{key}: {got}")


def cast(a, dtype):
    """float32 as the bits of another type, by its definition: to the nearest, ties to even."""
    if dtype == "F16":
        with numpy.errstate(over="ignore"):
            return a.astype("f2").view("u2")
    bits = a.view("u4").astype("u8")
    return numpy.where(numpy.isnan(a), 0x7fc0, (bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype("u2")


def tensors_are_cast():
    """--hf-dtype, and cast() of a rule: numbers of another type, by every way to read them."""
    source, rules = lib.fresh("source"), lib.fresh("rules") / "x.rules"
    rng = numpy.random.default_rng(lib.SEED)
    f32 = rng.integers(0, 1 << 32, (300, 70), "u4").view("f4")
    f32 = numpy.where(numpy.isnan(f32), numpy.float32("nan"), f32)
    f32[0, :8] = [0, -0.0, numpy.inf, -numpy.inf, 1 + 2 ** -8, 1 + 3 * 2 ** -8, 65520, 2 ** -25]
    f64, half = rng.standard_normal((9, 5)), rng.standard_normal(40).astype("f2")
    b16 = cast(rng.standard_normal(30).astype("f4"), "BF16")
    checkpoint(source / "step-1", {
        "f32": ("F32", [300, 70], 0, f32.tobytes()), "f64": ("F64", [9, 5], 0, f64.tobytes()),
        "f16": ("F16", [40], 0, half.tobytes()), "bf16": ("BF16", [30], 0, b16.tobytes()),
        "i": ("I64", [3], 0, bytes(range(24))), "f8": ("F8_E4M3", [5], 0, b"\x38\x7e\x01\xb8\x00"),
        "keep": ("F32", [2], 0, f32[0, :2].tobytes())})
    rules.write_text("f32 -> w : T cast(bf16)\n* -> *\n")
    said = '{"torch_dtype" : "float32",\n\n"text_config": {"dtype":"float32"}, "x": 1.50}'
    (source / "step-1" / "config.json").write_text(said)
    want = {t: {"f32": cast(f32, t), "f64": cast(f64.astype("f4"), t), "keep": cast(f32[0, :2], t)} for t in ("BF16", "F16")}
    want["BF16"].update(f16=cast(half.astype("f4"), "BF16"), bf16=b16)
    want["F16"].update(f16=half.view("u2"), bf16=cast((b16.astype("u4") << 16).view("f4"), "F16"))
    for dtype, options in (("BF16", ()), ("F16", ("--io", "pread"))):
        case(dtype)
        with mount(source, "--hf-rules", "identity", "--hf-dtype", dtype.lower(), *options) as m:
            at = m.at / "step-1" / "hf"
            got = tensors_of(at)
            equal({k: t[0] for k, t in got.items()}, {k: dtype for k in want[dtype]} | {"i": "I64", "f8": "F8_E4M3"}, "types")
            for key, a in want[dtype].items():
                bits = numpy.frombuffer(got[key][2], "u2").reshape(a.shape)
                exp = 0x7c00 if dtype == "F16" else 0x7f80
                nan = lambda x: (x & 0x7fff) > exp
                check(numpy.array_equal(numpy.where(nan(bits), 0, bits), numpy.where(nan(a), 0, a))
                      and numpy.array_equal(nan(bits), nan(a)), f"{key}: {bits.ravel()[:9]}, not {a.ravel()[:9]}")
            equal((got["i"][2], got["f8"][2]), (bytes(range(24)), b"\x38\x7e\x01\xb8\x00"), "others stay")
            page = read(at / "README.md").decode()
            check(f"cast to {dtype}" in page and "Nothing was converted" not in page, f"README.md says so: {page}")
            check(f"of that `config.json` the dtype is changed to {dtype}" in page, f"of config.json, too: {page}")
            now = said.replace("float32", {"BF16": "bfloat16", "F16": "float16"}[dtype])
            equal(read(at / "config.json").decode(), now, "config.json names the dtype that is served; the rest is as it was")
            equal((os.stat(at / "config.json").st_size, os.listdir(at).count("config.json")), (len(now), 1), "its size, and that it is there once")
            equal(read(at.parent / "files" / "config.json").decode(), said, "files/")
            for words in (("--hf-dtype", dtype.lower()), ("--dtype", dtype)):
                out = lib.fresh("exported") / dtype
                done = lib.run(lib.PROGRAM, "export", "--as", "safetensors", "--hf", *words, "--skip", "f8", "--hf-rules", "identity", source, "step-1", out)
                equal(read(out / "config.json").decode(), now, f"of an export: {words} {done.stderr}")
                equal(tensors_of(out)["f32"], got["f32"], f"its numbers: {words}")
            rank = at / "shard" / "dim0x2" / "1"
            raw = numpy.frombuffer(read(rank / "raw" / "f32.bin"), "u2")
            equal(raw.size, 150 * 70, "a part")
            equal(bytes(raw), got["f32"][2][2 * 150 * 70:], "its bytes")
            shown = numpy.load(io.BytesIO(read(rank / "npy" / "f32.npy")))
            equal(str(shown.dtype), "float16" if dtype == "F16" else "float32", "as .npy")
            told = json.loads(read(rank / "plan.json"))["tensors"]
            check(all(t["error"] or t["reads"] for t in told), f"plan.json: {told}")
            offsets = [7, 8191, 41_999 - 100]
            with open(rank / "raw" / "f32.bin", "rb") as f:
                for off in offsets:
                    f.seek(off)
                    equal(f.read(101), bytes(raw)[off:off + 101], f"101 bytes at {off}")
    with mount(source) as m:
        equal(read(m.at / "step-1" / "hf" / "config.json").decode(), said, "config.json without --hf-dtype")
    case("a rule")
    with mount(source, "--hf-rules", rules, "--hf-dtype", "f32") as m:
        got = tensors_of(m.at / "step-1" / "hf")
        equal({k: got[k][:2] for k in ("w", "f64")}, {"w": ("BF16", [70, 300]), "f64": ("F32", [9, 5])}, "types")
        equal(got["f64"][2], f64.astype("f4").tobytes(), "f64")
        equal(got["bf16"][2], (b16.astype("u4") << 16).tobytes(), "bf16")
    case("a quantized model")
    (source / "step-1" / "config.json").write_text(json.dumps(CONFIG | {"dtype": "float32", "quantization_config": {"quant_method": "fp8"}}))
    with mount(source, "--hf-rules", "identity", "--hf-dtype", "bf16") as m:
        equal({t[0] for t in tensors_of(m.at / "step-1" / "hf").values()}, {"F32", "F64", "F16", "BF16", "I64", "F8_E4M3"}, "as it is stored")
        check("Not cast to BF16" in read(m.at / "step-1" / "hf" / "README.md").decode(), "README.md says so")
        equal(read(m.at / "step-1" / "hf" / "config.json"), read(source / "step-1" / "config.json"), "config.json")


def quantized_weights_stay_as_stored():
    """Weights of few bits and their scales are passed on as they are stored, byte for byte, --hf-dtype or not, also where config.json does not say so."""
    kinds = {  # of a layer with 64 inputs and 32 outputs, as the programs that made such models store it
        "gptq": {"qweight": ("I32", [8, 32]), "qzeros": ("I32", [2, 4]), "scales": ("F16", [2, 32]), "g_idx": ("I32", [64])},
        "awq": {"qweight": ("I32", [64, 4]), "qzeros": ("I32", [2, 4]), "scales": ("F16", [2, 32])},
        "fp8-block": {"weight": ("F8_E4M3", [32, 64]), "weight_scale_inv": ("F32", [1, 1])},
        "fp8-tensor": {"weight": ("F8_E4M3", [32, 64]), "weight_scale": ("F32", []), "input_scale": ("F32", [])},
        "fp8-channel": {"weight": ("F8_E4M3", [32, 64]), "weight_scale": ("BF16", [32, 1])},
        "packed": {"weight_packed": ("I32", [32, 8]), "weight_scale": ("BF16", [32, 2]), "weight_zero_point": ("I32", [4, 2]), "weight_shape": ("I64", [2])},
        "int8": {"weight": ("I8", [32, 64]), "weight_scale": ("BF16", [32, 1])},
        "nvfp4": {"weight": ("U8", [32, 32]), "weight_scale": ("F8_E4M3", [32, 4]), "weight_scale_2": ("F32", []), "input_scale": ("F32", [])},
        "bnb-nf4": {"weight": ("U8", [1024, 1]), "weight.absmax": ("U8", [32]), "weight.quant_map": ("F32", [16]), "weight.nested_absmax": ("F32", [1]),
                    "weight.nested_quant_map": ("F32", [256]), "weight.quant_state.bitsandbytes__nf4": ("U8", [90])},
        "bnb-int8": {"weight": ("I8", [32, 64]), "SCB": ("F32", [32]), "weight_format": ("U8", [])},
        "mxfp4": {"weight_blocks": ("U8", [32, 2, 16]), "weight_scales": ("U8", [32, 2])}}
    source, want, rng = lib.fresh("source"), {}, lib.rng("quantized")
    for kind, parts in kinds.items():
        tensors = {f"model.layers.0.mlp.up_proj.{k}": t for k, t in parts.items()} | {"model.norm.weight": ("F16", [64])}
        for said in (True, False)[:1 if kind == "mxfp4" else 2]:  # whose numbers none is floating-point
            name, body, header = f"{kind}-{said}", b"", {"__metadata__": {"format": "pt"}}
            for key, (dtype, shape) in tensors.items():
                raw = rng.randbytes(arrays.ITEM[dtype] * arrays.volume(shape))
                header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(raw)]}
                want.setdefault(name, {})[key] = (dtype, shape, raw)
                body += raw
            head = json.dumps(header).encode()
            (source / name).mkdir(parents=True)
            (source / name / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + body)
            (source / name / "config.json").write_text(json.dumps(CONFIG | {"torch_dtype": "float16"} | ({"quantization_config": {"quant_method": kind}} if said else {})))
    for options in ((), ("--hf-dtype", "bf16")):
        with mount(source, *options) as m:
            equal(set(m.settled().versions()), set(want), "versions")
            for name, tensors in want.items():
                case(f"{name} {options}")
                at = m.at / name / "hf"
                equal({k: (t[0], list(t[1]), bytes(t[2])) for k, t in tensors_of(at).items()}, tensors, "as stored")
                equal(read(at / "config.json"), read(source / name / "config.json"), "config.json")
                check(("Not cast to BF16" in read(at / "README.md").decode()) == bool(options), "README.md says so")


def parts_are_chosen_by_name():
    """--hf-from: averaged weights that stand beside the trained ones, under the names of those."""
    source = lib.fresh("source")
    tensors = {"model.w": u8(20, 1), "ema.model.w": u8(20, 2), "ema2.model.w": u8(20, 3), "ema.model.v": u8(5, 4)}
    checkpoint(source / "step-1", tensors)
    with mount(source, "--hf-from", "ema") as m:
        got = tensors_of(m.at / "step-1" / "hf")
        equal({k: t[2] for k, t in got.items()}, {"model.w": tensors["ema.model.w"][3], "model.v": tensors["ema.model.v"][3]}, "ema")
        check("hf/ cannot be read" not in m.log(), f"the part is there: {m.log()}")
        check("begin with `ema.`" in read(m.at / "step-1" / "hf" / "README.md").decode(), "README.md says so")
    with mount(source) as m:
        page = read(m.at / "step-1" / "hf" / "README.md").decode()
        check("averaged weights (`--hf-from ema` takes those under `ema.`) and the like | 2 |" in page, f"README.md says how to ask for them: {page}")
    with mount(source, "--hf-from", "mea") as m:
        m.settled()
        check('hf/ cannot be read (EIO): no key begins with "mea."; they begin with "' in m.log(), f"said while mounting: {m.log()}")
        fails("EIO", os.listdir, m.at / m.versions()[0] / "hf")
    got = json.loads(lib.run(lib.PROGRAM, "ls", "--json", "--hf-from", "ema2", source, "latest").stdout)
    equal([t["key"] for t in got["tensors"]], ["model.w"], "ls --hf-from")
    done = lib.run(lib.PROGRAM, "ls", "--hf-from", "mea", source, "latest")
    check(done.returncode and 'no key begins with "mea."' in done.stderr, f"of nothing: {done.stderr}")


def ranks_have_the_new_names():
    """shard/LAYOUT/RANK/ below hf/ has the new names; it is not listed."""
    source, rules = lib.fresh("source"), lib.fresh("rules") / "x.rules"
    data = lib.rng("ranks").randbytes(64)
    checkpoint(source / "step-1", {"blocks.0.w": ("F32", [4, 4], 0, data)})
    rules.write_text("blocks.{i}.w -> model.layers.{i}.w\n")
    with mount(source, "--hf-rules", rules) as m:
        at = m.at / "step-1" / "hf"
        check("shard" not in os.listdir(at), f"listed: {os.listdir(at)}")
        for rank, want in enumerate((data[:32], data[32:])):
            base = at / "shard" / "dim0x2" / str(rank)
            equal(read(base / "raw" / "model.layers.0.w.bin"), want, f"rank {rank}")
            equal(json.loads(read(base / "index.json"))["version"], "step-1/hf", "index.json")
            check(json.loads(read(base / "plan.json"))["nbytes"] == 32, "plan.json")
            equal({k: bytes(t["data"]) for k, t in safetensors.deserialize(read(base / "model.safetensors"))}, {"model.layers.0.w": want}, "model.safetensors")
        check("model.layers.0.w" in json.loads(read(at / "shard" / "dim0x2" / "layout.json"))["keys"], "layout.json")


def mapped_and_direct_reads_agree():
    """mmap and O_DIRECT give what read() does."""
    source = lib.fresh("source")
    checkpoint(source / "step-1", {f"w{i}": u8(100_000 + i, i) for i in range(4)})
    with mount(source) as m:
        path = m.at / "step-1" / "hf" / "model.safetensors"
        want = read(path)
        with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as pages:
            equal(sha(pages[:]), sha(want), "mapped")
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        with mmap.mmap(-1, 1 << 20) as buf:
            n = os.preadv(fd, [buf], 0)
            equal((n, sha(buf[:n])), (len(want), sha(want)), "O_DIRECT")
        os.close(fd)


def mappings_are_cached():
    """A remount finds the mapping in the cache, by the same inodes; other rules have their own."""
    source, cache = lib.fresh("source"), lib.fresh("cache")
    checkpoint(source / "step-1", {"w": u8(10, "w")})
    for path in source.rglob("*"):
        os.utime(path)
    inodes = []
    for rules, files in (("identity", 2), ("identity", 2), ("hf", 3)):
        with mount(source, "--hf-rules", rules, cache=cache) as m:
            inodes.append(os.stat(m.at / "step-1" / "hf" / "model.safetensors").st_ino)
        equal(len([n for n in os.listdir(cache) if n.endswith(".dcpx")]), files, f"files in the cache: {os.listdir(cache)}")
    equal(inodes[0], inodes[1], "inodes")


def models_leave_with_their_version():
    """hf/ goes with its version; what is open of it is served on."""
    source = lib.fresh("source")
    for version in ("step-1", "step-2"):
        checkpoint(source / version, {"w": u8(100_000, version)})
    with mount(source) as m:
        path = m.settled().at / "step-1" / "hf" / "model.safetensors"
        with open(path, "rb") as f:
            lib.shutil.rmtree(source / "step-1")
            lib.wait(lambda: "step-1" not in m.versions(), "the version leaves", lib.APPEARS)
            check(f.read().endswith(u8(100_000, "step-1")[3]), "what is open")
        lib.wait(lambda: errno_of(os.stat, path) in ("ENOENT", "ESTALE"), "its path goes", lib.APPEARS)
        check(m.running(), "the daemon lives")


lib.main(every_tensor_is_shown, every_family_has_a_model, presets_leave_out_other_state, files_keep_to_their_size, tensors_are_aligned, sidecars_are_found_inside,
         missing_configs_are_inferred, composers_tokenizers_become_files, biases_of_ranks_are_added_up, subdirectories_go_along, readme_names_the_loader,
         incomplete_models_are_reported, unmappable_keys_fail_alone, operations_agree_with_numpy, tensors_are_cast, quantized_weights_stay_as_stored,
         parts_are_chosen_by_name, ranks_have_the_new_names, mapped_and_direct_reads_agree, mappings_are_cached, models_leave_with_their_version)
