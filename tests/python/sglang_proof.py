#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs.sglang in SGLang itself on the CPU: its engine finds --load-format dcpfs by the entry point, in each of its processes, and generates
from a checkpoint of torch what it does from the model that transformers saved; a missing part of a joined weight ends it.

Seen well with sglang 0.5.23, torch 2.13.0, transformers 5.19.0. Needs SGLang, in this python or in that of DCPFS_TEST_SGLANG;
tests/run.sh --frameworks makes one, without what needs a GPU.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import needs

# Two ranks on a machine of one NUMA node must be told where they run; and their torch, which PyPI has with NCCL only, makes SGLang use that.
CORES = sorted(os.sched_getaffinity(0))
os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "SGLANG_CPU_OMP_THREADS_BIND": f"{CORES[0]}|{CORES[-1]}",
               "SGLANG_NCCL_SO_PATH": "/nonexistent"}
ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPTS, LENGTH = [[5, 6, 7], [300, 2], [17]], 12


# What each engine generates, one after the other, in a process of its own: SGLang ends the whole process when an engine fails. Its children
# import the main module again where that is a file.
ENGINES = f"""
import json, sys, time
import sglang
for model, how, then in json.loads(sys.argv[1]):
    engine = sglang.Engine(
        model_path=model, device="cpu", dtype="float32", skip_tokenizer_init=True, disable_cuda_graph=True, disable_overlap_schedule=True,
        attention_backend="torch_native", sampling_backend="pytorch", mem_fraction_static=0.05, max_total_tokens=512, watchdog_timeout=1500,
        log_level="info", **how)
    for source in [None, *then]:
        if source:
            until = time.monotonic() + 120
            while not (done := engine.update_weights_from_disk(source, load_format="dcpfs"))[0] and "not flushed" in done[1] and time.monotonic() < until:
                pass  # what it computed by the old weights is kept as long as an answer is not quite over, as it says
            print("replaced:", json.dumps(done), flush=True)
        got = engine.generate(input_ids={PROMPTS}, sampling_params=dict(temperature=0, max_new_tokens={LENGTH}, ignore_eos=True))
        print("tokens:", json.dumps([answer["output_ids"] for answer in got]), flush=True)
    engine.shutdown()
"""
needs.modules("DCPFS_TEST_SGLANG", "torch", "transformers", "sglang.srt.server_args")
import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file, save_file


class Serving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = pathlib.Path(tempfile.mkdtemp(prefix="dcpfs-sglang-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        torch.manual_seed(7)
        config = transformers.LlamaConfig(vocab_size=320, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
                                          num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.2, bos_token_id=None, eos_token_id=None)
        transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(cls.work / "own")
        cls.state = load_file(cls.work / "own" / "model.safetensors")
        cls.about = cls.work / "about"
        shutil.copytree(cls.work / "own", cls.about, ignore=shutil.ignore_patterns("*.safetensors"))
        # dcpfs as pip would have installed it, with its entry points.
        about = (ROOT / "tools" / "python" / "pyproject.toml").read_text()
        group, line = re.search(r'\[project.entry-points."(sglang[^"]*)"]\n(.*)', about).groups()
        info = cls.work / "plugins" / "dcpfs-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dcpfs\nVersion: 0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{line.replace(chr(34), '')}\n")
        cls.env = os.environ | {"PYTHONPATH": f"{info.parent}:{ROOT / 'tools' / 'python'}"}

    def engines(self, *engines):
        """What engines of (model, options, sources that replace its weights) say, and the tokens of each."""
        done = subprocess.run([sys.executable, "-c", ENGINES, json.dumps(engines)], env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=1700)
        said = done.stdout + done.stderr
        return done.returncode, said, [json.loads(line) for line in re.findall("^tokens: (.*)", said, re.M)]

    def by_dcpfs(self, source, *then, **how):
        return str(self.about), {"load_format": "dcpfs", "model_loader_extra_config": json.dumps({"source": str(source)}), **how}, [str(t) for t in then]

    def saved(self, name, state):
        dcp.save({"model": state, "step": 10}, checkpoint_id=str(self.work / name / "step-10"), no_dist=True)
        return self.work / name

    def test_another_family_gives_the_same_tokens_and_a_part_that_is_missing_ends_it(self):
        part = "model.layers.1.self_attn.k_proj.weight"
        (self.work / "short").mkdir()
        save_file({k: v for k, v in self.state.items() if k != part}, self.work / "short" / "model.safetensors")
        code, said, got = self.engines((str(self.work / "own"), {}, []), self.by_dcpfs(self.saved("run", self.state)), self.by_dcpfs(self.work / "short"))
        self.assertEqual(len(got), 2, said[-6000:])
        self.assertEqual(len({tuple(t) for t in got[0]}), len(PROMPTS), "prompts have an effect")
        self.assertEqual(got[0], got[1])
        read = [int(n) for n in re.findall(r"this rank read (\d+) bytes", said)]
        self.assertEqual(read[:1], [sum(t.nbytes for t in self.state.values())])
        self.assertRegex(said, r"does not fill model.layers.1.self_attn.qkv_proj.weight by the rules auto: 8192 of its 32768 elements")
        self.assertTrue(code)

    def test_weights_are_replaced_by_those_of_another_checkpoint(self):
        other = {k: v.flip(0) if v.dim() > 1 else v for k, v in self.state.items()}
        first, second = self.saved("first", self.state), self.saved("second", other)
        _, said, got = self.engines(self.by_dcpfs(first, second, first), self.by_dcpfs(second))
        self.assertEqual(len(got), 4, said[-6000:])
        self.assertEqual([json.loads(r)[0] for r in re.findall("^replaced: (.*)", said, re.M)], [True, True], said[-6000:])
        self.assertNotEqual(got[0], got[1])
        self.assertEqual((got[1], got[2]), (got[3], got[0]))

    def test_ranks_read_what_they_hold(self):
        source = self.saved("ranks", self.state)
        _, said, got = self.engines(self.by_dcpfs(source), self.by_dcpfs(source, tp_size=2))
        self.assertEqual(len(got), 2, said[-6000:])
        self.assertEqual(got[0], got[1])
        all_of, *ranks = [int(n) for n in re.findall(r"this rank read (\d+) bytes", said)]
        self.assertEqual(len(ranks), 2, said[-6000:])
        self.assertTrue(all(n < 1.02 * all_of / 2 + 8192 for n in ranks), f"{ranks} of {all_of}")

    def test_files_that_a_model_names_beside_its_own_are_read_by_sglang(self):
        import types

        from sglang.srt.model_loader.loader import DefaultModelLoader

        sys.path.insert(0, str(ROOT / "tools" / "python"))
        import dcpfs.sglang

        own, second = DefaultModelLoader._get_weights_iterator, torch.ones(2)
        self.addCleanup(setattr, DefaultModelLoader, "_get_weights_iterator", own)
        DefaultModelLoader._get_weights_iterator = lambda self, source, **_: iter([(source.prefix + "weight", second)])
        loader = dcpfs.sglang.make_loader()(types.SimpleNamespace(model_loader_extra_config={"source": str(self.saved("beside", self.state))}))
        model = types.SimpleNamespace(secondary_weights=[DefaultModelLoader.Source("elsewhere", None, prefix="beside.")])
        got = dict(loader._get_all_weights(types.SimpleNamespace(model_path=str(self.about), revision=None), model))
        self.assertIs(got.pop("beside.weight"), second)
        self.assertEqual(set(got), set(self.state))


unittest.main()
