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
        self.got = {name: value for name, value in weights if name in self.names}
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
                self.assertTrue(torch.equal(model.got[key].view(torch.uint8), value.view(torch.uint8)), key)

    def test_a_weight_that_is_missing_is_an_error_but_of_quantized_models(self):
        made, model = registered["dcpfs"](config(source=SOURCE)), Model({*self.want, "absent.weight"})
        with self.assertRaisesRegex(ValueError, "has no absent.weight by the rules auto"):
            made.load_weights(model, ABOUT)
        made.load_weights(model, types.SimpleNamespace(model=SOURCE, quantization="fp8"))

    def test_names_that_are_not_known_are_refused(self):
        with self.assertRaisesRegex(ValueError, "verison is not one of source, version, rules"):
            registered["dcpfs"](config(verison="x"))

    def test_a_version_that_is_not_there_is_an_error(self):
        with self.assertRaises(dcpfs.DcpfsError):
            registered["dcpfs"](config(source=SOURCE, version="absent")).load_weights(Model(set()), ABOUT)


base.main()
