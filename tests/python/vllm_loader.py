#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs.vllm and dcpfs.engine: what is registered, and what the loader gives to a model and refuses. vLLM's registry is played by two modules with
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

import dcpfs.engine  # noqa: E402
import dcpfs.vllm  # noqa: E402

registered = {}


class BaseModelLoader:
    def __init__(self, load_config):
        self.load_config = load_config


class Model:
    """Takes what it has a parameter for; those of @joined hold several, as engines keep q, k and v."""

    def __init__(self, shapes, joined=()):
        self.parameters = {name: torch.ones(shape) if len(shape) < 2 else torch.empty(shape) for name, shape in shapes.items()}
        self.joined = {part: name for name, parts in joined for part in parts}

    def named_parameters(self):
        return self.parameters.items()

    def load_weights(self, weights):
        ends = {}
        for name, value in list(weights):
            into = self.joined.get(name, name)
            if into in self.parameters:
                start = ends.get(into, 0)
                ends[into] = start + value.shape[0]
                self.parameters[into][start:ends[into]].copy_(value)
        return set(ends)


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


def exact(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


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
        every = dict(dcpfs.engine.weights(SOURCE, dcpfs.engine.options(None)))
        with dcpfs.open(SOURCE, rules="auto") as ck:
            for key, value in every.items():
                self.assertTrue(same(value, ck[key].torch()), key)


class Loading(unittest.TestCase):
    def setUp(self):
        with dcpfs.open(SOURCE, rules="auto") as ck:
            self.want = {key: ck[key].torch() for key in ck}
        self.assertGreater(len(self.want), 5)
        self.assertEqual(list(registered), ["dcpfs"])

    def shapes(self):
        return {key: value.shape for key, value in self.want.items()}

    def test_a_model_gets_every_weight(self):
        for extra in ({"source": SOURCE}, {}):
            model, made = Model(self.shapes()), registered["dcpfs"](config(**extra))
            made.download_model(ABOUT)
            with self.assertLogs("vllm.dcpfs", "INFO") as said:
                made.load_weights(model, ABOUT)
            self.assertIn(f"read {sum(value.nbytes for value in self.want.values())} bytes", said.output[0])
            for key, value in self.want.items():
                exact(model.parameters[key], value.float())

    def test_a_weight_that_is_missing_is_an_error_but_of_quantized_models(self):
        made, model = registered["dcpfs"](config(source=SOURCE)), Model({**self.shapes(), "absent.weight": (2, 3)})
        with self.assertRaisesRegex(ValueError, "does not fill absent.weight by the rules auto: 6 of its 6 elements .*came nothing; in all 1 "):
            made.load_weights(model, ABOUT)
        made.load_weights(model, types.SimpleNamespace(model=SOURCE, quantization="fp8"))

    def test_a_parameter_that_cannot_be_marked_is_missing_where_the_engine_names_what_it_took(self):
        for dtype in torch.int64, torch.float8_e4m3fn:
            model, key = Model({**self.shapes(), "absent.table": (2, 3)}), next(iter(self.want))
            model.parameters |= {"absent.table": torch.zeros(2, 3).to(dtype), key: torch.zeros(self.want[key].shape).to(dtype)}
            with self.assertRaisesRegex(ValueError, "does not fill absent.table by the rules auto: nothing came for it .*in all 1 "):
                registered["dcpfs"](config(source=SOURCE)).load_weights(model, ABOUT)

    def test_parts_of_a_joined_weight_that_are_missing_are_an_error(self):
        parts = [next(k for k in self.want if f".{x}_proj." in k) for x in "qkv"]
        rows, width = sum(self.want[k].shape[0] for k in parts), self.want[parts[0]].shape[1]
        name = parts[0].replace("q_proj", "qkv_proj")
        lost = self.want[parts[1]]
        shapes_of = {name: (rows, width), parts[0].rsplit(".", 3)[0] + ".norm": (5,)}
        every = dcpfs.engine.weights
        self.addCleanup(setattr, dcpfs.engine, "weights", every)
        for without in (None, parts[1]):
            for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
                model, how = Model(shapes_of, [(name, parts)]), config(source=SOURCE, partial=True)
                model.parameters = {k: v.to(dtype) for k, v in model.parameters.items()}
                dcpfs.engine.weights = lambda *how: ((k, v) for k, v in every(*how) if k != without)
                with self.assertLogs("vllm.dcpfs", "WARNING") as said:
                    registered["dcpfs"](how).load_weights(model, ABOUT)
                got, norm = model.parameters.values()
                exact(norm, torch.ones(5, dtype=dtype))  # a vector keeps what the engine made
                came = torch.cat([self.want[k] for k in self.want if k in parts and k != without]).to(dtype)
                exact(got, torch.cat([came, torch.zeros(rows - len(came), width, dtype=dtype)]))
                self.assertEqual(len(got) - len(came), lost.shape[0] if without else 0)
                self.assertIn(f"in all {1 + bool(without)} weights lack", said.output[0])
        with self.assertRaisesRegex(ValueError, f"fill {name} by .* {lost.numel()} of its {rows * width} .*{parts[0]}.*.partial.: true"):
            registered["dcpfs"](config(source=SOURCE)).load_weights(Model(shapes_of, [(name, parts)]), ABOUT)

    def test_names_that_are_not_known_are_refused(self):
        with self.assertRaisesRegex(ValueError, "verison is not one of source, version, rules"):
            registered["dcpfs"](config(verison="x"))

    def test_a_version_that_is_not_there_is_an_error(self):
        with self.assertRaises(dcpfs.DcpfsError):
            registered["dcpfs"](config(source=SOURCE, version="absent")).load_weights(Model({}), ABOUT)


base.main()
