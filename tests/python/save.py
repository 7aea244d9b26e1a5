#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs.save(): tensors cut at random by one to eight processes, read back as they were; objects; ranks that are killed, that
have no room for a file, that do not agree.

usage: save.py [TestCase.test...]
"""
import collections
import datetime
import json
import math
import os
import pathlib
import pickle
import random
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import base
from base import dcpfs, np

from dcpfs import tree

RANK = """
import json, os, random, resource, signal, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import save
from save import dcpfs, np
how = json.loads(sys.argv[3])
ranks = int(os.environ["WORLD_SIZE"])
started = []
for rank in range(ranks):  # each a process, after the imports, which take longest
    pid = os.fork()
    if not pid:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        os.dup2(os.open(f"{sys.argv[4]}/{rank}", os.O_CREAT | os.O_WRONLY), 1)
        break
    started.append(pid)
else:
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started]))
    sys.exit()
mine = {}
for key, whole, boxes in save.cut(how["seed"], ranks, how.get("scale", 1)):
    parts = [dcpfs.Box(np.array(whole[tuple(slice(*s) for s in box)], order="F"), [s[0] for s in box], whole.shape)
             for box, holders in boxes if rank in holders]
    if parts:
        mine[key] = parts
extra = how.get("extra", {}).get(str(rank))
flags = save.flags(how)
if rank == how.get("limited"):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
try:
    with dcpfs.Comm("env") as comm:
        saving = dcpfs.Saving(how["path"], how["format"], comm, flags=flags, timeout=120, staging=how.get("staging", 0))
        for key, parts in mine.items():
            for part in parts:
                saving.add(key, part, key.split("."))
        if extra:
            saving.add(*extra[:1], np.zeros(extra[1], extra[2]))
        if how.get("objects"):
            saving.add_object("step", 5)
            saving.add_object("args", [0.1, (0.9, 0.95), None, "text"])
        if rank == how.get("dies_first"):
            os.kill(os.getpid(), signal.SIGKILL)
        saving.write()
        for parts in mine.values():
            for part in parts if how.get("asynchronous") else ():
                part.data.fill(0)
        if rank == how.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        saving.wait()
        print(json.dumps(saving.report))
        saving.close()
except dcpfs.DcpfsError as e:
    print(json.dumps({"code": e.code, "rank": e.rank, "text": e.text}))
"""


def flags(how):
    return 1 * how.get("replace", False) | 2 * how.get("asynchronous", False)


def cut(seed, ranks, scale=1):
    """(key, the tensor, [(box, ranks that have it)]): the same in every process."""
    rng = random.Random(seed)
    for i in range(6):
        shape = [rng.randint(1, 9) * (scale if d == 0 else 1) for d in range(rng.randint(0, 3))]
        whole = np.random.default_rng(seed * 100 + i).integers(0, 250, shape).astype(rng.choice(["f4", "i8", "u1", "f2"]))
        boxes = [[(0, n) for n in shape]]
        for _ in range(rng.randint(0, 5) if shape else 0):
            box = rng.choice(boxes)
            d = rng.randrange(len(shape))
            at = rng.randint(*box[d])
            boxes.append(box[:d] + [(at, box[d][1])] + box[d + 1:])
            box[d] = (box[d][0], at)
        yield f"layer.{i}.w", whole, [(b, rng.sample(range(ranks), rng.randint(1, ranks))) for b in boxes]


def job(ranks, **how):
    """What each rank of a job says; None: nothing, it was killed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "DCPLOAD_TIMEOUT": "120",
           "TORCHELASTIC_RESTART_COUNT": os.urandom(8).hex()}  # another job may have the same port
    with tempfile.TemporaryDirectory(prefix="dcpfs-ranks-") as said:
        all_ranks = subprocess.Popen([sys.executable, "-B", "-c", RANK, str(base.ROOT / "tools/python"), str(base.ROOT / "tests/python"),
                                      json.dumps(how), said], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                     start_new_session=True)
        try:
            codes, err = all_ranks.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(all_ranks.pid, signal.SIGKILL)
            raise
        if all_ranks.returncode or set(json.loads(codes)) - {0, -signal.SIGKILL}:
            raise AssertionError(err)
        texts = [pathlib.Path(said, str(r)).read_text(encoding="utf-8") for r in range(ranks)]
    return [json.loads(text) if text else None for text in texts]


class Saves(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="dcpfs-save-")
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "step-1")

    def equal(self, seed, ranks, scale=1):
        with dcpfs.open(self.path) as ck:
            found = {}
            for key, whole, _ in cut(seed, ranks, scale):
                found[key] = ck[key].numpy()
                self.assertEqual(found[key].dtype, whole.dtype, key)
                np.testing.assert_array_equal(found[key], whole, key)
            self.assertEqual(set(ck), set(found))

    def nothing(self):
        """But what rank 0 could not remove, which is not a checkpoint, and which the next save removes."""
        names = os.listdir(self.folder.name)
        self.assertTrue(all(n.startswith(".step-1.dcpfs-") for n in names), names)
        said = job(2, seed=3, path=self.path, format="torch-dcp")
        self.assertEqual([s.get("text") for s in said], [None] * 2)
        self.assertEqual(os.listdir(self.folder.name), ["step-1"])
        self.equal(3, 2)

    def test_cuts_of_all_ranks_are_saved(self):
        for n, ranks in enumerate((1, 3, 8)):
            for format in ("torch-dcp", "safetensors", "torch-save", "npz")[:4 if ranks == 3 else 2]:
                with self.subTest(ranks=ranks, format=format):
                    self.path = os.path.join(self.folder.name, f"{format}-{ranks}")
                    later = bool((n + len(format)) % 2)
                    said = job(ranks, seed=n, path=self.path, format=format, asynchronous=later, staging=300,
                               objects=format.startswith("torch"))
                    self.assertEqual([s.get("text") for s in said], [None] * ranks)
                    self.equal(n, ranks)
                    self.assertEqual(sum(s["own"] for s in said), sum(w.nbytes for _, w, _ in cut(n, ranks)))
                    self.assertEqual([s["written"] for s in said], [s["own"] for s in said])
                    if format.startswith("torch"):
                        with dcpfs.open(self.path) as ck:
                            self.assertEqual({k: ck.objects[k] for k in ck.objects},
                                             {"step": 5, "args": [0.1, (0.9, 0.95), None, "text"]})

    def test_killed_ranks_leave_nothing(self):
        for victim in (1, 0):
            for when in ("dies_first", "dies"):
                with self.subTest(victim=victim, when=when):
                    self.path = os.path.join(self.folder.name, "step-1")
                    said = job(3, seed=1, path=self.path, format="torch-dcp", asynchronous=True, **{when: victim})
                    self.assertIsNone(said[victim])
                    for r, s in enumerate(said):
                        self.assertTrue(r == victim or s["code"], said)
                    self.nothing()
                    subprocess.run(["rm", "-r", self.path], check=True)

    def test_no_room(self):
        """A limit of one rank stands for a full disk: the error is everybody's, and nothing stays."""
        for limited in (0, 1):
            for format in ("torch-dcp", "safetensors"):
                with self.subTest(limited=limited, format=format):
                    said = job(3, seed=4, scale=3000, path=self.path, format=format, limited=limited)
                    self.assertEqual({(s["code"], s["rank"]) for s in said}, {(27, limited)}, said)
                    self.assertEqual(os.listdir(self.folder.name), [])

    def test_tensors_that_differ_between_ranks_are_refused(self):
        said = job(2, seed=1, path=self.path, format="torch-dcp", extra={"0": ["more", [2], "f4"], "1": ["more", [3], "f4"]})
        for s in said:
            self.assertEqual((s["code"], s["text"]), (22, "more is F32[2] on rank 0 and F32[3] on rank 1"))
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_only_replace_overwrites(self):
        for n in range(2):
            said = job(2, seed=n, path=self.path, format="torch-dcp", replace=n)
            self.assertEqual([s.get("text") for s in said], [None] * 2)
            self.equal(n, 2)
            said = job(2, seed=n, path=self.path, format="torch-dcp")
            self.assertEqual({s["code"] for s in said}, {17}, said)
            self.equal(n, 2)


class Alone(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="dcpfs-save-")
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name, "step-1")

    def test_nested_states_are_saved(self):
        state = {"model": {"w": np.arange(6.0).reshape(2, 3)[::-1].T, "list": [np.ones(2, "u1"), {"x": 1}], 3: np.array(2, "i2")},
                 "big": np.arange(3, dtype=">i4"), "empty": np.zeros((0, 2), "f4"),
                 "field": np.array([(1.5, 1), (2.5, 2)], [("a", "f4"), ("b", "u1")])["a"], "rng": b"\1\2", "none": None}
        dcpfs.save(state, self.path, comm=None)
        with dcpfs.open(self.path) as ck:
            for key, value in (("model.w", state["model"]["w"]), ("model.list.0", np.ones(2, "u1")), ("model.3", np.array(2, "i2")),
                               ("big", np.arange(3)), ("empty", state["empty"]), ("field", state["field"])):
                np.testing.assert_array_equal(ck[key].numpy(), value, key)
                self.assertEqual(ck[key].numpy().shape, value.shape, key)
            self.assertEqual({k: ck.objects[k] for k in ck.objects}, {"model.list.1.x": 1, "rng": b"\1\2", "none": None})

    def test_objects_keep_their_classes(self):
        """Objects come back as what they were, also inside of each other: types, and the order of an OrderedDict."""
        day = datetime.datetime(2026, 11, 23, 8, 30, 5, 7)
        state = {
            "tuples": {"a": (1, (2.5, [3, ()]), "x"), "b": ((), [(None,)])}, "sets": [{1, (2, 3)}, frozenset({frozenset({4}), "y"})],
            "bytes": (b"\0\xff", bytearray(b"ab")), "keys": ({(1, "a"): {2: (3,)}, None: [True]},), "$odd": ({"$set": [1]}, {"$bytes": "x"}),
            "order": (collections.OrderedDict([("z", (1,)), ("a", collections.OrderedDict())]),), "floats": [(math.inf, -0.0), -math.inf],
            "times": [day, day.date(), day.time(), datetime.timedelta(days=-1, microseconds=3)], "made": [range(1, 9, 2), slice(None, 3), 2 - 1j],
            "numpy": [np.float32(1.5), (np.int64(-7), np.bool_(True)), np.float16(2), np.complex64(1 + 2j), np.uint8(3)],
            "arrays": ({"a": np.arange(6, dtype="<i4").reshape(2, 3)}, (np.array([1.5, 2]),), 2 ** 70)}

        def exactly(value):
            if isinstance(value, dict):
                return type(value), [(exactly(k), exactly(v)) for k, v in value.items()]
            if isinstance(value, (list, tuple)):
                return type(value), [exactly(v) for v in value]
            if isinstance(value, (set, frozenset)):
                return type(value), sorted(map(repr, map(exactly, value)))
            return type(value), value.tolist() if isinstance(value, np.ndarray) else repr(value)

        for form in "torch-save", "torch-dcp":
            path = self.path.with_name(form)
            dcpfs.save({"all": state, "w": np.zeros(2, "f4")}, path, form, comm=None)
            with dcpfs.open(path, cache="") as ck:
                got = tree.skeleton(ck, ck.objects.__getitem__)["all"]
            for key, value in state.items():
                if form == "torch-save" and key in ("keys", "order"):  # dicts in tuples: keys of their own
                    continue
                self.assertEqual(exactly(got[key]), exactly(value), f"{form}: {key}")

    def test_checkpoints_are_saved_again(self):
        """What was read is written, and is the same."""
        source = base.golden("hf-llama")[0]
        with dcpfs.open(source) as ck:
            dcpfs.save(dict(ck), self.path, "safetensors", comm="alone")
            with dcpfs.open(self.path) as again:
                self.assertEqual(set(again), set(ck))
                for key in ck:
                    self.assertEqual(again[key].read().tobytes(), ck[key].read().tobytes(), key)
                    self.assertEqual(again[key].dtype, ck[key].dtype, key)

    def test_missing_directories_are_made(self):
        """Directories above that are missing are made."""
        at = f"{self.path}-new/run/step-1"
        dcpfs.save({"a": np.zeros(3)}, at, comm=None)
        with dcpfs.open(at) as ck:
            self.assertEqual(list(ck), ["a"])

    def test_a_slash_makes_a_directory(self):
        """A slash makes a directory of what is called like a file of another format."""
        dcpfs.save({"a": np.zeros(3)}, f"{self.path}.pt/", comm=None)
        with dcpfs.open(f"{self.path}.pt") as ck:
            self.assertEqual((list(ck), ck.fact("format")), (["a"], "torch-dcp"))

    def test_wrong_arguments_are_refused(self):
        with self.assertRaisesRegex(TypeError, "^x: an object of class object is not plain data"):
            dcpfs.save({"x": object()}, self.path, comm=None)
        with self.assertRaisesRegex(dcpfs.DcpfsError, "^step: the format holds tensors only; strict=False leaves it out$"):
            dcpfs.save({"step": 1}, self.path, "safetensors", comm=None, strict=True)
        with self.assertRaisesRegex(TypeError, "^x: an object of class object is not plain data"):
            dcpfs.save({"x": object(), "w": np.zeros(2)}, self.path, "safetensors", comm=None)
        with self.assertRaisesRegex(dcpfs.DcpfsError, "^c: .*strict=False leaves it out$"):
            dcpfs.save({"w": np.zeros(2), "c": np.zeros(2, "c16")}, self.path, "safetensors", comm=None)
        with self.assertRaisesRegex(dcpfs.DcpfsError, 'no format is called "zip"; there are .*safetensors'):
            dcpfs.save({"step": 1}, self.path, "zip", comm=None)
        with self.assertRaisesRegex(dcpfs.DcpfsError, r"x\.pt is called like a file of torch-save; safetensors writes a directory"):
            dcpfs.save({"w": np.zeros(2)}, f"{self.folder.name}/x.pt", "safetensors", comm=None)
        with self.assertRaisesRegex(TypeError, "^state_dict is a list, not a dict$"):
            dcpfs.save([np.zeros(2)], self.path, comm=None)
        with self.assertRaisesRegex(ValueError, "two leaves are called a.b"):
            dcpfs.save({"a": {"b": 1}, "a.b": 2}, self.path, comm=None)
        with self.assertRaisesRegex(dcpfs.DcpfsError, r"^w: elements .* stored nowhere"):
            dcpfs.save({"w": dcpfs.Box(np.zeros(2), [0], [3])}, self.path, comm=None)
        self.assertEqual(os.listdir(self.folder.name), [])
        saving = dcpfs.save({"step": 1, "x": object(), "w": np.zeros(2)}, self.path, "safetensors", comm=None, strict=False)
        self.assertEqual(saving.left, {"step": "the format holds tensors only"})
        with self.assertRaisesRegex(dcpfs.DcpfsError, "exists already; replace=True replaces it$"):
            dcpfs.save({"step": 1}, self.path, comm=None)
        pathlib.Path(self.folder.name, "notes").mkdir()
        pathlib.Path(self.folder.name, "notes", "thesis.txt").write_text("mine")
        with self.assertRaisesRegex(dcpfs.DcpfsError, "remove it first$"):
            dcpfs.save({"w": np.zeros(2)}, pathlib.Path(self.folder.name, "notes"), comm=None, replace=True)
        self.assertIn("safetensors", dcpfs.formats())

    def test_objects_in_formats_of_tensors_are_left_out(self):
        """Objects in a format of tensors are left out, and said: as the command line does."""
        with self.assertWarnsRegex(UserWarning, "^.*step-1, safetensors has 1 object less, as step: the format holds tensors only; strict=True makes"):
            saving = dcpfs.save({"step": 1, "w": np.ones(2)}, self.path, "safetensors", comm=None)
        self.assertEqual(saving.left, {"step": "the format holds tensors only"})
        with dcpfs.open(self.path) as ck:
            self.assertEqual(list(ck), ["w"])

    def test_protocol_2(self):
        """Arrays as text, which Python itself makes bytes again, in runs that are longer than one read."""
        state = {"a": np.arange(3 * 2**20, dtype="f4"), "b": np.arange(256, dtype="u1"), "n": {"t": (1, 2)}}
        dcpfs.save(state, self.path, "paddle", comm=None, protocol=2)
        raw = (self.path / "model.pdparams").read_bytes()
        self.assertEqual(raw[:2], b"\x80\2")
        got = pickle.loads(raw)
        for key in ("a", "b"):
            np.testing.assert_array_equal(got[key], state[key], key)
        self.assertEqual(got["n"], state["n"])

    def test_direct_writes_give_the_same_bytes(self):
        """Past the page cache or not, the same bytes: a piece of many pages at no page's beginning, and short ones."""
        state, wrote = {"w": np.random.default_rng(3).bytes(5000001), "v": b"short"}, []
        state = {k: np.frombuffer(v, "u1") for k, v in state.items()}
        for direct in (False, True):
            dcpfs.save(state, self.path, "safetensors", comm=None, direct=direct, replace=True)
            wrote.append(pathlib.Path(self.path, "model.safetensors").read_bytes())
        self.assertEqual(wrote[0], wrote[1])

    def test_given_up(self):
        saving = dcpfs.save({"w": np.zeros(2)}, self.path, comm=None, asynchronous=True)
        saving.close()
        self.assertEqual(os.listdir(self.folder.name), [])
        with self.assertRaisesRegex(ValueError, "closed"):
            saving.wait()
        with self.assertRaises(KeyError), dcpfs.save({"w": np.zeros(2)}, self.path, comm=None, asynchronous=True):
            raise KeyError
        self.assertEqual(os.listdir(self.folder.name), [])


if __name__ == "__main__":
    base.main()
