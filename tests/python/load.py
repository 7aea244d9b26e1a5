#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs.load() by one process, by several, and by threads with a communicator of their own; dcpfs.safe_open().

usage: load.py [TestCase.test...]
"""
import ctypes
import errno
import gc
import hashlib
import itertools
import json
import os
import pickle
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import base
from base import dcpfs, golden, np

from dcpfs.plan import Plan
from dcpfs.strided import overlaps, shared

KEY = "model.embed_tokens.weight"
SOURCE = golden("dcp-fsdp2")[0]

RANK = """
import hashlib, json, sys
sys.path.insert(0, sys.argv[1])
import dcpfs
try:
    got = dcpfs.load(sys.argv[2], sys.argv[3], comm="env", timeout=120, exchange=sys.argv[4])
    print(json.dumps({k: [list(a.shape), hashlib.sha256(a.buffer).hexdigest()] for k, a in got.items()}))
except dcpfs.DcpfsError as e:
    print(json.dumps({"code": e.code, "rank": e.rank, "text": e.text}))
"""


class Meeting:
    """Where the ranks of a job of threads put what they have to say."""

    def __init__(self, n):
        self.barrier, self.said = threading.Barrier(n, timeout=120), [None] * n

    def tell(self, rank, what):
        self.said[rank] = what
        self.barrier.wait()
        every = list(self.said)
        self.barrier.wait()
        return every


class ThreadComm(dcpfs.OwnComm):
    def __init__(self, meeting, rank, ranks, fail_at=None, failure=ValueError("lost its notes")):
        super().__init__("threads", rank, ranks)
        self.meeting, self.calls, self.fail_at, self.failure, self.timeouts = meeting, 0, fail_at, failure, set()

    def gather(self, mine, out, timeout):
        self.calls += 1
        self.timeouts.add(timeout)
        if self.calls == self.fail_at:
            self.meeting.barrier.abort()
            raise self.failure
        out[:] = b"".join(self.meeting.tell(self.rank, bytes(mine)))

    def exchange(self, send, receive, timeout):
        for r, parts in enumerate(self.meeting.tell(self.rank, [bytes(s) for s in send])):
            if parts[self.rank]:
                receive[r][:] = parts[self.rank]


def job(n, work):
    """work(rank) by n threads: what each returned or raised."""
    out = [None] * n

    def run(rank):
        try:
            out[rank] = work(rank)
        except Exception as e:
            out[rank] = e

    threads = [threading.Thread(target=run, args=[r]) for r in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


class Alone(unittest.TestCase):
    def test_whole_versions_are_loaded(self):
        got = dcpfs.load(SOURCE, comm="alone")
        with dcpfs.open(SOURCE) as ck:
            self.assertEqual(list(got), list(ck))
            for key in ck:
                self.assertEqual((got[key].shape, got[key].tobytes()), (ck[key].shape, ck[key].read().tobytes()), key)
        self.assertEqual((got.version, got.missing, got.report["ranks"]), ("step-20", {}, 1))
        self.assertRegex(repr(got), r"^Loaded\(step-20: \d+ tensors, 0 missing, Report\(.*needed [\d.]+ kB, .*execute \S+ s.*\)\)$")
        self.assertLess(len(repr(got)), 400)

    def test_arrays_outlive_their_load(self):
        """Arrays live on without what they were loaded with."""
        a = dcpfs.load(SOURCE, "fsdp4", 1, comm=None, keys=[KEY])[KEY]
        want = a.tobytes()
        n = a.numpy()
        del a
        gc.collect()
        dcpfs.load(SOURCE, comm=None)
        np.testing.assert_array_equal(n, dcpfs.open(SOURCE).shard("fsdp4", 1)[KEY].numpy())
        self.assertEqual(len(want), n.size * 2)

    def test_only_keys_asked_for_are_loaded(self):
        got = dcpfs.load(SOURCE, comm=None, keys=["model"], skip=["*.bias"], dtype="F32")
        self.assertTrue(got and all(k.startswith("model.") and not k.endswith(".bias") for k in got))
        np.testing.assert_array_equal(got[KEY].numpy(), dcpfs.open(SOURCE)[KEY].numpy())
        self.assertEqual(got[KEY].dtype, "F32")

    def test_changed_files_are_planned_again(self):
        """What only a view decodes, compressed items, is planned again as well when its file has changed."""
        with tempfile.TemporaryDirectory() as top:
            shutil.copytree(os.path.join(golden("dcp-async-dedup")[0], "6-zstd"), os.path.join(top, "6-zstd"))
            with dcpfs.open(top, cache="") as ck:
                plan = Plan(ck)
                plan.want_layout("fsdp1", 0)
                plan.finish()
                for name in os.listdir(os.path.join(top, "6-zstd")):
                    os.utime(os.path.join(top, "6-zstd", name), (1700000000, 1700000000))
                plan.execute().check()
                self.assertIn("changed", plan.report["again"])

    def test_memory_is_compared_with_a_record(self):
        """Memory is compared with a record of SHA-256; a flipped bit, and a key that is not recorded, are found."""
        with dcpfs.open(SOURCE, cache="") as ck, tempfile.TemporaryDirectory() as top:
            plan, record = Plan(ck), os.path.join(top, "record")
            plan.want_layout("fsdp1", 0)
            plan.finish()
            plan.execute()
            lines = []
            for part in plan.parts():
                h = hashlib.sha256(part.dtype.encode() + b"\0" + struct.pack(f"<{1 + len(part.shape)}Q", len(part.shape), *part.shape))
                h.update(ctypes.string_at(part.address, part.nbytes) if part.nbytes else b"")
                lines.append(f"{h.hexdigest()}  {part.key}\n")
            for text, code in (lines, 0), (lines[1:], errno.ENOKEY), (["x"], errno.EINVAL):
                with open(record, "w", encoding="utf-8") as f:
                    f.writelines(text)
                if code:
                    with self.assertRaises(dcpfs.DcpfsError) as got:
                        plan.verify(record)
                    self.assertEqual(got.exception.errno, code)
                else:
                    plan.verify(record)
            with open(record, "w", encoding="utf-8") as f:
                f.writelines(lines)
            part = next(p for p in plan.parts() if p.nbytes)
            memory = (ctypes.c_ubyte * part.nbytes).from_address(part.address)
            memory[part.nbytes - 1] ^= 1
            with self.assertRaisesRegex(dcpfs.DcpfsError, f"{part.key}: what was loaded is not what was recorded"):
                plan.verify(record)
            memory[part.nbytes - 1] ^= 1
            plan.verify(record)

    def test_only_ranks_of_the_job_coordinate(self):
        self.assertEqual(dcpfs.load(SOURCE, comm="alone", coordinator_rank=0).version, "step-20")
        for rank in 1, -1:
            with self.assertRaisesRegex(dcpfs.DcpfsError, "there is no rank .* to be the coordinator, only 0 to 0"):
                dcpfs.load(SOURCE, comm="alone", coordinator_rank=rank)

    def test_no_key(self):
        self.assertEqual(list(dcpfs.load(SOURCE, comm=None, keys=KEY)), [KEY])
        self.assertNotIn(KEY, dcpfs.load(SOURCE, comm=None, skip=KEY))
        for layout in (None, "fsdp1"):
            with self.assertRaisesRegex(KeyError, 'model.norm.weigh.*Nearest: "model.norm.weight"'):
                dcpfs.load(SOURCE, layout, comm=None, keys=["model.*", "model.norm.weigh"])
        got = dcpfs.load(SOURCE, comm=None, keys=[KEY, "nosuch.*"], strict=False)
        self.assertEqual((list(got), list(got.missing)), ([KEY], ["nosuch.*"]))

    def test_a_lone_process_must_say_its_rank(self):
        """One process is not eight, unless it says which."""
        with self.assertRaisesRegex(ValueError, "^fsdp8 has 8 ranks, 1 is running: start 8 .* rank=R$"):
            dcpfs.load(SOURCE, "fsdp8", comm=None)
        self.assertIn(KEY, dcpfs.load(SOURCE, "fsdp8", 0, comm=None))

    def test_regions_come_by_their_names(self):
        """A rank that holds several regions of a tensor, by the names that its layout gives them."""
        with tempfile.TemporaryDirectory() as scratch, dcpfs.open(SOURCE) as ck:
            layout, whole = f"{scratch}/some.regions", ck[KEY].numpy()
            with open(layout, "w") as f:
                f.write(f"0\n1 {KEY} [2:5, :]\n1 {KEY} [4:,1:3]\n1 model.norm.weight\n")
            want = {f"{KEY} [2:5, :]": whole[2:5], f"{KEY} [4:,1:3]": whole[4:, 1:3], "model.norm.weight": ck["model.norm.weight"].numpy()}
            for got in dcpfs.load(SOURCE, layout, 1, comm=None), ck.shard(layout, 1):
                self.assertEqual(list(got), list(want))
                for name, array in want.items():
                    np.testing.assert_array_equal(got[name].numpy(), array)
            self.assertEqual((ck.ranks(layout), len(ck.shard(layout, 0))), (2, 0))

    def test_memory_into(self):
        """Arrays that are no grid of elements are assigned to; elements or arrays that share memory are an error, or come in order."""
        norm, gain = "model.norm.weight", "model.layers.0.input_layernorm.weight"
        with dcpfs.open(SOURCE) as ck:
            want = {k: ck[k].numpy() for k in (norm, gain)}
            raw = {k: ck[k].read().tobytes() for k in want}
        n = len(want[norm])
        records = np.full(n, 7, [("x", "f4"), ("y", "u1")])
        for a in (records["x"], np.zeros(n, ">f4"), np.zeros(n, "f4")[::-1], np.zeros((n, 2), "f4")[:, 1], np.ma.masked_array(np.zeros(n, "f4"), True)):
            dcpfs.load(SOURCE, comm=None, into={norm: a})
            np.testing.assert_array_equal(np.asarray(a), want[norm])
        self.assertTrue((records["y"] == 7).all())
        for strides in ((0,), (2,), (1,)):
            a = np.lib.stride_tricks.as_strided(np.zeros(n, "f4"), (n,), strides)
            self.assertRaisesRegex(ValueError, f"^{norm}: elements of the array share memory", dcpfs.load, SOURCE, comm=None, into={norm: a})
        for keys in ((norm, gain), (gain, norm)):
            for make in (lambda: np.zeros(n, "f4"), lambda: np.zeros(n, "f8"), lambda: bytearray(len(raw[norm]))):
                one = make()
                dcpfs.load(SOURCE, comm=None, into={k: one for k in keys})
                if isinstance(one, bytearray):
                    self.assertEqual(bytes(one), raw[keys[1]])
                else:
                    np.testing.assert_array_equal(one, want[keys[1]])

    def test_strides_that_share_memory_are_found(self):
        """Whether elements share memory, as trying every place says."""
        chance = random.Random(8)
        for _ in range(2000):
            shape = [chance.randint(0, 4) for _ in range(chance.randint(0, 4))]
            stride, width = [chance.randint(0, 20) for _ in shape], chance.randint(1, 3)
            places = sorted(sum(i * s for i, s in zip(at, stride)) for at in itertools.product(*map(range, shape)))
            shared = any(b - a < width for a, b in zip(places, places[1:]))
            self.assertEqual(overlaps(shape, stride, width), shared, (shape, stride, width))

    def test_runs_that_overlap_are_found(self):
        """Which runs of memory are in a chain that overlaps, as merging sets of addresses says."""
        chance = random.Random(9)
        for _ in range(500):
            runs = [(chance.randint(0, 60), chance.randint(0, 9)) for _ in range(chance.randint(0, 12))]
            groups = []
            for i, (first, n) in enumerate(runs):
                mine, of = set(range(first, first + n)), {i}
                for group in [g for g in groups if g[0] & mine]:
                    groups.remove(group)
                    mine, of = mine | group[0], of | group[1]
                groups.append((mine, of))
            many = {i for _, of in groups if len(of) > 1 for i in of}
            self.assertEqual(shared(runs), [i in many for i in range(len(runs))], runs)

    def test_arrays_of_the_caller_are_filled(self):
        with dcpfs.open(SOURCE) as ck:
            t = ck[KEY]
            into = {KEY: np.zeros(t.shape, "f4", order="F"), "model.norm.weight": bytearray(ck["model.norm.weight"].nbytes)}
            got = dcpfs.load(SOURCE, comm=None, into=into)
            self.assertIs(got[KEY], into[KEY])
            np.testing.assert_array_equal(into[KEY], t.numpy())
            self.assertEqual(bytes(into["model.norm.weight"]), ck["model.norm.weight"].read().tobytes())
            fixed = np.zeros(t.shape, "f4")
            fixed.flags.writeable = False
            for wrong in ({KEY: bytearray(3)}, {KEY: bytearray(t.nbytes + 1)}, {KEY: bytes(t.nbytes)}, {KEY: memoryview(bytearray(2 * t.nbytes))[::2]},
                          {KEY: fixed}):
                self.assertRaises(ValueError, dcpfs.load, SOURCE, comm=None, into=wrong)
            self.assertRaisesRegex(dcpfs.DcpfsError, "stored with shape", dcpfs.load, SOURCE, comm=None, into={KEY: np.zeros((3, 3), "f4")})
            self.assertRaisesRegex(dcpfs.DcpfsError, "Nearest: ", dcpfs.load, SOURCE, comm=None, into={KEY + "x": np.zeros(t.shape, "f4")})
            self.assertRaises(TypeError, dcpfs.load, SOURCE, comm=None, into={KEY: 7})
            wide = {KEY: np.zeros(t.shape, "f8"), "optimizer.state.scale.step": np.zeros((), "c8")}
            dcpfs.load(SOURCE, comm=None, into=wide)
            for key, a in wide.items():
                np.testing.assert_array_equal(a, ck[key].numpy())
            self.assertTrue(wide[KEY].any())
            self.assertRaisesRegex(dcpfs.DcpfsError, "converted", dcpfs.load, SOURCE, comm=None, into={KEY: np.zeros(t.shape, "i4")})
            got = dcpfs.load(SOURCE, comm=None, into={KEY: into[KEY], "nothing": np.zeros(3)}, strict=False)
            self.assertEqual(list(got.missing), ["nothing"])


class Together(unittest.TestCase):
    def processes(self, layout, exchange="auto", source=(SOURCE,) * 3):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        env = dict(os.environ, WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                   DCPLOAD_TIMEOUT="120", TORCHELASTIC_RESTART_COUNT=os.urandom(8).hex())  # another job may have the same port
        ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(base.ROOT / "tools/python"), source[r], layout, exchange],
                                  env=dict(env, RANK=str(r), LOCAL_RANK=str(r)), stdout=subprocess.PIPE, text=True) for r in range(3)]
        return [json.loads(p.communicate(timeout=240)[0]) for p in ranks]

    def test_processes_get_their_shards(self):
        import hashlib
        got = self.processes("fsdp3")
        with dcpfs.open(SOURCE) as ck:
            for rank in range(3):
                want = {k: [list(t.shape), hashlib.sha256(t.read().buffer).hexdigest()] for k, t in ck.shard("fsdp3", rank).items()}
                self.assertEqual(got[rank], want)

    def test_missing_ranks_are_waited_for_as_asked(self):
        """Ranks that never come are waited for as long as the caller says."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        env = dict(os.environ, WORLD_SIZE="2", RANK="0", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        env.pop("DCPLOAD_TIMEOUT", None)
        for call in "dcpfs.load(sys.argv[2], 'fsdp2', comm='env', timeout=1)", "dcpfs.save({}, '/nowhere/x', comm='env', timeout=1)":
            code = f"import sys, time; sys.path.insert(0, sys.argv[1]); import dcpfs\nbegun = time.monotonic()\ntry: {call}\n" \
                   "except dcpfs.DcpfsError as e: print(e.code, time.monotonic() - begun)"
            said = subprocess.run([sys.executable, "-c", code, str(base.ROOT / "tools/python"), SOURCE], env=env, capture_output=True, text=True)
            self.assertEqual((said.stderr, said.stdout.split()[:1]), ("", [str(errno.ETIMEDOUT)]))
            self.assertLess(float(said.stdout.split()[1]), 30)

    def test_own_rank(self):
        """An error names the rank that failed on all ranks, the one that failed too."""
        meeting = Meeting(2)
        with tempfile.TemporaryDirectory() as scratch:
            into = [{KEY: np.zeros((131, 22), "f4")}, {KEY + "x": np.zeros(3, "f4")}]
            for work in (lambda r: dcpfs.load(SOURCE, comm=ThreadComm(meeting, r, 2), into=into[r], timeout=120),
                         lambda r: dcpfs.save({"w": dcpfs.open(SOURCE)[KEY] if r == 0 else dcpfs.Box(np.zeros(3), [0], [1, 2])}, f"{scratch}/x",
                                              comm=ThreadComm(meeting, r, 2), timeout=120),
                         lambda r: dcpfs.open("/no/such/place" if r else SOURCE, comm=ThreadComm(meeting, r, 2), timeout=120)):
                got = job(2, work)
                self.assertEqual([(e.rank, str(e)[:8]) for e in got], [(1, "rank 1: ")] * 2, got)

    def test_a_failure_reaches_all_ranks(self):
        """One rank does not see the checkpoint: all say so."""
        got = self.processes("fsdp3", source=(SOURCE, SOURCE, "/no/such/place"))
        self.assertEqual({g["text"] for g in got}, {got[0]["text"]})
        self.assertEqual([(g["code"], g["rank"]) for g in got], [(2, 2)] * 3)

    def test_threads_get_their_shards(self):
        for exchange in ("never", "all"):
            meeting = Meeting(3)
            got = job(3, lambda r: dcpfs.load(SOURCE, "fsdp3", comm=ThreadComm(meeting, r, 3), exchange=exchange, timeout=120))
            with dcpfs.open(SOURCE) as ck:
                for rank in range(3):
                    self.assertIsInstance(got[rank], dcpfs.Loaded, repr(got[rank]))
                    self.assertEqual(got[rank][KEY].tobytes(), ck.shard("fsdp3", rank)[KEY].read().tobytes())

    def test_errors_of_callbacks_are_told(self):
        """What a callback raises is the text of the error."""
        for at in (1, 5, 9):
            meeting = Meeting(2)
            got = job(2, lambda r: dcpfs.load(SOURCE, "fsdp2", comm=ThreadComm(meeting, r, 2, at if r == 1 else None), timeout=120))
            self.assertIsInstance(got[1], dcpfs.DcpfsError)
            self.assertIn("ValueError: lost its notes", got[1].text)
            self.assertEqual(got[1].code, 5)
            self.assertIn("BrokenBarrierError", got[0].text)
        for failure, code in ((TimeoutError("no rank"), errno.ETIMEDOUT), (ConnectionResetError("gone"), errno.ECONNRESET)):
            meeting = Meeting(2)
            got = job(2, lambda r: dcpfs.load(SOURCE, "fsdp2", timeout=120,
                                              comm=ThreadComm(meeting, r, 2, 1 if r == 1 else None, failure)))
            self.assertEqual(got[1].code, code)

    def test_own_failure(self):
        """What only one rank gives wrong fails on all."""
        meeting = Meeting(2)
        into = [{KEY: np.zeros((131, 22), "f4")}, {KEY: 7}]
        got = job(2, lambda r: dcpfs.load(SOURCE, comm=ThreadComm(meeting, r, 2), into=into[r], timeout=120))
        for one in got:
            self.assertIsInstance(one, TypeError)
            self.assertIsInstance(one, dcpfs.DcpfsError)
            self.assertEqual((one.rank, one.code, str(one)), (1, 5, str(got[0])))
            self.assertIs(type(pickle.loads(pickle.dumps(one))), type(one))


    def test_wrong_arguments_reach_all_ranks(self):
        """So does what only one rank gives wrong to open and save with, before the library is called."""
        wrong = [{"rules": "/no/such/rules"}, {"io": "fast"}, {"device": "a\0"}, {"assets": 5}, {"timeout": "long"}, {"timeout": float("inf")},
                 {"version": "\0"}, {"source": 5}]
        into = [{"protocol": "new"}, {"format": "a\0"}, {"timeout": None}, {"path": 5}, {"state_dict": [1]}, {"state_dict": Mapping()}]
        with tempfile.TemporaryDirectory() as scratch:
            state = {"w": np.zeros(3, "f4")}
            for call, base_, one in [(dcpfs.open, {"source": SOURCE, "timeout": 9}, w) for w in wrong] + [
                    (dcpfs.save, {"state_dict": state, "path": f"{scratch}/x", "timeout": 9}, w) for w in into]:
                with self.subTest(one):
                    meeting = Meeting(2)
                    got = job(2, lambda r: call(comm=ThreadComm(meeting, r, 2), **{**base_, **(one if r else {})}))
                    self.assertIsInstance(got[1], (OSError, TypeError, ValueError, OverflowError, ctypes.ArgumentError))
                    self.assertEqual((got[0].rank, str(got[0])), (1, str(got[1])))
                    self.assertIs(type(got[0]), type(got[1]))
                    self.assertIsInstance(got[0], dcpfs.DcpfsError)
            self.assertEqual(os.listdir(scratch), [])

    def test_collective_calls_wait_as_asked(self):
        """Every call that is collective waits as long as the caller says."""
        with tempfile.TemporaryDirectory() as scratch:
            for work in (lambda c: dcpfs.load(SOURCE, "fsdp2", comm=c, timeout=99),
                         lambda c: dcpfs.save({"w": np.zeros(3, "f4")}, f"{scratch}/x", comm=c, timeout=99)):
                meeting = Meeting(2)
                comms = [ThreadComm(meeting, r, 2) for r in range(2)]
                got = job(2, lambda r: work(comms[r]))
                self.assertFalse([e for e in got if isinstance(e, Exception)])
                self.assertEqual([c.timeouts for c in comms], [{99}] * 2)


class Mapping(dict):
    """One that fails when it is looked at."""

    def items(self):
        raise ValueError("no items")


class SafeOpen(unittest.TestCase):
    def test_safe_open_has_its_interface(self):
        with dcpfs.safe_open(SOURCE, framework="np") as f:
            keys = f.keys()
            self.assertEqual(keys, sorted(keys))
            self.assertEqual(sorted(f.offset_keys()), keys)
            self.assertEqual(f.metadata()["format"], "np")
            self.assertEqual(f.get_tensor(KEY).shape, (131, 22))
            s = f.get_slice(KEY)
            self.assertEqual((s.get_shape(), s.get_dtype()), ([131, 22], "BF16"))
            np.testing.assert_array_equal(s[3:9, ::-2], f.get_tensor(KEY)[3:9, ::-2])
            self.assertRaises(KeyError, f.get_tensor, "nothing")
            for index in ([5, -1], (slice(2), np.array([3, 0]))):
                np.testing.assert_array_equal(s[index], f.get_tensor(KEY)[index])
            every = f.get_tensors()
            self.assertEqual(list(every), f.offset_keys())
            np.testing.assert_array_equal(every[KEY], f.get_tensor(KEY))
        for closed in (f.keys, f.offset_keys, f.get_tensors, f.metadata, lambda: f.get_tensor(KEY), lambda: s[0]):
            self.assertRaisesRegex(ValueError, "is closed", closed)
        self.assertRaises(ValueError, dcpfs.safe_open, SOURCE, framework="tf")
        self.assertRaises(ValueError, dcpfs.safe_open, SOURCE, "np", backend="zip")
        self.assertRaises(FileNotFoundError, dcpfs.safe_open, "/no/such/file", "np", backend="pread")

    def test_metadata_of_a_file_is_given(self):
        """What a file of safetensors says of itself."""
        with tempfile.TemporaryDirectory() as scratch:
            own = {"format": "pt", "q": 'a "quoted" \u00e9', "n": ""}
            header = json.dumps({"__metadata__": own, "w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}).encode()
            file = f"{scratch}/x.safetensors"
            with open(file, "wb") as f:
                f.write(len(header).to_bytes(8, "little") + header)
            with dcpfs.safe_open(file, "np", cache="") as f:
                self.assertEqual(f.metadata(), own)

    def test_safe_open_agrees_with_safetensors(self):
        """The same as safetensors itself gives."""
        try:
            from safetensors import safe_open
        except ImportError as why:
            self.skipTest(str(why))
        seen = 0
        for path in (base.GOLDEN / "hf-llama/ckpt").rglob("*.safetensors"):
            if "-of-" in path.name:
                continue  # one file of many: dcpfs reads the whole
            try:
                theirs = safe_open(str(path), framework="np")
            except Exception:  # a dtype that this release does not know
                continue
            with theirs, dcpfs.safe_open(path) as ours:
                self.assertEqual(ours.keys(), sorted(theirs.keys()))
                if theirs.metadata():
                    self.assertEqual(ours.metadata(), theirs.metadata())
                for key in ours.keys():
                    a, b = theirs.get_slice(key), ours.get_slice(key)
                    self.assertEqual((a.get_shape(), a.get_dtype()), (b.get_shape(), b.get_dtype()))
                    if a.get_dtype() in ("F32", "F16", "I64") and a.get_shape():
                        np.testing.assert_array_equal(a[1:], b[1:])
                        seen += 1
        self.assertGreater(seen, 0)


if __name__ == "__main__":
    base.main()
