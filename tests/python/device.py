#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dcpfs.load(device=...) into the memory of a GPU; without one, of the fake in tests/load/fake (LD_LIBRARY_PATH).

usage: device.py [TestCase.test...]
"""
import ctypes
import gc
import os
import pathlib
import sys
import tempfile
import types
import unittest
from unittest import mock

import base
from base import dcpfs, golden, np

SOURCE = golden("dcp-fsdp2")[0]
CUDA = ctypes.CDLL("libcuda.so.1")


class FakeArray:
    """Memory of the GPU as cupy would show it: every second column of a larger array."""

    def __init__(self, shape, itemsize, typestr, **more):
        ck = dcpfs.load(SOURCE, device="cuda:0")
        self.owner = max(ck.values(), key=lambda a: a.nbytes)
        assert self.owner.nbytes >= 2 * itemsize * shape[0] * shape[1]
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": typestr, "data": (self.owner.address, False), "version": 3,
            "strides": (shape[1] * 2 * itemsize, 2 * itemsize), **more}


class DeviceTest(unittest.TestCase):
    def test_devices_get_the_bytes_of_the_host(self):
        host, there = dcpfs.load(SOURCE), dcpfs.load(SOURCE, device="cuda:1")
        self.assertEqual(list(host), list(there))
        self.assertRegex(there.report["device"], "^cuda:1, ")
        self.assertEqual(host.report["device"], "")
        for key, a in host.items():
            b = there[key]
            self.assertIsInstance(b, dcpfs.DeviceArray)
            self.assertEqual((b.dtype, b.shape, b.nbytes, b.device), (a.dtype, a.shape, a.nbytes, 1))
            self.assertEqual(b.read().tobytes(), a.tobytes(), key)
            np.testing.assert_array_equal(b.numpy(), a.numpy())

    def test_empty_parts_hide_no_other_part(self):
        """After an empty part, which has the address of the next one, each part is read as itself."""
        with tempfile.TemporaryDirectory() as scratch:
            state = {"a": np.zeros((0, 3), "f4"), "b": np.arange(5, dtype="f4"), "c": np.zeros(0, "i8"), "d": np.arange(7, dtype="i8")}
            dcpfs.save(state, scratch + "/x", "safetensors", comm=None)
            got = dcpfs.load(scratch + "/x", comm=None, device="cuda:0", cache="")
            for key, a in state.items():
                np.testing.assert_array_equal(got[key].numpy(), a)

    def test_auto_takes_a_gpu_that_is_there(self):
        self.assertRegex(dcpfs.load(SOURCE, device="auto").report["device"], "^cuda:0, ")
        with self.assertRaisesRegex(dcpfs.DcpfsError, "there is no cuda:7, only 0 to 1"):
            dcpfs.load(SOURCE, device="cuda:7")

    def test_conversions_agree_with_the_host(self):
        a, b = (dcpfs.load(SOURCE, dtype="BF16", device=d) for d in (None, "cuda"))
        for key in a:
            self.assertEqual(a[key].tobytes(), b[key].read().tobytes(), key)

    def test_arrays_have_the_interfaces_of_gpus(self):
        got = dcpfs.load(SOURCE, device="cuda:0")
        for a in got.values():
            self.assertEqual(a.__dlpack_device__(), (2, 0))
            face = a.__cuda_array_interface__
            self.assertEqual((face["shape"], face["data"], face["strides"]), (a.shape, (a.address, False), None))
            self.assertEqual(int(face["typestr"][2:]), a.itemsize)
            self.assertIn("dltensor", repr(a.__dlpack__()))
            with self.assertRaises(BufferError):
                a.__dlpack__(dl_device=(1, 0))
        last = next(iter(got.values()))
        want = last.read().tobytes()
        del got, a
        gc.collect()
        self.assertEqual(last.read().tobytes(), want)

    def test_memory_of_the_caller_is_filled(self):
        """Converted, to memory of the caller with strides."""
        key = "model.layers.0.self_attn.q_proj.weight"
        into, want = FakeArray((22, 22), 4, "<f4"), dcpfs.load(SOURCE)[key].numpy()
        dcpfs.load(SOURCE, into={key: into}, device="cuda:0")
        rows = np.frombuffer(into.owner.read().tobytes()[:22 * 44 * 4], "<f4")
        np.testing.assert_array_equal(rows.reshape(22, 44)[:, ::2], want)
        into.__cuda_array_interface__["data"] = (into.owner.address, True)
        with self.assertRaisesRegex(ValueError, "read-only"):
            dcpfs.load(SOURCE, into={key: into}, device="cuda:0")


    def test_named_streams_are_waited_for(self):
        """What the consumer's array, or stream=, names is waited for by every lane; nothing else is."""
        key, log = "model.layers.0.self_attn.q_proj.weight", pathlib.Path(base._cache.name) / "log"
        for named, stream, waits in ((None, None, False), (1, None, True), (2, 1, True), (None, 2, True)):
            into = FakeArray((22, 22), 4, "<f4", stream=named)
            os.environ["FAKE_CUDA_LOG"] = str(log)
            dcpfs.load(SOURCE, into={key: into}, stream=stream, device="cuda:0")
            del os.environ["FAKE_CUDA_LOG"]
            lines = [line.split() for line in log.read_text().splitlines()]
            log.unlink()
            lanes = {w[1] for w in lines if w[0] == "+" and w[2] in ("in", "box")}
            waiting = {w[1] for w in lines if w[0] == "+" and w[2] == "wait"}
            self.assertEqual(lanes <= waiting, waits, (named, stream))
            self.assertEqual(bool(waiting), waits)
        two = {k: FakeArray((22, 22), 4, "<f4", stream=n) for n, k in enumerate((key, key.replace("q_proj", "o_proj")), 1)}
        with self.assertRaisesRegex(ValueError, "several streams"):
            dcpfs.load(SOURCE, into=two, device="cuda:0")

    def test_tensors_of_torch_are_filled(self):
        """A tensor of torch: its data_ptr(), dtype and strides, after what its current stream has queued."""
        key, log = "model.layers.0.self_attn.q_proj.weight", pathlib.Path(base._cache.name) / "log"
        asked, face = [], FakeArray((22, 22), 4, "<f4")
        stream = types.SimpleNamespace(cuda_stream=0)
        fake = types.SimpleNamespace(cuda=types.SimpleNamespace(current_stream=lambda device: asked.append(device) or stream))
        tensor = types.SimpleNamespace(
            data_ptr=lambda: face.owner.address, device=types.SimpleNamespace(type="cuda", index=0), dtype="torch.float32", shape=(22, 22),
            stride=lambda: (44, 2))
        with self.assertRaisesRegex(TypeError, "memory of"):
            dcpfs.load(SOURCE, into={key: tensor})
        os.environ["FAKE_CUDA_LOG"] = str(log)
        with mock.patch.dict(sys.modules, {"torch": fake}):
            dcpfs.load(SOURCE, into={key: tensor}, device="cuda:0")
        del os.environ["FAKE_CUDA_LOG"]
        self.assertEqual(asked, [tensor.device])
        self.assertIn(" wait ", log.read_text())
        rows = np.frombuffer(face.owner.read().tobytes()[:22 * 44 * 4], "<f4").reshape(22, 44)
        np.testing.assert_array_equal(rows[:, ::2], dcpfs.load(SOURCE)[key].numpy())

    def test_memory_of_gpus_is_saved(self):
        """Out of the memory of a GPU, now or copied before the program goes on, the same file as out of host memory."""
        scratch = pathlib.Path(base._cache.name)
        dcpfs.save(dict(dcpfs.load(SOURCE)), scratch / "host.safetensors", "safetensors", comm=None)
        want = (scratch / "host.safetensors").read_bytes()
        for device in (0, 1):
            got = dict(dcpfs.load(SOURCE, device=f"cuda:{device}"))
            for how in ({}, {"asynchronous": True}, {"asynchronous": True, "staging": 4000}):
                saving = dcpfs.save(got, scratch / "there.safetensors", "safetensors", comm=None, replace=True, **how).wait()
                self.assertEqual((scratch / "there.safetensors").read_bytes(), want)
                self.assertEqual(saving.report["on_device"], saving.report["given"])
        # of another GPU: through the host
        saving = dcpfs.save(got, scratch / "there.safetensors", "safetensors", comm=None, replace=True, device="cuda:0")
        self.assertEqual((scratch / "there.safetensors").read_bytes(), want)
        self.assertEqual(saving.report["on_device"], 0)
        with self.assertRaisesRegex(dcpfs.DcpfsError, "there is no cuda:7, only 0 to 1"):
            dcpfs.save({}, scratch / "no.safetensors", "safetensors", comm=None, device="cuda:7")
        with dcpfs.Saving(scratch / "no.safetensors", "safetensors", device="cuda:0") as saving:
            a = max(dcpfs.load(SOURCE, device="cuda:0").values(), key=lambda a: a.nbytes)
            piece = sys.modules["dcpfs.piece"].Piece("U8", (2, 3), None, (2, 3), a.address, (1, 2), a)
            with self.assertRaisesRegex(dcpfs.DcpfsError, "w is not row-major in the memory of the GPU"):
                saving.add("w", piece)
            saving.add("w", a)
            saving.write()


if __name__ == "__main__":
    base.main()
