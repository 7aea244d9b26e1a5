#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long vLLM takes to start on the CPU: by its own loader, by --load-format dcpfs, and from a mount's hf/.

A Llama of 0.44 GB in bfloat16 is written as Hugging Face has it, and as a training run saves it (DCP in four files).
Each way starts a process of its own; ways take turns. Printed are the best seconds of the weights alone, as they are
handed to the model, and of the whole start, and the CPU seconds of the process.

usage: engines.py DCPFS [TURNS]     by a python that has vllm, transformers, torch, safetensors; dcpfs in PYTHONPATH
"""
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR",
               "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TOKENIZERS_PARALLELISM": "false"}


def write(at):
    """hf/, about/ (no weights) and run/step-10 (DCP) below @at."""
    import torch
    import torch.distributed.checkpoint as dcp
    import transformers

    config = transformers.LlamaConfig(vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
                                      num_key_value_heads=16, max_position_embeddings=512)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(at / "hf")
    config.save_pretrained(at / "about")
    dcp.save({"model": model.state_dict()}, storage_writer=dcp.FileSystemWriter(at / "run" / "step-10", thread_count=4), no_dist=True)


def start(model, how):
    """In a process of its own: seconds of the weights, of the start, and of the CPU."""
    import torch
    import vllm
    from vllm.model_executor.models.llama import LlamaForCausalLM

    if how.get("load_format") == "dcpfs":
        import dcpfs.vllm

        dcpfs.vllm.register()
    spent, load = [], LlamaForCausalLM.load_weights

    def timed(self, weights):
        began = time.monotonic()
        got = load(self, weights)
        spent.append(time.monotonic() - began)
        return got

    LlamaForCausalLM.load_weights = timed
    began = time.monotonic()
    engine = vllm.LLM(model, dtype="bfloat16", enforce_eager=True, max_num_seqs=4, max_model_len=256, skip_tokenizer_init=True, **how)
    whole, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    out = engine.generate([{"prompt_token_ids": [1, 2, 3]}], vllm.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False), use_tqdm=False)
    print(json.dumps([sum(spent), whole, used.ru_utime + used.ru_stime, list(out[0].outputs[0].token_ids)]))


def main(dcpfs, turns):
    with tempfile.TemporaryDirectory() as work:
        at, mnt = pathlib.Path(work), pathlib.Path(work) / "mnt"
        write(at)
        mnt.mkdir()
        subprocess.run([dcpfs, "mount", "--hf-assets", at / "hf", at / "run", mnt], check=True)
        own = {"model_loader_extra_config": {"source": str(at / "hf")}, "load_format": "dcpfs"}
        ways = {
            "its own loader, safetensors": (at / "hf", {}),
            "dcpfs, the same safetensors": (at / "about", own),
            "dcpfs, the run's DCP": (at / "about", own | {"model_loader_extra_config": {"source": str(at / "run"), "part": "model"}}),
            "its own loader, hf/ of a mount of the DCP": (mnt / "latest" / "hf", {}),
        }
        best, tokens = {}, set()
        try:
            for _ in range(turns):
                for way, (model, how) in ways.items():
                    got = subprocess.run([sys.executable, __file__, "start", model, json.dumps(how)], check=True, stdout=subprocess.PIPE, text=True)
                    *numbers, words = json.loads(got.stdout.strip().splitlines()[-1])
                    tokens.add(tuple(words))
                    best[way] = [min(a, b) for a, b in zip(numbers, best.get(way, numbers))]
        finally:
            subprocess.run([dcpfs, "umount", mnt], check=True)
    print("| way | weights, s | start, s | CPU, s |\n| --- | --- | --- | --- |")
    for way, numbers in best.items():
        print("|", way, *(f"| {n:.2f}" for n in numbers), "|")
    print("tokens are the same" if len(tokens) == 1 else f"tokens differ: {tokens}")
    return len(tokens) != 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["start"]:
        start(sys.argv[2], json.loads(sys.argv[3]))
    else:
        sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3))
