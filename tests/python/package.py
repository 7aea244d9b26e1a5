#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs.open(): keys, tensors, regions, objects, ranks, and what others make of them.

usage: package.py [TestCase.test...]
"""
import ast
import collections
import errno
import gc
import graphlib
import hashlib
import io
import json
import math
import os
import pathlib
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
import zipfile

import base
from base import dcpfs, golden, np

from dcpfs import _lib, classes, dlpack, shown as misleading, stored, tree
from dcpfs.dtype import DTYPES

sys.path.insert(0, str(base.ROOT / "tests/mount"))
import arrays  # noqa: E402

sys.path.insert(0, str(base.ROOT / "tests/load"))
import dcp  # noqa: E402

FOLDERS = ("dcp-plain", "dcp-fsdp2", "hf-llama", "paddle-dist", "megatron-dist", "deepspeed-z3", "numpy")


class Header(unittest.TestCase):
    STRUCTS = {"error": _lib.Error, "comm": _lib.CommStruct, "comm_config": _lib.CommConfig, "config": _lib.Config, "tensor": _lib.TensorStruct,
               "entry": _lib.EntryStruct, "want": _lib.Want, "select": _lib.Select, "part": _lib.PartStruct, "report": _lib.ReportStruct}

    def test_structs_agree_with_the_header(self):
        """Members stand in the order of dcpload.h; structs that say their size may lack the last ones."""
        header = re.sub(r"/\*.*?\*/", "", (base.ROOT / "tools/load/dcpload.h").read_text(), flags=re.S)
        for name, struct in self.STRUCTS.items():
            body = re.search(r"^struct dcpload_%s \{\n(.*?)^\};" % name, header, re.S | re.M).group(1)
            names = []
            for line in body.split(";"):
                pointer = re.search(r"\(\*(\w+)\)\(", line)
                names += [pointer.group(1)] if pointer else re.findall(r"(\w+)(?:\[\w+\])?\s*(?:,|$)", line.strip())
            ours = [f[0] for f in struct._fields_]
            with self.subTest(name):
                self.assertEqual(ours, names[:len(ours)])
                self.assertTrue(len(ours) == len(names) or ours[0] == "size", names)


    def test_only_names_of_the_header_are_exported(self):
        """The library gives others the names of the header, and no others."""
        header = (base.ROOT / "tools/load/dcpload.h").read_text()
        said = subprocess.run(["nm", "-D", "--defined-only", os.environ["DCPFS_LIBRARY"]], capture_output=True, text=True, check=True).stdout
        self.assertEqual({line.split()[-1] for line in said.splitlines()}, set(re.findall(r"^DCPLOAD_API [^;(]*\b(dcpload_\w+)\(", header, re.M)))


class Opening(unittest.TestCase):
    def test_passed_over(self):
        """That the newest version cannot be opened, and an older one is, is said."""
        with tempfile.TemporaryDirectory() as scratch:
            source = shutil.copytree(golden("dcp-fsdp2")[0], f"{scratch}/run")
            (pathlib.Path(source) / "step-20/.metadata").write_bytes(b"?")
            with self.assertWarnsRegex(UserWarning, r"^step-20: .*; taking step-10$") as caught:
                dcpfs.open(source, cache="").close()
            self.assertEqual(caught.filename, __file__)


def step20():
    return dcpfs.open(golden("dcp-fsdp2")[0], "step-20")


class Trees(unittest.TestCase):
    """A checkpoint as what was saved: nested dicts and lists, as the format says, or where the paths can only be a list's."""

    def test_objects_of_composer_keep_their_tree(self):
        with dcpfs.open(f"{golden('composer')[0]}/tiny-run/checkpoints/ep1-ba4-rank0.pt", cache="") as ck:
            nodes = tree.skeleton(ck, ck.objects.__getitem__)
        state, adam = nodes["state"], nodes["state"]["optimizers"]["Adam"]
        self.assertEqual([g["lr"] for g in adam["param_groups"]], [0.01, 0.02])
        self.assertEqual(adam["param_groups"][0]["params"][0], "module.emb.weight")
        self.assertEqual(adam["state"]["module.emb.weight"]["step"], tree.Leaf("state.optimizers.Adam.state.module.emb.weight.step"))
        self.assertEqual([name for name, _ in state["algorithms"]], ["LabelSmoothing", "GradientClipping", "EMA"])
        self.assertEqual([set(r) for r in nodes["rng"]], [{"python", "numpy", "torch"}] * 2)
        ema = state["algorithms"][2][1]["ema_model"]["named_parameters_dict"]  # tensors inside an object
        self.assertIsInstance(ema["module.module.emb.weight"], tree.Leaf)
        keys = list(tree.keys(nodes))
        self.assertEqual(len(keys), len(set(keys)))
        self.assertEqual(tree.filled({"a": [tree.Leaf("x"), (tree.Leaf("y"), 1)]}, str.upper), {"a": ["X", ("Y", 1)]})

    def test_numbered_keys_become_lists(self):
        """0, 1, 2 are a list; 0, 2 and what has other keys are not; an optimizer's state has integers."""
        cases = [({"0": "a", "1": "b"}, ["a", "b"]), ({"1": "b", "0": "a"}, ["a", "b"]), ({"0": "a", "2": "b"}, {"0": "a", "2": "b"}),
                 ({"0": "a", "x": "b"}, {"0": "a", "x": "b"}), ({"00": "a"}, {"00": "a"}), ({}, {}),
                 ({"state": {"0": {"step": 1}, "3": {}}, "param_groups": {"0": {}}}, {"state": {0: {"step": 1}, 3: {}}, "param_groups": [{}]})]
        for given, expected in cases:
            with self.subTest(given):
                self.assertEqual(tree._shaped(self.nodes(given), (), {}, True), expected)

    def test_containers_are_what_the_format_says(self):
        """What the format says of a container, which paths do not."""
        two, state = {"0": "a", "1": "b"}, {"0": {"step": 1}}
        cases = [({"x": two}, "list\tx", {"x": ["a", "b"]}), ({"x": two}, "tuple\tx", {"x": ("a", "b")}), ({"x": two}, "dict\tx", {"x": two}),
                 ({"x": two}, "keys\tx", {"x": {0: "a", 1: "b"}}), ({"x": {"1": "b"}}, "list\tx", {"x": [None, "b"]}),
                 ({"x": {"1000000000": "b"}}, "list\tx", {"x": {"1000000000": "b"}}), (two, "keys", {0: "a", 1: "b"}), (two, "tuple", ("a", "b")),
                 ({"(0, 'a')": 1, "None": 2, "w": 3, "(" * 4000: 4}, "keys", {(0, "a"): 1, None: 2, "w": 3, "(" * 4000: 4}),
                 ({"1": "a", "True": "b"}, "keys", {"1": "a", "True": "b"}),
                 ({"state": state, "param_groups": {}}, "dict\tstate", {"state": {0: {"step": 1}}, "param_groups": {}})]
        for given, line, expected in cases:
            with self.subTest(line, given=given):
                ck = unittest.mock.Mock(fact=lambda name: line + "\n")
                self.assertEqual(tree._shaped(self.nodes(given), (), tree.classes(ck), True), expected)

        with step20() as ck:
            path = tree.indexed(ck)
            self.assertEqual([path(ck.path(k)) for k in ("train.nested.0.t", "optimizer.param_groups.0.betas")],
                             [("train", "nested", 0, "t"), ("optimizer", "param_groups", 0, "betas")])

    def test_text_like_a_literal_stays_text(self):
        """Text that Python would take for another key stays text beside keys that are none."""
        saved = {"none": {0: "a", "None": "b"}, "true": {1: "a", "True": "b"}, "bytes": {1: "a", "b'x'": "b"}, "words": {1: "a", "Nonesuch": "b"},
                 "digits": {"1": "a", 2: "b", (3,): {"4": "c", "": "d", None: "e"}}, "all": {0: "a", "1": "b", "text": {"1": "c"}}, "line": {0: "a", "\t": "b"}}
        with tempfile.TemporaryDirectory() as scratch:
            with zipfile.ZipFile(f"{scratch}/a.pt", "w") as z:
                z.writestr("a/data.pkl", pickle.dumps(saved, 2))
                z.writestr("a/version", "3\n")
            with dcpfs.open(f"{scratch}/a.pt", cache="") as ck:
                got = tree.skeleton(ck, ck.objects.__getitem__)
        self.assertEqual(got, {**saved, "line": {"0": "a", "\t": "b"}})

    def test_mappings_keep_their_class(self):
        """An OrderedDict, a Counter and a defaultdict are what they were, as containers of keys and inside objects; of another class there is a dict."""
        kinds = collections.OrderedDict, collections.Counter, collections.defaultdict
        of = {"counts": collections.Counter("aba"), "ordered": collections.OrderedDict(b=1, a={}), "lists": collections.defaultdict(list, {3: [1]}),
              "none": collections.defaultdict(None, x=1), "empty": collections.OrderedDict(), "digits": collections.OrderedDict([("0", 1), ("1", 2)]),
              "calls": collections.defaultdict(os.getpid, x=1), "ordered_state": collections.OrderedDict(w=1)}
        of["ordered_state"]._metadata = {"": {"version": 2}}
        with tempfile.TemporaryDirectory() as scratch:
            for protocol in range(6):
                with zipfile.ZipFile(f"{scratch}/a.pt", "w") as z:
                    z.writestr("a/data.pkl", pickle.dumps(collections.OrderedDict({**of, "in": collections.deque([of])}), protocol))
                    z.writestr("a/version", "3\n")
                with dcpfs.open(f"{scratch}/a.pt", cache="") as ck:
                    got = tree.filled(tree.skeleton(ck, ck.objects.__getitem__), lambda key: None)
                self.assertIs(type(got), collections.OrderedDict)
                inside = got["in"][0]
                self.assertEqual(inside["calls"]["$class"], "collections.defaultdict")
                self.assertEqual(inside["ordered_state"]._metadata, of["ordered_state"]._metadata)
                self.assertEqual(type(got["calls"]), dict)
                for key, saved in of.items():
                    for made in (got[key], inside[key]) if key != "calls" else ():
                        with self.subTest(key, protocol=protocol):
                            self.assertEqual((type(made), made), (type(saved), saved))
                            self.assertIn(type(made), kinds)
                            self.assertEqual(getattr(made, "default_factory", 0), getattr(saved, "default_factory", 0))
        with self.assertRaises(LookupError):  # an object, not the class in its arguments
            classes.MADE["collections.defaultdict"]({"$class": "collections.defaultdict", "args": [{"$class": "mine.Make", "args": ["list"]}]})

    def test_keys_keep_their_order(self):
        """Keys stand as they were saved: tensors, objects and what is empty among each other."""
        tensor = "ctorch._utils\n_rebuild_tensor_v2\n((Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI1\ntQI0\n(I1\nt(I1\ntI00\nNtR"
        with tempfile.TemporaryDirectory() as scratch:
            with zipfile.ZipFile(f"{scratch}/a.pt", "w") as z:
                z.writestr("a/data.pkl", f"(dVm\n(dVz\n{tensor}sVx\n(dsVb\nI1\nsVy\n(dVu\n(dsVv\n(dssVa\n{tensor}ssVstep\nI7\nsV0\n{tensor}sVno\n(dsV1\n(dsV-\n((dI2\n(dslsVin\n({tensor}I1\ntsVend\nI1\ns.")
                z.writestr("a/version", "3\n")
                z.writestr("a/data/0", bytes(4))
            with dcpfs.open(f"{scratch}/a.pt", cache="") as ck:
                got = tree.skeleton(ck, ck.objects.__getitem__)
        self.assertEqual([list(got), list(got["m"])], [["m", "step", "0", "no", "1", "-", "in", "end"], ["z", "x", "b", "y", "a"]])
        self.assertEqual([got["m"]["x"], list(got["m"]["y"]), got["no"], got["-"]], [{}, ["u", "v"], {}, [{2: {}}]])
        self.assertEqual(got["in"], (tree.Leaf("in.0"), 1))

    def nodes(self, value):
        return tree.Node((k, self.nodes(v)) for k, v in value.items()) if isinstance(value, dict) else value


class Rules(unittest.TestCase):
    """Keys as a Hugging Face model's: by a preset, and by a file that renames and joins."""

    def test_presets_rename_keys(self):
        stored = step20()
        for rules in ("auto", "hf"):
            with self.subTest(rules), dcpfs.open(stored.source, "step-20", rules=rules, cache="") as ck:
                self.assertLess(len(ck), len(stored))  # without the optimizer
                same = [key for key in ck if key in stored]
                self.assertGreater(len(same), 10)
                for key in same:
                    self.assertEqual(ck[key].read().tobytes(), stored[key].read().tobytes(), key)

    def test_a_file_of_rules_renames_keys(self):
        stored = step20()
        with tempfile.TemporaryDirectory() as scratch:
            text = pathlib.Path(scratch, "mine.rules")
            text.write_text("model.layers.{i}.input_layernorm.weight -> norms.{i}\nmodel.embed_tokens.weight -> embed")
            with dcpfs.open(stored.source, "step-20", rules=str(text), cache="") as ck:
                old = stored["model.layers.0.input_layernorm.weight"]
                self.assertEqual(ck["norms.0"].read().tobytes(), old.read().tobytes())
                self.assertEqual(ck["norms.0"][1:3].tobytes(), old[1:3].tobytes())
                self.assertNotIn("model.embed_tokens.weight", ck)
            loaded = dcpfs.load(stored.source, "fsdp2", 1, version="step-20", comm=None, rules=str(text), cache="")
            whole = stored["model.embed_tokens.weight"].read().tobytes()
            self.assertEqual(loaded["embed"].tobytes(), whole[-loaded["embed"].nbytes:])
            text.write_text("this is -> no {rule")
            with self.assertRaisesRegex(dcpfs.DcpfsError, "rules:1"):
                dcpfs.open(stored.source, rules=str(text), cache="")

    def test_a_part_has_shorter_keys(self):
        stored = step20()
        for how in ({}, {"rules": "identity"}):
            with dcpfs.open(stored.source, "step-20", part="model.layers", cache="", **how) as ck:
                self.assertEqual(ck["0.input_layernorm.weight"].read().tobytes(), stored["model.layers.0.input_layernorm.weight"].read().tobytes())
                self.assertNotIn("model.embed_tokens.weight", ck)
        with self.assertRaisesRegex(dcpfs.DcpfsError, r'no key begins with "ema\."; they begin with "'):
            dcpfs.open(stored.source, "step-20", part="ema", cache="")

    def test_wrong_rules_are_refused(self):
        with self.assertRaisesRegex(dcpfs.DcpfsError, "megatron"):
            dcpfs.open(step20().source, rules="megatrn", cache="")
        with self.assertRaises(FileNotFoundError):
            dcpfs.open(step20().source, rules="./no.rules", cache="")
        with self.assertRaisesRegex(dcpfs.DcpfsError, r"no key comes out \(rules: torchtune\).* need the preset hf") as e:
            dcpfs.open(step20().source, "step-20", rules="torchtune", cache="")
        self.assertEqual(e.exception.code, errno.ENOKEY)


class Keys(unittest.TestCase):
    def test_golden_versions_are_read(self):
        for folder in FOLDERS:
            source, versions = golden(folder)
            for name, v in versions.items():
                with self.subTest(f"{folder}/{name}"), dcpfs.open(source, name) as ck:
                    self.assertEqual(ck.version, name)
                    for t in v["tensors"]:
                        t["key"] = self.key(t)
                        got = ck[t["key"]]
                        self.assertEqual((got.shape, got.nbytes), (tuple(t["shape"]), t["nbytes"]), t["key"])
                        self.assertEqual(hashlib.sha256(got.read().buffer).hexdigest(), t["sha256"], t["key"])
                        if t.get("path"):
                            self.assertEqual(list(ck.path(t["key"])), t["path"])
                    for o in v.get("objects", ()):
                        self.assertEqual(ck.objects.type(self.key(o)), o["type"])
                    for key in [r["key"] if isinstance(r, dict) else r for r in v.get("refused", ())]:
                        self.assertIn(key, ck.errors)
                    self.assertLessEqual({t["key"] for t in v["tensors"]}, set(ck))

    @staticmethod
    def key(entry):
        """Of some families the manifest joins the path with slashes."""
        joined = entry.get("path") and "/".join(entry["path"]) == entry["key"]
        return ".".join(entry["path"]) if joined else entry["key"]

    def test_versions_are_listed(self):
        ck = dcpfs.open(golden("dcp-fsdp2")[0])
        self.assertEqual([v.name for v in ck.versions], ["step-10", "step-20", "step-30"])
        self.assertEqual([v.why is None for v in ck.versions], [True, True, False])
        self.assertEqual((ck.version, ck.fact("format"), ck.facts["framework"]), ("step-20", "torch-dcp", "torch"))
        self.assertIsNone(ck.layout)

    def test_unknown_keys_are_refused(self):
        ck = step20()
        self.assertRaisesRegex(KeyError, 'Nearest: "model.lm_head.weight"', lambda: ck["model.lm_head.weigh"])
        self.assertRaisesRegex(KeyError, "Nearest: ", lambda: ck.objects["train.los"])
        self.assertRaises(KeyError, lambda: ck["a\0b"])
        self.assertNotIn("nothing", ck)
        broken = dcpfs.open(base.GOLDEN / "hostile/negative-rows")
        self.assertIn("layer.weight", broken)
        self.assertRaises(dcpfs.DcpfsError, lambda: broken["layer.weight"])
        self.assertNotIn(7, ck)
        with self.assertRaises(dcpfs.DcpfsError) as got:
            dcpfs.open("/no/such/place")
        self.assertEqual((got.exception.code, got.exception.rank), (2, -1))
        self.assertRaisesRegex(dcpfs.DcpfsError, "no version", dcpfs.open, golden("dcp-fsdp2")[0], "step-99")
        self.assertRaisesRegex(dcpfs.DcpfsError, "incomplete", dcpfs.open, golden("dcp-fsdp2")[0], "step-30")
        self.assertRaises(ValueError, dcpfs.open, golden("dcp-fsdp2")[0], io="quickly")

    def test_raw_objects_are_bytes_of_the_file(self):
        """Bytes of objects are those of the file, which Python's pickle finds by itself; a compressed one is a sound archive."""
        plain = encoded = 0
        for folder in sorted(p.parent.name for p in base.GOLDEN.glob("*/manifest.json") if p.parent.name[:3] in ("dcp", "meg", "com")):
            source, versions = golden(folder)
            for name in versions:
                path = os.path.join(source, name)
                if not os.path.isdir(path) or not any(n.endswith(".metadata") for n in os.listdir(path)):
                    continue
                want = dcp.items(path)
                with self.subTest(path), dcpfs.open(path) as ck:
                    for key in want:
                        if key not in ck.objects:
                            continue  # it is a tensor, or opened
                        try:
                            raw = ck.objects.raw(key)
                        except dcpfs.DcpfsError as e:
                            self.assertEqual((e.code, folder[:8]), (errno.ENOTSUP, "composer"), e)  # a list in it is opened
                            continue
                        plain, encoded = plain + (not want[key][1]), encoded + want[key][1]
                        if want[key][1]:
                            self.assertIsNone(zipfile.ZipFile(io.BytesIO(raw)).testzip())
                        else:
                            self.assertEqual(raw, want[key][0], key)
        self.assertTrue(plain > 300 and encoded >= 5, (plain, encoded))

    def test_raw_files(self):
        """A file that is one value; a part of one has no bytes of its own."""
        source, _ = golden("torch-checkpointing")
        with dcpfs.open(source, "8-version-1.0") as ck:
            self.assertEqual(ck.objects.raw("rank1.vocab"), b"a\0b\xff")
            found = [k for k in ck.objects if self.code(ck, k) == errno.ENOTSUP]
            self.assertEqual(len(found), 2)
        with dcpfs.open(golden("torch-save")[0], "zip.pt") as ck:
            self.assertEqual({self.code(ck, k) for k in ck.objects}, {errno.ENOTSUP})
        with tempfile.TemporaryDirectory() as top:
            for name, value in ("three.pkl", 3), ("empty.pkl", []):
                raw = pickle.dumps(value)
                pathlib.Path(top, name).write_bytes(raw)
                with dcpfs.open(os.path.join(top, name)) as ck:
                    self.assertEqual([ck.objects.raw(k) for k in ck.objects], [raw])
        self.assertRaisesRegex(KeyError, "Nearest: ", lambda: step20().objects.raw("train.los"))

    @staticmethod
    def code(ck, key):
        try:
            return len(ck.objects.raw(key)) * 0
        except dcpfs.DcpfsError as e:
            return e.code

    def test_entries_agree_with_metadata(self):
        """What .metadata has, also where other keys are shown; nothing where there is none."""
        for path, shown, key, value in (
                ("composer-sharded/ckpt/tiny-run/checkpoints/ep1-ba4", "state.algorithms.0", "state.algorithms", list),
                ("dcp-plain/ckpt/all", "obj.tuple_with_tensor.1", "obj.tuple_with_tensor", None),
                ("megatron-dist/ckpt/iter_0000100", "rng_state/shard_0.0_2.2.0.cuda_rng_state", "rng_state/shard_0.0_2.2", list),
                ("parts/ckpt/checkpoint-5", "lm_head.weight", "optimizer.param_groups.0.lr", None)):
            with self.subTest(path), dcpfs.open(base.GOLDEN / path, cache="") as ck:
                entries = ck.entries()
                self.assertTrue(entries[key].is_object, entries.keys())
                self.assertNotIn(shown, entries)
                self.assertIn(shown, [*ck, *ck.objects])
                item = entries[key].item and ck.decoded(entries[key].item)
                self.assertEqual(type(item) if value else item, value)
        for folder in "dcp-rank-local", "hf-llama", "torch-save":
            with self.subTest(folder), dcpfs.open(golden(folder)[0], cache="") as ck:
                self.assertEqual(ck.entries(), {})

    def test_pieces_fill_their_tensors(self):
        """Boxes that fill each tensor, in files that are there; an object's file; none of what shares its bytes with others."""
        many, files = 0, set()
        for folder in base.GOLDEN / "dcp-fsdp2/ckpt/step-10", base.GOLDEN / "dcp-plain/ckpt/all":
            with dcpfs.open(folder, cache="") as ck:
                for key, t in ck.items():
                    found = stored.pieces(ck, key)
                    self.assertEqual(sum(math.prod(p.shape) for p in found), math.prod(t.shape), key)
                    self.assertTrue(all(len(p.lo) == len(p.shape) == t.ndim for p in found), key)
                    many += len({p.file for p in found}) > 1
                    files |= {folder / p.file for p in found}
                for key in ck.objects:
                    found = stored.pieces(ck, key)
                    self.assertTrue(all(p.lo == p.shape == () for p in found) and len(found) < 2, key)
                    files |= {folder / p.file for p in found}
                self.assertRaises(KeyError, stored.pieces, ck, "nothing")
        self.assertTrue(many and found and all(f.is_file() for f in files), files)
        with dcpfs.open(base.GOLDEN / "torch-save/ckpt/list.pt", cache="") as ck:
            self.assertEqual(stored.pieces(ck, next(iter(ck.objects))), [])

    def test_hostile_objects(self):
        """What is no object of its class, or would take for ever, stays what was stored."""
        dtype = {"$class": "numpy.dtype", "args": ["i4", False, True], "state": [3, "<", None, None, None, -1, -1, 0]}
        for said in ({"$class": "fractions.Fraction", "args": ["1e999999999"]}, {"$class": "fractions.Fraction", "args": [1, 0]},
                     {"$class": "decimal.Decimal", "args": ["x"]}, {"$class": "decimal.Decimal", "args": [[0, [1], 2]]}, {"$class": "uuid.UUID", "state": {"int": -1}},
                     {"$class": "pathlib.PosixPath", "args": [1]}, {"$class": "argparse.Namespace", "state": [1]}, {"$class": "collections.deque", "args": [[], -1]},
                     {"$class": "uuid.UUID", "state": {"int": 1}, "items": [1]}, {"$class": ["uuid.UUID"]}, {"$class": "numpy.dtype", "args": ["f16", False, True]},
                     {"$class": "numpy.dtype", "args": ["i4,i4", False, True]}, {"$class": "os.system", "args": ["true"]},
                     {"$class": "numpy._core.multiarray.scalar", "args": [{"$class": "numpy.dtype", "args": ["O8"]}, {"$bytes": "AAAAAAAAAAA="}]},
                     {"$class": "numpy._core.multiarray._reconstruct", "args": [{"$class": "type", "args": ["numpy.ndarray"]}, [0], ""],
                      "state": [1, [1 << 60], dtype, False, {"$bytes": "AAAAAA=="}]},
                     {"$class": "numpy._core.multiarray._reconstruct", "args": [{"$class": "type", "args": ["numpy.matrix"]}, [0], ""],
                      "state": [1, [1], dtype, False, {"$bytes": "AAAAAA=="}]}):
            with self.subTest(said):
                got = dcpfs.objects.decode(json.dumps(said), "x")
                self.assertEqual(got["$class"], said["$class"])
                self.assertTrue(classes.foreign([{"a": (got,)}]))

    def test_objects_have_their_values(self):
        o = step20().objects
        self.assertEqual(o["train.blob"], b"\0\xff\x80bytes")
        self.assertEqual(o["optimizer.param_groups.0.betas"], (0.9, 0.95))
        self.assertNotEqual(o["train.nan"], o["train.nan"])
        self.assertEqual((o["train.big"], o["train.loss"], o["train.dtype"]), (1180591620717411303424, 0.125, "bfloat16"))
        self.assertEqual(o["train.info"]["$class"], "trainer_types.RunInfo")
        self.assertEqual(len(o), len(list(o)))
        array = {"data": {"$bytes": "AQIDBAUG"}, "dtype": "|u1", "shape": [2, 3]}
        for fortran, want in (False, [[1, 2, 3], [4, 5, 6]]), (True, [[1, 3, 5], [2, 4, 6]]):
            got = dcpfs.objects.decode(json.dumps({"$ndarray": {**array, "fortran_order": fortran}}), "numpy.ndarray")
            self.assertEqual(got.tolist(), want)

    def test_a_decimal_comma_is_survived(self):
        """Where the program writes a decimal comma, JSON still has a point."""
        with tempfile.TemporaryDirectory() as where:
            pathlib.Path(where, "comma").write_text('LC_NUMERIC\ndecimal_point "<U002C>"\nthousands_sep ""\n'
                                                    "grouping -1\nEND LC_NUMERIC\n")
            subprocess.run(["localedef", "-c", "-i", f"{where}/comma", f"{where}/comma_XX"], capture_output=True)
            code = ("import locale, sys; locale.setlocale(locale.LC_NUMERIC, 'comma_XX')\n"
                    "assert locale.str(0.5) == '0,5'\n"
                    "import dcpfs; ck = dcpfs.open(sys.argv[1], 'step-20', cache='')\n"
                    "assert ck.objects['train.loss'] == 0.125, ck.objects['train.loss']\n"
                    "dcpfs.save({'x': 0.125}, sys.argv[2], format='torch-save')\n"
                    "assert dcpfs.open(sys.argv[2], cache='').objects['x'] == 0.125")
            subprocess.run([sys.executable, "-c", code, golden("dcp-fsdp2")[0], f"{where}/out"], check=True,
                           env={**os.environ, "LOCPATH": where, "PYTHONPATH": str(base.ROOT / "tools/python")})

    def test_closed_checkpoints_refuse_reads(self):
        ck = step20()
        t, twin = ck["model.norm.weight"], pickle.loads(pickle.dumps(ck))
        self.assertEqual(twin["model.norm.weight"].read().tobytes(), t.read().tobytes())
        ck.close()
        ck.close()
        self.assertRaisesRegex(ValueError, "is closed", t.read)
        self.assertIn("closed", repr(ck))
        threads = [threading.Thread(target=lambda: [twin[k].read() for k in twin]) for _ in range(4)]
        for th in threads:
            th.start()
        for th in threads:
            th.join()

    def test_misleading_characters_are_escaped(self):
        """Characters that turn, hide or end text are shown escaped, as by the programs: in errors, representations, tables and pages."""
        core = (base.ROOT / "core/base/text.c").read_text()
        ranges = [(int(lo, 16), int(hi, 16)) for lo, hi in re.findall(r"\{ (0x\w+), (0x\w+) \}", core[core.index("bool is_hidden("):])]
        self.assertGreater(len(ranges), 10)
        for c in range(0x110000):
            hidden = 0xd800 <= c < 0xe000 or any(lo <= c <= hi for lo, hi in ranges)
            self.assertEqual(bool(misleading.HIDDEN.match(chr(c))), hidden, hex(c))
        bad, good = "w\u202e\u009b\u200b\u3164\ufe0fq", "w\\xe2\\x80\\xae\\xc2\\x9b\\xe2\\x80\\x8b\\xe3\\x85\\xa4\\xef\\xb8\\x8fq"
        self.assertEqual([misleading.shown(w) for w in (bad, "a\udcff", "a\ud800", "\u00e9 \u6f22\\")], [good, "a\\xff", "a\\xed\\xa0\\x80", "\u00e9 \u6f22\\"])
        with tempfile.TemporaryDirectory() as scratch:
            dcpfs.save({bad: np.zeros(2), "v": np.ones(1), "o" + bad: 1}, f"{scratch}/s", comm=None)
            with dcpfs.open(f"{scratch}/s", cache="") as ck:
                texts = [repr(ck), ck._repr_html_(), repr(ck.objects), repr(ck[bad]), repr(ck.shard("fsdp2", 0)[bad])]
                for wrong in (lambda: ck[bad].read_into(bytearray(3)), lambda: ck[bad + "x"], lambda: dcpfs.load(f"{scratch}/s", comm=None, into={bad: bytearray(3)}),
                              lambda: ck.shard(bad, 0), lambda: dcpfs.load(f"{scratch}/s", comm=None, into={bad: np.zeros((1, 2))})):
                    with self.assertRaises(Exception) as caught:
                        wrong()
                    texts.append(str(caught.exception.args[0] if isinstance(caught.exception, KeyError) else caught.exception))
            for said in texts:
                with self.subTest(said):
                    self.assertIsNone(misleading.HIDDEN.search(said.replace("\n", "")))
                    self.assertRegex(said, r"w\\+(xe2|u202e)")

    def test_representations_are_short(self):
        ck = step20()
        self.assertIn("77 tensors", repr(ck))
        self.assertLess(len(repr(ck).splitlines()), 25)
        self.assertIn("<td>model.*</td>", ck._repr_html_())
        ck.close()
        self.assertIn("closed", ck._repr_html_())


class Arrays(unittest.TestCase):
    def test_regions_agree_with_numpy(self):
        ck, chance = step20(), random.Random(5)
        for key in [k for k in ck if ck[k].shape and ck[k].nbytes][::4]:
            t = ck[key]
            whole = np.frombuffer(t.read().buffer, f"V{t.itemsize}").reshape(t.shape)
            for _ in range(20):
                first, last = chance.randint(0, t.ndim), chance.randint(0, t.ndim)
                index = tuple(self.word(chance, n) for n in t.shape[:first])
                if chance.random() < 0.5:
                    index += (..., *([None] * chance.randint(0, 1)), *(self.word(chance, n) for n in t.shape[max(first, last):]))
                got, want = t[index], whole[index]
                self.assertEqual((got.shape, got.tobytes()), (want.shape, want.tobytes()), f"{key}{index}")

    @staticmethod
    def word(chance, n):
        if chance.random() < 0.3:
            return chance.randint(-n, n - 1)
        end = [None, *range(-n - 2, n + 3)]
        return slice(chance.choice(end), chance.choice(end), chance.choice([None, 1, 2, 3, 7, -1, -2, -5]))

    def test_bad_regions(self):
        t = step20()["model.embed_tokens.weight"]
        for index in ((131,), (0, -23), (0, 0, 0), (..., ...)):
            self.assertRaises(IndexError, lambda: t[index])
        for index in ("x", 1.0, True, [0, 1]):
            self.assertRaises(TypeError, lambda: t[index])

    def test_values_agree_with_their_dtypes(self):
        """numpy() has the values that the definition of each dtype gives."""
        ck = dcpfs.open(golden("dcp-plain")[0], "flat")
        for key in ck:
            t = ck[key]
            if t.dtype in arrays.DESCR:
                want = arrays.widened(t.dtype, t.read().tobytes())
                same = np.frombuffer(want, arrays.DESCR[t.dtype])
                got = t.numpy()
                self.assertEqual(got.dtype, same.dtype, key)
                np.testing.assert_array_equal(got.reshape(-1), same, key)
            self.assertEqual(t.memoryview().nbytes, t.nbytes)
            self.assertEqual(DTYPES[t.dtype].size, t.itemsize)
            if t.nbytes and t.dtype not in ("C64", "C128", "C32"):
                self.assertEqual(t.memoryview().shape, t.shape)

    def test_tensors_become_arrays(self):
        t = step20()["optimizer.state.scale.step"]
        self.assertEqual(np.asarray(t).shape, t.shape)
        self.assertEqual(np.asarray(t, dtype="f8").dtype, np.float64)
        self.assertEqual(t.item(), float(t.numpy()))
        buffer = bytearray(t.nbytes)
        t.read_into(buffer)
        self.assertEqual(bytes(buffer), t.read().tobytes())
        self.assertRaises(ValueError, t.read_into, bytearray(t.nbytes + 1))
        self.assertRaises(ValueError, t.read_into, bytes(t.nbytes))
        a = t.read()
        self.assertTrue(np.shares_memory(a.numpy(), a.__array__()))
        self.assertFalse(np.shares_memory(a.numpy(), a.__array__(copy=True)))

    def test_pages_of_files_are_mapped(self):
        """Pages of the file itself, private to this process; what is no run of bytes in a file is not mapped."""
        for source, some in ((golden("hf-llama")[0], True), (step20().source, True),
                             (base.GOLDEN / "composer/ckpt/containers/ep2-ba6-rank0.pt.gz", False)):
            with dcpfs.open(source, cache="") as ck:
                arrays = {key: a for key in ck if (a := ck[key].mapped()) is not None}
                self.assertEqual(bool(arrays), some, source)
                for key, a in arrays.items():
                    self.assertEqual(a.tobytes(), ck[key].read().tobytes(), key)
        with tempfile.TemporaryDirectory() as scratch:
            file = pathlib.Path(scratch, "big.safetensors")
            header = json.dumps({"w": {"dtype": "F32", "shape": [16 << 20], "data_offsets": [0, 64 << 20]}}).encode().ljust(128)
            file.write_bytes(len(header).to_bytes(8, "little") + header)
            os.truncate(file, 136 + (64 << 20))
            ck = dcpfs.open(file, cache="")

            def private():
                return int(re.search(r"RssAnon:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1])

            before = private()
            a = ck["w"].mapped().numpy()
            ck.close()
            a[5] = 7
            self.assertEqual((a[4:7].tolist(), a.sum()), ([0, 7, 0], 7))
            self.assertLess(private() - before, 8192)  # KiB; 65536 if it were copied
            self.assertIn("big.safetensors", pathlib.Path("/proc/self/maps").read_text())
            del a
            gc.collect()
            self.assertNotIn("big.safetensors", pathlib.Path("/proc/self/maps").read_text())
            self.assertEqual(dcpfs.open(file, cache="")["w"][4:7].numpy().tolist(), [0, 0, 0])
            with unittest.mock.patch("mmap.mmap", side_effect=ValueError("mmap length is greater than file size")):
                self.assertIsNone(dcpfs.open(file, cache="")["w"].mapped())
            parts = {"b": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}}
            header = json.dumps(parts).encode().ljust(256)
            file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(9))
            ck = dcpfs.open(file, cache="")
            self.assertEqual([ck[k].mapped() is None for k in "bw"], [False, True])  # no array of F32 begins at an odd address

    def test_dlpack_gives_the_same_values(self):
        t = step20()["train.nested.0.t"]
        a = np.from_dlpack(t)
        np.testing.assert_array_equal(a, t.numpy())
        self.assertEqual(t.__dlpack_device__(), (1, 0))
        held = len(dlpack._held)
        del a
        gc.collect()
        self.assertEqual(len(dlpack._held), held - 1)
        for _ in range(5):  # a capsule that is never taken is let go with the next one
            t.__dlpack__()
        self.assertLessEqual(len(dlpack._held), held + 1)
        self.assertRaises(BufferError, t.__dlpack__, dl_device=(2, 0))


class Ranks(unittest.TestCase):
    def test_shards_make_up_the_whole(self):
        ck = step20()
        key = "model.embed_tokens.weight"
        self.assertEqual(ck.ranks("fsdp4"), 4)
        parts = [ck.shard("fsdp4", r)[key] for r in range(4)]
        self.assertEqual(b"".join(p.read().tobytes() for p in parts), ck[key].read().tobytes())
        self.assertEqual(parts[0].global_shape, ck[key].shape)
        self.assertRaisesRegex(KeyError, "Nearest: ", lambda: ck.shard("fsdp4", 0)[key + "x"])
        self.assertRaisesRegex(dcpfs.DcpfsError, "no rank 4", ck.shard, "fsdp4", 4)
        self.assertRaises(dcpfs.DcpfsError, ck.shard, "no-such-layout", 0)

    def test_arrays_keep_the_plan_alive(self):
        """Memory of a plan lives as long as an array of it."""
        ck = step20()
        a = ck.shard("fsdp2", 1)["model.embed_tokens.weight"].numpy()
        before = a.copy()
        del ck
        gc.collect()
        np.testing.assert_array_equal(a, before)


class Package(unittest.TestCase):
    def test_without_numpy(self):
        script = ("import sys; sys.modules['numpy'] = None; sys.path.insert(0, sys.argv[1]); import dcpfs; "
                  "ck = dcpfs.open(sys.argv[2], 'step-20'); t = ck['model.embed_tokens.weight'][::-2, 3]; "
                  "print(len(ck), t.shape, t.memoryview()[0], repr(ck)[:7], ck.objects['train.loss'])")
        got = subprocess.run([sys.executable, "-c", script, str(base.ROOT / "tools/python"), golden("dcp-fsdp2")[0]],
                             capture_output=True, text=True)
        self.assertEqual((got.returncode, got.stderr), (0, ""))
        self.assertRegex(got.stdout, r"^77 \(66,\) \d+ step-20 0.125$")

    def test_the_module_becomes_the_program(self):
        """`python -m dcpfs` and scripts of the programs' names become the program on PATH, never themselves."""
        program = pathlib.Path(os.environ["DCPFS_LIBRARY"]).parent.parent / "dcpfs"
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place) / "site"
            shutil.copytree(base.ROOT / "tools/python/dcpfs", folder / "dcpfs")  # in no checkout
            scripts, programs = pathlib.Path(place) / "scripts", pathlib.Path(place) / "programs"
            scripts.mkdir()
            programs.mkdir()
            for name in ("dcpfs", "dcpload"):
                (scripts / name).write_text(f"#!{sys.executable}\nimport sys; sys.path.insert(0, {str(folder)!r})\n"
                                            "from dcpfs.__main__ import main\nmain()\n")
                (scripts / name).chmod(0o755)
            env = {**os.environ, "PATH": f"{scripts}:{programs}", "PYTHONPATH": str(folder)}
            module = ["-m", "dcpfs"]
            for words in (module, [str(scripts / "dcpfs")]):
                got = subprocess.run([sys.executable, *words, "version"], capture_output=True, text=True, env=env, timeout=60)
                self.assertEqual(got.returncode, 3)
                self.assertRegex(got.stderr, r"^dcpfs: the program is not found; looked for .*\n$")
            (programs / "dcpfs").symlink_to(program)
            want = subprocess.run([program, "version"], capture_output=True, text=True).stdout
            for words in (module, [str(scripts / "dcpfs")]):
                got = subprocess.run([sys.executable, *words, "version"], capture_output=True, text=True, env=env, timeout=60)
                self.assertEqual((got.returncode, got.stdout, got.stderr), (0, want, ""))
            got = subprocess.run([scripts / "dcpload", "--help"], capture_output=True, text=True, env=env, timeout=60)
            self.assertIn("--layout", got.stdout)
            got = subprocess.run([sys.executable, *module, "ls", place + "/absent"], capture_output=True, text=True, env=env, timeout=60)
            self.assertNotEqual(got.returncode, 0, "the program's exit code")

    def test_no_library(self):
        got = subprocess.run([sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import dcpfs; dcpfs.open('.')",
                              str(base.ROOT / "tools/python")], capture_output=True, text=True,
                             env={"DCPFS_LIBRARY": "/nowhere/libdcpload.so.0"})
        self.assertIn("ImportError: libdcpload.so.0 is not found", got.stderr)

    def test_only_the_own_source_tree_is_searched(self):
        """A library is loaded from the package's own source tree, and from no directory that only looks like one."""
        with unittest.mock.patch.dict(os.environ), tempfile.TemporaryDirectory() as top:
            os.environ.pop("DCPFS_LIBRARY")
            found = list(_lib.places("dcpload"))
            self.assertIn(str(base.ROOT / "build/tools/load/libdcpload.so.0"), found)
            for depth in "lib/site-packages", "tools/python", "python3/dist-packages":
                copy = shutil.copytree(pathlib.Path(dcpfs.__file__).parent, f"{top}/{depth}/dcpfs", ignore=shutil.ignore_patterns("__pycache__"))
                for build in "build", "build-old", "build/release":
                    os.makedirs(f"{top}/{build}/tools/load", exist_ok=True)
                    pathlib.Path(top, build, "tools/load/libdcpload.so.0").write_bytes(b"")
                with unittest.mock.patch.object(_lib, "__file__", f"{copy}/_lib.py"):
                    self.assertEqual(list(_lib.places("dcpload")), [f"{copy}/libdcpload.so.0", "libdcpload.so.0"])

    def test_old_library(self):
        with unittest.mock.patch.dict(_lib.FUNCTIONS["dcpload"], tomorrow=()):
            with self.assertRaisesRegex(ImportError, r"libdcpload\S* is older than this package \(no dcpload_tomorrow\): build again, or set DCPFS_LIB"):
                _lib.library.__wrapped__()

    def test_files_are_short_and_in_no_circle(self):
        """Every file of the package is short, and imports only files that do not import it in turn, for types neither."""
        needs = {}
        for p in pathlib.Path(dcpfs.__file__).parent.glob("*.py"):
            text = p.read_text(encoding="utf-8")
            self.assertLess(len(text.splitlines()), 300, p.name)
            needs[p.stem] = {name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.level
                             for name in ([node.module] if node.module else [a.name for a in node.names])}
        graphlib.TopologicalSorter(needs).prepare()


if __name__ == "__main__":
    base.main()
