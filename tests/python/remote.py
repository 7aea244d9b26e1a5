#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on a server, by URL, give the same arrays as their files; with torch at hand, also load() and the Reader of dcpfs.torch.

usage: remote.py [TestCase.test...]
"""
import os
import pathlib
import sys
import tempfile
import unittest

import base
from base import ROOT, dcpfs, golden, np

sys.path.insert(0, str(ROOT / "tests/origin"))
from dcpfs.plan import Plan  # noqa: E402
from server import Server  # noqa: E402

SERVER = Server(ROOT / "tests/golden")
os.environ.update(AWS_ENDPOINT_URL=SERVER.url, AWS_NO_SIGN_REQUEST="1")
SOURCE = golden("dcp-fsdp2")[0]
URLS = ("s3://bucket/dcp-fsdp2/ckpt", f"{SERVER.url}/web/dcp-fsdp2/ckpt/")


class Remote(unittest.TestCase):
    def test_arrays_are_those_of_the_files(self):
        want = dcpfs.load(SOURCE)
        for url in URLS:
            SERVER.taken()
            got = dcpfs.load(url)
            self.assertEqual(list(got), list(want), url)
            for key, array in want.items():
                self.assertEqual(bytes(got[key].buffer), bytes(array.buffer), f"{url}: {key}")
            self.assertTrue(SERVER.taken(), "the server was asked")

    def test_bytes_are_counted(self):
        said = []
        with dcpfs.open(URLS[0], cache="", progress=lambda done, total: said.append((done, total))) as ck:
            plan = Plan(ck)
            for key in ck:
                plan.want(key)
            plan.finish().execute()
        self.assertEqual(said[-1][0], said[-1][1])
        self.assertEqual([done for done, _ in said], sorted(done for done, _ in said))

    def test_saved_to_a_bucket(self):
        with tempfile.TemporaryDirectory() as top:
            server = Server(top)
            os.environ.update(GS_ENDPOINT_URL=server.url)  # a process keeps the server of a bucket
            try:
                state = {"model": {"w": np.arange(3_000_000, dtype="f4"), "n": 5}, "epoch": "last"}
                for name, words in (("torch-dcp", {}), ("torch-save", {}), ("torch-dcp", {"asynchronous": True, "replace": True})):
                    dcpfs.save(state, f"gs://bucket/{name}", name, comm=None, **words).wait()
                    dcpfs.save(state, f"{top}/here-{name}-{len(words)}", name, comm=None).wait()
                    want, got = ({p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir() if p.name != ".dcpfs-written"}
                                 for folder in (f"{top}/here-{name}-{len(words)}", f"{top}/{name}"))
                    self.assertTrue(got == want, f"{name}: {list(got)}, {list(want)}")
                self.assertEqual(server.uploads, {})
                with self.assertRaises(dcpfs.DcpfsError) as said:
                    dcpfs.save(state, "gs://bucket/torch-dcp", comm=None).wait()
                self.assertIn("exists already; replace=True replaces it", str(said.exception))
            finally:
                server.close()

    def test_what_is_not_there_is_an_error(self):
        with self.assertRaises(dcpfs.DcpfsError) as said:
            dcpfs.load("s3://bucket/no/such/run")
        self.assertIn("nothing is there", str(said.exception))

    def test_torch_loads_by_url(self):
        try:
            import torch
            from dcpfs.torch import load
        except ImportError:
            self.skipTest("no torch")
        states = []
        for source in (SOURCE + "/step-20", URLS[0] + "/step-20"):
            arrays = dcpfs.load(source)
            key = next(k for k, a in arrays.items() if np.prod(a.shape) > 1 and str(a.dtype) == "F32")
            state = {key: torch.zeros(tuple(arrays[key].shape))}
            load(state, checkpoint_id=source)
            states.append(state[key])
        self.assertEqual(states[1].numpy().tobytes(), states[0].numpy().tobytes())
        self.assertTrue(states[0].any())


if __name__ == "__main__":
    base.main()
