#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""from_pretrained of a torchtitan checkpoint: through hf/ of a mount, and by the way that people go today.

usage: hf.py DCPFS [DIR]        with a python that has torch, transformers and safetensors; DIR (default: a new one in /tmp) needs 8 GB

The data: a Llama of 1.4 GB in bfloat16 under torchtitan's names, saved by torch.distributed.checkpoint from four ranks that hold its rows
(FSDP). Each side begins with that and ends with a model in memory, three times in turns:

  dcpfs     dcpfs mount, then from_pretrained(MNT/latest/hf)
  merge     dcp_to_torch_save, keys renamed and the rotary order of queries and keys turned, save_pretrained, then from_pretrained

On both sides the parameters stay mapped files, whose pages are read when they are used.

What is counted: wall and CPU seconds (the daemon's, too), the most memory that was not pages of files, and bytes written to the disk. Imports
count on both sides: they are the "import" line. The parameters of both models have to be equal. The source is in the page cache.
"""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import meter

SIZES = dict(vocab_size=32000, hidden_size=2048, intermediate_size=5504, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=8,
             head_dim=128, max_position_embeddings=4096, tie_word_embeddings=False, dtype="bfloat16")
RANKS, ROUNDS = 4, 3
NAMES = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo",
         "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
         "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
ENDS = {"model.embed_tokens.weight": "tok_embeddings.weight", "model.norm.weight": "norm.weight", "lm_head.weight": "output.weight"}


# ---- the data ----

def names_of_titan(key):
    if key in ENDS:
        return ENDS[key]
    _, _, layer, part = key.removesuffix(".weight").split(".", 3)
    return f"layers.{layer}.{NAMES[part]}.weight"


def save_rank(rank, port, where):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import DTensor, Shard
    from transformers import AutoModelForCausalLM, LlamaConfig
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, init_method=f"tcp://127.0.0.1:{port}")
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    with torch.device("meta"):
        shapes = {k: v.shape for k, v in AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).state_dict().items()}
    state = {}
    for number, (key, shape) in enumerate(shapes.items()):
        torch.manual_seed(number * RANKS + rank)
        part = torch.randn((shape[0] // RANKS, *shape[1:]), dtype=torch.float32).mul_(0.02).to(torch.bfloat16)
        state[names_of_titan(key)] = DTensor.from_local(part, mesh, [Shard(0)])
    dcp.save(state, checkpoint_id=where)
    dist.destroy_process_group()


def make(where):
    import socket
    import torch.multiprocessing as mp
    from transformers import LlamaConfig
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(save_rank, (port, where), nprocs=RANKS)
    LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"]).save_pretrained(where)


# ---- what is measured, each in a process of its own ----

def load(where):
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.bfloat16)
    return model


def digest(model):
    import torch
    out = hashlib.sha256()
    for key, t in sorted(model.state_dict().items()):
        out.update(key.encode() + t.contiguous().view(torch.int16).numpy().tobytes())
    return out.hexdigest()


def merge(source, work):
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    from transformers import AutoModelForCausalLM, LlamaConfig
    dcp_to_torch_save(source, work + "/merged.pt")
    merged = torch.load(work + "/merged.pt", weights_only=True, mmap=True)
    config = LlamaConfig.from_pretrained(source)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    state = {}
    for key in model.state_dict():
        t = merged[names_of_titan(key)]
        if "q_proj" in key or "k_proj" in key:
            heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
            t = t.view(heads, t.shape[0] // heads // 2, 2, t.shape[1]).transpose(1, 2).reshape(t.shape)
        state[key] = t
    model.save_pretrained(work + "/hf", state_dict=state)
    return load(work + "/hf")


def step(verb, *args):
    """One side, and then (not counted) what it has."""
    if verb == "import":
        import torch  # noqa: F401
        import transformers  # noqa: F401
        from transformers.models.llama import modeling_llama  # noqa: F401
        return
    model = merge(*args) if verb == "merge" else load(*args)
    if os.environ.get("DIGEST"):
        print(digest(model))


def this(*args, **env):
    return [sys.executable, "-B", os.path.abspath(__file__), *args], dict(os.environ, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", **env)


def by_dcpfs(program, source, top, env):
    at, cache = os.path.join(top, "mnt"), os.path.join(top, "cache")
    shutil.rmtree(cache, ignore_errors=True)
    os.makedirs(at, exist_ok=True)
    began = time.perf_counter()
    daemon = subprocess.Popen([program, "mount", "-f", os.path.dirname(source), at], env=dict(os.environ, DCPFS_CACHE=cache), stderr=subprocess.DEVNULL)
    watch = meter.Peak(daemon.pid)
    try:
        while not os.path.exists(at + "/latest/hf/config.json"):
            if daemon.poll() is not None:
                raise meter.Failed("dcpfs mount ended")
            time.sleep(0.005)
        cmd, environ = this("load", at + "/latest/hf", **env)
        with open(os.path.join(top, "out"), "wb") as out:
            sample = meter.run(cmd, env=environ, peak=True, stdout=out)
        sample["wall"] = time.perf_counter() - began
        sample["cpu"] += meter.cpu_of(daemon.pid)
        sample["disk"] += meter.written_by(daemon.pid)
    finally:
        subprocess.run([program, "umount", "-z", at], check=False)
        daemon.wait()
    sample["memory"] += watch.done()
    return sample


def by_merging(program, source, top, env):
    work = os.path.join(top, "work")
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    cmd, environ = this("merge", source, work, **env)
    with open(os.path.join(top, "out"), "wb") as out:
        return meter.run(cmd, env=environ, peak=True, stdout=out)


def only_imports(program, source, top, env):
    cmd, environ = this("import", **env)
    return meter.run(cmd, env=environ, peak=True)


def main(program, top=None):
    program = os.path.abspath(program)
    top = tempfile.mkdtemp(dir=top)
    source = os.path.join(top, "run", "step-10")
    try:
        os.makedirs(os.path.dirname(source))
        make(source)
        size = sum(f.stat().st_size for f in os.scandir(source))
        print(f"source: {size / 1e9:.2f} GB in {len(os.listdir(source))} files; load average {os.getloadavg()[0]:.1f}")
        sides, seen = {"dcpfs": by_dcpfs, "merge": by_merging}, {}
        for side, fn in sides.items():              # the first round is not counted: it warms, and says what was loaded
            fn(program, source, top, {"DIGEST": "1"})
            with open(os.path.join(top, "out")) as f:
                seen[side] = f.read().strip().splitlines()[-1]
        if len(set(seen.values())) != 1:
            sys.exit(f"the models differ: {seen}")
        print("the parameters of both models are equal")
        sides["import"] = only_imports
        samples = {side: [] for side in sides}
        for _ in range(ROUNDS):
            for side, fn in sides.items():
                samples[side].append(fn(program, source, top, {}))
                print(json.dumps({"side": side, **{k: round(v, 3) for k, v in samples[side][-1].items()}}), flush=True)
        for side, rows in samples.items():
            least = {k: min(r[k] for r in rows) for k in rows[0]}
            print(f"{side:7} wall {least['wall']:6.1f} s   CPU {least['cpu']:6.1f} s   memory {least['memory'] / 2**20:8,.0f} MiB   "
                  f"written {least['disk'] / 2**20:8,.1f} MiB")
    finally:
        shutil.rmtree(top)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ("load", "merge", "import"):
        step(*sys.argv[1:])
    else:
        main(*sys.argv[1:])
