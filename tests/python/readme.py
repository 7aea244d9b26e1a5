#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every line of Python in README.md and tools/python/README.md runs, in order, in a fresh directory, on checkpoints that stand
for those it names.

Without an argument: what needs numpy alone, on a golden checkpoint; lines that need torch run where it is installed. "torch": the
chapters about torch and transformers. "paddle": the one about Paddle. ../blocks.py has the chapters. Lines that need a GPU are
compiled only; device.py calls the same functions.

usage: readme.py [torch | paddle]
"""
import ast
import contextlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import needs

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import blocks  # noqa: E402

PART = sys.argv[1] if len(sys.argv) > 1 else "numpy"
if PART == "torch":
    needs.modules("DCPFS_TEST_TORCH", "torch", "transformers", "accelerate")
elif PART == "paddle":
    needs.modules("DCPFS_TEST_PADDLE", "paddle")
import base  # noqa: E402
from base import dcpfs, np  # noqa: E402


def statements():
    """(page, chapter, source of a statement) of all blocks of Python."""
    for page in (blocks.README, blocks.PYTHON):
        for chapter, language, text in blocks.blocks(page):
            for node in ast.parse(text).body if language == "python" else ():
                yield page, chapter, ast.get_source_segment(text, node)


def world_of_numpy(top, closing):
    """@top: a directory for what is written. @closing: an ExitStack for what must end before the directory goes."""
    return {"a_numpy_array": np.zeros(22, np.float32), "my_rows": np.ones((16, 4), np.float32),
            "state_dict": {"model": {"w": np.arange(6.0)}, "step": 7}, "path": str(top / "asynchronous")}, [
        ("/data/run1", base.golden("dcp-fsdp2")[0]),
        (', "fsdp8")', ', "fsdp1")'),     # this process is the only rank of its job,
        ("lo=(8, 0)", "lo=(0, 0)")]       # which therefore holds all rows


def world_of_torch(top, closing):
    import accelerate
    import torch
    import torch.distributed.checkpoint as dcp
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    class Trainer:
        step = 3

        def state_dict(self):
            return {"step": self.step}

        def load_state_dict(self, state):
            self.step = state["step"]

    class Module(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

    model = LlamaForCausalLM(LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=2,
                                         num_attention_heads=4, num_key_value_heads=2))
    model.config.architectures = ["LlamaForCausalLM"]
    optimizer = torch.optim.AdamW(model.parameters())
    sum(p.sum() for p in model.parameters()).backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "trainer": Trainer()}
    dcp.save(state, checkpoint_id=str(top / "run1"))
    torch.save(model.state_dict(), top / "model.pt")
    model.config.save_pretrained(top / "my-model")
    (top / "mnt").mkdir()
    program = os.environ["DCPFS_PROGRAM"]
    subprocess.run([program, "mount", "--hf-assets", top / "my-model", top / "run1", top / "mnt"], check=True)
    closing.callback(subprocess.run, [program, "umount", "--lazy", top / "mnt"], check=True)
    return {"AutoModelForCausalLM": AutoModelForCausalLM, "model": model, "optimizer": optimizer, "trainer": state["trainer"],
            "dcp": dcp, "module": Module(model), "accelerator": accelerate.Accelerator(cpu=True)}, [
        ('"/data/run1", "megatron"', f'"{base.GOLDEN}/megatron-models/llama/ckpt", "megatron"'),
        ("/data/run1", str(top / "run1")), ("/data/model.pt", str(top / "model.pt")), ("/models/my-model", str(top / "my-model"))]


def world_of_paddle(top, closing):
    import paddle

    model = paddle.nn.Linear(4, 6)
    optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
    model(paddle.ones([2, 4])).sum().backward()
    optimizer.step()
    paddle.distributed.save_state_dict(model.state_dict(), str(top / "run1"), unique_id=500)
    return {"state_dict": model.state_dict(), "optimizer": optimizer}, [("/data/run1", str(top / "run1"))]


def main():
    torch = importlib.util.find_spec("torch")
    ran = 0
    with tempfile.TemporaryDirectory(prefix="dcpfs-readme-") as top, contextlib.ExitStack() as closing:
        names, places = globals()["world_of_" + PART](pathlib.Path(top), closing)
        os.chdir(top)
        for page, chapter, source in statements():
            if (page, chapter) not in blocks.CHAPTERS[PART] or "cuda" in source or not torch and re.search(r'\.torch\(|"pt"', source):
                continue
            text = source
            for name, place in [*places, ("/data/run2", top)]:
                text = text.replace(name, place)
            try:
                exec(compile(text, source, "exec"), names)
            except Exception as why:
                sys.exit(f"{page}, {chapter}:\n{source}\n{type(why).__name__}: {why}")
            ran += 1
    if PART == "numpy" and (names["w"].dtype, names["mine"]["model.norm.weight"].numpy().tobytes()) != (
            "BF16", names["a_numpy_array"].tobytes()):
        sys.exit("tools/python/README.md: what was loaded differs")
    print(f"{ran} statements ran")
    sys.exit(0 if ran else 1)


if __name__ == "__main__":
    main()
