#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a model says beside its numbers goes along, or is refused: the metadata of safetensors, scales of quantized weights, the model
that a delta or a rank's file is a part of."""
import json
import math
import pickle
import shutil
import zipfile

from cli import BAD, GOLDEN, OK, SCRATCH, check, data, equal, fails, finish, header, run, write


ONE = ("F32", [2], b"abcdefgh")
LORA = {"format": "pt", "lora_adapter_metadata": '{"transformer.r": 2, "transformer.lora_alpha": 16}', "ss_network_alpha": "8", "modelspec.title": "é\n"}


def metadata_goes_into_every_file():
    """All of it, in every file of safetensors that is written."""
    top = SCRATCH / "lora"
    write(top / "pytorch_lora_weights.safetensors", {"a.lora_A.weight": ONE, "a.lora_B.weight": ONE}, LORA)
    for how in ([], ["--hf"], ["--dtype", "BF16"], ["--layout", "fsdp2"], ["--hf", "--max-shard-size", "8"]):
        out = SCRATCH / "lora-out"
        equal(run("export", "--as", "safetensors", "--force", *how, top, out).returncode, OK, f"export {how}")
        files = sorted(out.glob("*.safetensors"))
        check(len(files) >= 1, f"{how}: no file")
        for f in files:
            got = header(f.read_bytes())["__metadata__"]
            equal({k: v for k, v in got.items() if not k.startswith("dcpfs.")}, LORA, f"{how}: {f.name}")
    equal(header(run("cat", "--as", "safetensors", top, "a.lora_A.weight").stdout)["__metadata__"], LORA, "cat")
    equal(run("load", top, "--layout", "fsdp2", "--rank", "1", "--dump", SCRATCH / "dump").returncode, OK, "load")
    for f in (SCRATCH / "dump").iterdir():
        got = header(f.read_bytes())["__metadata__"]
        equal({k: got.get(k) for k in LORA}, LORA, "load --dump")
    more = data("export", "--as", "torch-save", "--json", top, SCRATCH / "lora.pt")
    equal({o["key"] for o in more["left_out"] if o["kind"] == "name"}, set(LORA) - {"format"}, "a format without a place for it names it")


def files_beside_are_shown_or_named():
    """Files and directories beside a checkpoint are shown, or named as left out."""
    golden = GOLDEN / "parts/ckpt/1-hf-trainer"
    dcp = SCRATCH / "beside" / "step-20"
    shutil.copytree(GOLDEN / "dcp-fsdp2/ckpt/step-20", dcp)
    plain = data("ls", "--json", dcp)
    for name in ("ema.pt", "notes.pth", "extra.ckpt", "thing.bin"):
        shutil.copy(golden / "optimizer.pt", dcp / name)
    for name in ("weights.safetensors", "graph.onnx", "broken.ckpt"):
        (dcp / name).write_bytes(b"no checkpoint")
    got = data("ls", "--json", dcp)
    added = {t["key"] for t in got["tensors"]} - {t["key"] for t in plain["tensors"]}
    equal(sorted(k for k in added if k.endswith("0.exp_avg")), [f"{n}.state.0.exp_avg" for n in ("ema", "extra", "notes", "thing")], "loose files beside a DCP")
    check({t["key"] for t in plain["tensors"]} <= {t["key"] for t in got["tensors"]}, "the DCP itself")
    equal(sorted(got["left_out"].split(", ")), ["broken.ckpt", "graph.onnx", "weights.safetensors"], "what is not read is named")

    model = SCRATCH / "beside" / "checkpoint-7"
    shutil.copytree(golden, model)
    (model / "mystery/deep").mkdir(parents=True)
    (model / "mystery/deep/blob.dat").write_bytes(b"?")
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling/config.json").write_text("{}")
    equal(data("ls", "--json", model)["left_out"], "mystery/", "a directory beside a Trainer's files")
    for f in (*model.glob("*.pt"), *model.glob("*.pth"), *model.glob("*.bin")):
        f.unlink()
    equal(data("ls", "--json", model)["left_out"], "mystery/", "a directory beside a model")
    check(b"left out, as dcpfs does not read it: mystery/" in run("ls", model).stdout, "ls says it")

    colossal = SCRATCH / "beside" / "epoch-1"
    (colossal / "modeling").mkdir(parents=True)
    shutil.copy(golden / "model.safetensors", colossal / "modeling")
    shutil.copy(golden / "scheduler.pt", colossal / "lr_scheduler")
    got = data("ls", "--json", colossal)
    check("lr_scheduler.last_epoch" in {o["key"] for o in got["objects"]} and "left_out" not in got, f"ColossalAI's lr_scheduler: {got}")


def metadata_of_files_is_joined():
    """Files are joined: the first counts, and a line says what is lost."""
    top = SCRATCH / "two"
    long = "y" * 200000
    write(top / "model-00001-of-00002.safetensors", {"a": ONE}, {"format": "np", "title": "x", "long": long})
    write(top / "model-00002-of-00002.safetensors", {"b": ONE}, {"format": "np", "title": "other", "more": "1"})
    (top / "config.json").write_text('{"model_type": "llama"}')
    want = {"format": "np", "title": "x", "long": long, "more": "1"}
    got = data("export", "--as", "safetensors", "--json", top, SCRATCH / "two-out")
    equal(header((SCRATCH / "two-out" / "model.safetensors").read_bytes())["__metadata__"], want, "merged")
    check(any(o["key"] == "title" and '"other"' in o["why"] and '"x"' in o["why"] for o in got["asks"]), f"the value that is lost is not said: {got['asks']}")
    check(b'"other"' in run("export", "--as", "safetensors", "--force", top, SCRATCH / "two-out").stdout, "nor as a line")
    equal(run("export", "--hf", top, SCRATCH / "two-hf").returncode, OK, "--hf")
    equal(header((SCRATCH / "two-hf" / "model.safetensors").read_bytes())["__metadata__"], {**want, "format": "pt"}, "hf/ is in torch's format")


def files_keep_their_own_metadata():
    """A file that is made has what the files say from which its tensors come."""
    top = SCRATCH / "each"
    says = {"a": {"format": "pt", "title": "x", "first": "1"}, "b": {"title": "other", "second": "2", "format": "np"}, "c": None, "d": {"format": "pt", "title": "x", "first": "1"}}
    for i, (key, of) in enumerate(says.items()):
        write(top / f"model-0000{i + 1}-of-00004.safetensors", {key: ONE}, *([of] if of else []))
    (top / "config.json").write_text('{"model_type": "llama"}')
    want = {key: of or {"format": "pt"} for key, of in says.items()}

    def said(file):
        got = header(file.read_bytes() if hasattr(file, "read_bytes") else file)
        return {k: v for k, v in got["__metadata__"].items() if not k.startswith("dcpfs.")}

    for key, of in want.items():
        equal(said(run("cat", "--as", "safetensors", top, key).stdout), of, f"cat {key}")
        equal(said(run("cat", "--as", "safetensors", "--hf", top, key).stdout), {**of, "format": "pt"}, f"cat --hf {key}")
        equal(run("load", top, "--comm", "alone", "--keys", key, "--dump", SCRATCH / f"each-{key}").returncode, OK, "load")
        equal(said(next((SCRATCH / f"each-{key}").iterdir())), of, f"load --dump {key}")
    for how, format in (["--max-shard-size", "8"], None), (["--max-shard-size", "8", "--hf"], "pt"), (["--layout", "fsdp2"], None):
        out = SCRATCH / "each-out"
        equal(run("export", "--as", "safetensors", "--force", *how, top, out).returncode, OK, f"export {how}")
        for file in out.glob("*.safetensors"):
            keys = sorted(header(file.read_bytes()).keys() - {"__metadata__"})
            one = {k: v for key in reversed(keys) for k, v in (says[key] or {}).items()}
            equal(said(file), {**one, "format": format or one.get("format", "pt")}, f"{how}: {keys}")
    out = SCRATCH / "each-joined"
    equal(run("export", "--as", "safetensors", top, out).returncode, OK, "export")
    equal(said(out / "model.safetensors"), {"format": "pt", "title": "x", "first": "1", "second": "2"}, "joined")


def metadata_of_one_file_is_left_out():
    """What concerns the file it stands in would be wrong of another."""
    top = SCRATCH / "dcp"
    for i, lo in ((1, 0), (2, 2)):
        write(top / f"shard-0000{i}-model-00001-of-00001.safetensors", {"a": ONE},
              {"DCP_SHARDING_INFO": json.dumps({"a": {"saved_offsets": [lo]}}), "DCP_VERSION": "1.0", "dcpfs.rank": "1", "format": "pt"})
    equal(run("export", "--as", "safetensors", top, SCRATCH / "dcp-out").returncode, OK, "export")
    got = header((SCRATCH / "dcp-out" / "model.safetensors").read_bytes())
    equal(got["__metadata__"], {"format": "pt"}, "not carried")
    equal(got["a"]["shape"], [4], "joined")


def codes_are_not_converted():
    """Codes are not converted as if they were numbers: by no option, whoever made them; what is no code may be."""
    top, key = SCRATCH / "fp8", "model.layers.0.mlp.down_proj.weight"
    tensors = {key: ("F8_E4M3", [2, 4], bytes(8)), key + "_scale_inv": ("F32", [1, 1], bytes(4)), "model.norm.weight": ("BF16", [2], bytes(4))}
    write(top / "model.safetensors", tensors, {"format": "pt"})
    config = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "torch_dtype": "bfloat16"}
    for say in (config, config | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}):
        (top / "config.json").write_text(json.dumps(say))
        out = SCRATCH / f"fp8-out-{len(say)}"
        for how in (["--dtype", "BF16"], ["--hf", "--dtype", "BF16"], ["--hf", "--dtype", "F32"], ["--as", "torch-save", "--dtype", "F32"]):
            fails(BAD, key, "export", "--as", "safetensors", *how, top, out)
            check(not out.exists(), f"{how}: something was written")
        fails(BAD, "weight_scale_inv", "load", top, "--layout", "fsdp1", "--dtype", "BF16")
        got = run("export", "--as", "safetensors", "--hf", "--hf-dtype", "f32", top, out)
        check(got.returncode == OK and b"nothing is cast to F32" in got.stderr, f"--hf-dtype does not say what it leaves: {got.stderr}")
        equal({k: v["dtype"] for k, v in header((out / "model.safetensors").read_bytes()).items() if k != "__metadata__"},
              {k: v[0] for k, v in tensors.items()}, "as stored")
        equal(run("export", "--as", "safetensors", "--force", "--keys", "model.norm.weight", "--dtype", "F32", top, out).returncode, OK, "a number by itself")
    plain = SCRATCH / "plain"
    write(plain / "model.safetensors", {"w.weight": ("F8_E4M3", [2], b"\x38\x40")})
    equal(run("export", "--as", "safetensors", "--dtype", "BF16", plain, SCRATCH / "plain-out").returncode, OK, "8-bit floats without scales are numbers")


def deltas_are_no_models():
    """What changes another version is no model: it is named with its base, and latest is the newest that is one."""
    kinds = {
        "xor": ({"delta_encoding": "xor", "base_version": "000000", "compression_format": "zstd"}, {"a": ("U8", [5], b"(\xb5/\xfd ")}, {"a": "b6c4ad03"}),
        "overwrite": ({"delta_encoding": "overwrite"}, {"a": ("U8", [5], b"(\xb5/\xfd ")}, None),
        "sparse": (None, {"a.indices": ("I32", [1], bytes(4)), "a.values": ("F32", [1], bytes(4))}, {"sparse": "True", "base_version": "000000"}),
    }
    for name, (index, tensors, metadata) in kinds.items():
        top = SCRATCH / f"delta-{name}"
        write(top / "v000000" / "model.safetensors", {"a": ONE}, {"format": "pt", "sparse": "False"})
        write(top / "v000001" / "model-00001-of-00001.safetensors", tensors, metadata)
        if index:
            (top / "v000001" / "model.safetensors.index.json").write_text(
                json.dumps({"metadata": index, "weight_map": {k: "model-00001-of-00001.safetensors" for k in tensors}}))
        states = {v["name"]: v for v in data("ls", "--versions", "--json", top)}
        check(not states["v000001"]["complete"] or states["v000001"].get("why"), f"{name}: taken for a model: {states['v000001']}")
        got = run("ls", "--json", top, "latest")
        equal(json.loads(got.stdout)["version"], "v000000", f"{name}: latest")
        check(b"delta" in got.stderr, f"{name}: {got.stderr}")
        fails(BAD, "delta", "export", "--as", "safetensors", top, "v000001", SCRATCH / "delta-out")
        if "base_version" in (index or metadata):
            fails(BAD, "of version 000000", "ls", top, "v000001")
    whole = SCRATCH / "delta-none"
    write(whole / "model-00001-of-00001.safetensors", {"a": ONE})
    (whole / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"delta_encoding": None, "base_version": "000000"}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    equal(len(data("ls", "--json", whole)["tensors"]), 1, "a version that says so is whole")


def unjoined_ranks_are_no_model():
    """Files of ranks in forms that are not put together are no model, nor a part of the model beside them."""
    top = SCRATCH / "vllm"
    for r in (0, 1):
        for part in (0, 1):
            write(top / f"model-rank-{r}-part-{part}.safetensors", {f"model.layers.{part}.self_attn.qkv_proj.weight": ONE})
    (top / "config.json").write_text('{"model_type": "llama"}')
    fails(BAD, "sharded_state", "export", "--as", "safetensors", "--hf", top, SCRATCH / "vllm-out")
    fails(BAD, "sharded_state", "ls", top)
    write(top / "model.safetensors", {"w": ONE})
    equal([t["key"] for t in data("ls", "--json", top)["tensors"]], ["w"], "the model beside them is shown")
    for name in ("ckpt_rank-{:08}-of-00000002.pth", "ckpt_rank{}.pth"):  # torch_xla's own name, and one of ranks that are joined
        top = SCRATCH / name
        top.mkdir()
        for r in (0, 1):
            state = {"model": {"flat_param_0": 1.0}, "shard_metadata": {"shard_info": {"": {}}, "flatten_info": {}, "buffer_info": {}, "rank": r, "world_size": 2}}
            with zipfile.ZipFile(top / name.format(r), "w") as z:
                for member, raw in (("data.pkl", pickle.dumps(state, 2)), ("version", b"3\n")):
                    z.writestr(f"archive/{member}", raw)
        check(all(not v["complete"] or v.get("why") for v in data("ls", "--versions", "--json", top)), f"{name}: a rank's flat parameters are taken for a model")
        fails(BAD, "torch_xla", "ls", top, "latest")
    for at in ("shard_metadata", "metadata"):  # fairseq's name, and its own documentation's
        top = SCRATCH / f"fairscale-{at}"
        top.mkdir()
        for r in (0, 1):
            params = {"fsdp_path": "", "params": {"flat_param_0": {"names": ["w"], "shapes": [(3,)], "numels": [3], "padding": 1}}, "shared_param_info": []}
            state = {"model": {"flat_param_0": 1.0}, at: {"param_metadata": [params], "buffer_names": []}}
            with zipfile.ZipFile(top / f"checkpoint_last-shard{r}.pt", "w") as z:
                for member, raw in (("data.pkl", pickle.dumps(state, 2)), ("version", b"3\n")):
                    z.writestr(f"archive/{member}", raw)
        fails(BAD, "fairscale's FullyShardedDataParallel.consolidate_shard_weights", "ls", top, "latest")


def equal_paths_name_their_file():
    """Two files of DeepSpeed hold a value of one name: the tree says which is whose."""
    text = run("tree", GOLDEN / "deepspeed-z1" / "ckpt").stdout.decode()
    for file in ("mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        equal(text.count(f"ds_config  dict, key {file}.ds_config\n"), 1, "ds_config")
    equal(text.count("dp_world_size  int\n"), 1, "a name that is one key's alone")


def directories_left_out_are_named():
    """A directory that is called like a part of the version, but holds nothing that dcpfs reads, is named."""
    top = SCRATCH / "left" / "step-100"
    write(top / "model" / "model.safetensors", {"w": ONE})
    (top / "optimizer").mkdir()
    (top / "optimizer" / "state.xyz").write_bytes(b"?")
    (top / "scheduler").mkdir()
    (top / "scheduler" / "scheduler_config.json").write_text("{}")
    with zipfile.ZipFile(top / "rng_state.pth", "w") as z:
        for member, raw in (("data.pkl", pickle.dumps({"seed": 1}, 2)), ("version", b"3\n")):
            z.writestr(f"archive/{member}", raw)
    equal(data("ls", "--json", top)["left_out"], "optimizer/", "left_out")
    for args in (("ls", top), ("ls", SCRATCH / "left")):
        check(b"left out, as dcpfs does not read it: optimizer/" in run(*args).stdout, f"{args}: the optimizer is not named")
    # A directory for each module; 0 is one, not a save.
    deep = SCRATCH / "deep" / "10"
    write(deep / "model/model/decoder/0/pp_block/attn/qkv_proj/weight_0.safetensors", {"data": ONE})
    for name in ("optimizer/optimizer_pp-0-of-1_tp-0-of-1.pt", "lr_scheduler/lr_scheduler.pt"):
        (deep / name).parent.mkdir()
        shutil.copy(top / "rng_state.pth", deep / name)
    equal(data("ls", "--json", deep)["left_out"], "model/", "a model whose files lie deep, without what is in it")
    mixed = SCRATCH / "mixed" / "step-100"
    for name in ("policy/weights/model", "policy/weights/more/a/model", "policy/weights/onnx/b/c", "policy/weights/model.fp16"):
        write(mixed / f"{name}.safetensors", {"w": ONE})
    (mixed / "optimizer.pt").write_bytes((top / "rng_state.pth").read_bytes())
    equal(set(data("ls", "--json", mixed)["left_out"].split(", ")), {f"policy/weights/{name}" for name in ("more/", "onnx/", "model.fp16.safetensors")},
          "what lies deep beside what is read")


def ranks_of_nanotron_become_a_model():
    """Ranks of nanotron as one model, and that as Hugging Face's: queries, keys and values end to end, each cut by all ranks."""
    width, rows = 2, 4
    config = {"model_type": "llama", "hidden_size": width, "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1, "head_dim": rows,
              "vocab_size": rows, "intermediate_size": 2, "tie_word_embeddings": True, "architectures": ["LlamaForCausalLM"]}
    whole = {name: [bytes([97 + 10 * i + r, 65 + r]) for r in range(n)] for i, (name, n) in enumerate({"q": rows, "k": rows, "v": rows, "gate": 2, "up": 2}.items())}
    at = SCRATCH / "nano" / "10"
    block = at / "model/model/decoder/0/pp_block"

    def cut(where, names):
        total = sum(len(whole[n]) for n in names)
        for rank in range(2):
            data_, pairs, local, first = b"", [], 0, 0
            for n in names:
                each = len(whole[n]) // 2
                data_ += b"".join(whole[n][rank * each:(rank + 1) * each])
                pairs.append(f"{local},{local + each},None|None,None,None#{first + rank * each},{first + (rank + 1) * each},None|None,None,None")
                local, first = local + each, first + len(whole[n])
            write(block / where / f"model_weight_pp-rank-0-of-1_tp-rank-{rank}-of-2.safetensors", {"data": ("U8", [local, width], data_)},
                  {"version": "1.4", "unsharded_shape": f"({total}, {width})", "local_global_slices_pairs": ";".join(pairs)})

    cut("attn/qkv_proj", "qkv")
    cut("mlp/gate_up_proj", ("gate", "up"))
    for name, shape in {"attn/o_proj": [2, 4], "mlp/down_proj": [2, 2], "input_layernorm": [2], "post_attention_layernorm": [2]}.items():
        write(block / name / "model_weight.safetensors", {"data": ("U8", shape, bytes(range(math.prod(shape))))})
    write(block / "../../../token_position_embeddings/pp_block/token_embedding/model_weight.safetensors", {"data": ("U8", [rows, width], bytes(8))})
    write(block / "../../../final_layer_norm/pp_block/model_weight.safetensors", {"data": ("U8", [2], b"no")})
    (at / "config.json").write_text(json.dumps(config))
    (at / "model_config.json").write_text('{"rope_interleaved": false}')
    for interleaved in "false", "true":
        (at / "model_config.json").write_text(f'{{"rope_interleaved": {interleaved}}}')
        out = SCRATCH / f"nano-{interleaved}"
        done = run("export", "--as", "safetensors", "--hf", at, out)
        equal(done.returncode, OK, f"export: {done.stderr}")
        check(b"nanotron" + (b"-interleaved" if interleaved == "true" else b"") + b" " in done.stderr + done.stdout, f"the preset: {done.stderr}")
        for n, name in {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj"}.items():
            order = (0, 2, 1, 3) if n in "qk" and interleaved == "true" else range(len(whole[n]))
            equal(run("cat", "--as", "raw", out, f"model.layers.0.{name}.weight").stdout, b"".join(whole[n][i] for i in order), f"{interleaved}: {name}")
    (block / "attn/qkv_proj/model_weight_pp-rank-0-of-1_tp-rank-1-of-2.safetensors").unlink()
    fails(BAD, "a file of another tensor-parallel rank is missing", "cat", at, "model.decoder.0.pp_block.attn.qkv_proj.weight")


codes_are_not_converted()
deltas_are_no_models()
ranks_of_nanotron_become_a_model()
equal_paths_name_their_file()
directories_left_out_are_named()
unjoined_ranks_are_no_model()
metadata_goes_into_every_file()
metadata_of_files_is_joined()
files_keep_their_own_metadata()
files_beside_are_shown_or_named()
metadata_of_one_file_is_left_out()
finish()
