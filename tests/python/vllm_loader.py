#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs.vllm: what it registers, and what its loader gives to a model and refuses. vLLM's registry is played by two modules with
the same names and calls; tests/mount/served.py has the real one.

Needs torch: tests/run.sh --frameworks runs it.
"""
import sys
import types
import unittest

import needs

needs.modules("DCPFS_TEST_TORCH", "torch")
import torch
import base
from base import GOLDEN, dcpfs

import dcpfs.vllm  # noqa: E402

registered = {}


class BaseModelLoader:
    def __init__(self, load_config):
        self.load_config = load_config


class Model:
    """Takes what it has a parameter for."""

    def __init__(self, names):
        self.names, self.got = names, {}

    def named_parameters(self):
        return ((name, None) for name in self.names)

    def load_weights(self, weights):
        self.got = {name: value.clone() for name, value in weights if name in self.names}
        return set(self.got)


def config(**extra):
    return types.SimpleNamespace(model_loader_extra_config=extra)


package = types.ModuleType("vllm.model_executor.model_loader")
package.register_model_loader = lambda name: lambda cls: registered.setdefault(name, cls)
loader = types.ModuleType("vllm.model_executor.model_loader.base_loader")
loader.BaseModelLoader = BaseModelLoader
sys.modules |= {"vllm": types.ModuleType("vllm"), "vllm.model_executor": types.ModuleType("vllm.model_executor"),
                package.__name__: package, loader.__name__: loader}
dcpfs.vllm.register()
SOURCE = str(GOLDEN / "hf-llama" / "ckpt" / "llama")
ABOUT = types.SimpleNamespace(model=SOURCE, quantization=None)


def same(a, b):
    """Bit for bit."""
    return torch.equal(a.clone().reshape(-1).view(torch.uint8), b.clone().reshape(-1).view(torch.uint8))


class Cutting(unittest.TestCase):
    """What an engine does with a weight gives what torch gives, and a part of it reads that part alone."""

    def test_a_cut_reads_no_more(self):
        from dcpfs.lazy import Lazy

        read = []
        ck = dcpfs.open(SOURCE, rules="auto")
        key = next(k for k in ck if len(ck[k].shape) == 2 and min(ck[k].shape) >= 16)
        want, item = ck[key].torch(), ck[key].itemsize
        rows, width = want.shape
        for name, fn, elements in (
                ("rows", lambda t: t.narrow(0, 3, 5), 5 * width), ("columns", lambda t: t.narrow(1, 4, 8), 8 * rows),
                ("a row", lambda t: t[2], width), ("of a row", lambda t: t[-1, 3:9], 6), ("an element", lambda t: t[5, 6], 1),
                ("twice", lambda t: t[4:12][2:4, 1:3], 4), ("by its data", lambda t: t.data.narrow(-1, 2, 3), 3 * rows),
                ("nothing", lambda t: t[:, :0], 0), ("past the end", lambda t: t[rows + 9:], 0),
                ("a step", lambda t: t[2:12:3], None), ("turned", lambda t: t.t()[4:6], None), ("sums", lambda t: t.float() * 2, None),
                ("halves", lambda t: t.chunk(2, 0)[1], None), ("a new dimension", lambda t: t[..., None], None), ("flat", lambda t: t.view(-1)[7:9], None),
                ("some rows", lambda t: t[[1, 3]], None), ("joined", lambda t: torch.cat([t[:1], t[3:4]]), 2 * width),
                ("copied", lambda t: torch.zeros(4, 8).copy_(t[:4, :8]), 32), ("as a number", lambda t: torch.full((1,), t[1, 1].item()), 1)):
            read.clear()
            got, expect = fn(Lazy(ck[key], count=read.append)), fn(want)
            self.assertEqual((got.shape, got.dtype), (expect.shape, expect.dtype), name)
            self.assertTrue(same(got, expect), name)
            if elements is not None:
                self.assertEqual(sum(read), elements * item, name)
        for wrong in (lambda t: t[rows], lambda t: t.narrow(0, 0, rows + 1), lambda t: t.narrow(2, 0, 1)):
            with self.assertRaises((IndexError, RuntimeError)):
                wrong(Lazy(ck[key]))

    def test_weights_may_be_used_when_all_have_come(self):
        every = dict(dcpfs.vllm.weights(SOURCE, dcpfs.vllm.options(None)))
        with dcpfs.open(SOURCE, rules="auto") as ck:
            for key, value in every.items():
                self.assertTrue(same(value, ck[key].torch()), key)


class Loading(unittest.TestCase):
    def setUp(self):
        with dcpfs.open(SOURCE, rules="auto") as ck:
            self.want = {key: ck[key].torch() for key in ck}
        self.assertGreater(len(self.want), 5)
        self.assertEqual(list(registered), ["dcpfs"])

    def test_a_model_gets_every_weight(self):
        for extra in ({"source": SOURCE}, {}):
            model, made = Model(set(self.want)), registered["dcpfs"](config(**extra))
            made.download_model(ABOUT)
            made.load_weights(model, ABOUT)
            self.assertEqual(set(model.got), set(self.want))
            for key, value in self.want.items():
                self.assertTrue(same(model.got[key], value), key)

    def test_a_weight_that_is_missing_is_an_error_but_of_quantized_models(self):
        made, model = registered["dcpfs"](config(source=SOURCE)), Model({*self.want, "absent.weight"})
        with self.assertRaisesRegex(ValueError, "has no absent.weight by the rules auto"):
            made.load_weights(model, ABOUT)
        made.load_weights(model, types.SimpleNamespace(model=SOURCE, quantization="fp8"))

    def test_a_part_of_a_joined_weight_that_is_missing_is_an_error(self):
        key = next(k for k in self.want if ".k_proj." in k)
        model = Model(set())
        model.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"], "o": ["o_proj"]}
        registered["dcpfs"](config(source=SOURCE)).load_weights(model, ABOUT)
        every = dcpfs.vllm.weights
        dcpfs.vllm.weights = lambda *how: ((k, v) for k, v in every(*how) if k != key)
        self.addCleanup(setattr, dcpfs.vllm, "weights", every)
        with self.assertRaisesRegex(ValueError, f"has no {key} by the rules auto .in all 1 weights are missing.; .partial.: true"):
            registered["dcpfs"](config(source=SOURCE)).load_weights(model, ABOUT)
        with self.assertLogs("vllm.dcpfs", "WARNING") as said:
            registered["dcpfs"](config(source=SOURCE, partial=True)).load_weights(model, ABOUT)
        self.assertIn(f"has no {key}", said.output[0])

    def test_names_that_are_not_known_are_refused(self):
        with self.assertRaisesRegex(ValueError, "verison is not one of source, version, rules"):
            registered["dcpfs"](config(verison="x"))

    def test_a_version_that_is_not_there_is_an_error(self):
        with self.assertRaises(dcpfs.DcpfsError):
            registered["dcpfs"](config(source=SOURCE, version="absent")).load_weights(Model(set()), ABOUT)


base.main()
